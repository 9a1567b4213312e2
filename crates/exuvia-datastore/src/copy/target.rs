//! One target: what is there, whether it is what is wanted, and how it is written.

use exuvia_api::{
    SOURCE_HASH_ANNOTATION, SOURCE_RV_ANNOTATION, SOURCE_UIDS_ANNOTATION, StatusCopy,
    datastore_reason as reason,
};
use exuvia_write::{Error as WriteError, ErrorClass, Redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};
use serde_json::Value;

use super::compared::{Compared, another_name, compare};
use super::contested::mark;
use super::findings::Problem;
use super::marks::written_by_others;
use super::{Mover, annotation, hash_of};
use crate::Error;
use crate::kinds::Kind;
use crate::mapping::Output;
use crate::owners::source_uids;

/// etcd refuses requests of more than 1.5 MiB, and a dry run does not notice (PITFALLS D29). The server adds metadata of its own.
pub(super) const MAX_BYTES: usize = 1_400_000;

/// What was read of the kinds does not fit the mapping any more: nothing is said about such an object.
pub(super) const UNKNOWN_TARGET: &str = "the kind of a target is not the one that was read";

/// What there is in the place of a target.
#[derive(Debug)]
pub(super) enum Place {
    /// Nothing.
    Free,
    /// An object of this migration.
    Ours(Box<DynamicObject>),
    /// Somebody else's object, equal to what would be written.
    Equal(Box<DynamicObject>),
    /// Somebody else's object, which differs in this field.
    Differs(String),
    /// A copy of ours that somebody else has written to, or one that another migration may take back. Whatever it holds, nobody
    /// keeps it in step: a person decides.
    Contested(String),
}

/// What came of an attempt at one object.
pub(super) type Attempt<T> = Result<Result<T, Problem>, Error>;

impl Mover {
    /// What there is in the place of a target.
    pub(super) async fn place(&self, target: &Kind, output: &Output) -> Attempt<Place> {
        let api = target.all(&self.client);
        let name = ObjectMeta {
            name: Some(output.name.clone()),
            namespace: output.namespace.clone(),
            ..ObjectMeta::default()
        };
        let live: DynamicObject = match self.writer.get(&api, &name).await {
            Ok(live) => live,
            Err(error) if error.class() == ErrorClass::Gone => return Ok(Ok(Place::Free)),
            // A namespace that does not exist holds nothing; the create will say so.
            Err(error) if error.class() == ErrorClass::Missing && !error.is_unserved() => {
                return Ok(Ok(Place::Free));
            }
            Err(error) => return Err(error.into()),
        };
        if live.metadata.deletion_timestamp.is_some() {
            let going = Problem::new(
                reason::TERMINATING,
                "its target is being deleted: wait until it is gone",
            );
            return Ok(Err(going));
        }
        if self.is_ours_alone(&live) {
            return Ok(Ok(Place::Ours(Box::new(live))));
        }
        let is_contested = self.is_ours(&live) || self.is_of_another(&live).await?;
        Ok(match self.compared(&api, live, &output.object).await? {
            Ok(Place::Differs(field)) if is_contested => Ok(Place::Contested(field)),
            Ok(_) if is_contested => Ok(Place::Contested(mark())),
            compared => compared,
        })
    }

    /// Whether this migration made it, and nobody else has written to it. A saved copy that somebody created again carries our
    /// mark, too.
    pub(super) fn is_ours_alone(&self, live: &DynamicObject) -> bool {
        self.is_ours(live) && !written_by_others(&live.metadata)
    }

    /// Whether a live object is what is wanted.
    pub(super) async fn compared(
        &self,
        api: &Api<DynamicObject>,
        live: DynamicObject,
        wanted: &Value,
    ) -> Attempt<Place> {
        let compared = compare(&self.writer, api, &self.comparison, &live, wanted).await?;
        Ok(Ok(match compared {
            Compared::Equal => Place::Equal(Box::new(live)),
            // What the server would not even take is not equal to what it has.
            Compared::Differs(fields) | Compared::AsTheyStand(fields) => {
                let first = fields.into_iter().next();
                Place::Differs(first.map(|(path, ..)| path).unwrap_or_default())
            }
        }))
    }

