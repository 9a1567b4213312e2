//! `create_applied`: an object that is made exclusively and owned as if it was applied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::{
    Api,
    api::{ObjectMeta, PatchParams},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Effect, EntryId, Error, ErrorClass, Outcome, Refusal, Verb, Writable, Writer, Written,
    change::{Part, merge_request},
    send::{Call, Extent, Proof},
    target::Place,
    unite_fields,
};

const APPLY: &str = "Apply";
const UPDATE: &str = "Update";

impl Writer {
    /// Makes an object, and owns its fields as if they were applied. One of that name that exists already is a 409, see
    /// [`is_already_exists`](Error::is_already_exists): nothing is written then.
    ///
    /// An apply cannot say "only if it does not exist", and after a plain [`create`](Self::create) a later apply does not remove what
    /// it leaves out: the fields stay owned by the `Update` entry of the creation (PITFALLS A42). So this is two
    /// writes: the creation, and [`own_as_applied`](Self::own_as_applied).
    ///
    /// A crash, or an error, between the two leaves the object with that `Update` entry. A second call then says that
    /// the name is taken. Call `own_as_applied` before an apply that is to remove fields; it sends nothing if there is nothing
    /// to do.
    ///
    /// What an apply would own although the server does not show it, because it is empty, is owned after this, too (PITFALLS A46):
    /// an environment variable with the value `""`, for example. So the first apply of the same object has nothing to claim.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<k8s_openapi::api::core::v1::ConfigMap>,
    /// #     wanted: k8s_openapi::api::core::v1::ConfigMap) -> Result<(), exuvia_write::Error> {
    /// match writer.create_applied(&api, &wanted).await {
    ///     Ok(map) => println!("made {:?}", map.metadata.name),
    ///     Err(error) if error.is_already_exists() => println!("somebody was faster: read it and decide again"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_applied<K: Writable>(&self, api: &Api<K>, object: &K) -> Result<K, Error> {
        let created = self.create(api, object).await?;
        if self.settings.dry_run {
            return Ok(created); // nothing exists that could be patched
        }
        let wanted = serde_json::to_value(object).unwrap_or_default();
        Ok(self.own(api, &created, &wanted).await?.object)
    }

    /// Turns the `Update` entry of our field manager into an `Apply` entry, united with the one that may be there.
    ///
    /// Nothing but `managedFields` changes. The list goes with uid and resourceVersion; on a 409 the object is read again, as often
    /// as the policy's `conflicts` allows. If we have no such entry nothing is sent. An `Update` entry at another version than
    /// our `Apply` entry is left as it is, because their paths may mean different things.
    pub async fn own_as_applied<K: Writable>(&self, api: &Api<K>, object: &K) -> Result<Written<K>, Error> {
        self.own(api, object, &Value::Null).await
    }

    /// The same, with what is empty in `wanted`.
    async fn own<K: Writable>(&self, api: &Api<K>, object: &K, wanted: &Value) -> Result<Written<K>, Error> {
        let verb = Verb::MoveOwnership;
        let mut current = object.clone();
        let mut round = 0;
        loop {
            round += 1;
            let place = Place::of(api, current.meta(), verb)?;
            let manager = self.settings.manager.as_str();
            let Some((entry, list)) = as_applied(entries(current.meta()), manager, wanted) else {
                self.report(verb, &place.target, 0, Outcome::Unsent, std::time::Duration::ZERO);
                let effect = if round == 1 {
                    Effect::Unsent
                } else {
                    Effect::Changed
                };
                return Ok(Written {
                    object: current,
                    effect,
                });
            };
            let Some(version) = current.meta().resource_version.as_deref() else {
                return Err(Error::refused(verb, &place.target, Refusal::NoResourceVersion));
            };
            let body = json!({"metadata": {
                "uid": current.meta().uid, "resourceVersion": version, "managedFields": list,
            }});
            let params = PatchParams {
                dry_run: self.settings.dry_run,
                field_manager: Some(manager.to_owned()),
                ..PatchParams::default()
            }
            .validation_ignore();
            let request = merge_request(&place, Part::Main, &params, &body);
            let client = api.clone().into_client();
            let call = Call::new(verb, place, client, request, Extent::of::<K>())?;
            let taken = |live: &Value| {
                let metadata = live.get("metadata").map(ObjectMeta::deserialize);
                metadata.is_some_and(|metadata| {
                    metadata.is_ok_and(|metadata| as_applied(entries(&metadata), manager, wanted).is_none())
                })
            };
            let error = match self.deliver(&call, Proof::Live(&taken)).await {
                Ok(answer) => {
                    let object: K = call.answer(&answer)?;
                    // The server ignores a list that it does not like, and answers 200 (PITFALLS A22).
                    if as_applied(entries(object.meta()), manager, wanted).is_some() {
                        return Err(Error::OwnershipIgnored {
                            target: Box::new(call.target().clone()),
                            entry,
                        });
                    }
                    let effect = Effect::between(current.meta(), object.meta());
                    return Ok(Written { object, effect });
                }
                Err(error) => error,
            };
            let again = error.class() == ErrorClass::Conflict;
            match self.settings.retry.after(round, error.class()).filter(|_| again) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(error),
            }
            current = self.read_again(&call, &current).await?;
        }
    }
}

