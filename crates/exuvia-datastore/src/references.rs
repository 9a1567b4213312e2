//! `references.rewrite`: objects that are not moved but name moved ones in their fields.

use std::sync::Arc;

use exuvia_api::DatastoreMigration;
use exuvia_sweep::{Sweep, Verdict};
use exuvia_write::{ErrorClass, Redacted};
use kube::api::{DynamicObject, GroupVersionKind};
use kube::{Api, Client};

use crate::Error;
use crate::copy::{Mover, all_looked_at};
use crate::waits::find;

/// Changes every object that the rules choose, one locked write each. Repeating it changes nothing.
pub(crate) async fn rewrite(
    client: &Client,
    mover: &Mover,
    migration: &DatastoreMigration,
) -> Result<(), Error> {
    for (index, rule) in migration.spec.references.rewrite.iter().enumerate() {
        let kind = GroupVersionKind::gvk(&rule.within.group, &rule.within.version, &rule.within.kind);
        let Some((resource, _)) = find(client, &kind).await? else {
            return Err(Error::Invalid(format!(
                "references.rewrite[{index}]: kind {} is not served in {}/{}",
                rule.within.kind, rule.within.group, rule.within.version
            )));
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let sweep = Sweep::of(client.clone(), &resource).controlled_by(&mover.control);
        let report = sweep
            .run_whole(async |object: DynamicObject| {
                let mut value = serde_json::to_value(&object).unwrap_or_default();
                // Lists of built-in kinds leave that out of their items.
                value["apiVersion"] = resource.api_version.as_str().into();
                value["kind"] = resource.kind.as_str().into();
                rewrite_one(&api, mover, index, &object, value).await
            })
            .await?;
        all_looked_at(&report)?;
    }
    Ok(())
}

async fn rewrite_one(
    api: &Api<DynamicObject>,
    mover: &Mover,
    index: usize,
    object: &DynamicObject,
    value: serde_json::Value,
) -> Verdict {
    let rewritten = match mover.mappings.rewrite_object_async(index, Arc::new(value)).await {
        Ok(Some(rewritten)) => rewritten,
        Ok(None) => return Verdict::skipped(),
        Err(error) => return Verdict::failed("conversion", error.redacted()),
    };
    let Ok(rewritten) = serde_json::from_value::<DynamicObject>(rewritten) else {
        return Verdict::failed(
            "conversion",
            "the rewritten object does not have the form of a Kubernetes object",
        );
    };
    let write = |live: &mut DynamicObject| {
        live.data.clone_from(&rewritten.data);
        live.metadata.labels.clone_from(&rewritten.metadata.labels);
        live.metadata
            .annotations
            .clone_from(&rewritten.metadata.annotations);
    };
    // A conflict is not solved here: the next sweep works out the change from a fresh read.
    match mover.writer.patch(api, object, write).await {
        Ok(_) => Verdict::changed(),
        Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
        Err(error) => {
            let class = error.class();
            Verdict::failed(class.as_str(), Redacted::from_error(&error))
        }
    }
}
