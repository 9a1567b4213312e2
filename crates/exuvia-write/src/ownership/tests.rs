//! Plans over managedFields, checked by example and by property.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use super::*;

const OLD: &str = "example.dev/v1alpha1";
const NEW: &str = "example.dev/v1";

fn old() -> BTreeSet<String> {
    [OLD.to_owned()].into()
}

fn entry(
    manager: &str,
    operation: &str,
    subresource: &str,
    version: &str,
    fields: &[&str],
) -> ManagedFieldsEntry {
    let leaves: serde_json::Map<_, _> = fields.iter().map(|f| (format!("f:{f}"), json!({}))).collect();
    serde_json::from_value(json!({
        "manager": manager, "operation": operation, "subresource": subresource, "apiVersion": version,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": leaves}, "time": "2026-01-01T00:00:00Z",
    }))
    .unwrap()
}

#[test]
fn nothing_at_an_old_version_needs_no_plan() {
    let entries = [entry("a", "Apply", "", NEW, &["x"])];
    let plan = plan_move(&entries, &old(), NEW, |_| unreachable!("no entry is old"));
    assert!(plan.is_empty());
    assert_eq!(plan.entries, entries);
}

#[test]
fn an_entry_already_at_the_target_is_never_old() {
    let entries = [entry("a", "Apply", "", NEW, &["x"])];
    let plan = plan_move(&entries, &[NEW.to_owned()].into(), NEW, |_| Fate::Drop);
    assert!(plan.is_empty() && plan.left.is_empty());
}

#[test]
fn an_entry_can_be_moved_with_other_fields_and_unites_with_those() {
    let entries = [
        entry("a", "Update", "", OLD, &["x"]),
        entry("a", "Update", "", NEW, &["y"]),
    ];
    let renamed = FieldsV1(json!({"f:spec": {"f:z": {}}}));
    let plan = plan_move(&entries, &old(), NEW, |_| Fate::MoveAs(renamed.clone()));
    assert_eq!((plan.moved.len(), plan.united.len()), (1, 1));
    let fields = plan.entries[0].fields_v1.clone().unwrap().0;
    assert_eq!(fields, json!({"f:spec": {"f:y": {}, "f:z": {}}}));
}

#[test]
fn an_unwanted_entry_is_dropped_whatever_version_it_names() {
    let entries = [
        entry("a", "Update", "", NEW, &["x"]),
        entry("b", "Update", "", NEW, &["y"]),
    ];
    let plan = plan_move(&entries, &old(), NEW, |_| Fate::Leave)
        .without(|entry| entry.manager.as_deref() == Some("b"));
    assert!(!plan.is_empty());
    assert_eq!((plan.entries.as_slice(), plan.dropped.len()), (&entries[..1], 1));
}

#[test]
fn apply_update_and_status_entries_move_each_on_its_own() {
    let entries = [
        entry("a", "Apply", "", OLD, &["x"]),
        entry("a", "Update", "", OLD, &["y"]),
        entry("a", "Update", "status", OLD, &["z"]),
    ];
    let plan = plan_move(&entries, &old(), NEW, |_| Fate::Move);
    assert_eq!(
        (plan.entries.len(), plan.moved.len(), plan.united.len()),
        (3, 3, 0)
    );
    assert!(
        plan.entries
            .iter()
            .all(|entry| entry.api_version.as_deref() == Some(NEW))
    );
    assert!(
        plan.entries
            .iter()
            .zip(&entries)
            .all(|(to, from)| to.time == from.time)
    );
}

/// PITFALLS A22: of two entries with one identity the server keeps the last.
#[test]
fn one_manager_at_both_versions_is_united_whichever_comes_first() {
    let (first, second) = (
        entry("a", "Update", "", OLD, &["x"]),
        entry("a", "Update", "", NEW, &["y"]),
    );
    for entries in [[first.clone(), second.clone()], [second, first]] {
        let plan = plan_move(&entries, &old(), NEW, |_| Fate::Move);
        assert_eq!(plan.united, plan.moved);
        let [only] = plan.entries.as_slice() else {
            panic!("one entry: {:?}", plan.entries)
        };
        assert_eq!(
            only.fields_v1.as_ref().unwrap().0,
            json!({"f:spec": {"f:x": {}, "f:y": {}}})
        );
    }
}

#[test]
fn the_united_entry_has_the_later_time() {
    let early = entry("a", "Update", "", NEW, &["y"]);
    let mut late = entry("a", "Update", "", OLD, &["x"]);
    late.time = serde_json::from_value(json!("2026-02-02T00:00:00Z")).unwrap();
    let plan = plan_move(&[late.clone(), early], &old(), NEW, |_| Fate::Move);
    assert_eq!(plan.entries[0].time, late.time);
}

#[test]
fn the_caller_decides_entry_by_entry() {
    let entries = [
        entry("a", "Update", "", OLD, &["fits"]),
        entry("b", "Update", "", OLD, &["lost"]),
        entry("c", "Update", "", OLD, &["lost"]),
    ];
    let plan = plan_move(&entries, &old(), NEW, |entry| match entry.manager.as_deref() {
        Some("a") => Fate::Move,
        Some("b") => Fate::Drop,
        _ => Fate::Leave,
    });
    let managers = |ids: &[EntryId]| ids.iter().map(|id| id.manager.clone()).collect::<Vec<_>>();
    assert_eq!(managers(&plan.moved), ["a"]);
    assert_eq!(managers(&plan.dropped), ["b"]);
    assert_eq!(managers(&plan.left), ["c"]);
    assert_eq!(plan.entries.len(), 2);
}

