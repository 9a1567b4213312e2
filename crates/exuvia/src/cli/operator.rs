//! `exuvia operator`: its flags, and how its parts are put together.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use exuvia_api::{defaults, limits};
use exuvia_datastore::{DatastoreController, DatastoreSettings};
use exuvia_runtime::{
    Claim, Events, Health, LeaseSettings, LogFormat, LogLevel, Metrics, Runtime, RuntimeSettings, bind,
    elect_with_health, serve, start_logging,
};
use exuvia_storage::{ControllerSettings, OptIn, OptInLabel, Options, StorageController};
use exuvia_write::Writer;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};

use super::args::{OPERATOR_NAME, opt_in_label};
use super::cluster;
use super::values::{NO_SETTLE, api_server, crd, duration, group, listen_address, namespace, number, pause};

/// Settings of `exuvia operator`. Each can be given as a flag or as an environment variable.
#[derive(Clone, Debug, Args)]
pub struct OperatorArgs {
    /// Migrate the stored objects of CRDs that have opted in, and carry out every `StorageMigration`
    #[arg(long, env = "ENABLE_STORAGE_MIGRATION", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub enable_storage_migration: bool,
    /// Carry out every `DatastoreMigration`. Each one needs rights of its own, which `exuvia rbac -f` prints
    #[arg(long, env = "ENABLE_DATASTORE_MIGRATION", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub enable_datastore_migration: bool,
    /// How often a `DatastoreMigration` that waits is looked at again, besides at events
    #[arg(long, default_value = "10s", value_parser = duration, hide = true)]
    pub datastore_look_again: Duration,
    /// API groups whose labelled CRDs are managed; `example.com` includes `a.example.com`, `*` means all
    #[arg(
        long,
        env = "EXUVIA_GROUPS",
        value_delimiter = ',',
        value_parser = group,
        default_value = exuvia_api::GROUP
    )]
    pub groups: Vec<String>,
    /// CRDs by name: only these are managed, whatever their group; they also need the label
    #[arg(long, env = "EXUVIA_CRDS", value_delimiter = ',', value_parser = crd, value_name = "NAMES")]
    pub crds: Vec<String>,
    /// The label by which a CRD opts in, as key or key=value
    #[arg(long, env = "EXUVIA_OPT_IN_LABEL", default_value_t, value_parser = opt_in_label)]
    pub opt_in_label: OptInLabel,
    /// How long after a CRD change an API server may still store at the old version; a `StorageMigration` can override it
    #[arg(long, env = "EXUVIA_SETTLE", default_value = defaults::SETTLE, value_parser = duration, allow_hyphen_values = true)]
    pub settle: Duration,
    /// API servers to ask directly whether they are behind, in addition to those that the cluster lists (repeatable)
    #[arg(
        long = "apiserver",
        env = "EXUVIA_APISERVERS",
        value_delimiter = ',',
        value_parser = api_server,
        value_name = "URL"
    )]
    pub api_servers: Vec<http::Uri>,
    /// Look for ownerReferences at old versions on every object in the cluster after each migration. Without it no version
    /// is reported as droppable. It needs the right to list everything, including Secrets
    #[arg(long, env = "EXUVIA_LOOK_AT_REFERENCES", default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub look_at_references: bool,
    /// How often the operator looks again whether versions may be dropped, once a migration is done
    #[arg(long, env = "EXUVIA_LOOK_AGAIN", default_value = defaults::LOOK_AGAIN, value_parser = pause, allow_hyphen_values = true)]
    pub look_again: Duration,
    /// How many objects a migration processes at once, at most; a `StorageMigration` can override it
    #[arg(long, env = "EXUVIA_MAX_CONCURRENCY", default_value_t = defaults::MAX_CONCURRENCY, value_parser = number::<u16>(limits::MAX_CONCURRENCY), allow_negative_numbers = true)]
    pub max_concurrency: u16,
    /// How many objects a migration processes per second, at most; an object may take more than one request. A
    /// `StorageMigration` can override it
    #[arg(long, env = "EXUVIA_QPS", value_parser = number::<u32>(limits::QPS), allow_negative_numbers = true)]
    pub qps: Option<u32>,
    /// How many objects a list request returns, at most
    #[arg(long, env = "EXUVIA_PAGE_SIZE", default_value_t = defaults::PAGE_SIZE, value_parser = number::<u32>(limits::PAGE_SIZE), allow_negative_numbers = true)]
    pub page_size: u32,
    /// How many migrations run at once; waiting ones do not count
    #[arg(long, env = "EXUVIA_CONCURRENT_MIGRATIONS", default_value_t = defaults::CONCURRENT_MIGRATIONS, value_parser = number::<u16>(limits::CONCURRENT_MIGRATIONS), allow_negative_numbers = true)]
    pub concurrent_migrations: u16,
    /// The longest pause between two tries of a stalled migration
    #[arg(long, env = "EXUVIA_MAX_BACKOFF", default_value = defaults::MAX_BACKOFF, value_parser = pause, allow_hyphen_values = true)]
    pub max_backoff: Duration,
    /// Write only while holding a Lease, so that only one replica works at a time
    #[arg(long, env = "EXUVIA_LEADER_ELECT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub leader_elect: bool,
    /// The Lease's name
    #[arg(long, env = "EXUVIA_LEASE_NAME", default_value = OPERATOR_NAME)]
    pub lease_name: String,
    /// The Lease's namespace [default: the pod's namespace, or the namespace of the kubeconfig's context]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    pub lease_namespace: Option<String>,
    /// How long the Lease is valid after a renewal: a leader that stops answering is replaced after this time
    #[arg(long, env = "EXUVIA_LEASE_DURATION", default_value = defaults::LEASE_DURATION, value_parser = pause, allow_hyphen_values = true)]
    pub lease_duration: Duration,
    /// The address and port that serve /metrics, /livez, /readyz and /log-level
    #[arg(long, env = "EXUVIA_LISTEN", default_value = defaults::LISTEN, value_parser = listen_address, value_name = "ADDRESS:PORT")]
    pub listen: String,
    /// The format of log lines
    #[arg(long, env = "EXUVIA_LOG_FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// The log level: error, warn, info, debug, trace, or directives such as `info,exuvia_storage=debug`; PUT /log-level
    /// changes it at run time
    #[arg(long, env = "EXUVIA_LOG_LEVEL", default_value = defaults::LOG_LEVEL)]
    pub log_level: String,
    /// How long running migrations may take to stop when the operator is told to stop
    #[arg(long, env = "EXUVIA_SHUTDOWN_GRACE", default_value = defaults::SHUTDOWN_GRACE, value_parser = duration, allow_hyphen_values = true)]
    pub shutdown_grace: Duration,
    /// The pod's name, as shown in the Lease and in events [default: the host's name]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
}

