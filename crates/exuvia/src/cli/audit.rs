//! `exuvia storage audit`: what etcd itself holds, counted by stored version.

use std::process::ExitCode;

use exuvia_audit::{AuditOptions, AuditReport, ResourceReport, Verdict, audit};
use exuvia_storage::counted;

use super::args::AuditArgs;
use super::output::table;
use super::values::once;

pub(super) async fn run(args: &AuditArgs) -> anyhow::Result<ExitCode> {
    once("resource", &args.resources)?;
    let report = audit(&AuditOptions {
        endpoints: args.etcd_endpoint.clone(),
        cacert: args.cacert.clone(),
        cert: args.cert.clone(),
        key: args.key.clone(),
        prefix: args.etcd_prefix.clone(),
        resources: args.resources.clone(),
        ..AuditOptions::default()
    })
    .await?;
    args.output.print(&report, || text(&report))?;
    Ok(if report.is_current() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(report: &AuditReport) -> String {
    let rows: Vec<Vec<String>> = report.resources.iter().map(row).collect();
    let mut text = table(
        &["RESOURCE", "OBJECTS", "STORED AT", "UNREADABLE", "VERDICT"],
        &rows,
    );
    for resource in &report.resources {
        let name = &resource.name;
        for unreadable in &resource.unreadable {
            let objects = counted(unreadable.objects, "object");
            text.push_str(&format!(
                "{name}: {objects} cannot be read: {}\n",
                unreadable.cause
            ));
        }
        for (versions, what) in [
            (
                &resource.undefined_versions,
                "is not a version of the CRD any more, but objects are stored at it: serve it again",
            ),
            (
                &resource.unlisted_versions,
                "is not in storedVersions, but objects are stored at it: it was trimmed too early",
            ),
            (
                &resource.empty_versions,
                "is in storedVersions, but no object is stored at it",
            ),
        ] {
            if !versions.is_empty() {
                text.push_str(&format!("{name}: {} {what}\n", versions.join(", ")));
            }
        }
        if resource.offending > 0 {
            let objects = counted(resource.offending, "object");
            text.push_str(&format!(
                "\n{name}: {objects} not stored at the storage version\n"
            ));
        }
        for offender in &resource.offenders {
            text.push_str(&format!("  {} at {}\n", offender.key, offender.api_version));
        }
    }
    if report
        .resources
        .iter()
        .any(|resource| resource.verdict == Verdict::NotJudged)
    {
        text.push_str(
            "\nNotJudged: a built-in resource; its versions are counted, but which one is right does not show in etcd\n",
        );
    }
    if report.restarted {
        text.push_str("\netcd was compacted meanwhile, so all was read once more\n");
    }
    let unreadable: u64 = report.resources.iter().map(unreadable).sum();
    if unreadable > 0 {
        let values = counted(unreadable, "value");
        text.push_str(&format!(
            "\nnothing is proven about {values} that cannot be read\n"
        ));
    }
    let objects = counted(report.objects, "object");
    text + &format!(
        "\n{objects} at etcd revision {}, read from {}\n",
        report.revision, report.endpoint
    )
}

fn row(resource: &ResourceReport) -> Vec<String> {
    let versions: Vec<String> = resource
        .versions
        .iter()
        .map(|(version, count)| format!("{version}: {count}"))
        .collect();
    vec![
        resource.name.clone(),
        resource.objects.to_string(),
        versions.join(", "),
        unreadable(resource).to_string(),
        format!("{:?}", resource.verdict),
    ]
}

fn unreadable(resource: &ResourceReport) -> u64 {
    let unreadable = resource.unreadable.iter();
    unreadable.map(|unreadable| unreadable.objects).sum()
}
