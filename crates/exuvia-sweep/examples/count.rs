//! Walks over all objects of a resource, page by page, and counts them by namespace. It only reads.
//!
//!     cargo run -p exuvia-sweep --example count                            # `ConfigMap`s
//!     cargo run -p exuvia-sweep --example count -- apps v1 Deployment      # group, version, kind

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;

use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::Writer;
use kube::Config;
use kube::api::{ApiResource, GroupVersionKind};

#[tokio::main]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref()),
    }
}

/// Prints the error with its causes, each once: some errors repeat what is below them.
fn fail(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

async fn start() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let kind = match args.as_slice() {
        [] => GroupVersionKind::gvk("", "v1", "ConfigMap"),
        [group, version, kind] => GroupVersionKind::gvk(group, version, kind),
        _ => return Err("expected no arguments, or three: group, version and kind".into()),
    };
    let counts = run(Config::infer().await?, &kind).await?;
    if counts.is_empty() {
        println!("0 objects");
    }
    for (namespace, objects) in counts {
        println!("{objects:>8}  {namespace}");
    }
    Ok(())
}

/// How many objects each namespace has.
pub(crate) async fn run(
    config: Config,
    kind: &GroupVersionKind,
) -> Result<BTreeMap<String, u64>, Box<dyn Error>> {
    let client = Writer::named("count").connect(config)?;
    let counts = &Mutex::new(BTreeMap::new());
    // At most two pages of metadata are in memory, however many objects there are. An expired page token, a throttled
    // request or a server that restarts does not end the walk.
    let report = Sweep::of(client, &ApiResource::from_gvk(kind))
        .run(async |object| {
            let namespace = object.metadata.namespace.unwrap_or_default();
            let mut counts = counts.lock().expect("no worker panics while it counts");
            *counts.entry(namespace).or_default() += 1;
            Verdict::unchanged() // a worker that writes says here what became of the object
        })
        .await?;
    assert!(report.tally.is_clean(), "a worker reported a failure");
    let mut counts = counts.lock().expect("no worker panics while it counts");
    Ok(std::mem::take(&mut counts))
}
