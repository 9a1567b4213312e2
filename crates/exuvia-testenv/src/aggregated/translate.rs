//! Objects of one group-version as those of another, and their uids as others: there and back by the same functions.

use serde_json::{Map, Value};

use super::GroupVersion;

/// The uid under which an object is shown. Its alias is the object's own uid again.
///
/// ```
/// use exuvia_testenv::aggregated::alias_uid;
///
/// let uid = "0a5f4c1e-93c6-4b0e-a35c-7f2a7c5b4d11";
/// assert_eq!(alias_uid(uid), "8a5f4c1e-93c6-4b0e-a35c-7f2a7c5b4d11");
/// assert_eq!(alias_uid(&alias_uid(uid)), uid);
/// ```
pub fn alias_uid(uid: &str) -> String {
    let mut digits = uid.chars();
    match digits.next().and_then(|digit| digit.to_digit(16)) {
        Some(digit) => format!("{:x}{}", digit ^ 8, digits.as_str()),
        None => uid.to_owned(),
    }
}

/// A body as the other side has it. JSON that is not an object (a JSON patch) stays as it is, and so does what is not JSON,
/// but for uids: delete options come as protobuf, too, and an alias has the length of its uid.
pub(super) fn body(body: &[u8], from: &GroupVersion, to: &GroupVersion) -> Vec<u8> {
    match serde_json::from_slice::<Value>(body) {
        Ok(mut value) => {
            object(&mut value, from, to);
            value.to_string().into_bytes()
        }
        Err(_) => with_aliases(body),
    }
}

/// An object, a list, a table, an event of a watch, a part of an object, a status, or delete options.
fn object(value: &mut Value, from: &GroupVersion, to: &GroupVersion) {
    let Some(members) = value.as_object_mut() else {
        return;
    };
    if members.get("kind").is_some_and(|kind| kind == "Status") {
        return status(members, from, to);
    }
    api_version(members, from, to);
    if let Some(metadata) = members.get_mut("metadata").and_then(Value::as_object_mut) {
        alias(metadata);
        for reference in list(metadata, "ownerReferences") {
            if let Some(reference) = reference.as_object_mut()
                && api_version(reference, from, to)
            {
                alias(reference);
            }
        }
        for entry in list(metadata, "managedFields") {
            entry.as_object_mut().map(|entry| api_version(entry, from, to));
        }
    }
    if let Some(preconditions) = members.get_mut("preconditions").and_then(Value::as_object_mut) {
        alias(preconditions);
    }
    for item in list(members, "items") {
        object(item, from, to);
    }
    for row in list(members, "rows") {
        object(&mut row["object"], from, to);
    }
    if members.contains_key("type")
        && let Some(shown) = members.get_mut("object")
    {
        object(shown, from, to);
    }
}

/// What a status is about has this group, too: who asks tells by it whether the object is gone.
fn status(members: &mut Map<String, Value>, from: &GroupVersion, to: &GroupVersion) {
    if let Some(message) = members.get("message").and_then(Value::as_str) {
        let message = message.replace(&from.group, &to.group);
        members.insert("message".to_owned(), message.into());
    }
    if let Some(details) = members.get_mut("details").and_then(Value::as_object_mut) {
        alias(details);
        if details.get("group").is_some_and(|group| *group == from.group) {
            details.insert("group".to_owned(), to.group.clone().into());
        }
    }
}

/// Whether the apiVersion was that of `from`; it is that of `to` then.
fn api_version(members: &mut Map<String, Value>, from: &GroupVersion, to: &GroupVersion) -> bool {
    let is_from = (members.get("apiVersion")).is_some_and(|version| *version == from.api_version());
    if is_from {
        members.insert("apiVersion".to_owned(), to.api_version().into());
    }
    is_from
}

fn alias(members: &mut Map<String, Value>) {
    if let Some(uid) = members.get("uid").and_then(Value::as_str) {
        let uid = alias_uid(uid);
        members.insert("uid".to_owned(), uid.into());
    }
}

