//! The end of the source: its CRDs are deleted, if every object in them was moved.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use exuvia_api::{Blocker, SOURCE_HASH_ANNOTATION, counted, datastore_reason as reason};
use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::{Delete, ErrorClass, Name, Redacted, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};

use crate::Error;
use crate::copy::{FIELD_MANAGER, Mover, Problem, all_looked_at, annotation, hash_of};
use crate::kinds::Kind;
use crate::owners::{Dependents, source_uids};

/// How many objects that were not moved are named.
const MAX_LISTED: usize = 32;

/// How long CRDs that are being deleted are waited for before somebody is told.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at them.
const PAUSE: Duration = Duration::from_millis(250);

/// Deletes the source CRDs and waits until they are gone; otherwise why not, by name, and nothing is deleted.
pub(crate) async fn delete(
    client: &Client,
    mover: &Mover,
    converged_at: Option<&Time>,
) -> Result<Vec<Blocker>, Error> {
    let referrers = referrers(client, mover).await?;
    if !referrers.is_empty() {
        return Ok(referrers);
    }
    let kinds: Vec<Kind> = mover.kinds.sources().into_iter().cloned().collect();
    let blockers: Mutex<Vec<Blocker>> = Mutex::default();
    for kind in &kinds {
        let sweep = Sweep::of(client.clone(), &kind.resource).controlled_by(&mover.control);
        let report = sweep
            .run_whole(
                async |source: DynamicObject| match was_moved(mover, &source, converged_at).await {
                    Ok(None) => Verdict::unchanged(),
                    Ok(Some(problem)) => {
                        let mut blockers = blockers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        if blockers.len() < MAX_LISTED {
                            blockers.push(Blocker {
                                reason: problem.reason.to_owned(),
                                kind: kind.shown(),
                                namespace: source.namespace().unwrap_or_default(),
                                name: source.name_any(),
                                message: problem.message.into_string(),
                            });
                        }
                        Verdict::unchanged()
                    }
                    Err(error) => Verdict::failed("failed", Redacted::from_error(&error)),
                },
            )
            .await?;
        all_looked_at(&report)?;
    }
    let blockers = blockers
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    if !blockers.is_empty() {
        return Ok(blockers);
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for kind in &kinds {
        release(client, mover, kind).await?;
        let Some(crd) = crds.get_opt(&kind.name()).await? else {
            continue;
        };
        // Another CRD of the same name is somebody else's.
        if crd.uid().as_deref() == Some(kind.crd_uid.as_str()) {
            mover.writer.delete(&crds, &crd, &Delete::default()).await?;
        }
    }
    let names = kinds.iter().map(Kind::name);
    for name in names.chain(mover.kinds.leaving.iter().cloned()) {
        is_gone(&crds, &name).await?;
    }
    Ok(Vec::new())
}

/// Objects that still name the source as their owner, and kinds that could not be looked at: the garbage collector would delete
/// them along with the source (PITFALLS D22).
async fn referrers(client: &Client, mover: &Mover) -> Result<Vec<Blocker>, Error> {
    let dependents = Dependents {
        client,
        kinds: mover.owner_kinds(),
        successors: mover,
    };
    let found = dependents.scan(&|_| {}).await?;
    let named = found.dependents.iter().map(|(resource, examples)| Blocker {
        reason: reason::MISSING_OWNER.to_owned(),
        kind: resource.clone(),
        name: examples.names.first().cloned().unwrap_or_default(),
        message: format!(
            "{} still {} the source as {} owner",
            counted(examples.objects, "object"),
            if examples.objects == 1 { "names" } else { "name" },
            if examples.objects == 1 { "its" } else { "their" }
        ),
        ..Blocker::default()
    });
    let unseen = found.unseen.iter().map(|unseen| Blocker {
        reason: reason::MISSING_OWNER.to_owned(),
        kind: unseen.what.clone(),
        message: redacted!(
            "not known whether its objects name the source as their owner: {}",
            unseen.why.clone()
        )
        .into_string(),
        ..Blocker::default()
    });
    Ok(named.chain(unseen).take(MAX_LISTED).collect())
}

/// Waits until a CRD that is being deleted is gone. One that was made again under its name is somebody else's.
async fn is_gone(crds: &Api<CustomResourceDefinition>, name: &str) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    while let Some(crd) = crds.get_metadata_opt(name).await? {
        if crd.metadata.deletion_timestamp.is_none() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Error::Changed("source CRDs are still being deleted"));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Why an object was not moved as it is; `None`: it was.
async fn was_moved(
    mover: &Mover,
    source: &DynamicObject,
    converged_at: Option<&Time>,
) -> Result<Option<Problem>, Error> {
    let not_moved = |why: Redacted| Some(Problem::new(reason::VERIFY_FAILED, why));
    let not_copied = |field: String| {
        not_moved(redacted!(
            "it was not copied, because a target was there already, and that differs in {} (conflicts.policy: PreferTarget): \
             delete this object, or set cleanup.source to KeepFrozen or Thaw",
            Name(&field)
        ))
    };
    let output = match mover.main_output(source).await {
        Ok(Some(output)) => output,
        Ok(None) => return Ok(not_moved("no mapping takes it: delete it, or move it".into())),
        Err(why) => return Ok(not_moved(why)),
    };
    let Some(target) = mover.kinds.target(&output.group, &output.kind) else {
        return Ok(not_moved("its target kind is not known".into()));
    };
    let live = mover
        .read(target, output.namespace.as_deref(), &output.name)
        .await?;
    let Some(live) = live else {
        // Its target was deleted after the move: that is what people wanted, and the source is what is left of it.
        return Ok(not_moved(
            "its target does not exist any more, so this is the last copy: create the target again, or delete this object, \
             or set cleanup.source to KeepFrozen or Thaw"
                .into(),
        ));
    };
    let uid = source.uid().unwrap_or_default();
    if annotation(&live, exuvia_api::SOURCE_UIDS_ANNOTATION).is_none() {
        // Its target was there before, and nothing on it says from what: only the time tells.
        if written_after(source, converged_at) {
            return Ok(not_moved("it was created or changed after the move".into()));
        }
        return Ok(mover.left_as_it_was(source).await?.and_then(not_copied));
    }
    if !source_uids(&live.metadata).any(|known| known == uid) {
        return Ok(not_moved(redacted!("it was created after the move")));
    }
    if annotation(&live, SOURCE_HASH_ANNOTATION) != Some(hash_of(source).as_str()) {
        return Ok(not_moved(redacted!("it was changed after the move")));
    }
    if let Some(field) = mover.lost_with_its_schema(target, &live, &output).await? {
        return Ok(not_moved(redacted!(
            "its target has lost {}, which the target kind does not take any more, so this is the last copy: let the CRD have it \
             again, or set cleanup.source to KeepFrozen or Thaw",
            Name(&field)
        )));
    }
    Ok(mover.left_as_it_was(source).await?.and_then(not_copied))
}

/// Whether anybody but us wrote an object after this time.
fn written_after(object: &DynamicObject, time: Option<&Time>) -> bool {
    let Some(time) = time else {
        return true;
    };
    let metadata = &object.metadata;
    let entries = metadata.managed_fields.iter().flatten();
    let written = entries
        .filter(|entry| entry.manager.as_deref() != Some(FIELD_MANAGER))
        .filter_map(|entry| entry.time.as_ref());
    let mut times = metadata.creation_timestamp.iter().chain(written);
    times.any(|at| at.0 > time.0)
}

/// Takes finalizers off the objects, or the CRD would hang in its deletion: under the freeze nobody else may (PITFALLS D35).
async fn release(client: &Client, mover: &Mover, kind: &Kind) -> Result<(), Error> {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &kind.resource);
    let sweep = Sweep::of(client.clone(), &kind.resource).controlled_by(&mover.control);
    let report = sweep
        .run(async |object| {
            if object.metadata.finalizers.iter().flatten().next().is_none() {
                return Verdict::skipped();
            }
            let object = PartialObjectMeta {
                metadata: object.metadata,
                types: object.types,
                _phantom: std::marker::PhantomData,
            };
            let free = |object: &mut PartialObjectMeta<DynamicObject>| object.metadata.finalizers = None;
            match mover.writer.patch_with_retry(&api, &object, free).await {
                Ok(_) => Verdict::changed(),
                Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
                Err(error) => Verdict::failed(error.class().as_str(), Redacted::from_error(&error)),
            }
        })
        .await?;
    all_looked_at(&report)
}
