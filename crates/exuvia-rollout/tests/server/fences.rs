//! The fence against writers that know nothing of gates.

use exuvia_rollout::{Action, Error, Fence, FencedKind, InForce, Names};
use exuvia_testenv::until;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Stage, TARGET, annotation, image, stateful_set, writer};

const FENCE: &str = "exuvia.dev/fence";

impl Stage {
    async fn probe(&self, fence: &Fence) -> InForce {
        let (prober, target, intent) = (writer("prober"), self.target(), self.intent("probe:1"));
        let said = fence.probe(&self.direct, &prober, &target, &intent);
        said.await.unwrap()
    }

    /// Around the target of this stage only, and in force.
    async fn fence(&self, names: Names) -> Fence {
        let fence = Fence {
            name: self.namespace.clone(),
            kinds: vec![FencedKind {
                names: vec![TARGET.to_owned()],
                ..FencedKind::new("apps", "statefulsets")
            }],
            namespaces: vec![self.namespace.clone()],
            names,
        };
        assert_eq!(self.probe(&fence).await, InForce::NotYet);
        let [policy, binding] = fence.manifests();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.direct.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.direct.clone());
        let params = PatchParams::apply("admin");
        policies
            .patch(&fence.name, &params, &Patch::Apply(&policy))
            .await
            .unwrap();
        bindings
            .patch(&fence.name, &params, &Patch::Apply(&binding))
            .await
            .unwrap();
        until("the fence is in force", async || {
            self.probe(&fence).await == InForce::Yes
        })
        .await;
        fence
    }
}

