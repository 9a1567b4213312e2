//! A small operator whose helper pods apply a StatefulSet: an old pod that is restarted in the middle of a roll-out does no harm.
//!
//!     cargo run -p exuvia-rollout --example rollout
//!
//! The owner is a ConfigMap, `rollout-example/till`, whose `image` is what the StatefulSet is to run. What a kubelet would do,
//! to start pods with the environment of their template, is played here.

use std::error::Error;

use exuvia_rollout::{
    FoundStamps, FrozenConfig, Generation, Intent, MOUNT_PATIENCE, Names, Next, ObjectRef, Ours, Outcome,
    Stamps, StrictGate, Token, garbage, hash_value, issue, read_settled,
};
use exuvia_write::{Apply, Delete, Writer};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};

const NAMESPACE: &str = "rollout-example";
const OWNER: &str = "till";
const TARGET: &str = "till-backend";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    for line in run(Config::infer().await?).await? {
        println!("{line}");
    }
    Ok(())
}

/// What a pod gets from its template: it never changes, however often its containers are restarted.
struct Pod {
    fence: String,
    config_hash: String,
    mounted: String,
}

/// The operator: freezes the run config, issues the epoch, and applies the Deployment of the helper pods with stamps.
async fn reconcile(client: &Client, writer: &Writer, names: &Names) -> Result<Pod, Box<dyn Error>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let owner = maps.get(OWNER).await?;
    let run_config = json!({"image": owner.data.as_ref().and_then(|data| data.get("image"))}).to_string();
    let frozen = FrozenConfig::new(OWNER, "runconfig.json", run_config);
    frozen.ensure(writer, &maps, None).await?;

    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": OWNER, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": {"app": OWNER}},
            "template": {
                "metadata": {"labels": {"app": OWNER}},
                "spec": {
                    "containers": [{"name": "runner", "image": "runner:1", "env": [
                        {"name": "MCP_FENCE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.annotations['exuvia.dev/fence']"}}},
                    ]}],
                    "volumes": [{"name": "run", "configMap": {"name": frozen.name()}}],
                },
            },
        },
    });
    // Hashed without stamps: the hash says whether anything else has changed.
    let template_hash = hash_value(&json!([deployment["spec"]["template"], frozen.hash()]));
    let (deployments, target) = (
        ObjectRef::typed::<Deployment>(NAMESPACE, OWNER).api(client),
        ObjectRef::typed::<StatefulSet>(NAMESPACE, TARGET).api(client),
    );
    let known = [
        stamps(deployments.get_opt(OWNER).await?, |live| {
            FoundStamps::of_template(live, names)
        }),
        stamps(target.get_opt(TARGET).await?, |live| {
            FoundStamps::of_object(live, names)
        }),
    ];
    let token = issue(&owner.uid().unwrap_or_default(), &template_hash, &known);
    let stamps = Stamps {
        token: Some(token.clone()),
        generation: owner.metadata.generation,
        config_hash: Some(frozen.hash().to_owned()),
        template_hash: Some(template_hash),
        ..Stamps::default()
    };
    stamps.put_on_template(&mut deployment, names);
    let how = Apply::default().force();
    let _: DynamicObject = writer.apply(&deployments, &deployment, &how).await?;
    collect_garbage(client, writer, &frozen).await?;
    Ok(Pod {
        fence: token.to_string(),
        config_hash: frozen.hash().to_owned(),
        mounted: frozen.text().to_owned(),
    })
}

fn stamps(live: Option<DynamicObject>, read: impl Fn(&Value) -> FoundStamps) -> FoundStamps {
    live.map(|live| read(&json!(live))).unwrap_or_default()
}

/// Deletes run configs that no ReplicaSet names any more. (Without a controller manager there are none.)
async fn collect_garbage(
    client: &Client,
    writer: &Writer,
    used: &FrozenConfig,
) -> Result<(), Box<dyn Error>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), NAMESPACE);
    let all = maps.list(&ListParams::default()).await?.items;
    let templates: Vec<Value> = sets
        .list(&ListParams::default())
        .await?
        .iter()
        .map(|set| json!(set))
        .collect();
    for name in garbage(OWNER, &all, &templates, &[&used.name()]) {
        if let Some(map) = all.iter().find(|map| map.name_any() == name) {
            writer.delete(&maps, map, &Delete::default()).await?;
        }
    }
    Ok(())
}

/// A helper pod: reads its run config, and applies the StatefulSet through the gate.
async fn start(client: &Client, names: &Names, pod: &Pod) -> Result<Outcome, Box<dyn Error>> {
    let read = || Ok(pod.mounted.clone().into_bytes()); // std::fs::read("/etc/runconfig/runconfig.json")
    let config = read_settled(read, Some(&pod.config_hash), MOUNT_PATIENCE).await?;
    let run_config: Value = serde_json::from_slice(&config.bytes)?;
    let intent = Intent::new(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": TARGET, "namespace": NAMESPACE},
        "spec": {
            "serviceName": TARGET, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": TARGET}},
            "template": {
                "metadata": {"labels": {"app": TARGET}},
                "spec": {"containers": [{"name": "backend", "image": run_config["image"]}]},
            },
        },
    }))?;
    let ours = Ours {
        token: Token::from_env(Some(&pod.fence))?,
        config_hash: Some(config.hash),
        config: config.config,
        generation: Generation::choose(None, None),
    };
    let gate = StrictGate::new(
        client.clone(),
        Writer::named(names.field_manager.as_ref()),
        names.clone(),
        ObjectRef::typed::<StatefulSet>(NAMESPACE, TARGET),
        ObjectRef::typed::<ConfigMap>(NAMESPACE, OWNER),
    )
    .deployment(ObjectRef::typed::<Deployment>(NAMESPACE, OWNER));
    Ok(gate.admit(&intent, &ours).await?)
}

/// The story: a roll-out, and a restart of an old pod in the middle of it. Returns what the pods log.
pub(crate) async fn run(config: Config) -> Result<Vec<String>, Box<dyn Error>> {
    let (names, writer) = (Names::default(), Writer::named("till-operator"));
    let client = writer.connect(config)?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    writer.apply(&namespaces, &namespace, &Apply::default()).await?;
    let owners: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);

    let mut lines = Vec::new();
    let mut pods: Vec<Pod> = Vec::new();
    // The image is changed once; then the old pod's container crashes and starts again.
    for (what, image) in [
        ("first", Some("till:1")),
        ("new", Some("till:2")),
        ("old, restarted", None),
        ("new, restarted", None),
    ] {
        if let Some(image) = image {
            let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": OWNER}, "data": {"image": image}});
            writer.apply(&owners, &owner, &Apply::default().force()).await?;
            pods.push(reconcile(&client, &writer, &names).await?);
        }
        let pod = if what.starts_with("old") {
            &pods[0]
        } else {
            &pods[pods.len() - 1]
        };
        let outcome = start(&client, &names, pod).await?;
        let then = match outcome.next() {
            Next::Serve { is_current: true } => "waits for the StatefulSet, then serves",
            Next::Serve { is_current: false } => "goes on serving, and leaves the StatefulSet alone",
            Next::NotReady { .. } => "ends",
        };
        lines.push(format!("{what} pod: {}: {then}", outcome.log_line()));
    }
    Ok(lines)
}