/// PITFALLS A22: `[]` is ignored, `[{}]` strips all.
#[test]
fn dropping_the_last_entry_sends_one_empty_entry() {
    let plan = plan_move(&[entry("a", "Apply", "", OLD, &["x"])], &old(), NEW, |_| {
        Fate::Drop
    });
    assert!(plan.entries.is_empty());
    assert_eq!(serde_json::to_value(plan.body()).unwrap(), json!([{}]));
    assert_eq!(plan.ignored(&[]), None);
    assert!(plan.matches(&[]));
}

#[test]
fn an_entry_whose_fields_cannot_be_read_is_left() {
    let mut odd = entry("a", "Update", "", OLD, &["x"]);
    odd.fields_type = Some("FieldsV2".to_owned());
    let mut broken = entry("b", "Update", "", OLD, &["x"]);
    broken.fields_v1.as_mut().unwrap().0 = json!([1]);
    let plan = plan_move(&[odd, broken], &old(), NEW, |_| Fate::Move);
    assert!(plan.is_empty());
    assert_eq!(plan.left.len(), 2);
}

#[test]
fn an_answer_that_still_has_the_old_entry_shows_that_the_list_was_ignored() {
    let entries = [
        entry("a", "Apply", "", OLD, &["x"]),
        entry("b", "Update", "", NEW, &["y"]),
    ];
    let plan = plan_move(&entries, &old(), NEW, |_| Fate::Move);
    assert_eq!(plan.ignored(&entries).unwrap().manager, "a");
    assert_eq!(
        plan.ignored(&entries[1..]).unwrap().manager,
        "a",
        "lost altogether"
    );
    let mut taken = plan.entries.clone();
    taken.reverse();
    assert_eq!(plan.ignored(&taken), None);
    assert!(plan.matches(&taken));
    // The write itself changed something, so the server noted the writer too: taken, though not to the letter.
    taken.push(entry("us", "Update", "", NEW, &["stamp"]));
    assert_eq!(plan.ignored(&taken), None);
    assert!(!plan.matches(&taken));
}

#[test]
fn an_identity_reads_well() {
    let id = EntryId::of(&entry("helm", "Update", "status", OLD, &["x"]));
    assert_eq!(id.to_string(), "helm (Update at example.dev/v1alpha1, status)");
}

fn entries() -> impl Strategy<Value = Vec<ManagedFieldsEntry>> {
    let one = (
        select(vec!["a", "b"]),
        select(vec!["Apply", "Update"]),
        select(vec!["", "status"]),
        select(vec![OLD, NEW, "example.dev/v1beta1"]),
        proptest::sample::subsequence(vec!["w", "x", "y", "z"], 0..4),
    )
        .prop_map(|(manager, operation, subresource, version, fields)| {
            entry(manager, operation, subresource, version, &fields)
        });
    // As a server would have it: no two entries with one identity.
    vec(one, 0..8).prop_map(|mut entries| {
        let mut seen: Vec<EntryId> = Vec::new();
        entries.retain(|entry| {
            let id = EntryId::of(entry);
            let new = !seen.iter().any(|other| other.coincides(&id));
            seen.push(id);
            new
        });
        entries
    })
}

/// Who owns what, whatever the version.
fn owned(entries: &[ManagedFieldsEntry]) -> BTreeMap<(String, String, String), BTreeSet<String>> {
    let mut owned = BTreeMap::<_, BTreeSet<String>>::new();
    for entry in entries {
        let id = EntryId::of(entry);
        let paths = field_paths(entry.fields_v1.as_ref().unwrap());
        owned
            .entry((id.manager, id.operation, id.subresource))
            .or_default()
            .extend(paths.into_iter().map(|path| path.join("/")));
    }
    owned
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn moving_all_leaves_no_old_entry_no_twins_and_every_owner_with_its_fields(entries in entries()) {
        let plan = plan_move(&entries, &old(), NEW, |_| Fate::Move);
        prop_assert!(plan.left.is_empty() && plan.dropped.is_empty());
        prop_assert!(plan.entries.iter().all(|entry| entry.api_version.as_deref() != Some(OLD)));
        let ids: Vec<EntryId> = plan.entries.iter().map(EntryId::of).collect();
        for (at, id) in ids.iter().enumerate() {
            prop_assert!(!ids[at + 1..].iter().any(|other| other.coincides(id)));
        }
        prop_assert_eq!(owned(&plan.entries), owned(&entries));
        prop_assert_eq!(plan.ignored(&plan.entries), None);
        prop_assert_eq!(plan.ignored(&entries).is_some(), !plan.is_empty());
    }

    #[test]
    fn every_old_entry_meets_exactly_one_fate(entries in entries(), fates in vec(0..3, 8)) {
        let mut fates = fates.into_iter();
        let plan = plan_move(&entries, &old(), NEW, |_| match fates.next() {
            Some(0) => Fate::Move,
            Some(1) => Fate::Drop,
            _ => Fate::Leave,
        });
        let at_old = entries.iter().filter(|entry| entry.api_version.as_deref() == Some(OLD)).count();
        prop_assert_eq!(plan.moved.len() + plan.dropped.len() + plan.left.len(), at_old);
        let expected = entries.len() - plan.dropped.len() - plan.united.len();
        prop_assert_eq!(plan.entries.len(), expected);
    }
}
