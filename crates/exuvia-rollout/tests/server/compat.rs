//! Every row of the compat table, on StatefulSets that one manager applies, and the flaws that it has.

use exuvia_rollout::{Action, CompatGate, Error, Generation, Names, Next, Outcome};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use serde_json::{Value, json};

use super::{Stage, TARGET, image, writer};

const STAMP: &str = "toolhive.stacklok.dev/mcpserver-generation";

impl Stage {
    pub(super) fn compat(&self) -> CompatGate {
        let manager = writer("toolhive-container-manager");
        CompatGate::new(self.proxied.clone(), manager, Names::toolhive(), self.target())
    }

    async fn admit_compat(&self, generation: i64, image: &str) -> Outcome {
        let generation = Generation::choose(Some(&generation.to_string()), Some(3));
        self.compat()
            .admit(&self.intent(image), generation)
            .await
            .unwrap()
    }
}

fn stamp(live: &Value) -> Option<&str> {
    live["spec"]["template"]["metadata"]["annotations"][STAMP].as_str()
}

#[track_caller]
fn expect(outcome: &Outcome, row: u8, action: Action) {
    assert_eq!(
        (outcome.decision.row, outcome.decision.action),
        (row, action),
        "{}",
        outcome.log_line()
    );
}

#[tokio::test]
async fn every_row_of_the_compat_table_on_a_real_stateful_set() {
    let stage = Stage::set("compat-rows").await;
    // A read that fails is never an apply.
    let reads = Match::any().resource("statefulsets");
    stage
        .proxy
        .inject(Rule::on(reads).always().then(Fault::refuse(403)));
    let generation = Generation::choose(Some("2"), None);
    let error = stage
        .compat()
        .admit(&stage.intent("a:2"), generation)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Unread { .. }), "{error}");
    assert_eq!(stage.proxy.writes().len(), 0);
    stage.proxy.clear();

    // Absent.
    expect(&stage.admit_compat(2, "a:2").await, 2, Action::Apply);
    assert_eq!(stamp(&stage.live().await), Some("2"));
    // Older, equal, newer.
    expect(&stage.admit_compat(3, "a:3").await, 4, Action::Apply);
    expect(&stage.admit_compat(3, "a:3").await, 4, Action::Apply);
    stage.proxy.forget();
    let outcome = stage.admit_compat(2, "a:2").await;
    expect(&outcome, 5, Action::SkipStale);
    assert_eq!(outcome.log_line(), "decision=skip ours=2 theirs=3 env=2 file=3");
    assert_eq!(outcome.next(), Next::Serve { is_current: false });
    assert_eq!(
        (stage.proxy.writes().len(), image(&stage.live().await)),
        (0, "a:3")
    );
    // Unparsable, empty, absent.
    for (value, is_warned) in [(json!("three"), true), (json!(""), false), (Value::Null, false)] {
        let patch = json!({"spec": {"template": {"metadata": {"annotations": {STAMP: value}}}}});
        stage.patch(&patch).await.unwrap();
        let outcome = stage.admit_compat(1, "a:1").await;
        expect(&outcome, 4, Action::Apply);
        assert_eq!(
            (outcome.decision.is_warned, stamp(&stage.live().await)),
            (is_warned, Some("1"))
        );
    }
}

/// PITFALLS B23: pinned, because those who share targets with ToolHive get exactly this.
#[tokio::test]
async fn a_generation_of_0_erases_the_stamp_and_opens_the_gate_in_compat() {
    let stage = Stage::set("compat-erase").await;
    stage.admit_compat(5, "a:5").await;
    expect(&stage.admit_compat(0, "a:0").await, 3, Action::ApplyUnstamped);
    let live = stage.live().await;
    assert_eq!((stamp(&live), image(&live)), (None, "a:0"));
    // Now anyone passes.
    expect(&stage.admit_compat(1, "a:1").await, 4, Action::Apply);
    assert_eq!(image(&stage.live().await), "a:1");
}

/// PITFALLS B22, in its simplest form: pinned.
#[tokio::test]
async fn an_equal_generation_with_another_image_overwrites_in_compat() {
    let stage = Stage::set("compat-equal").await;
    stage.admit_compat(3, "a:3").await;
    expect(&stage.admit_compat(3, "b:3").await, 4, Action::Apply);
    assert_eq!(image(&stage.live().await), "b:3");
    expect(&stage.admit_compat(3, "a:3").await, 4, Action::Apply);
    assert_eq!(image(&stage.live().await), "a:3");
}

/// PITFALLS B24: pinned.
#[tokio::test]
async fn a_recreated_owner_is_skipped_for_ever_in_compat() {
    let stage = Stage::set("compat-recreated").await;
    stage.admit_compat(7, "a:7").await;
    stage.delete_owner().await;
    stage.create_owner().await;
    expect(&stage.admit_compat(1, "b:1").await, 5, Action::SkipStale);
    assert_eq!(image(&stage.live().await), "a:7");
    assert_eq!(TARGET, stage.live().await["metadata"]["name"]);
}