/// A connection on which an answer takes longer is dead: the API server itself gives up after a minute. A watch may stay
/// silent for longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(65);

/// Runs until a signal says to stop.
pub(super) fn run(args: &OperatorArgs) -> anyhow::Result<ExitCode> {
    let log_level = start_logging(args.log_format, &args.log_level).map_err(|error| match error {
        exuvia_runtime::Error::LogLevel { given } => anyhow::anyhow!(
            "invalid --log-level {given:?}: expected error, warn, info, debug or trace, or directives such as \
             exuvia=debug,hyper=info"
        ),
        other => other.into(),
    })?;
    if args.settle.is_zero() {
        tracing::warn!("{NO_SETTLE}");
    }
    // Most of the work is waiting for the API server: two threads are enough, and each costs memory.
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the async runtime")?
        .block_on(operate(args, log_level))?;
    Ok(ExitCode::SUCCESS)
}

async fn operate(args: &OperatorArgs, log_level: LogLevel) -> anyhow::Result<()> {
    let config = cluster::config(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let listener = bind(&args.listen).await?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;

    let version = env!("CARGO_PKG_VERSION");
    let namespace = args.lease_namespace.as_ref().unwrap_or(&config.default_namespace);
    let identity = identity(args.pod_name.as_deref());
    let metrics = Metrics::new(version);
    let health = Health::new();
    let claim = if args.leader_elect {
        Claim::none()
    } else {
        Claim::always()
    };
    metrics.observe_claim(&args.lease_name, &claim);
    let ungated = Writer::named("exuvia")
        .user_agent(format!("exuvia/{version}"))
        .observe(metrics.observe_writes());
    let writer = ungated.clone().gate(claim.gate());
    let shared = Shared::connect(&config, writer, &metrics, &identity)?;
    // Separate connections: a renewal must not wait for a dead connection that a sweep uses.
    let leasing = ungated.connect(config.clone())?;

    let mut runtime = Runtime::new(
        shared.watching.clone(),
        claim.clone(),
        health.clone(),
        &metrics,
        RuntimeSettings {
            concurrency: args.concurrent_migrations.into(),
            max_backoff: args.max_backoff,
            grace: args.shutdown_grace,
        },
    );
    let operator = format!("{namespace}/{}", args.lease_name);
    add_controllers(&mut runtime, args, shared, operator);
    tracing::info!(
        version,
        identity,
        storage_migration = args.enable_storage_migration,
        datastore_migration = args.enable_datastore_migration,
        groups = args.groups.join(","),
        crds = args.crds.join(","),
        label = %args.opt_in_label,
        listen = %listener.local_addr()?,
        "operator starts"
    );

    // First the work ends, then the Lease is released, then the HTTP server stops.
    let (work_ended, mut may_release) = watch::channel(false);
    let (_lease_released, mut may_close) = watch::channel(());
    let serving = health.clone();
    tokio::spawn(serve(listener, serving, metrics, log_level, async move {
        let _ = may_close.changed().await; // fails when the sender is dropped, and that is the signal
    }));
    let (alive, election_ended) = oneshot::channel::<Infallible>();
    let electing = args.leader_elect.then(|| {
        let settings = LeaseSettings {
            namespace: namespace.clone(),
            name: args.lease_name.clone(),
            identity,
            duration: args.lease_duration,
        };
        let electing = elect_with_health(leasing, ungated, settings, claim, health, async move {
            let _ = may_release.wait_for(|ended| *ended).await;
        });
        tokio::spawn(async move {
            let _alive = alive; // dropped however the task ends, also by a panic
            electing.await;
        })
    });
    let elects = args.leader_elect;
    runtime
        .run(async move {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                // Without leader election this process would never lead again, and still look healthy.
                _ = election_ended, if elects => "the end of the leader election",
            };
            tracing::info!(
                because_of = name,
                "operator stops: finishing the objects in progress"
            );
        })
        .await;
    work_ended.send_replace(true);
    if let Some(electing) = electing {
        electing.await.context("leader election failed")?;
    }
    tracing::info!("operator has stopped");
    Ok(())
}