    /// Where a target of this source was there before, and was left although it differs: the first field that does. What the
    /// source has there is nowhere else.
    pub(crate) async fn left_as_it_was(&self, source: &DynamicObject) -> Result<Option<String>, Error> {
        if !self.prefers_target() {
            return Ok(None); // a target that differs would have held everything
        }
        let Ok(converted) = self.convert(source).await else {
            return Ok(None); // said by those who ask for its successor
        };
        for output in &converted.outputs {
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                continue;
            };
            let live = self
                .read(target, output.namespace.as_deref(), &output.name)
                .await?;
            let Some(live) = live.filter(|live| annotation(live, SOURCE_UIDS_ANNOTATION).is_none()) else {
                continue;
            };
            let api = target.all(&self.client);
            match self.compared(&api, live, &output.object).await? {
                Ok(Place::Differs(field)) => return Ok(Some(field)),
                Ok(_) => {}
                Err(problem) => return Ok(Some(problem.message.into_string())),
            }
        }
        Ok(None)
    }

    /// A field that a target lacks, and that its kind would not take any more. Under another schema what was copied is gone, and
    /// nobody has decided so.
    pub(crate) async fn lost_with_its_schema(
        &self,
        target: &Kind,
        live: &DynamicObject,
        output: &Output,
    ) -> Result<Option<String>, Error> {
        let live_value = serde_json::to_value(live).unwrap_or_default();
        let differences = self.comparison.differences(&output.object, &live_value);
        let lacking = differences.into_iter().find(|(_, _, live)| live.is_null());
        let Some((field, ..)) = lacking else {
            return Ok(None);
        };
        let mut object = output.object.clone();
        object["metadata"]["name"] = another_name(&output.name).into();
        let rehearsed = self.rehearse(&target.all(&self.client), &object).await?;
        Ok(rehearsed.err().map(|_| field))
    }

    /// Tries to create an object. Nothing is stored.
    pub(super) async fn rehearse(&self, api: &Api<DynamicObject>, object: &Value) -> Attempt<()> {
        let object = match read(object) {
            Ok(object) => object,
            Err(problem) => return Ok(Err(problem)),
        };
        match self.writer.dry_run().create(api, &object).await {
            Ok(_) => Ok(Ok(())),
            Err(error) => match refusal(&error) {
                Some(problem) => Ok(Err(problem.without_values_of(&object))),
                None => Err(error.into()),
            },
        }
    }

    /// Creates an object; `None`: there is one of this name.
    pub(super) async fn create(&self, target: &Kind, object: &Value) -> Attempt<Option<DynamicObject>> {
        let mut object = match read(object) {
            Ok(object) => object,
            Err(problem) => return Ok(Err(problem)),
        };
        if let Some(types) = &mut object.types {
            types.api_version.clone_from(&target.through.api_version);
        }
        match self.writer.create(&target.all(&self.client), &object).await {
            Ok(created) => Ok(Ok(Some(created))),
            Err(error) if error.is_already_exists() => Ok(Ok(None)),
            Err(error) => match refusal(&error) {
                Some(problem) => Ok(Err(problem.without_values_of(&object))),
                None => Err(error.into()),
            },
        }
    }

    /// The object to create. Where status is not a subresource it is part of it (PITFALLS D27).
    pub(super) fn wanted(
        &self,
        target: &Kind,
        source: &DynamicObject,
        output: &Output,
        owners: &[OwnerReference],
    ) -> Value {
        let mut object = self.marked(source, output, owners);
        if !target.has_status
            && let Some(status) = &output.status
        {
            object["status"] = rebased(status.clone(), source.metadata.generation, Some(1));
        }
        object
    }

    /// Brings a target of ours up to date with its source.
    pub(super) async fn update(
        &self,
        target: &Kind,
        live: &DynamicObject,
        wanted: &Value,
        (source, output): (&DynamicObject, &Output),
    ) -> Attempt<DynamicObject> {
        let wanted = match read(wanted) {
            Ok(wanted) => wanted,
            Err(problem) => return Ok(Err(problem)),
        };
        // Without the subresource, a change of the status is one of the object: the next generation is the one that it is about.
        let status = if target.has_status {
            live.data.get("status").cloned()
        } else {
            let next = live.metadata.generation.map(|generation| generation + 1);
            let copied = output.status.clone();
            copied.map(|status| rebased(status, source.metadata.generation, next))
        };
        let update = |object: &mut DynamicObject| {
            object.data = wanted.data.clone();
            if let Some(data) = object.data.as_object_mut() {
                data.remove("status");
                data.extend(status.map(|status| ("status".to_owned(), status)));
            }
            let metadata = &wanted.metadata;
            object.metadata.labels.clone_from(&metadata.labels);
            object.metadata.annotations.clone_from(&metadata.annotations);
            object
                .metadata
                .owner_references
                .clone_from(&metadata.owner_references);
            object.metadata.finalizers.clone_from(&metadata.finalizers);
        };
        match self.writer.patch(&target.all(&self.client), live, update).await {
            Ok(written) => Ok(Ok(written.object)),
            Err(error) => match refusal(&error) {
                Some(problem) => Ok(Err(problem.without_values_of(&wanted))),
                None => Err(error.into()),
            },
        }
    }

    /// Whether a target has the status that was written, and perhaps more that the server adds.
    pub(super) fn has_status_of(live: &DynamicObject, source: &DynamicObject, status: &Value) -> bool {
        let written = rebased(
            status.clone(),
            source.metadata.generation,
            live.metadata.generation,
        );
        contains(live.data.get("status").unwrap_or(&Value::Null), &written)
    }

    /// Whether a target has this status and nothing more. What the server adds shows after a write.
    pub(super) fn has_only_status_of(live: &DynamicObject, source: &DynamicObject, status: &Value) -> bool {
        let written = rebased(
            status.clone(),
            source.metadata.generation,
            live.metadata.generation,
        );
        let live = live.data.get("status").unwrap_or(&Value::Null);
        contains(live, &written) && contains(&written, live)
    }

    /// The status that a target should have, null if its source has none; `None`: it is not copied.
    pub(super) fn status_of(&self, output: &Output) -> Option<Value> {
        let copies = self.migration.spec.mappings[output.mapping].status == StatusCopy::Copy;
        copies.then(|| output.status.clone().unwrap_or_default())
    }

    /// Writes the status to its subresource, or removes it. Returns what the server has then.
    pub(super) async fn write_status(
        &self,
        target: &Kind,
        live: &DynamicObject,
        source: &DynamicObject,
        status: &Value,
    ) -> Attempt<DynamicObject> {
        let status = rebased(
            status.clone(),
            source.metadata.generation,
            live.metadata.generation,
        );
        let api = target.all(&self.client);
        let set = |object: &mut DynamicObject| {
            if let Some(data) = object.data.as_object_mut() {
                data.remove("status");
                let status = Some(status.clone()).filter(|status| !status.is_null());
                data.extend(status.map(|status| ("status".to_owned(), status)));
            }
        };
        match self.writer.patch_status_with_retry(&api, live, set).await {
            Ok(written) => Ok(Ok(written.object)),
            Err(error) => match refusal(&error) {
                Some(problem) => Ok(Err(problem.without_values_of(source))),
                None => Err(error.into()),
            },
        }
    }

    /// Whether a target of ours was made from this very state of its source, and says under which uids that was known.
    pub(super) fn is_up_to_date(
        &self,
        source: &DynamicObject,
        live: &DynamicObject,
        output: &Output,
    ) -> bool {
        let uids = self.uids_of(source, output);
        // Another schema of the source shows another content at the same version.
        annotation(live, SOURCE_RV_ANNOTATION) == source.metadata.resource_version.as_deref()
            && annotation(live, SOURCE_HASH_ANNOTATION) == Some(hash_of(source).as_str())
            && source_uids(&live.metadata).eq(uids.iter().map(String::as_str))
    }
}

