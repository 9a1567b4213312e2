//! Built-in resources: rewritten and verified, so that a new encryption key or encoding reaches every object.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use exuvia_sweep::{Control, Sweep};
use exuvia_write::Writer;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

use crate::engine::Activity;
use crate::options::Options;
use crate::report::{End, Report, Verified};
use crate::rewrite::Rewriter;
use crate::verify::{Found, Verifier};
use crate::{Error, ManagedFields};

/// Patches every object with nothing, twice: the second time each must come back unchanged.
///
/// There is no CRD to trim and nothing that tells when the API servers' configuration last changed, so nothing is taken
/// for a proof: make sure that all API servers run with the new configuration before.
pub async fn migrate_builtin(
    client: &Client,
    writer: &Writer,
    resource: &ApiResource,
    options: &Options,
    control: &Control,
    watcher: &(dyn Fn(Activity) + Send + Sync),
) -> Result<Report, Error> {
    let name = match resource.group.as_str() {
        "" => resource.plural.clone(),
        group => format!("{}.{group}", resource.plural),
    };
    let mut report = Report {
        resource: name.clone(),
        ..Report::default()
    };
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let sweep = || {
        let sweep = Sweep::of(client.clone(), resource)
            .page_size(options.page_size)
            .max_concurrency(options.max_concurrency)
            .controlled_by(control);
        match options.qps.and_then(NonZeroU32::new) {
            Some(qps) => sweep.qps(qps),
            None => sweep,
        }
    };
    let failed = |source| Error::Sweep {
        resource: name.clone(),
        source,
    };

    let rewriter = &Rewriter {
        writer: writer.clone(),
        api: api.clone(),
        definition: None,
        managed_fields: ManagedFields::Keep,
        status_fallback: options.status_fallback,
        r0: None,
    };
    let rewriting = sweep();
    watcher(Activity::Rewriting(rewriting.progress()));
    let done = match rewriting
        .run(async |object| rewriter.rewrite(&object.metadata).await)
        .await
    {
        Err(error) if error.is_cancelled() => {
            return Ok(Report {
                end: End::Cancelled,
                ..report
            });
        }
        done => done.map_err(failed)?,
    };
    report.rewrite = done.tally;
    report.failures = done.failures;

    let verifier = &Verifier {
        writer: writer.clone(),
        api,
        proof: None,
        status_fallback: options.status_fallback,
        sample: 1.0,
        found: Found::default(),
    };
    let verifying = sweep();
    watcher(Activity::Verifying(verifying.progress()));
    let done = match verifying
        .run(async |object| verifier.verify(&object.metadata).await)
        .await
    {
        Err(error) if error.is_cancelled() => {
            return Ok(Report {
                end: End::Cancelled,
                ..report
            });
        }
        done => done.map_err(failed)?,
    };
    report.verify = done.tally;
    report.verified = Some(Verified::Full);
    report.mutated = verifier.found.mutated.load(Ordering::Relaxed);
    let unfinished = report.failures.count() + done.failures.count();
    report.failures.by_class.extend(done.failures.by_class);
    report.failures.first.extend(done.failures.first);
    let moved = verifier.found.moved.load(Ordering::Relaxed);
    report.end = match (unfinished, moved) {
        (0, 0) => End::Migrated,
        (0, moved) => End::Stalled {
            reason: "ServerBehind",
            message: format!(
                "{moved} objects changed once more when verified: an API server runs with another configuration; \
                 bring all of them up to date and run again"
            ),
        },
        (count, _) => End::Stalled {
            reason: "Failures",
            message: format!("{count} objects could not be migrated"),
        },
    };
    Ok(report)
}
