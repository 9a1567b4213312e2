//! Every row of the strict table, on StatefulSets that one manager applies.

use std::time::Duration;

use exuvia_rollout::gate::strict::Config;
use exuvia_rollout::{Action, Error, Next, Ours, Outcome, exit};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{OWNER, Stage, TARGET, annotation, image, ours_of, stateful_set};

const FENCE: &str = "exuvia.dev/fence";

impl Stage {
    async fn admit(&self, epoch: u64, image: &str) -> Outcome {
        self.gate()
            .admit(&self.intent(image), &self.ours(epoch))
            .await
            .unwrap()
    }

    async fn create(&self, object: &Value) {
        let object = serde_json::from_value(object.clone()).unwrap();
        self.sets().create(&PostParams::default(), &object).await.unwrap();
    }
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
async fn row_1_what_cannot_be_read_is_an_error_and_never_an_apply() {
    let stage = Stage::set("strict-1").await;
    for (resource, name) in [("statefulsets", TARGET), ("configmaps", OWNER)] {
        for (code, exit) in [
            (403, exit::FAILED),
            (500, exit::TRY_AGAIN),
            (429, exit::TRY_AGAIN),
        ] {
            let reads = Match::any().resource(resource).object("strict-1", name);
            let answer = exuvia_testenv::proxy::Answer::status(code).without_retry_after();
            stage
                .proxy
                .inject(Rule::on(reads).always().then(Fault::refuse(answer)));
            let error = stage
                .gate()
                .admit(&stage.intent("a:1"), &stage.ours(1))
                .await
                .unwrap_err();
            assert!(matches!(error, Error::Unread { .. }), "{error}");
            assert_eq!(error.exit_code(), exit, "{error}");
            stage.proxy.clear();
        }
    }
    assert_eq!(stage.proxy.writes().len(), 0);
    // One that passes is not noticed.
    let once = Rule::on(Match::any().resource("statefulsets"))
        .nth(1)
        .then(Fault::refuse(503));
    stage.proxy.inject(once);
    expect(&stage.admit(1, "a:1").await, 7, Action::Create);
}

#[tokio::test]
async fn row_2_without_a_living_owner_nothing_is_applied() {
    let stage = Stage::set("strict-2").await;
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    let params = PatchParams::default();
    stage
        .owners()
        .patch(OWNER, &params, &Patch::Merge(&hold))
        .await
        .unwrap();
    stage.delete_owner().await;
    let outcome = stage.admit(1, "a:1").await;
    expect(&outcome, 2, Action::RefuseOrphan);
    assert_eq!(outcome.next(), Next::NotReady { exit: 5 });
    let free = json!({"metadata": {"finalizers": []}});
    stage
        .owners()
        .patch(OWNER, &params, &Patch::Merge(&free))
        .await
        .unwrap();
    expect(&stage.admit(1, "a:1").await, 2, Action::RefuseOrphan);
    assert_eq!(stage.proxy.writes().len(), 0);
}

#[tokio::test]
async fn row_3_torn_config_is_refused() {
    let stage = Stage::set("strict-3").await;
    let ours = Ours {
        config: Config::Torn,
        ..stage.ours(1)
    };
    let outcome = stage.gate().admit(&stage.intent("a:1"), &ours).await.unwrap();
    expect(&outcome, 3, Action::RefuseTorn);
    assert_eq!(outcome.next(), Next::NotReady { exit: 3 });
    assert_eq!(stage.proxy.writes().len(), 0);
}

#[tokio::test]
async fn rows_4_and_5_without_a_token_a_stamped_target_is_left_alone() {
    let stage = Stage::set("strict-4").await;
    let unversioned = Ours {
        token: None,
        ..stage.ours(1)
    };
    for image in ["a:1", "a:2"] {
        let outcome = stage
            .gate()
            .admit(&stage.intent(image), &unversioned)
            .await
            .unwrap();
        expect(&outcome, 4, Action::ApplyUnstamped);
        assert_eq!(outcome.event().unwrap().kind, "Warning");
        assert_eq!(annotation(&stage.live().await, FENCE), None);
        assert_eq!(super::image(&stage.live().await), image);
    }
    expect(&stage.admit(3, "a:3").await, 8, Action::Apply);
    stage.proxy.forget();
    let outcome = stage
        .gate()
        .admit(&stage.intent("a:1"), &unversioned)
        .await
        .unwrap();
    expect(&outcome, 5, Action::RefuseUnversioned);
    assert_eq!(outcome.next(), Next::NotReady { exit: 4 });
    assert_eq!(stage.proxy.writes().len(), 0);
    let live = stage.live().await;
    assert_eq!((image(&live), annotation(&live, FENCE).is_some()), ("a:3", true));
}

#[tokio::test]
async fn row_6_a_target_that_is_going_is_waited_for_and_then_made() {
    let stage = Stage::set("strict-6").await;
    stage.admit(1, "a:1").await;
    stage
        .patch(&json!({"metadata": {"finalizers": ["example.com/hold"]}}))
        .await
        .unwrap();
    let old = stage.sets().get(TARGET).await.unwrap().metadata.uid;
    stage
        .sets()
        .delete(TARGET, &DeleteParams::default())
        .await
        .unwrap();
    stage.proxy.forget();
    let impatient = stage.gate().deletion_patience(Duration::ZERO);
    let error = impatient
        .admit(&stage.intent("a:2"), &stage.ours(2))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::StillDeleting { .. }), "{error}");
    assert_eq!(error.exit_code(), 75);

    let (gate, intent, ours) = (stage.gate(), stage.intent("a:2"), stage.ours(2));
    stage.proxy.forget();
    let waiting = tokio::spawn(async move { gate.admit(&intent, &ours).await });
    stage
        .proxy
        .wait_for(|request| request.path.ends_with("/statefulsets/till-backend"))
        .await;
    assert_eq!(stage.proxy.writes().len(), 0);
    stage
        .patch(&json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
    let outcome = waiting.await.unwrap().unwrap();
    expect(&outcome, 7, Action::Create);
    assert_ne!(stage.sets().get(TARGET).await.unwrap().metadata.uid, old);
}

