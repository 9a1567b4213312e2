//! An operator that migrates its own CRDs when it starts, so that a later release can drop their old versions.
//!
//!     cargo run -p exuvia-storage --example migrate_own_crds
//!
//! It applies the CRD `gadgets.own.example.com`, whose storage version is v1 and which also serves v1alpha1. Objects that an
//! earlier release stored at v1alpha1 are rewritten, that is verified, and v1alpha1 leaves `status.storedVersions`.
//!
//! Rights: `get` and `list` on customresourcedefinitions, `patch` on customresourcedefinitions and their `/status` (both can
//! be limited to these names), `get`, `list` and `patch` on the resources. With `list` on Leases in kube-system and on
//! `EndpointSlice`s in default, objects that were written after the change need no second request.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use exuvia_storage::{End, Engine, MigrationReport, Options};
use exuvia_write::{Apply, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Config};
use serde_json::{Value, json};

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
    // In a real operator: `tokio::spawn` this beside the controllers, after becoming leader. They may go on reading and
    // writing at any version meanwhile. A second replica that does it as well does no harm: it finds everything done.
    let settle = Duration::from_secs(60); // how long an API server may need to learn of a changed CRD
    println!(
        "waiting up to {} s until every API server uses the new storage version",
        settle.as_secs()
    );
    for report in run(Config::infer().await?, settle).await? {
        match &report.end {
            End::Migrated => println!(
                "{}: migrated, {} objects were rewritten",
                report.resource, report.rewrite.rewritten
            ),
            End::Clean => println!("{}: nothing to do", report.resource),
            // Not a reason to stop: objects are served at every version. The next start tries again.
            End::Stalled { reason, message } => eprintln!("{}: {reason}: {message}", report.resource),
            end => eprintln!("{}: {end:?}", report.resource),
        }
    }
    Ok(())
}

/// Brings the CRDs of this release into the cluster, and migrates what earlier releases have stored.
pub(crate) async fn run(config: Config, settle: Duration) -> Result<Vec<MigrationReport>, Box<dyn Error>> {
    let writer = Writer::named("gadget-operator");
    let client = writer.connect(config.clone())?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut reports = Vec::new();
    for crd in own_crds() {
        writer.apply(&crds, &crd, &Apply::default().force()).await?;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default();
        let options = Options {
            settle,
            // `storedVersions` alone proves nothing, since anybody can write it: sweep unless an earlier sweep is on record.
            until_recorded: true,
            // Look once more, one settle time after the trim, at what was written meanwhile.
            patrol: true,
            ..Options::default()
        };
        let mut engine = Engine::new(&config, client.clone(), writer.clone(), name, options);
        reports.push(engine.run().await?);
    }
    Ok(reports)
}

/// The CRDs of this release. v1alpha1 stays until every installation has run this release once.
fn own_crds() -> Vec<Value> {
    vec![gadgets(&[("v1alpha1", false), ("v1", true)])]
}

/// `gadgets.own.example.com` with these versions, each with whether it is the storage version.
pub(crate) fn gadgets(versions: &[(&str, bool)]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|(name, storage)| {
            json!({
                "name": name, "served": true, "storage": storage,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"size": {"type": "integer"}}},
                }}},
            })
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.own.example.com"},
        "spec": {
            "group": "own.example.com",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": versions,
        },
    })
}
