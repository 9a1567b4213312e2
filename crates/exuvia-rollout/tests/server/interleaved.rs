//! What happens between the read and the apply, one interleaving at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use exuvia_rollout::{Action, CompatGate, Error, Generation, Names, Outcome};
use exuvia_write::{Verb, Writer};
use kube::api::{DeleteParams, PostParams};
use tokio::runtime::Handle;

use super::{Stage, TARGET, image, stateful_set, writer};

/// A writer that does `meanwhile` right before each of its first `times` writes with that verb.
fn interrupted<F>(
    manager: &str,
    verb: Verb,
    times: u32,
    meanwhile: impl Fn() -> F + Send + Sync + 'static,
) -> Writer
where
    F: Future<Output = ()> + Send + 'static,
{
    let left = AtomicU32::new(times);
    writer(manager).gate(move |attempt| {
        let is_due = attempt.verb == verb
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        if is_due {
            tokio::task::block_in_place(|| Handle::current().block_on(meanwhile()));
        }
        Ok(())
    })
}

async fn admit(stage: &Stage, writer: Writer, epoch: u64, image: &str) -> Result<Outcome, Error> {
    stage
        .gate_with(writer)
        .admit(&stage.intent(image), &stage.ours(epoch))
        .await
}

/// PITFALLS B22.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_writer_between_read_and_apply_is_overwritten_in_compat_and_not_in_strict() {
    let stage = Arc::new(Stage::set("between-newer").await);
    admit(&stage, writer("mcp-runner"), 1, "a:1").await.unwrap();
    let newer = stage.clone();
    let outdated = interrupted("mcp-runner", Verb::Apply, 1, move || {
        let stage = newer.clone();
        async move {
            admit(&stage, writer("mcp-runner"), 3, "a:3").await.unwrap();
        }
    });
    let outcome = admit(&stage, outdated, 2, "a:2").await.unwrap();
    assert_eq!((outcome.decision.row, outcome.rounds), (10, 2));
    assert_eq!(image(&stage.live().await), "a:3");

    let stage = Arc::new(Stage::set("between-compat").await);
    let gate = |writer| CompatGate::new(stage.direct.clone(), writer, Names::toolhive(), stage.target());
    let plain = gate(writer("toolhive-container-manager"));
    let generation = |number: &str| Generation::choose(Some(number), None);
    plain.admit(&stage.intent("a:1"), generation("1")).await.unwrap();
    let newer = (plain.clone(), stage.intent("a:3"));
    let outdated = gate(interrupted(
        "toolhive-container-manager",
        Verb::Apply,
        1,
        move || {
            let (gate, intent) = newer.clone();
            async move {
                let outcome = gate
                    .admit(&intent, Generation::choose(Some("3"), None))
                    .await
                    .unwrap();
                assert_eq!(outcome.decision.action, Action::Apply);
            }
        },
    ));
    outdated
        .admit(&stage.intent("a:2"), generation("2"))
        .await
        .unwrap();
    assert_eq!(image(&stage.live().await), "a:2", "pinned: the stale one has won");
}

/// PITFALLS A41.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_deleted_between_read_and_apply_is_decided_again() {
    let stage = Arc::new(Stage::set("between-deleted").await);
    admit(&stage, writer("mcp-runner"), 1, "a:1").await.unwrap();
    let other = stage.clone();
    let deleting = interrupted("mcp-runner", Verb::Apply, 1, move || {
        let stage = other.clone();
        async move {
            stage
                .sets()
                .delete(TARGET, &DeleteParams::default())
                .await
                .unwrap();
        }
    });
    let outcome = admit(&stage, deleting, 2, "a:2").await.unwrap();
    // Not an apply that creates: the second round finds it absent.
    assert_eq!((outcome.decision.row, outcome.rounds), (7, 2));
    assert_eq!(image(&stage.live().await), "a:2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_deleted_and_made_by_a_newer_pod_in_between_is_skipped() {
    let stage = Arc::new(Stage::set("between-remade").await);
    admit(&stage, writer("mcp-runner"), 1, "a:1").await.unwrap();
    let other = stage.clone();
    let remade = interrupted("mcp-runner", Verb::Apply, 1, move || {
        let stage = other.clone();
        async move {
            stage
                .sets()
                .delete(TARGET, &DeleteParams::default())
                .await
                .unwrap();
            admit(&stage, writer("mcp-runner"), 3, "a:3").await.unwrap();
        }
    });
    let outcome = admit(&stage, remade, 2, "a:2").await.unwrap();
    assert_eq!((outcome.decision.row, outcome.rounds), (10, 2));
    assert_eq!(image(&stage.live().await), "a:3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_made_by_a_newer_pod_before_our_creation_is_skipped() {
    let stage = Arc::new(Stage::set("between-made").await);
    let other = stage.clone();
    let late = interrupted("mcp-runner", Verb::Create, 1, move || {
        let stage = other.clone();
        async move {
            admit(&stage, writer("mcp-runner"), 3, "a:3").await.unwrap();
        }
    });
    let outcome = admit(&stage, late, 2, "a:2").await.unwrap();
    assert_eq!((outcome.decision.row, outcome.rounds), (10, 2));
    assert_eq!(image(&stage.live().await), "a:3");
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_who_is_always_faster_ends_it_after_five_rounds() {
    let stage = Arc::new(Stage::set("between-always").await);
    admit(&stage, writer("mcp-runner"), 1, "a:1").await.unwrap();
    let other = stage.clone();
    let rounds = Arc::new(AtomicU32::new(0));
    let counted = rounds.clone();
    let outrun = interrupted("mcp-runner", Verb::Apply, u32::MAX, move || {
        let (stage, round) = (other.clone(), counted.fetch_add(1, Ordering::SeqCst));
        async move {
            let patch = serde_json::json!({"metadata": {"labels": {"round": round.to_string()}}});
            stage.patch(&patch).await.unwrap();
        }
    });
    let error = admit(&stage, outrun, 2, "a:2").await.unwrap_err();
    assert!(matches!(error, Error::Contended { rounds: 5, .. }), "{error}");
    assert_eq!((error.exit_code(), error.reason()), (75, "Contended"));
    assert_eq!(rounds.load(Ordering::SeqCst), 5);
    assert_eq!(image(&stage.live().await), "a:1");
}

/// A healing that meets a newer writer must not pave the way for a stale apply.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_writer_during_the_healing_is_not_overwritten() {
    let stage = Arc::new(Stage::set("between-healed").await);
    // Made by a plain creation under our name, as a crash leaves it.
    let mut half = stateful_set("between-healed", TARGET, "a:1");
    half["metadata"]["annotations"] =
        serde_json::json!({"exuvia.dev/fence": format!("{}/1", stage.owner_uid)});
    let params = PostParams {
        field_manager: Some("mcp-runner".to_owned()),
        ..PostParams::default()
    };
    let half = serde_json::from_value(half).unwrap();
    stage.sets().create(&params, &half).await.unwrap();
    let other = stage.clone();
    let outdated = interrupted("mcp-runner", Verb::MoveOwnership, 1, move || {
        let stage = other.clone();
        async move {
            admit(&stage, writer("mcp-runner"), 3, "a:3").await.unwrap();
        }
    });
    let outcome = admit(&stage, outdated, 2, "a:2").await.unwrap();
    assert_eq!(outcome.decision.row, 10);
    assert_eq!(image(&stage.live().await), "a:3");
}