/// `observedGeneration` at the top and in conditions: the source's generation becomes the target's, anything else is 0, as the
/// target's controller has not seen this object (PITFALLS D27).
pub(super) fn rebased(mut status: Value, source: Option<i64>, target: Option<i64>) -> Value {
    let rebase = |holder: &mut Value| {
        if let Some(observed) = holder.get_mut("observedGeneration")
            && observed.is_number()
        {
            let is_current = source.is_some() && observed.as_i64() == source;
            *observed = if is_current {
                target.unwrap_or(1).into()
            } else {
                0.into()
            };
        }
    };
    rebase(&mut status);
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for condition in conditions {
            rebase(condition);
        }
    }
    status
}

/// Whether everything of `part` is in `whole`. Absent, null and empty are the same: the server drops them. When a condition
/// last changed is left out: a write that does not change its status keeps the time.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (_, Value::Null) => true,
        (whole, Value::Object(part)) => part.iter().all(|(key, value)| {
            key == "lastTransitionTime" || contains(whole.get(key).unwrap_or(&Value::Null), value)
        }),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| contains(whole, part))
        }
        (whole, part) => whole == part,
    }
}

pub(super) fn read(object: &Value) -> Result<DynamicObject, Problem> {
    if object.to_string().len() > MAX_BYTES {
        return Err(Problem::new(
            reason::TOO_LARGE,
            "the target is larger than etcd accepts (1.5 MiB): make the source smaller, or leave fields out of the copy",
        ));
    }
    serde_json::from_value(object.clone()).map_err(|_| {
        Problem::new(
            reason::CONVERSION,
            "the converted object does not have the form of a Kubernetes object: check what the mapping sets in metadata",
        )
    })
}

