//! Calico's manifest on Calico's own CRDs, which are not part of this repository: run by hand, with a directory of them.
//!
//! `EXUVIA_CALICO_CRDS=… cargo test -p exuvia-datastore --test ready -- --ignored real --nocapture`

use std::collections::BTreeMap;
use std::path::PathBuf;

use exuvia_datastore::protocol::Step;
use serde_json::Value;

use crate::calico::moves_and_rolls_out;
use crate::fixtures::{Move, documents_with};
use crate::parked::{CALICO, calico_in, finds_a_conflict, is_aborted_at};
use crate::stage::Stage;

/// A directory with the CRDs of both groups, in any files below it.
const DIRECTORY: &str = "EXUVIA_CALICO_CRDS";

/// Every step up to the commit that this move has.
const STEPS: [Step; 20] = [
    Step::AddFinalizer,
    Step::MakeClones,
    Step::Try,
    Step::RemoveClones,
    Step::Start,
    Step::MarkFreeze,
    Step::Lock,
    Step::SaveFlags,
    Step::SetFlags,
    Step::Probe,
    Step::Drain,
    Step::RecordFrozen,
    Step::SaveRoute,
    Step::Shield,
    Step::RemoveRoute,
    Step::AwaitRoute,
    Step::TryAgain,
    Step::Copy,
    Step::Verify,
    Step::Commit,
];

/// A move with the real CRDs, in these groups.
fn with_real_crds(mut ready: Move, group: &str) -> Move {
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    ready.crds = documents_with(&directory, &|text| text.replace(CALICO, group));
    let is_crd = |document: &Value| document["kind"] == "CustomResourceDefinition";
    ready.crds.retain(is_crd);
    assert_eq!(ready.crds.len(), 44, "both groups");
    ready
}

/// Whether everything of `part` is in `whole`; otherwise the first field that is not.
fn lacks(whole: &Value, part: &Value, path: &str) -> Option<String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().find_map(|(key, part)| {
            lacks(
                whole.get(key).unwrap_or(&Value::Null),
                part,
                &format!("{path}.{key}"),
            )
        }),
        (whole, part) if whole == part => None,
        _ => Some(path.to_owned()),
    }
}

/// Every expected object is there. What the real CRDs add is printed.
async fn is_expected(stage: &Stage) {
    let mut added: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for expected in &stage.ready.expected {
        let found = stage.shown(expected).await;
        assert_eq!(lacks(&found, expected, ""), None, "{found}");
        let keys = |object: &Value| -> Vec<String> {
            let spec = object["spec"].as_object().unwrap();
            spec.keys().cloned().collect()
        };
        let known = keys(expected);
        let new = keys(&found).into_iter().filter(|key| !known.contains(key));
        let kind = expected["kind"].as_str().unwrap().to_owned();
        added.entry(kind).or_default().extend(new);
    }
    added.retain(|_, fields| !fields.is_empty());
    println!("{} objects are as expected", stage.ready.expected.len());
    println!("defaults that the real CRDs added: {added:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Calico's own CRDs"]
async fn the_real_crds_move_while_they_are_read_and_written_and_roll_out() {
    Box::pin(moves_and_rolls_out(
        with_real_crds(Move::read("calico"), CALICO),
        is_expected,
    ))
    .await;
}

#[tokio::test]
#[ignore = "needs Calico's own CRDs"]
async fn a_conflict_at_the_real_crds_is_found_and_undone() {
    let group = "projectcalico.real-parked";
    Box::pin(finds_a_conflict(with_real_crds(calico_in(group), group), group)).await;
}

#[tokio::test]
#[ignore = "needs Calico's own CRDs"]
async fn an_abort_at_every_step_leaves_the_real_crds_as_they_were() {
    let group = "projectcalico.real-aborted";
    Box::pin(is_aborted_at(
        with_real_crds(calico_in(group), group),
        group,
        &STEPS,
    ))
    .await;
}
