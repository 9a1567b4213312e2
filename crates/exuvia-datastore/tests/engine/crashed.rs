//! The engine is dropped at every write of a small migration, before the request is sent and after it is committed: another one
//! goes on, or undoes everything, and the end is always the same.

use std::collections::BTreeSet;

use exuvia_api::DatastorePhase;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use self::run::{Crash, Point, Ran, SLOTS, all_points, are_met, run, run_all, slots, unnamed};
use self::slot::Slot;

mod run;
mod slot;

#[tokio::test]
async fn a_crash_at_any_write_changes_nothing_of_the_end() {
    crashes_change_nothing("crash", "FreezeAndCopy").await;
}

#[tokio::test]
async fn a_crash_at_any_write_changes_nothing_where_objects_are_copied_before_the_freeze() {
    crashes_change_nothing("sync-crash", "SyncThenFreeze").await;
}

/// Not each write to each object, which the test above has.
#[tokio::test]
async fn a_crash_changes_nothing_where_objects_are_copied_behind_an_api_service() {
    let slots = (0..SLOTS).map(async |number| Slot::routed(&format!("second-crashes{number}")).await);
    let slots = futures::future::join_all(slots).await;
    Box::pin(crashes_in(slots, |writes| {
        let mut sorts = BTreeSet::new();
        let is_chosen = |sort: &String| {
            let decides = ["customresourcedefinitions", "apiservices", "datastoremigrations"];
            decides.iter().any(|resource| sort.contains(resource)) || sorts.insert(sort.clone())
        };
        let mut is_chosen = is_chosen;
        let chosen = writes.iter().enumerate().filter(|(_, sort)| is_chosen(sort));
        let points = chosen.map(|(index, _)| Point {
            write: index + 1,
            crash: Crash::After,
        });
        points.collect()
    }))
    .await;
}

async fn crashes_change_nothing(prefix: &str, mode: &'static str) {
    crashes_in(slots(prefix, mode).await, all_points).await;
}

async fn crashes_in(slots: Vec<Slot>, points: impl Fn(&[String]) -> Vec<Point>) {
    let Ran {
        left: (complete, deleted),
        writes,
        ..
    } = Box::pin(run(&slots[0], None, false)).await;
    assert!(writes.len() > 25, "{writes:#?}");
    let complete = unnamed(&slots[0], &complete.unwrap());
    let deleted = unnamed(&slots[0], &deleted);
    assert_eq!(complete["migration"]["phase"], "Complete", "{complete:#}");
    let targets = complete["objects"].as_object().unwrap().keys();
    assert_eq!(targets.filter(|name| name.starts_with("new.")).count(), 4);
    assert!(!complete.to_string().contains("v1exuvia"), "{complete:#}");
    assert_eq!(deleted["policies"], json!({}));
    let came = run_all(&slots, points(&writes), async |slot, point| {
        let Ran {
            left, writes, met, ..
        } = Box::pin(run(slot, Some(point), false)).await;
        let mut wrong = String::new();
        // After a crash behind the commit of `Complete` nobody was there to look.
        for (left, expected) in [(left.0.as_ref(), &complete), (Some(&left.1), &deleted)] {
            if let Some(left) = left.map(|left| unnamed(slot, left))
                && left != *expected
            {
                wrong += &format!("{point:?} {:?}: {left:#}\n", writes.get(point.write - 1));
            }
        }
        (wrong, met)
    })
    .await;
    let (mut wrong, met): (Vec<String>, Vec<bool>) = came.into_iter().unzip();
    are_met(&met);
    wrong.retain(|wrong| !wrong.is_empty());
    assert!(
        wrong.is_empty(),
        "{} runs end otherwise than {complete:#} {deleted:#}:\n{}",
        wrong.len(),
        wrong.concat()
    );
}

#[tokio::test]
async fn an_abort_after_any_write_leaves_everything_as_it_was_or_goes_on_to_the_end() {
    aborts_leave_nothing("abort-at", "FreezeAndCopy").await;
}

#[tokio::test]
async fn an_abort_after_any_write_leaves_everything_as_it_was_where_objects_are_copied_before_the_freeze() {
    aborts_leave_nothing("sync-abort-at", "SyncThenFreeze").await;
}

async fn aborts_leave_nothing(prefix: &str, mode: &'static str) {
    let slots = slots(prefix, mode).await;
    slots[0].set_up().await;
    let stage = &slots[0].stage;
    let mut before = unnamed(&slots[0], &slots[0].seen().await);
    stage
        .migrations()
        .delete(&stage.name, &DeleteParams::default())
        .await
        .unwrap();
    slots[0].tear_down().await;
    before["migration"] = Value::Null;
    let Ran { left, writes, .. } = Box::pin(run(&slots[0], None, false)).await;
    let deleted = unnamed(&slots[0], &left.1);
    // The last ones are behind the commit: two of those will do.
    let commit = writes
        .iter()
        .position(|write| write.starts_with("PATCH validatingadmission") || write.starts_with("DELETE valid"))
        .unwrap()
        + 2;
    let points = (1..=commit).map(|write| Point {
        write,
        crash: Crash::After,
    });
    let came = run_all(&slots, points.collect(), async |slot, point| {
        (point, Box::pin(run(slot, Some(point), true)).await, slot)
    })
    .await;
    are_met(&came.iter().map(|(_, ran, _)| ran.met).collect::<Vec<_>>());
    let mut aborted = 0;
    for (point, ran, slot) in came {
        let (left, at_crash) = (unnamed(slot, &ran.left.1), ran.at_crash);
        let is_committed = matches!(at_crash, DatastorePhase::Converged | DatastorePhase::Complete);
        aborted += usize::from(!is_committed);
        let expected = if is_committed { &deleted } else { &before };
        // What an undo leaves of a flag: who wrote it.
        let (left, expected) = (without_managers(left), without_managers(expected.clone()));
        assert_eq!(left, expected, "{point:?} in {at_crash:?}: {left:#}");
    }
    assert!(aborted > 15 && aborted < commit, "{aborted} of {commit}");
}

fn without_managers(mut seen: Value) -> Value {
    for object in seen["objects"].as_object_mut().unwrap().values_mut() {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
    }
    seen
}