fn entries(metadata: &ObjectMeta) -> &[ManagedFieldsEntry] {
    metadata.managed_fields.as_deref().unwrap_or_default()
}

/// Our `Update` entry, and the list in which it is an `Apply` entry that has what is empty in `wanted`, too; `None` if there is nothing
/// to do.
fn as_applied(
    list: &[ManagedFieldsEntry],
    manager: &str,
    wanted: &Value,
) -> Option<(EntryId, Vec<ManagedFieldsEntry>)> {
    let is_ours = |entry: &ManagedFieldsEntry, operation: &str| {
        entry.manager.as_deref() == Some(manager)
            && entry.operation.as_deref() == Some(operation)
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let applied = list.iter().find(|entry| is_ours(entry, APPLY));
    let updated = list.iter().find(|entry| {
        is_ours(entry, UPDATE) && applied.is_none_or(|applied| applied.api_version == entry.api_version)
    })?;
    let empty = FieldsV1(json!({}));
    let fields = |entry: &ManagedFieldsEntry| entry.fields_v1.clone().unwrap_or_else(|| empty.clone());
    let mut united = match applied {
        Some(applied) => unite_fields(&fields(applied), &fields(updated))?,
        None => fields(updated),
    };
    for (key, value) in wanted.as_object().into_iter().flatten() {
        // The server keeps these as they are, or does not let anyone own them.
        if !["apiVersion", "kind", "metadata", "status"].contains(&key.as_str()) {
            claim_member(&mut united.0, key, value);
        }
    }
    let ours = ManagedFieldsEntry {
        operation: Some(APPLY.to_owned()),
        fields_v1: Some(united),
        time: updated
            .time
            .clone()
            .max(applied.and_then(|applied| applied.time.clone())),
        ..updated.clone()
    };
    let others = list
        .iter()
        .filter(|entry| *entry != updated && !is_ours(entry, APPLY));
    let list = others.cloned().chain([ours]).collect();
    Some((EntryId::of(updated), list))
}

/// Adds to the tree of an object what an apply would own of a member: the server left it out as it made the object, because it is
/// empty.
fn claim_member(fields: &mut Value, key: &str, wanted: &Value) {
    let Some(nodes) = fields.as_object_mut() else {
        return;
    };
    match nodes.get_mut(&format!("f:{key}")) {
        Some(member) => claim(member, wanted),
        None if is_empty(wanted) => {
            nodes.insert(format!("f:{key}"), json!({}));
        }
        // The server does not know it, or somebody changed it on the way: not ours to claim.
        None => {}
    }
}

/// The same for all that is below. What is owned as one has no members to add.
fn claim(fields: &mut Value, wanted: &Value) {
    let is_granular = fields
        .as_object()
        .is_some_and(|nodes| nodes.keys().any(|key| key != "."));
    if !is_granular {
        return;
    }
    match wanted {
        Value::Object(members) => {
            for (key, wanted) in members {
                claim_member(fields, key, wanted);
            }
        }
        Value::Array(items) => {
            for (key, element) in fields.as_object_mut().into_iter().flatten() {
                let Some(key) = key.strip_prefix("k:") else {
                    continue;
                };
                let key: Value = serde_json::from_str(key).unwrap_or_default();
                // An element whose key is partly a default is not found, and so stays as it is.
                let is_it = |item: &&Value| {
                    let mut members = key.as_object().into_iter().flatten();
                    key.is_object() && members.all(|(member, value)| item.get(member) == Some(value))
                };
                if let Some(item) = items.iter().find(is_it) {
                    claim(element, item);
                }
            }
        }
        _ => {}
    }
}

/// What the server takes for nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => false, // an apply does not own it either
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list(entries: &Value) -> Vec<ManagedFieldsEntry> {
        serde_json::from_value(entries.clone()).unwrap()
    }

    fn entry(manager: &str, operation: &str, version: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": version,
               "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn our_update_entry_becomes_an_apply_entry_and_the_others_stay() {
        let theirs = entry("them", "Update", "v1", &json!({"f:data": {"f:b": {}}}));
        let ours = entry("us", "Update", "v1", &json!({"f:data": {"f:a": {}}}));
        let mut status = entry("us", "Update", "v1", &json!({"f:status": {}}));
        status["subresource"] = json!("status");
        let (id, wanted) = as_applied(&list(&json!([theirs, ours, status])), "us", &Value::Null).unwrap();
        assert_eq!((id.manager.as_str(), id.operation.as_str()), ("us", "Update"));
        let applied = entry("us", "Apply", "v1", &json!({"f:data": {"f:a": {}}}));
        assert_eq!(wanted, list(&json!([theirs, status, applied])));
        assert_eq!(as_applied(&wanted, "us", &Value::Null), None);
    }

    #[test]
    fn what_is_empty_is_claimed_where_an_apply_would_own_it() {
        let env = |more: Value| {
            let mut tree = json!({".": {}, "f:name": {}});
            if let (Some(tree), Value::Object(more)) = (tree.as_object_mut(), more) {
                tree.extend(more);
            }
            let atomic = json!({".": {}});
            json!({"f:spec": {"f:selector": atomic, "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:name": {}, "f:env": {".": {}, "k:{\"name\":\"A\"}": tree},
            }}}})
        };
        let ours = entry("us", "Update", "v1", &env(json!({})));
        let wanted = json!({
            "kind": "", "metadata": {"labels": {}},
            "spec": {
                "selector": {"role": ""}, // owned as one
                "containers": [
                    {"name": "other", "stdin": false},
                    {"name": "c", "unknown": "kept out", "env": [{"name": "A", "value": ""}]},
                ],
            },
        });
        let (_, list) = as_applied(&list(&json!([ours])), "us", &wanted).unwrap();
        assert_eq!(list[0].fields_v1, Some(FieldsV1(env(json!({"f:value": {}})))));
    }

    #[test]
    fn two_entries_of_ours_become_one_unless_their_versions_differ() {
        let applied = entry("us", "Apply", "v1", &json!({"f:data": {"f:a": {}}}));
        let updated = entry("us", "Update", "v1", &json!({"f:data": {"f:b": {}}}));
        let (_, wanted) = as_applied(&list(&json!([applied, updated])), "us", &Value::Null).unwrap();
        let united = entry("us", "Apply", "v1", &json!({"f:data": {"f:a": {}, "f:b": {}}}));
        assert_eq!(wanted, list(&json!([united])));
        let older = entry("us", "Update", "v1beta1", &json!({"f:data": {"f:b": {}}}));
        assert_eq!(
            as_applied(&list(&json!([applied, older])), "us", &Value::Null),
            None
        );
        assert_eq!(as_applied(&list(&json!([updated])), "them", &Value::Null), None);
        assert_eq!(as_applied(&[], "us", &Value::Null), None);
    }
}
