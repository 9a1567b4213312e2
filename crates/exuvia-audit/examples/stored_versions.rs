//! Reads etcd, and prints how many objects of each custom resource are stored at which version. It only reads.
//!
//!     cargo run -p exuvia-audit --example stored_versions -- https://127.0.0.1:2379 ca.crt client.crt client.key
//!
//! An etcd without TLS needs its address alone.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use exuvia_audit::{AuditOptions, Definition, audit};

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
    let options = match args.as_slice() {
        [endpoint] => AuditOptions {
            endpoints: vec![endpoint.clone()],
            ..AuditOptions::default()
        },
        [endpoint, cacert, cert, key] => AuditOptions {
            endpoints: vec![endpoint.clone()],
            cacert: Some(cacert.into()),
            cert: Some(cert.into()),
            key: Some(key.into()),
            ..AuditOptions::default()
        },
        _ => {
            return Err(
                "expected the address of etcd, alone or with three files: CA, certificate and key".into(),
            );
        }
    };
    let resources = run(&options).await?;
    if resources.is_empty() {
        println!("there are no custom resources");
    }
    for (resource, versions) in resources {
        println!("{resource}");
        for (version, objects) in versions {
            println!("{objects:>8}  {version}");
        }
    }
    Ok(())
}

/// How many objects are stored at each version, by custom resource.
pub(crate) async fn run(
    options: &AuditOptions,
) -> Result<BTreeMap<String, BTreeMap<String, u64>>, Box<dyn Error>> {
    // All pages are of one revision of etcd, so that an object that is written meanwhile is counted once.
    let report = audit(options).await?;
    let custom = report
        .resources
        .into_iter()
        .filter(|resource| !matches!(resource.definition, Definition::BuiltIn));
    Ok(custom
        .map(|resource| (resource.name, resource.versions))
        .collect())
}
