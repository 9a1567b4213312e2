//! The diff allocates for what changed, whatever the size of the object. A separate binary, as it counts by replacing
//! the global allocator.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use exuvia_write::diff;
use serde_json::{Value, json};

/// An object with so many members of some depth, and one scalar at `spec.size`.
fn object(members: usize, size: i64) -> Value {
    let data: serde_json::Map<String, Value> = (0..members)
        .map(|n| {
            (
                format!("member-{n:05}"),
                json!({"a": [1, 2, {"b": "text"}], "c": {"d": n}}),
            )
        })
        .collect();
    json!({"data": data, "spec": {"size": size}})
}

fn cost(before: &Value, after: &Value) -> (u64, u64) {
    let cost = allocation_counter::measure(|| drop(diff(before, after)));
    (cost.count_total, cost.bytes_total)
}

#[test]
fn equal_objects_cost_no_allocation() {
    let (before, after) = (object(1_000, 1), object(1_000, 1));
    assert_eq!(cost(&before, &after), (0, 0));
}

#[test]
fn one_change_costs_the_same_in_a_small_object_and_in_a_large_one() {
    let small = cost(&object(1, 1), &object(1, 2));
    let large = cost(&object(10_000, 1), &object(10_000, 2));
    assert_eq!(small, large);
    assert!(small.0 <= 4, "two maps and two keys: {small:?}");
}

#[test]
fn a_change_at_the_end_costs_what_one_at_the_front_does() {
    let before = object(1_000, 1);
    let changed = |member: &str| {
        let mut after = before.clone();
        after["data"][member]["c"]["d"] = json!(-1);
        cost(&before, &after)
    };
    assert_eq!(changed("member-00000"), changed("member-00999"));
}

#[test]
fn allocations_grow_with_the_number_of_changes() {
    let before = object(1_000, 1);
    let changed = |count: usize| {
        let mut after = before.clone();
        for n in 0..count {
            after["data"][format!("member-{n:05}")]["c"]["d"] = json!(-1);
        }
        cost(&before, &after).0
    };
    let (ten, hundred) = (changed(10), changed(100));
    assert!(
        hundred < 11 * ten,
        "{ten} for ten changes, {hundred} for a hundred"
    );
}

#[test]
fn a_member_added_or_removed_costs_only_itself() {
    let before = object(1_000, 1);
    let mut added = before.clone();
    added["data"]["a-new-first-member"] = json!(1);
    assert!(cost(&before, &added).0 <= 6, "{:?}", cost(&before, &added));
    assert!(cost(&added, &before).0 <= 6, "{:?}", cost(&added, &before));
}