#[tokio::test]
async fn row_7_what_is_absent_is_made_and_owned_as_if_it_was_applied() {
    let stage = Stage::set("strict-7").await;
    // With values that the server does not show, because they are empty (PITFALLS A46).
    let mut first = stateful_set("strict-7", TARGET, "a:1");
    let pod = &mut first["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({});
    let container = &mut pod["containers"][0];
    container["args"] = json!([]);
    container["stdin"] = json!(false);
    let empty = json!({"name": "EMPTY", "value": ""});
    container["env"].as_array_mut().unwrap().push(empty);
    let first = exuvia_rollout::Intent::new(&first).unwrap();
    let outcome = stage.gate().admit(&first, &stage.ours(1)).await.unwrap();
    expect(&outcome, 7, Action::Create);
    assert_eq!(outcome.next(), Next::Serve { is_current: true });
    let live = stage.live().await;
    assert_eq!(
        annotation(&live, FENCE),
        Some(format!("{}/1", stage.owner_uid).as_str())
    );
    assert_eq!(annotation(&live, "exuvia.dev/config-hash"), Some("c0ffee"));
    assert_eq!(annotation(&live, "mcp.exuvia.dev/generation"), Some("1"));
    let entries = live["metadata"]["managedFields"].as_array().unwrap();
    let ours: Vec<_> = entries
        .iter()
        .map(|entry| (&entry["manager"], &entry["operation"]))
        .collect();
    assert_eq!(ours, [(&json!("mcp-runner"), &json!("Apply"))]);
    // So a second start finds nothing to claim.
    stage.proxy.forget();
    let again = stage.gate().admit(&first, &stage.ours(1)).await.unwrap();
    expect(&again, 11, Action::Nothing);
    assert!(stage.proxy.writes().is_empty());
    // And what a later intent leaves out goes.
    let mut less = stateful_set("strict-7", TARGET, "a:2");
    less["spec"]["template"]["spec"]["containers"][0]
        .as_object_mut()
        .unwrap()
        .remove("env");
    let less = exuvia_rollout::Intent::new(&less).unwrap();
    let outcome = stage.gate().admit(&less, &stage.ours(2)).await.unwrap();
    expect(&outcome, 13, Action::Apply);
    assert!(
        stage.live().await["spec"]["template"]["spec"]["containers"][0]
            .get("env")
            .is_none()
    );
}

/// PITFALLS A42: a crash between the creation and its second write.
#[tokio::test]
async fn a_half_made_target_is_healed_by_the_next_pod() {
    let stage = Stage::set("strict-7b").await;
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(2).then(Fault::refuse(403)));
    let error = stage
        .gate()
        .admit(&stage.intent("a:1"), &stage.ours(1))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Write(_)), "{error}");
    let operations = |live: &Value| -> Vec<String> {
        let entries = live["metadata"]["managedFields"].as_array().unwrap();
        entries
            .iter()
            .map(|entry| entry["operation"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(operations(&stage.live().await), ["Update"]);
    // The same pod, started again: the values are right, and now they become ours. Then there is nothing left to apply.
    let outcome = stage.admit(1, "a:1").await;
    expect(&outcome, 11, Action::Nothing);
    assert_eq!(outcome.rounds, 1);
    assert_eq!(operations(&stage.live().await), ["Apply"]);
    expect(&stage.admit(1, "a:1").await, 11, Action::Nothing);
}

#[tokio::test]
async fn row_8_an_unstamped_target_is_adopted_unless_it_is_somebody_elses() {
    let stage = Stage::set("strict-8").await;
    stage.create(&stateful_set("strict-8", TARGET, "a:1")).await;
    let outcome = stage.admit(1, "a:2").await;
    expect(&outcome, 8, Action::Apply);
    let live = stage.live().await;
    assert_eq!((image(&live), annotation(&live, FENCE).is_some()), ("a:2", true));

    stage
        .sets()
        .delete(TARGET, &DeleteParams::default())
        .await
        .unwrap();
    for (uid, action) in [
        ("somebody-else", Action::RefuseUnversioned),
        (&stage.owner_uid, Action::Apply),
    ] {
        let mut owned = stateful_set("strict-8", TARGET, "a:1");
        owned["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "ConfigMap", "name": OWNER, "uid": uid, "controller": true,
        }]);
        stage.create(&owned).await;
        expect(&stage.admit(1, "a:2").await, 8, action);
        stage
            .sets()
            .delete(TARGET, &DeleteParams::default())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn row_9_a_stamp_that_nobody_can_read_is_replaced_by_the_live_owner_only() {
    let stage = Stage::set("strict-9").await;
    stage.admit(7, "a:7").await;
    let broken = json!({"metadata": {"annotations": {FENCE: "seven"}}});
    stage.patch(&broken).await.unwrap();
    let stranger = ours_of("an-owner-of-old", 9);
    let outcome = stage.gate().admit(&stage.intent("a:9"), &stranger).await.unwrap();
    expect(&outcome, 9, Action::RefuseUnversioned);
    assert_eq!(image(&stage.live().await), "a:7");
    let outcome = stage.admit(1, "a:1").await;
    expect(&outcome, 9, Action::Apply);
    assert_eq!(outcome.event().unwrap().kind, "Warning");
    assert_eq!(image(&stage.live().await), "a:1");
}

#[tokio::test]
async fn rows_10_11_and_13_the_newer_wins_and_a_second_start_sends_nothing() {
    let stage = Stage::set("strict-10").await;
    stage.admit(2, "a:2").await;
    let outcome = stage.admit(3, "a:3").await;
    expect(&outcome, 13, Action::Apply);
    stage.proxy.forget();
    let outcome = stage.admit(2, "a:2").await;
    expect(&outcome, 10, Action::SkipStale);
    assert_eq!(outcome.next(), Next::Serve { is_current: false });
    assert_eq!(outcome.log_line(), "decision=skip ours=2 theirs=3 env=2 file=9");
    for _ in 0..20 {
        let outcome = stage.admit(3, "a:3").await;
        expect(&outcome, 11, Action::Nothing);
        assert!(outcome.event().is_none());
    }
    assert_eq!(stage.proxy.writes().len(), 0);
    assert_eq!(image(&stage.live().await), "a:3");
    // An edit by somebody else is taken back, and what is not ours is left.
    stage.patch(&json!({"spec": {"replicas": 4}})).await.unwrap();
    expect(&stage.admit(3, "a:3").await, 11, Action::Nothing);
    let container =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "mcp", "image": "evil:1"}]}}}});
    stage.patch(&container).await.unwrap();
    expect(&stage.admit(3, "a:3").await, 11, Action::Apply);
    let live = stage.live().await;
    assert_eq!((image(&live), &live["spec"]["replicas"]), ("a:3", &json!(4)));
}

