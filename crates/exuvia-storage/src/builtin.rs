//! Built-in resources: rewritten and verified, so that a new encryption key or encoding reaches every object.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use exuvia_sweep::{Control, Sweep};
use exuvia_write::Writer;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::discovery::{ApiCapabilities, ApiGroup, Discovery, verbs};
use kube::{Api, Client};

use crate::engine::Activity;
use crate::error::unless_cancelled;
use crate::failures::presentable;
use crate::forbidden::MissingRule;
use crate::options::Options;
use crate::preflight::Obstacle;
use crate::report::{End, Report, Verified, objects};
use crate::rewrite::Rewriter;
use crate::verify::{Found, Verifier};
use crate::{Error, ManagedFields};

/// A built-in resource by plural, or by `plural.group`. Never one that a CRD defines: that has versions to look after.
pub async fn find(
    client: &Client,
    name: &str,
    is_crd: impl Fn(&str, &str) -> bool,
) -> Result<ApiResource, Error> {
    let (plural, wanted) = name
        .split_once('.')
        .map_or((name, None), |(plural, group)| (plural, Some(group)));
    let mut discovery = Discovery::new(client.clone());
    if let Some(group) = wanted {
        // Another group's server may be down; it is none of our business.
        discovery = discovery.filter(&[group]);
    }
    let discovery = discovery.run().await?;
    let of_plural: Vec<(ApiResource, ApiCapabilities)> = discovery
        .groups()
        .filter(|group| wanted.is_none_or(|wanted| wanted == group.name()))
        .filter(|group| !is_crd(group.name(), plural))
        .flat_map(ApiGroup::recommended_resources)
        .filter(|(resource, _)| resource.plural == plural)
        .collect();
    let is_stored =
        |can: &ApiCapabilities| can.supports_operation(verbs::LIST) && can.supports_operation(verbs::PATCH);
    if !of_plural.is_empty() && !of_plural.iter().any(|(_, can)| is_stored(can)) {
        return Err(Error::NotStored {
            name: name.to_owned(),
        });
    }
    let mut found: Vec<ApiResource> = of_plural.into_iter().map(|(resource, _)| resource).collect();
    // One in the core group has no other name than its plural; `events` is the one such case.
    let core = found.iter().position(|resource| resource.group.is_empty());
    match (found.len(), core) {
        (0, _) => Err(Error::NotFound {
            name: name.to_owned(),
        }),
        (1, _) => Ok(found.remove(0)),
        (_, Some(core)) => Ok(found.remove(core)),
        (_, None) => {
            let names: Vec<String> = found
                .iter()
                .map(|resource| format!("{plural}.{}", resource.group))
                .collect();
            Err(Error::Ambiguous {
                name: name.to_owned(),
                candidates: names.join(" or "),
            })
        }
    }
}

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

    if let Some(forbidden) = forbidden(writer, &api).await? {
        report.end = End::Stalled {
            reason: "Forbidden",
            message: forbidden.to_string(),
        };
        report.obstacle = Some(forbidden);
        return Ok(report);
    }
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
    let swept = rewriting
        .run(async |object| rewriter.rewrite(&object.metadata).await)
        .await;
    let Some(done) = unless_cancelled(&name, swept)? else {
        report.end = End::Cancelled;
        return Ok(report);
    };
    report.rewrite = done.tally;
    report.failures = presentable(client, resource, done.failures).await;
    if !done.tally.is_clean() {
        // Nothing is proven while one is left: each would be refused, and counted, a second time.
        report.end = failures(&report);
        return Ok(report);
    }

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
    let swept = verifying
        .run(async |object| verifier.verify(&object.metadata).await)
        .await;
    let Some(done) = unless_cancelled(&name, swept)? else {
        report.end = End::Cancelled;
        return Ok(report);
    };
    report.verify = done.tally;
    report.verified = Some(Verified::Full);
    report.mutated = verifier.found.mutated.load(Ordering::Relaxed);
    report.failures = presentable(client, resource, done.failures).await;
    let moved = verifier.found.moved.load(Ordering::Relaxed);
    report.end = match moved {
        _ if !done.tally.is_clean() => failures(&report),
        0 => End::Migrated,
        moved => End::Stalled {
            reason: "ServerBehind",
            message: format!(
                "{moved} objects changed once more when verified: an API server runs with another configuration; \
                 bring all of them up to date and run again"
            ),
        },
    };
    Ok(report)
}

fn failures(report: &Report) -> End {
    End::Stalled {
        reason: "Failures",
        message: format!("{} could not be migrated", objects(report.failures.count())),
    }
}

/// Whether we may write at all, tried on one object: better to know before 10,000 are refused.
async fn forbidden(writer: &Writer, api: &Api<DynamicObject>) -> Result<Option<Obstacle>, Error> {
    let first = api.list_metadata(&ListParams::default().limit(1)).await?;
    let Some(sample) = first.items.first() else {
        return Ok(None);
    };
    Ok(match writer.dry_run().rewrite(api, &sample.metadata).await {
        Err(error) if MissingRule::named_in(&error.to_string()).is_some() => {
            Some(Obstacle::forbidden(&error.to_string()))
        }
        _ => None, // any other trouble is that object's own, and shows when its turn comes
    })
}