/// What every controller is given.
struct Shared {
    config: kube::Config,
    client: kube::Client,
    watching: kube::Client,
    writer: Writer,
    events: Events,
    metrics: Metrics,
}

impl Shared {
    fn connect(
        config: &kube::Config,
        writer: Writer,
        metrics: &Metrics,
        identity: &str,
    ) -> anyhow::Result<Self> {
        let mut answering = config.clone();
        answering.read_timeout = Some(ANSWER_WITHIN);
        let client = writer.connect(answering)?;
        Ok(Self {
            config: config.clone(),
            watching: writer.connect(config.clone())?,
            events: Events::new(client.clone(), writer.clone(), identity.to_owned()),
            client,
            writer,
            metrics: metrics.clone(),
        })
    }
}

/// Adds the controllers that are switched on. `operator` is this operator's name among others in the cluster.
fn add_controllers(runtime: &mut Runtime, args: &OperatorArgs, shared: Shared, operator: String) {
    let Shared {
        config,
        client,
        watching,
        writer,
        events,
        metrics,
    } = shared;
    if args.enable_storage_migration {
        runtime.add(StorageController::new(
            config.clone(),
            client.clone(),
            watching.clone(),
            writer.clone(),
            events.clone(),
            metrics.clone(),
            storage_settings(args, operator.clone()),
        ));
    }
    if args.enable_datastore_migration {
        let settings = DatastoreSettings {
            api_servers: args.api_servers.clone(),
            look_again: args.datastore_look_again,
            operator,
        };
        runtime.add(DatastoreController::new(
            config, client, watching, writer, events, metrics, settings,
        ));
    }
}

fn storage_settings(args: &OperatorArgs, operator: String) -> ControllerSettings {
    ControllerSettings {
        opt_in: OptIn {
            label: args.opt_in_label.clone(),
            groups: args.groups.clone(),
            crds: args.crds.clone(),
        },
        operator,
        look_at_references: args.look_at_references,
        look_again: args.look_again,
        defaults: Options {
            settle: args.settle,
            api_servers: args.api_servers.clone(),
            max_concurrency: args.max_concurrency.into(),
            qps: args.qps,
            page_size: args.page_size,
            ..Options::default()
        },
    }
}

/// Who holds the Lease: the pod, and a random number for this start of it, so that a restarted pod does not take the Lease
/// of its predecessor for its own.
fn identity(pod: Option<&str>) -> String {
    use std::hash::{BuildHasher, RandomState};
    let host = || {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Some(name).filter(|name| !name.is_empty())
    };
    let name = pod.map(str::to_owned).or_else(host);
    let start = RandomState::new().hash_one(std::process::id());
    format!("{}_{start:016x}", name.as_deref().unwrap_or("exuvia"))
}