#[tokio::test]
async fn row_12_of_one_epoch_with_another_image_the_deployments_template_decides() {
    let stage = Stage::set("strict-12").await;
    stage.admit(3, "a:3").await;
    // Without a Deployment nobody can say that ours is right.
    expect(&stage.admit(3, "b:3").await, 12, Action::SkipStale);
    let deployments: kube::Api<k8s_openapi::api::apps::v1::Deployment> =
        kube::Api::namespaced(stage.direct.clone(), "strict-12");
    let deployment = |config_hash: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": OWNER}, "spec": {
            "selector": {"matchLabels": {"app": "till"}},
            "template": {
                "metadata": {"labels": {"app": "till"}, "annotations": {
                    FENCE: format!("{}/3", stage.owner_uid), "exuvia.dev/config-hash": config_hash,
                }},
                "spec": {"containers": [{"name": "runner", "image": "r:1"}]},
            },
        }})
    };
    let params = PatchParams::apply("operator");
    for (config_hash, action, expected) in [
        ("another", Action::SkipStale, "a:3"),
        ("c0ffee", Action::Apply, "b:3"),
    ] {
        let patch = deployment(config_hash);
        deployments
            .patch(OWNER, &params, &Patch::Apply(&patch))
            .await
            .unwrap();
        expect(&stage.admit(3, "b:3").await, 12, action);
        assert_eq!(image(&stage.live().await), expected);
    }
}