fn list<'a>(members: &'a mut Map<String, Value>, name: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = members.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// Every text that is a uid, as its alias.
fn with_aliases(body: &[u8]) -> Vec<u8> {
    const LENGTH: usize = 36;
    let mut body = body.to_vec();
    let mut at = 0;
    while at + LENGTH <= body.len() {
        let is_uid = (body[at..at + LENGTH].iter().enumerate()).all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        if is_uid {
            let alias = alias_uid(&String::from_utf8_lossy(&body[at..at + LENGTH]));
            body[at..at + LENGTH].copy_from_slice(alias.as_bytes());
            at += LENGTH;
        } else {
            at += 1;
        }
    }
    body
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "0a5f4c1e-93c6-4b0e-a35c-7f2a7c5b4d11";

    fn both() -> (GroupVersion, GroupVersion) {
        let stored = GroupVersion::new(("stored.example.com", "v1"));
        (stored, GroupVersion::new(("shown.example.com", "v3")))
    }

    #[test]
    fn an_object_comes_back_as_it_was() {
        let (stored, shown) = both();
        let object = json!({"apiVersion": "stored.example.com/v1", "kind": "Widget", "metadata": {
            "name": "a", "uid": UID,
            "ownerReferences": [
                {"apiVersion": "stored.example.com/v1", "kind": "Widget", "name": "b", "uid": UID},
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": UID},
            ],
            "managedFields": [{"apiVersion": "stored.example.com/v1", "manager": "m"}],
        }, "spec": {"uid": UID}});
        let there = body(object.to_string().as_bytes(), &stored, &shown);
        let seen: Value = serde_json::from_slice(&there).unwrap();
        let alias = json!(alias_uid(UID));
        assert_eq!(seen["apiVersion"], "shown.example.com/v3");
        assert_eq!(seen["metadata"]["uid"], alias);
        assert_eq!(seen["metadata"]["ownerReferences"][0]["uid"], alias);
        assert_eq!(
            seen["metadata"]["ownerReferences"][1]["uid"], UID,
            "of a foreign owner"
        );
        assert_eq!(
            seen["metadata"]["managedFields"][0]["apiVersion"],
            "shown.example.com/v3"
        );
        assert_eq!(seen["spec"]["uid"], UID, "not the object's own");
        let back = body(&there, &shown, &stored);
        assert_eq!(serde_json::from_slice::<Value>(&back).unwrap(), object);
    }

    #[test]
    fn lists_events_and_statuses_are_those_of_the_group_that_is_shown() {
        let (stored, shown) = both();
        let translated = |value: Value| {
            let bytes = body(value.to_string().as_bytes(), &stored, &shown);
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        let item = json!({"apiVersion": "stored.example.com/v1", "metadata": {"uid": UID}});
        let expected = json!({"apiVersion": "shown.example.com/v3", "metadata": {"uid": alias_uid(UID)}});
        assert_eq!(translated(json!({"items": [item]}))["items"][0], expected);
        assert_eq!(
            translated(json!({"type": "ADDED", "object": item}))["object"],
            expected
        );
        let status = translated(json!({
            "kind": "Status", "message": "widgets.stored.example.com \"a\" not found",
            "details": {"group": "stored.example.com", "kind": "widgets", "name": "a"},
        }));
        assert_eq!(status["message"], "widgets.shown.example.com \"a\" not found");
        assert_eq!(status["details"]["group"], "shown.example.com");
    }

    #[test]
    fn uids_are_found_in_what_is_not_json() {
        let (stored, shown) = both();
        let bytes = [b"k8s\0\x12\x24", UID.as_bytes(), b"\x01"].concat();
        let expected = [b"k8s\0\x12\x24", alias_uid(UID).as_bytes(), b"\x01"].concat();
        assert_eq!(body(&bytes, &shown, &stored), expected);
    }
}
