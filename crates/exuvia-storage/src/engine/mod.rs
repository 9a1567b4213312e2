//! The engine: a machine that observes, does the next step of the protocol, and remembers what came of it.

#[cfg(feature = "etcd")]
mod etcd;
mod observe;
mod sentences;
mod steps;
mod stored_versions;
mod sweeps;
mod whole_run;
#[cfg(not(feature = "etcd"))]
mod without_etcd;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exuvia_api::PassSpec;
use exuvia_runtime::ServerClock;
use exuvia_runtime::machine::Machine;
use exuvia_sweep::{Control, Progress, Sweep};
use exuvia_write::{RetryPolicy, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::Error;
use crate::audience::Audience;
use crate::built_in_resource::resource_name;
use crate::definition::Definition;
use crate::options::Options;
use crate::ownership::REWRITER;
use crate::protocol::{self, Hold, Next, Pass, Step, StepKind};
use crate::record::Record;
use crate::report::MigrationReport;
use crate::servers::{ApiServers, Settling};
use crate::survey::Survey;
use crate::verify::{Found, Trust, Verifier};

/// What a migration is busy with, for a progress bar or a status.
#[derive(Clone, Debug)]
pub struct Activity {
    /// The step, or the wait for one.
    pub step: StepKind,
    /// How far the sweep is, if it is one.
    pub progress: Option<watch::Receiver<Progress>>,
    /// How long it still waits, if it does.
    pub left: Option<Duration>,
}

/// What is migrated.
#[derive(Clone, Debug)]
enum Subject {
    /// A CRD by name.
    Crd(String),
    /// A built-in resource.
    BuiltIn(ApiResource),
}

/// Migrates one resource's objects. It can be dropped and made again at any time: all that matters is in the cluster.
pub struct Engine {
    client: Client,
    /// As it was given; [`Engine::writer`] puts the brake on it.
    given_writer: Writer,
    subject: Subject,
    name: String,
    options: Options,
    suspended: bool,
    control: Control,
    settling: Settling,
    clock: ServerClock,
    pass: Option<Pass>,
    /// The spec that is carried out, if there is one.
    spec: Option<PassSpec>,
    definition: Option<Arc<Definition>>,
    /// What the CRD has on record, as it was last read.
    record: Option<Record>,
    /// When objects were last found to move without an explanation.
    unsettled_at: Option<Instant>,
    trimmed_at: Option<Instant>,
    /// When every API server was first seen to be awake after the trim.
    awake_since: Option<Instant>,
    /// What the last sweep over all metadata of this engine saw.
    survey: Option<Survey>,
    /// Nothing is written: everything that can be told is looked at.
    rehearsing: bool,
    /// What a rewrite would lose was looked for when every API server had understood the newest schemas.
    looked_when_settled: bool,
    /// Whether every API server had, when they were last asked.
    is_settled: bool,
    watcher: Box<dyn Fn(Activity) + Send + Sync>,
    /// Who reads why it does not go on.
    audience: Audience,
    report: MigrationReport,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name)
            .field("pass", &self.pass)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for one CRD. `config` is what `client` was made from: API servers are asked one by one with it.
    pub fn new(
        config: &Config,
        client: Client,
        writer: Writer,
        crd: impl Into<String>,
        options: Options,
    ) -> Self {
        Self::about(Subject::Crd(crd.into()), config, client, writer, options)
    }

    /// An engine for one built-in resource: see [`built_in_resource::find`](crate::built_in_resource::find).
    pub fn for_built_in(
        config: &Config,
        client: Client,
        writer: Writer,
        resource: ApiResource,
        options: Options,
    ) -> Self {
        Self::about(Subject::BuiltIn(resource), config, client, writer, options)
    }

    fn about(subject: Subject, config: &Config, client: Client, writer: Writer, options: Options) -> Self {
        let name = match &subject {
            Subject::Crd(name) => name.clone(),
            Subject::BuiltIn(resource) => resource_name(resource),
        };
        let servers = ApiServers::new(config, &options.api_servers, &options.ignored_api_servers);
        let report = MigrationReport {
            resource: name.clone(),
            ..MigrationReport::default()
        };
        Self {
            client,
            given_writer: writer,
            subject,
            name,
            settling: Settling::new(servers),
            clock: ServerClock::default(),
            options,
            suspended: false,
            control: Control::new(),
            pass: None,
            spec: None,
            definition: None,
            record: None,
            unsettled_at: None,
            trimmed_at: None,
            awake_since: None,
            survey: None,
            rehearsing: false,
            looked_when_settled: false,
            is_settled: false,
            watcher: Box::new(|_| {}),
            audience: Audience::default(),
            report,
        }
    }

    /// Shares what is known about the API servers with migrations that run at the same time.
    #[must_use]
    pub fn asking(mut self, servers: &ApiServers) -> Self {
        self.settling = Settling::new(servers.clone());
        self
    }

    /// Goes on with a pass that was kept.
    #[must_use]
    pub fn resume(mut self, pass: Option<Pass>) -> Self {
        if let Some(pass) = &pass {
            self.unsettled_at = (pass.unexplained > 0 || pass.patrol_owed).then(Instant::now);
            self.report.stored_before.clone_from(&pass.stored_before);
        }
        self.pass = pass;
        self
    }

    /// Remembers with each pass that it carries out this spec.
    #[must_use]
    pub fn carrying_out(mut self, spec: PassSpec) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Whether the user asked to hold.
    #[must_use]
    pub fn suspended(mut self, suspended: bool) -> Self {
        self.suspended = suspended;
        self
    }

    /// Tells `watcher` what it is busy with.
    #[must_use]
    pub fn watched_by(mut self, watcher: impl Fn(Activity) + Send + Sync + 'static) -> Self {
        self.watcher = Box::new(watcher);
        self
    }

    /// Says for this audience what to do about what stands in the way.
    #[must_use]
    pub fn read_by(mut self, audience: Audience) -> Self {
        self.audience = audience;
        self
    }

    /// Cancels, pauses or slows down its sweeps from outside.
    #[must_use]
    pub fn controlled_by(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    /// What is to be kept, for [`resume`](Self::resume).
    pub fn pass(&self) -> Option<&Pass> {
        self.pass.as_ref()
    }

    /// The CRD as it was last read.
    pub fn definition(&self) -> Option<&Definition> {
        self.definition.as_deref()
    }

    /// What the CRD has on record about its bytes, as it was last read.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// What this engine's last sweep over all metadata saw; `None`: there was none.
    pub fn survey(&self) -> Option<&Survey> {
        self.survey.as_ref()
    }

    /// The API servers, as far as they are known.
    pub fn api_servers(&self) -> &ApiServers {
        self.settling.servers()
    }

    /// What was done so far.
    pub fn report(&self) -> &MigrationReport {
        &self.report
    }

    /// Reads the CRD and asks the API servers for the first time, so that waiting for them begins now.
    pub async fn look_around(&mut self) -> Result<(), Error> {
        self.next().await.map(drop)
    }

    /// Tells the watcher what it is busy with.
    fn busy(&self, step: StepKind, progress: Option<watch::Receiver<Progress>>) {
        (self.watcher)(Activity {
            step,
            progress,
            left: None,
        });
    }

    /// Writes. A 429 that the writer waits out by itself slows the sweeps down at once.
    fn writer(&self) -> Writer {
        self.given_writer.clone().also_observe(self.control.brake())
    }

    /// Writes objects, with more patience for other writers than usual: a heartbeat that writes fifty times a second is faster
    /// five times in a row on a busy machine.
    fn rewriter(&self) -> Writer {
        let usual = self.given_writer.retry_policy().clone();
        self.writer().acting_as(REWRITER).retry(RetryPolicy {
            conflicts: usual.conflicts.saturating_mul(2),
            ..usual
        })
    }

    fn verifier(&self, trust: Trust) -> Verifier {
        Verifier {
            writer: self.rewriter(),
            api: self.api(),
            definition: self.definition.clone(),
            trust,
            since: self.pass.as_ref().and_then(|pass| pass.r0_at),
            status_fallback: self.options.status_fallback,
            found: Found::default(),
        }
    }

    fn sweep(&self) -> Sweep {
        let sweep = Sweep::of(self.client.clone(), &self.resource())
            .page_size(self.options.page_size)
            .max_concurrency(self.options.max_concurrency)
            .controlled_by(&self.control);
        match self.options.qps.and_then(NonZeroU32::new) {
            Some(qps) => sweep.qps(qps),
            None => sweep,
        }
    }

    /// The resource at the endpoint that is asked.
    fn resource(&self) -> ApiResource {
        match (&self.subject, &self.definition) {
            (Subject::BuiltIn(resource), _) => resource.clone(),
            (Subject::Crd(_), Some(definition)) => {
                definition.resource(definition.endpoint().unwrap_or(&definition.crd.storage))
            }
            (Subject::Crd(_), None) => {
                unreachable!("a step other than Begin needs a CRD, and the rules saw one")
            }
        }
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.resource())
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    async fn find_crd(&self, name: &str) -> Result<Option<CustomResourceDefinition>, kube::Error> {
        let crds = self.crds();
        self.given_writer.retry_policy().read(|| crds.get_opt(name)).await
    }

    fn remember(&mut self, change: impl FnOnce(&mut Pass)) {
        if let Some(pass) = &mut self.pass {
            change(pass);
        }
    }
}

impl Machine for Engine {
    type Step = Step;
    type Hold = Hold;
    type Error = Error;

    async fn next(&mut self) -> Result<Next, Error> {
        self.clock.ask(&self.client).await;
        Ok(match &self.subject {
            Subject::Crd(name) => {
                let name = name.clone();
                protocol::next(&self.observe(&name).await?)
            }
            Subject::BuiltIn(_) => protocol::next_of_built_in(self.pass.as_ref(), self.suspended),
        })
    }

    async fn carry_out(&mut self, step: Step) -> Result<Option<Hold>, Error> {
        let started = Instant::now();
        let kind = step.kind();
        let mut hold = None;
        match step {
            Step::Begin => self.begin(),
            Step::Preflight => self.preflight().await?,
            Step::TakeR0 => self.take_r0().await?,
            Step::Rewrite => self.rewrite().await?,
            Step::Verify { full } => self.verify(full).await?,
            Step::Trim(old) => hold = self.trim(&old).await?,
            Step::Patrol => hold = self.patrol().await?,
        }
        self.report.timings.add(kind, started.elapsed());
        Ok(hold)
    }

    fn retry(&mut self, hold: &Hold) {
        self.pass = self.pass.as_ref().map(|pass| protocol::resume(hold, pass));
    }

    fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }
}