#[track_caller]
fn denied(result: Result<impl std::fmt::Debug, kube::Error>, what: &str) {
    match result {
        Err(kube::Error::Api(status)) => {
            assert_eq!(status.code, 403, "{what}: {}", status.message);
            assert!(
                status.message.contains("ValidatingAdmissionPolicy"),
                "{what}: {}",
                status.message
            );
        }
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
async fn a_stamp_never_goes_back_nor_vanishes_with_any_writer() {
    let stage = Stage::set("fence-token").await;
    stage.fence(Names::default()).await;
    // Without a stamp nothing is fenced, and anyone may create.
    let plain = serde_json::from_value(stateful_set("fence-token", TARGET, "a:0")).unwrap();
    stage.sets().create(&PostParams::default(), &plain).await.unwrap();
    stage
        .patch(&json!({"metadata": {"annotations": {"any": "thing"}}}))
        .await
        .unwrap();
    stage
        .gate()
        .admit(&stage.intent("a:3"), &stage.ours(3))
        .await
        .unwrap();

    let uid = &stage.owner_uid;
    let stamp = |stamp: Value| json!({"metadata": {"annotations": {FENCE: stamp}}});
    denied(stage.patch(&stamp(Value::Null)).await, "taken away");
    denied(
        stage.patch(&json!({"metadata": {"annotations": null}})).await,
        "all annotations taken away",
    );
    denied(stage.patch(&stamp(json!(""))).await, "emptied");
    denied(stage.patch(&stamp(json!("three"))).await, "made unreadable");
    denied(stage.patch(&stamp(json!(format!("{uid}/2")))).await, "set back");
    denied(
        stage.patch(&stamp(json!(format!("{uid}/02")))).await,
        "set back in another spelling",
    );

    // A replacement, as `kubectl replace` sends it, and an apply, as `kubectl apply --server-side --force-conflicts` does.
    let mut replaced = stage.sets().get(TARGET).await.unwrap();
    replaced.metadata.annotations = None;
    denied(
        stage
            .sets()
            .replace(TARGET, &PostParams::default(), &replaced)
            .await,
        "replaced without",
    );
    let mut applied = stateful_set("fence-token", TARGET, "old:1");
    applied["metadata"]["annotations"] = json!({FENCE: format!("{uid}/1")});
    let force = PatchParams::apply("kubectl").force();
    denied(
        stage.sets().patch(TARGET, &force, &Patch::Apply(&applied)).await,
        "applied with an old one",
    );
    // Through /status annotations of built-in kinds can be written, too.
    let params = PatchParams::default();
    let through_status = stage
        .sets()
        .patch_status(TARGET, &params, &Patch::Merge(&stamp(Value::Null)))
        .await;
    denied(through_status, "taken away through /status");
    let live = stage.live().await;
    assert_eq!(
        (image(&live), annotation(&live, FENCE)),
        ("a:3", Some(format!("{uid}/3").as_str()))
    );

    // Nor by way of an owner that is not the controller.
    denied(stage.patch(&stamp(json!("nobody/1"))).await, "another owner's");
    let owned = |controller: &str, is_controller: bool, of: &str| {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "till", "uid": controller, "controller": is_controller});
        json!({"metadata": {"ownerReferences": [owner], "annotations": {FENCE: format!("{of}/1")}}})
    };
    denied(
        stage.patch(&owned("another", false, "another")).await,
        "of an owner that is not the controller",
    );
    denied(
        stage.patch(&owned(uid, true, "another")).await,
        "of another owner than the controller",
    );

    // What leaves the stamp alone passes, and so do a newer one, that of a new controller, scaling and deletion.
    stage.patch(&json!({"spec": {"replicas": 2}})).await.unwrap();
    let scale = json!({"spec": {"replicas": 3}});
    stage
        .sets()
        .patch_subresource("scale", TARGET, &params, &Patch::Merge(&scale))
        .await
        .unwrap();
    stage.patch(&stamp(json!(format!("{uid}/10")))).await.unwrap();
    stage.patch(&owned("another", true, "another")).await.unwrap();
    stage
        .sets()
        .delete(TARGET, &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn generations_in_the_pod_template_can_be_fenced_too() {
    let stage = Stage::set("fence-generation").await;
    stage.fence(Names::toolhive()).await;
    let name = Names::toolhive().generation_annotation;
    let stamped = |generation: Value| json!({"spec": {"template": {"metadata": {"annotations": {name.as_ref(): generation}}}}});
    let plain = serde_json::from_value(stateful_set("fence-generation", TARGET, "a:1")).unwrap();
    stage.sets().create(&PostParams::default(), &plain).await.unwrap();
    stage.patch(&stamped(json!("seven"))).await.unwrap(); // unreadable, and so it can be repaired
    stage.patch(&stamped(json!("3"))).await.unwrap();
    denied(stage.patch(&stamped(json!("2"))).await, "set back");
    denied(stage.patch(&stamped(Value::Null)).await, "taken away");
    stage.patch(&stamped(json!("10"))).await.unwrap();
    // PITFALLS B23: the compat gate of generation 0 cannot open it any more.
    let generation = exuvia_rollout::Generation::choose(Some("0"), None);
    let force_owner = stage.compat().admit(&stage.intent("a:0"), generation).await;
    // It does not own the stamp, so its apply leaves it there; one that owns it is refused.
    assert!(force_owner.is_ok());
    assert_eq!(
        stage.live().await["spec"]["template"]["metadata"]["annotations"][name.as_ref()],
        "10"
    );
    let generation = |text: &str| exuvia_rollout::Generation::choose(Some(text), None);
    stage
        .compat()
        .admit(&stage.intent("a:11"), generation("11"))
        .await
        .unwrap();
    let error = stage
        .compat()
        .admit(&stage.intent("a:0"), generation("0"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Write(_)), "{error}");
    assert_eq!(image(&stage.live().await), "a:11");
}

#[tokio::test]
async fn the_fences_refusal_is_a_conflict_to_the_strict_gate() {
    let stage = Stage::set("fence-outrun").await;
    let fence = stage.fence(Names::default()).await;
    stage
        .gate()
        .admit(&stage.intent("a:3"), &stage.ours(3))
        .await
        .unwrap();
    // A server whose reads are behind: the gate sees epoch 1, the policy sees 3.
    let mut behind = stage.live().await;
    behind["metadata"]["annotations"][FENCE] = json!(format!("{}/1", stage.owner_uid));
    let reads = exuvia_testenv::proxy::Match::method(http::Method::GET).resource("statefulsets");
    let answer = exuvia_testenv::proxy::Answer::status(200).json(&behind);
    let once = exuvia_testenv::proxy::Rule::on(reads).nth(1);
    stage
        .proxy
        .inject(once.then(exuvia_testenv::proxy::Fault::refuse(answer)));
    let gate = stage.gate().fence(&fence.name);
    let outcome = gate.admit(&stage.intent("a:2"), &stage.ours(2)).await.unwrap();
    assert_eq!((outcome.decision.action, outcome.rounds), (Action::SkipStale, 2));
    assert_eq!(image(&stage.live().await), "a:3");
}
