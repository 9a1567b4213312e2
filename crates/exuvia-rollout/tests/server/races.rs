//! Two writers released together, 200 times per gate: an old one and a new one, onto one target.

use std::sync::Arc;

use exuvia_rollout::{
    CompatGate, Error, Fence, FencedKind, Generation, InForce, Names, ObjectRef, StrictGate,
};
use exuvia_testenv::until;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::{OWNER, Stage, image, stateful_set, writer};

const ROUNDS: usize = 200;

/// What became of 200 rounds: in how many the old one has won.
#[derive(Debug, Default)]
struct Tally {
    lost: usize,
    contended: usize,
}

impl Stage {
    fn named(&self, round: usize) -> ObjectRef {
        ObjectRef::typed::<StatefulSet>(&self.namespace, format!("t{round}"))
    }

    /// Every other round begins with a target of generation 1; the others begin without, and both create.
    async fn begin(&self, round: usize, stamp: &dyn Fn(&mut Value)) {
        if round % 2 == 1 {
            return;
        }
        let mut object = stateful_set(&self.namespace, &format!("t{round}"), "a:1");
        stamp(&mut object);
        let object = serde_json::from_value(object).unwrap();
        let api = self.named(round).api(&self.direct);
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn end(&self, round: usize) -> Value {
        json!(
            self.named(round)
                .api(&self.direct)
                .get(&format!("t{round}"))
                .await
                .unwrap()
        )
    }
}

/// Releases both at once, and waits for both.
async fn together<A, B>(
    old: impl Future<Output = A> + Send + 'static,
    new: impl Future<Output = B> + Send + 'static,
) -> (A, B)
where
    A: Send + 'static,
    B: Send + 'static,
{
    let barrier = Arc::new(Barrier::new(2));
    let other = barrier.clone();
    let old = tokio::spawn(async move {
        other.wait().await;
        old.await
    });
    let new = tokio::spawn(async move {
        barrier.wait().await;
        new.await
    });
    (old.await.unwrap(), new.await.unwrap())
}

fn in_template(names: &Names, generation: &str) -> impl Fn(&mut Value) + use<> {
    let (name, generation) = (names.generation_annotation.to_string(), generation.to_owned());
    move |object: &mut Value| {
        object["spec"]["template"]["metadata"]["annotations"] = json!({name.as_str(): generation});
    }
}

async fn race_compat(stage: &Stage) -> Tally {
    let mut tally = Tally::default();
    for round in 0..ROUNDS {
        stage.begin(round, &in_template(&Names::toolhive(), "1")).await;
        let admit = |generation: &'static str| {
            let (target, manager) = (stage.named(round), writer("toolhive-container-manager"));
            let gate = CompatGate::new(stage.direct.clone(), manager, Names::toolhive(), target);
            let intent = stage.intent_named(&format!("t{round}"), &format!("a:{generation}"));
            async move {
                gate.admit(&intent, Generation::choose(Some(generation), None))
                    .await
                    .map(drop)
            }
        };
        let (_, new) = together(admit("2"), admit("3")).await;
        new.unwrap();
        tally.lost += usize::from(image(&stage.end(round).await) != "a:3");
    }
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn in_200_rounds_compat_loses_some() {
    let stage = Stage::set("race-compat").await;
    let tally = race_compat(&stage).await;
    // How many depends on the machine, so nothing is asserted; each of them is a stale image that nobody will repair.
    println!("compat: the old writer has won {} of {ROUNDS} rounds", tally.lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_200_rounds_compat_behind_a_fence_loses_none() {
    let stage = Stage::set("race-fence").await;
    let mut fence = Fence::new(
        "race-fence",
        vec![FencedKind::new("apps", "statefulsets")],
        Names::toolhive(),
    );
    fence.namespaces = vec!["race-fence".to_owned()];
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(stage.direct.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.direct.clone());
    policies
        .create(&PostParams::default(), &fence.policy())
        .await
        .unwrap();
    bindings
        .create(&PostParams::default(), &fence.binding())
        .await
        .unwrap();
    let (target, intent, prober) = (stage.target(), stage.intent("a:1"), writer("prober"));
    until("the fence is in force", async || {
        let said = fence
            .probe(&stage.direct, &prober, &target, &intent)
            .await
            .unwrap();
        said == InForce::Yes
    })
    .await;
    let tally = race_compat(&stage).await;
    println!(
        "compat behind the fence: the old writer has won {} of {ROUNDS} rounds",
        tally.lost
    );
    assert_eq!(tally.lost, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_200_rounds_strict_loses_none() {
    let stage = Stage::set("race-strict").await;
    let names = Names::default();
    let fence = names.fence_annotation.clone().unwrap().into_owned();
    let mut tally = Tally::default();
    for round in 0..ROUNDS {
        let token = format!("{}/1", stage.owner_uid);
        let stamp = |object: &mut Value| object["metadata"]["annotations"] = json!({fence.as_str(): token});
        stage.begin(round, &stamp).await;
        let admit = |epoch: u64| {
            let owner = ObjectRef::typed::<ConfigMap>(&stage.namespace, OWNER);
            let (target, manager) = (stage.named(round), writer("mcp-runner"));
            let gate = StrictGate::new(stage.direct.clone(), manager, names.clone(), target, owner);
            let intent = stage.intent_named(&format!("t{round}"), &format!("a:{epoch}"));
            let ours = stage.ours(epoch);
            async move { gate.admit(&intent, &ours).await.map(drop) }
        };
        for result in <[Result<(), Error>; 2]>::from(together(admit(2), admit(3)).await) {
            match result {
                Ok(()) => {}
                Err(Error::Contended { .. }) => tally.contended += 1,
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        let live = stage.end(round).await;
        let newest = format!("{}/3", stage.owner_uid);
        let is_lost =
            image(&live) != "a:3" || live["metadata"]["annotations"][fence.as_str()] != newest.as_str();
        tally.lost += usize::from(is_lost);
    }
    println!("strict: the old writer has won {} of {ROUNDS} rounds", tally.lost);
    assert_eq!((tally.lost, tally.contended), (0, 0));
}
