//! Properties of the diff, against an implementation of RFC 7396 that shares nothing with it.

use std::collections::BTreeSet;

use proptest::{collection, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::diff;

/// Section 2 of the RFC, to the letter.
fn apply(target: Value, patch: &Value) -> Value {
    let Value::Object(members) = patch else {
        return patch.clone();
    };
    let mut result = match target {
        Value::Object(target) => target,
        _ => Map::new(),
    };
    for (name, value) in members {
        if value.is_null() {
            result.remove(name);
        } else {
            let old = result.remove(name).unwrap_or(Value::Null);
            result.insert(name.clone(), apply(old, value));
        }
    }
    Value::Object(result)
}

/// Where a value holds a null as a member of an object, reached through objects alone.
fn nulls(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    for (key, member) in value.as_object().into_iter().flatten() {
        let at = format!("{at}/{key}");
        if member.is_null() {
            found.insert(at);
        } else {
            nulls(member, &at, found);
        }
    }
}

/// A merge patch can neither make a null nor keep one in an object that is new: nulls must have been there.
fn expressible(before: &Value, after: &Value) -> bool {
    let (mut had, mut wanted) = (BTreeSet::new(), BTreeSet::new());
    nulls(before, "", &mut had);
    nulls(after, "", &mut wanted);
    wanted.is_subset(&had)
}

/// Every value in a patch that is not an object stands for a change: no untouched field is in it.
fn minimal(before: Option<&Value>, patch: &Value) -> bool {
    match (before, patch) {
        (Some(before @ Value::Object(_)), Value::Object(members)) => {
            !members.is_empty()
                && members
                    .iter()
                    .all(|(key, member)| minimal(before.get(key), member))
        }
        (None, patch) => !patch.is_null(),
        // A deletion, of a null as well.
        (Some(_), Value::Null) => true,
        (Some(before), patch) => before != patch,
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        3 => (0..4_i64).prop_map(Value::from),
        3 => select(vec!["", "x", "y"]).prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => (-2.0..2.0_f64).prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        // Few keys, so that two values have some in common; some that a JSON pointer must escape.
        let key = select(vec!["a", "b", "c", "d", "e", "m/n", "t~u", ""]).prop_map(str::to_owned);
        prop_oneof![
            4 => collection::btree_map(key, inner.clone(), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            1 => collection::vec(inner, 0..4).prop_map(Value::Array),
        ]
    })
}

/// A value and a few edits, by which most of it stays as it is: what a controller does.
fn edited() -> impl Strategy<Value = (Value, Value)> {
    let edit = (
        collection::vec(any::<prop::sample::Index>(), 1..5),
        proptest::option::of(json_value()),
    );
    (json_value(), collection::vec(edit, 0..4)).prop_map(|(before, edits)| {
        let mut after = before.clone();
        for (path, value) in edits {
            replace_at(&mut after, &path, value);
        }
        (before, after)
    })
}

fn replace_at(place: &mut Value, path: &[prop::sample::Index], value: Option<Value>) {
    let Value::Object(members) = place else {
        *place = value.unwrap_or(json!("edited"));
        return;
    };
    let keys: Vec<String> = members.keys().cloned().collect();
    match (path, keys.is_empty()) {
        ([step, rest @ ..], false) if !rest.is_empty() => {
            let key = &keys[step.index(keys.len())];
            replace_at(members.get_mut(key).unwrap(), rest, value);
        }
        ([step, ..], false) => {
            let key = keys[step.index(keys.len())].clone();
            match value {
                Some(value) => members.insert(key, value),
                None => members.remove(&key),
            };
        }
        _ => {
            members.insert("new".to_owned(), value.unwrap_or(json!(1)));
        }
    }
}

fn check(before: &Value, after: &Value) -> Result<(), TestCaseError> {
    match diff(before, after) {
        Ok(None) => prop_assert_eq!(before, after),
        Ok(Some(patch)) => {
            prop_assert_ne!(before, after);
            prop_assert_eq!(&apply(before.clone(), &patch), after, "by {}", &patch);
            prop_assert!(
                minimal(Some(before), &patch) || !before.is_object(),
                "{} is not minimal",
                patch
            );
            prop_assert!(super::holds(after, &patch), "{} does not hold", patch);
        }
        Err(refused) => {
            prop_assert!(!expressible(before, after), "{} was expressible", refused.path);
            prop_assert_eq!(after.pointer(&refused.path), Some(&Value::Null));
        }
    }
    if expressible(before, after) {
        prop_assert!(diff(before, after).is_ok());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(15_000))]

    #[test]
    fn applying_the_diff_gives_the_second_of_any_two_values(before in json_value(), after in json_value()) {
        check(&before, &after)?;
    }

    #[test]
    fn applying_the_diff_gives_what_a_few_edits_gave((before, after) in edited()) {
        check(&before, &after)?;
    }
}

/// The examples of the RFC's appendix A, as a check of the check: `[original, patch, result]`.
#[test]
fn the_independent_apply_does_as_the_rfc_says() {
    for (original, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (
            json!({"a": {"b": "c"}}),
            json!({"a": {"b": "d", "c": null}}),
            json!({"a": {"b": "d"}}),
        ),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (
            json!({}),
            json!({"a": {"bb": {"ccc": null}}}),
            json!({"a": {"bb": {}}}),
        ),
    ] {
        assert_eq!(apply(original.clone(), &patch), result, "{original} by {patch}");
    }
}

/// PITFALLS A18.
#[test]
fn an_array_that_differs_is_sent_whole_and_may_hold_nulls() {
    let patch = diff(
        &json!({"list": [1, 2, 3]}),
        &json!({"list": [1, null, {"a": null}]}),
    )
    .unwrap();
    assert_eq!(patch, Some(json!({"list": [1, null, {"a": null}]})));
}

#[test]
fn a_null_that_was_there_and_stays_does_not_matter() {
    let before = json!({"spec": {"kept": null, "size": 1}});
    let after = json!({"spec": {"kept": null, "size": 2}});
    assert_eq!(diff(&before, &after).unwrap(), Some(json!({"spec": {"size": 2}})));
}

#[test]
fn a_null_within_something_new_is_refused_by_its_path() {
    let refused = diff(&json!({}), &json!({"spec": {"a/b": {"c~d": null}}})).unwrap_err();
    assert_eq!(refused.path, "/spec/a~1b/c~0d");
    assert!(refused.to_string().contains("skip_serializing_if"), "{refused}");
}