/// Whether an object names these owners and no others.
pub(super) fn has_owners(live: &DynamicObject, references: &[OwnerReference]) -> bool {
    let live = live.metadata.owner_references.as_deref().unwrap_or_default();
    let named = |reference: &OwnerReference| {
        live.iter()
            .any(|owner| owner.uid == reference.uid && owner.name == reference.name)
    };
    references.iter().all(named) && live.len() == references.len()
}

/// What the server has against an object for good; `None`: it may pass.
pub(super) fn refusal(error: &WriteError) -> Option<Problem> {
    let details = error.status().and_then(|status| status.details.as_ref());
    let mut causes = details.into_iter().flat_map(|details| &details.causes);
    if causes.any(|cause| cause.reason == "NamespaceTerminating") {
        return Some(Problem::new(
            reason::TERMINATING,
            "the namespace of its target is being deleted: wait until it is gone",
        ));
    }
    match error.class() {
        ErrorClass::Invalid | ErrorClass::Denied => {
            Some(Problem::new(reason::REFUSED, Redacted::from_error(error)))
        }
        ErrorClass::Missing if !error.is_unserved() => {
            Some(Problem::new(reason::REFUSED, Redacted::from_error(error)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_observed_generation_follows_the_target_and_an_older_one_becomes_zero() {
        let status = json!({
            "observedGeneration": 7,
            "conditions": [{"type": "A", "observedGeneration": 7}, {"type": "B", "observedGeneration": 6}, {"type": "C"}],
        });
        let expected = json!({
            "observedGeneration": 1,
            "conditions": [{"type": "A", "observedGeneration": 1}, {"type": "B", "observedGeneration": 0}, {"type": "C"}],
        });
        assert_eq!(rebased(status, Some(7), Some(1)), expected);
    }

    #[test]
    fn what_the_server_adds_to_a_status_does_not_count_and_what_it_lacks_does() {
        let live =
            json!({"ready": 1, "phase": "On", "conditions": [{"type": "A", "lastTransitionTime": "1"}]});
        for (written, expected) in [
            (json!({"ready": 1, "notes": {}}), true),
            (
                json!({"conditions": [{"type": "A", "lastTransitionTime": "2"}]}),
                true,
            ),
            (json!({"ready": 2}), false),
            (json!({"ready": 1, "notes": {"a": "b"}}), false),
            (json!({"conditions": []}), false),
        ] {
            assert_eq!(contains(&live, &written), expected, "{written}");
        }
    }

    #[test]
    fn a_status_that_has_more_than_its_source_is_written_again() {
        let live: DynamicObject = serde_json::from_value(
            json!({"metadata": {"name": "a"}, "status": {"ready": 1, "notes": {"a": "b"}}}),
        )
        .expect("an object");
        for (status, expected) in [
            (json!({"ready": 1, "notes": {"a": "b"}, "phase": null}), true),
            (json!({"ready": 1, "notes": {}}), false),
            (json!({"ready": 1}), false),
            (json!(null), false),
        ] {
            assert_eq!(
                Mover::has_only_status_of(&live, &live, &status),
                expected,
                "{status}"
            );
        }
    }
}