/// PITFALLS B24.
#[tokio::test]
async fn rows_14_and_15_a_recreated_owner_wins_and_the_old_ones_pods_do_not() {
    let stage = Stage::set("strict-14").await;
    stage.admit(7, "a:7").await;
    stage.delete_owner().await;
    let new = stage.create_owner().await;
    // The new owner's epochs begin at 1.
    let ours = ours_of(&new, 1);
    let outcome = stage.gate().admit(&stage.intent("b:1"), &ours).await.unwrap();
    expect(&outcome, 14, Action::Apply);
    assert_eq!(image(&stage.live().await), "b:1");
    stage.proxy.forget();
    let outcome = stage.admit(8, "a:8").await;
    expect(&outcome, 15, Action::SkipStale);
    assert!(
        outcome.log_line().contains(&format!("theirs={new}/1")),
        "{}",
        outcome.log_line()
    );
    assert_eq!(
        (image(&stage.live().await), stage.proxy.writes().len()),
        ("b:1", 0)
    );

    // Nor do they touch what nobody stamped, nor make what is absent.
    stage
        .patch(&json!({"metadata": {"annotations": {FENCE: null}}}))
        .await
        .unwrap();
    expect(&stage.admit(8, "a:8").await, 8, Action::SkipStale);
    stage
        .sets()
        .delete(TARGET, &DeleteParams::default())
        .await
        .unwrap();
    expect(&stage.admit(8, "a:8").await, 7, Action::SkipStale);
    assert_eq!(stage.proxy.writes().len(), 0);
}
