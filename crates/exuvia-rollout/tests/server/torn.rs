//! Frozen config on a real server, and config that is torn in either direction.

use std::time::Duration;

use exuvia_rollout::{Action, FrozenConfig, Generation, Ours, Token, garbage, hash_bytes, read_settled};
use exuvia_write::Adopted;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Stage, image, writer};

/// What the file of a live mount holds: whatever the object holds now.
async fn mounted(api: &Api<ConfigMap>) -> Vec<u8> {
    let map = api.get("run").await.unwrap();
    map.data.unwrap()["runconfig.json"].clone().into_bytes()
}

/// A pod with the environment of its template, and the run config that it finds.
async fn start(stage: &Stage, api: &Api<ConfigMap>, epoch: u64, made_for: &str) -> exuvia_rollout::Outcome {
    let bytes = mounted(api).await;
    let frozen = hash_bytes(made_for.as_bytes());
    let read = read_settled(|| Ok(bytes.clone()), Some(&frozen), Duration::ZERO)
        .await
        .unwrap();
    let image = String::from_utf8(read.bytes).unwrap();
    let ours = Ours {
        token: Some(Token::new(&stage.owner_uid, epoch)),
        config_hash: Some(read.hash),
        config: read.config,
        generation: Generation::default(),
    };
    stage.gate().admit(&stage.intent(&image), &ours).await.unwrap()
}

/// PITFALLS B25.
#[tokio::test]
async fn torn_config_is_refused_in_both_directions() {
    let stage = Stage::set("torn").await;
    let api: Api<ConfigMap> = Api::namespaced(stage.direct.clone(), "torn");
    let put = async |text: &str| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "run"}, "data": {"runconfig.json": text}});
        let params = PatchParams::apply("operator").force();
        api.patch("run", &params, &Patch::Apply(&map)).await.unwrap();
    };
    put("a:1").await;
    assert_eq!(
        start(&stage, &api, 1, "a:1").await.decision.action,
        Action::Create
    );
    // A new pod whose mount is still the old one.
    let outcome = start(&stage, &api, 2, "a:2").await;
    assert_eq!(
        (outcome.decision.row, outcome.decision.action),
        (3, Action::RefuseTorn)
    );
    assert_eq!(image(&stage.live().await), "a:1");
    put("a:2").await;
    assert_eq!(start(&stage, &api, 2, "a:2").await.decision.row, 13);
    // A restarted old pod whose mount is the new one, even where its epoch would pass.
    for epoch in [1, 2, 3] {
        assert_eq!(start(&stage, &api, epoch, "a:1").await.decision.row, 3);
    }
    assert_eq!(image(&stage.live().await), "a:2");
}

#[tokio::test]
async fn a_frozen_config_cannot_be_changed_and_a_foreign_one_is_not_adopted() {
    let stage = Stage::set("frozen").await;
    let api: Api<ConfigMap> = Api::namespaced(stage.direct.clone(), "frozen");
    let writer = writer("operator");
    let frozen = FrozenConfig::new("till", "runconfig.json", "{\"image\": \"a:1\"}");
    assert!(matches!(
        frozen.ensure(&writer, &api, None).await.unwrap(),
        Adopted::Created(_)
    ));
    assert!(matches!(
        frozen.ensure(&writer, &api, None).await.unwrap(),
        Adopted::Existing(_)
    ));
    let change = json!({"data": {"runconfig.json": "{}"}});
    let error = api
        .patch(&frozen.name(), &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap_err();
    assert!(matches!(error, kube::Error::Api(status) if status.code == 422));

    let other = FrozenConfig::new("till", "runconfig.json", "{\"image\": \"a:2\"}");
    let mut squatter = other.config_map("frozen", None);
    squatter.immutable = None;
    api.create(&PostParams::default(), &squatter).await.unwrap();
    let error = other.ensure(&writer, &api, None).await.unwrap_err();
    assert!(matches!(error, exuvia_write::Error::Foreign { .. }), "{error}");
}

#[tokio::test]
async fn a_config_is_garbage_when_no_replica_set_names_it() {
    let stage = Stage::set("garbage").await;
    let api: Api<ConfigMap> = Api::namespaced(stage.direct.clone(), "garbage");
    let sets: Api<ReplicaSet> = Api::namespaced(stage.direct.clone(), "garbage");
    let frozen = ["1", "2", "3"].map(|text| FrozenConfig::new("till", "runconfig.json", text));
    for config in &frozen {
        config.ensure(&writer("operator"), &api, None).await.unwrap();
    }
    for (name, config) in [("old", &frozen[0]), ("new", &frozen[1])] {
        let set: ReplicaSet = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "replicas": 0, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "containers": [{"name": "c", "image": "r:1"}],
                "volumes": [{"name": "run", "configMap": {"name": config.name()}}],
            }},
        }}))
        .unwrap();
        sets.create(&PostParams::default(), &set).await.unwrap();
    }
    let look = async |keep: &[&str]| {
        let maps = api.list(&ListParams::default()).await.unwrap().items;
        let templates: Vec<Value> = sets
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .map(|set| json!(set))
            .collect();
        garbage("till", &maps, &templates, keep)
    };
    assert_eq!(look(&[&frozen[2].name()]).await, Vec::<String>::new());
    assert_eq!(look(&[]).await, [frozen[2].name()]);
    sets.delete("old", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let mut both = [frozen[0].name(), frozen[2].name()];
    both.sort();
    assert_eq!(look(&[]).await, both);
}
