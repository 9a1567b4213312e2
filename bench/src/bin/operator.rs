//! What the operator costs while it has nothing to do: memory by number of CRDs, writes in a minute, time to stop.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark sets up its world and plays the bare client"
)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::{ControlPlane, Process, Widgets};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;

/// The operator's own user, so that the audit log tells its requests from ours.
const USER: &str = "exuvia-operator";
/// One CRD in production is 10 to 200 kB, most of it descriptions.
const DESCRIPTION_BYTES: usize = 20_000;

#[derive(Parser)]
#[command(name = "operator")]
struct Args {
    /// The `exuvia` binary to measure
    #[arg(long)]
    exuvia: PathBuf,
    /// CRDs, all labelled and clean
    #[arg(long, default_value_t = 500)]
    crds: usize,
    /// How long to watch it idle, in seconds
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Where to write the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let exuvia = std::fs::canonicalize(&args.exuvia)
        .with_context(|| format!("{} is not there: build it first", args.exuvia.display()))?;
    let control_plane = ControlPlane::builder().start().await?;
    let client = control_plane.client()?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &StorageMigration::crd())
        .await?;
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]);
    let access = control_plane.user_with_rules(USER, &everything).await?;
    let kubeconfig = access.kubeconfig()?;
    let start = || {
        let arguments = [
            "operator".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--listen=127.0.0.1:0".to_owned(),
            "--groups=example.com".to_owned(),
        ];
        Process::run(
            "exuvia",
            &exuvia,
            arguments,
            control_plane.directory().join("operator.log"),
        )
    };

    let few = args.crds.min(10);
    install(&crds, 0..few).await?;
    let operator = start()?;
    wait_for(&client, few).await?;
    let with_few = memory(&operator)?;
    operator.stop(Duration::from_secs(30))?;

    let began = Instant::now();
    install(&crds, few..args.crds).await?;
    println!(
        "{} CRDs are there after {:.0} s",
        args.crds,
        began.elapsed().as_secs_f64()
    );
    let operator = start()?;
    wait_for(&client, args.crds).await?;
    let with_all = memory(&operator)?;

    // A restart finds all of it done: this is what an idle operator looks like.
    operator.stop(Duration::from_secs(30))?;
    let operator = start()?;
    quiet(&control_plane, &operator).await?;
    let seen = control_plane.audit().of(USER)?.len();
    tokio::time::sleep(Duration::from_secs(args.idle)).await;
    let requests = control_plane.audit().of(USER)?.split_off(seen);
    let writes = requests.iter().filter(|event| event.is_write());
    let (lease, others): (Vec<_>, Vec<_>) = writes.partition(|event| event.resource() == "leases");
    let idle = memory(&operator)?;

    let began = Instant::now();
    operator.stop(Duration::from_secs(30))?;
    let stopped = began.elapsed();

    println!("\n| what | measured | aim |\n|---|---|---|");
    println!(
        "| RSS with {few} CRDs migrated in this run | {} | |",
        mib(with_few.now)
    );
    println!(
        "| RSS with {} CRDs migrated in this run | {} | |",
        args.crds,
        mib(with_all.now)
    );
    println!(
        "| RSS with {} CRDs, idle after a restart | {} | at most 32 MiB |",
        args.crds,
        mib(idle.now)
    );
    println!("| its peak | {} | |", mib(idle.peak));
    println!(
        "| idle RSS against that with {few} CRDs | {:.2} | |",
        ratio(idle.now, with_few.now)
    );
    println!("| writes to the Lease in {} s | {} | |", args.idle, lease.len());
    println!("| other writes in {} s | {} | 0 |", args.idle, others.len());
    println!("| all requests in {} s | {} | |", args.idle, requests.len());
    println!(
        "| from SIGTERM to the end | {:.2} s | within 25 s |",
        stopped.as_secs_f64()
    );
    if let Some(path) = args.json {
        let results = json!({
            "crds": args.crds, "rssFewBytes": with_few.now, "rssAllBytes": with_all.now, "rssIdleBytes": idle.now,
            "rssIdlePeakBytes": idle.peak, "leaseWrites": lease.len(), "otherWrites": others.len(),
            "requests": requests.len(), "idleSeconds": args.idle, "stopSeconds": stopped.as_secs_f64(),
        });
        std::fs::write(&path, serde_json::to_string_pretty(&results)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !others.is_empty() {
        bail!("an idle operator wrote: {:?}", others[0].request_uri);
    }
    Ok(())
}

/// Labelled CRDs with one version in use and one old one, as they are after a migration.
async fn install(crds: &Api<CustomResourceDefinition>, range: std::ops::Range<usize>) -> anyhow::Result<()> {
    stream::iter(range)
        .map(|n| async move {
            let mut crd = Widgets::in_group(format!("g{n}.example.com")).crd("v1");
            crd["metadata"]["labels"] = json!({exuvia_api::OPT_IN_LABEL: "true"});
            for version in 0..2 {
                crd["spec"]["versions"][version]["schema"]["openAPIV3Schema"]["description"] =
                    json!("x".repeat(DESCRIPTION_BYTES));
            }
            let crd: CustomResourceDefinition = serde_json::from_value(crd)?;
            crds.create(&PostParams::default(), &crd).await?;
            anyhow::Ok(())
        })
        .buffer_unordered(4)
        .try_collect()
        .await
}

async fn wait_for(client: &Client, wanted: usize) -> anyhow::Result<()> {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let deadline = Instant::now() + Duration::from_secs(900);
    loop {
        // A CRD that was just made answers 429 for a moment: its storage is initialised.
        let Ok(all) = migrations.list(&ListParams::default()).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let migrated = |migration: &&StorageMigration| {
            let phase = migration.status.as_ref().and_then(|status| status.phase);
            phase == Some(Phase::Migrated)
        };
        let done = all.iter().filter(migrated).count();
        if done >= wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("only {done} of {wanted} CRDs were migrated");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Waits until ten seconds pass in which it asks for nothing but its Lease.
async fn quiet(control_plane: &ControlPlane, operator: &Process) -> anyhow::Result<()> {
    let others = || -> anyhow::Result<usize> {
        let all = control_plane.audit().of(USER)?;
        Ok(all.iter().filter(|event| event.resource() != "leases").count())
    };
    for _ in 0..60 {
        let before = others()?;
        tokio::time::sleep(Duration::from_secs(10)).await;
        if others()? == before {
            return Ok(());
        }
    }
    bail!("it never came to rest: {}", operator.log_tail(5))
}

struct Memory {
    now: u64,
    peak: u64,
}

fn memory(process: &Process) -> anyhow::Result<Memory> {
    let pid = process.pid().context("the operator has ended")?;
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"))?;
    let field = |name: &str| -> anyhow::Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib: u64 = line
            .and_then(|line| line.split_whitespace().next())
            .context("no such field")?
            .parse()?;
        Ok(kib * 1024)
    };
    Ok(Memory {
        now: field("VmRSS:")?,
        peak: field("VmHWM:")?,
    })
}

#[expect(clippy::cast_precision_loss)] // for people
fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

#[expect(clippy::cast_precision_loss)] // for people
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}
