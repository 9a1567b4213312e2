//! `exuvia storage audit`: what etcd itself holds, counted by stored version.

use std::process::ExitCode;

use exuvia_storage::audit::{Options, Report, ResourceReport, audit};

use super::args::AuditArgs;
use super::output::table;

pub(super) async fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    let report = audit(&Options {
        endpoints: args.etcd_endpoint.clone(),
        cacert: args.cacert.clone(),
        cert: args.cert.clone(),
        key: args.key.clone(),
        prefix: args.etcd_prefix.clone(),
        resources: args.resources.clone(),
        ..Options::default()
    })
    .await?;
    args.output.print(&report, || print(&report))?;
    Ok(if report.is_current() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(report: &Report) {
    let rows: Vec<Vec<String>> = report.resources.iter().map(row).collect();
    print!(
        "{}",
        table(
            &["RESOURCE", "OBJECTS", "STORED AT", "UNREADABLE", "VERDICT"],
            &rows
        )
    );
    for resource in &report.resources {
        for unreadable in &resource.unreadable {
            println!(
                "{}: {} objects cannot be read: {}",
                resource.name, unreadable.objects, unreadable.cause
            );
        }
        let say = |versions: &[String], what: &str| {
            if !versions.is_empty() {
                println!("{}: {} {what}", resource.name, versions.join(", "));
            }
        };
        say(
            &resource.undefined_versions,
            "is no version of the CRD any more, but objects are stored at it: serve it again",
        );
        say(
            &resource.unlisted_versions,
            "is not in storedVersions, but objects are stored at it: it was trimmed too early",
        );
        say(
            &resource.empty_versions,
            "is in storedVersions, but no object is stored at it",
        );
    }
    for resource in report.resources.iter().filter(|resource| resource.offending > 0) {
        println!(
            "\n{}: {} objects are not stored at the storage version",
            resource.name, resource.offending
        );
        for offender in &resource.offenders {
            println!("  {} at {}", offender.key, offender.api_version);
        }
    }
    println!(
        "\n{} objects at etcd revision {}, read from {}",
        report.objects, report.revision, report.endpoint
    );
}

fn row(resource: &ResourceReport) -> Vec<String> {
    let versions: Vec<String> = resource
        .versions
        .iter()
        .map(|(version, count)| format!("{version}: {count}"))
        .collect();
    let unreadable: u64 = resource
        .unreadable
        .iter()
        .map(|unreadable| unreadable.objects)
        .sum();
    vec![
        resource.name.clone(),
        resource.objects.to_string(),
        versions.join(", "),
        unreadable.to_string(),
        format!("{:?}", resource.verdict),
    ]
}
