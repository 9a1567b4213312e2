//! Calico's move that does not come to its end: a conflict, and an abort at many steps. With a few kinds, in groups of their own.

use exuvia_api::{DatastorePhase, RETRY_ANNOTATION};
use exuvia_datastore::freeze;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::until;
use exuvia_write::Writer;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::calico::{api_server, can_write};
use crate::fixtures::Move;
use crate::stage::{Stage, control_plane, text, up_to};

const KINDS: [&str; 3] = ["Tier", "GlobalNetworkPolicy", "ClusterInformation"];

/// The group that the manifest moves to, and a part of the one that it moves from.
pub(crate) const CALICO: &str = "projectcalico.org";

/// All of Calico in groups of its own. Nothing rolls out here.
pub(crate) fn calico_in(group: &str) -> Move {
    let mut ready = Move::read_in("calico", CALICO, group);
    ready.migration.spec.cutover.wait_for.clear();
    ready.migration.metadata.name = Some(group.replace('.', "-"));
    ready
}

fn object(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

/// The cluster is as if there had never been a migration.
async fn is_as_before(stage: &Stage, group: &str, backend: &Aggregated) {
    let stored = format!("crd.{group}/v1");
    let information = stage.get(&object(&stored, "ClusterInformation", "default")).await;
    assert_eq!(information.data["spec"]["datastoreReady"], true);
    assert!(backend.answers(&stage.client).await.unwrap());
    for api_version in [&stored, &format!("{group}/v3")] {
        let tier = object(api_version, "Tier", "security");
        // An API server lets go about a second after a policy is gone (PITFALLS D10).
        until("it can be written again", async || can_write(stage, &tier).await).await;
    }
}

/// How many objects are stored in the target group, whatever hides them.
async fn targets(stage: &Stage, group: &str) -> usize {
    let mut count = 0;
    let of_target = |crd: &&Value| crd["spec"]["group"] == group;
    for crd in stage.ready.crds.iter().filter(of_target) {
        let plural = text(&crd["spec"]["names"]["plural"]);
        let stored = control_plane().await.stored(group, plural);
        count += stored.all().await.unwrap().len();
    }
    count
}

#[tokio::test]
async fn a_target_that_differs_is_found_under_the_freeze_which_is_undone() {
    let group = "projectcalico.parked";
    Box::pin(finds_a_conflict(calico_in(group).only(&KINDS), group)).await;
}

/// Behind the API server nobody sees it before the switch.
pub(crate) async fn finds_a_conflict(ready: Move, group: &str) {
    let objects = i64::try_from(ready.objects.len()).unwrap();
    let stage = Stage::new(ready).await;
    let mut tier = object(&format!("{group}/v3"), "Tier", "security");
    tier["spec"] = json!({"order": 7, "defaultAction": "Pass"});
    stage.create(&tier).await;
    let backend = api_server(&stage, group).await;

    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    let status = stage.read().await.status.unwrap();
    assert_eq!(status.phase, Some(DatastorePhase::WaitingForConflictResolution));
    let conflicts = engine.found().conflicts;
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(
        (conflicts[0].name.as_str(), conflicts[0].field.as_str()),
        ("security", "spec.order")
    );
    assert_eq!(stage.policies(&migration).await, 0);
    assert_eq!(targets(&stage, group).await, 1, "only what was there before");
    is_as_before(&stage, group, &backend).await;

    // The source is made equal, and somebody asks for another attempt.
    let source = object(&format!("crd.{group}/v1"), "Tier", "security");
    let equal = json!({"metadata": {"labels": {"written": null}}, "spec": {"order": 7}});
    stage.patch(&source, equal).await.unwrap();
    stage
        .edit(json!({"metadata": {"annotations": {RETRY_ANNOTATION: "1"}}}))
        .await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.migrated, progress.skipped), (objects - 1, 1));
    let information = object(&format!("{group}/v3"), "ClusterInformation", "default");
    assert_eq!(stage.get(&information).await.data["spec"]["datastoreReady"], true);

    // The source stays frozen in the end, flag and all, until somebody thaws it: a person, whom its policy refuses, too.
    assert_eq!(stage.end().await, Ended::Done);
    let information = object(&format!("crd.{group}/v1"), "ClusterInformation", "default");
    assert_eq!(
        stage.get(&information).await.data["spec"]["datastoreReady"],
        false
    );
    assert!(!can_write(&stage, &source).await);
    let removed = freeze::thaw(&stage.client, &Writer::named("exuvia"), stage.name()).await;
    assert!(removed.unwrap() > 0);
    assert_eq!(stage.get(&information).await.data["spec"]["datastoreReady"], true);
    assert!(can_write(&stage, &source).await);
}

#[tokio::test]
async fn an_abort_at_any_step_leaves_calico_as_it_was() {
    let group = "projectcalico.aborted";
    let steps = [
        Step::Try,
        Step::SetFlags,
        Step::AwaitRoute,
        Step::Copy,
        Step::Commit,
    ];
    Box::pin(is_aborted_at(calico_in(group).only(&KINDS), group, &steps)).await;
}

/// Begins again and again, and is aborted each time when one of these steps is next.
pub(crate) async fn is_aborted_at(ready: Move, group: &str, steps: &[Step]) {
    let stage = Stage::new(ready).await;
    let backend = api_server(&stage, group).await;
    for &step in steps {
        let migration = stage.start().await;
        let mut engine = stage.engine(&migration);
        up_to(&mut engine, step).await;
        stage
            .migrations()
            .delete(stage.name(), &DeleteParams::default())
            .await
            .unwrap();
        assert_eq!(stage.drive(&mut engine).await, Ended::Done, "{step:?}");
        assert!(
            stage.migrations().get_opt(stage.name()).await.unwrap().is_none(),
            "{step:?}"
        );
        let left = (
            stage.policies(&migration).await,
            stage.clones(&migration).await,
            targets(&stage, group).await,
        );
        assert_eq!(left, (0, 0, 0), "{step:?}");
        is_as_before(&stage, group, &backend).await;
    }
    // Its server ends with this test: a group that nobody answers for would keep every other migration from its end, since
    // nobody knows what is in it.
    stage.delete(&backend.api_service()).await;
}
