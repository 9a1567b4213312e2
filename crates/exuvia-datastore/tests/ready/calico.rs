//! Calico's whole move: its API server in front, nodes on which it rolls out, readers and writers all the time, and a kill.

use exuvia_api::{DatastorePhase, SOURCE_UIDS_ANNOTATION};
use exuvia_datastore::Engine;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_testenv::aggregated::{Aggregated, alias_uid};
use exuvia_testenv::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::fixtures::Move;
use crate::probes::Probes;
use crate::stage::{Stage, control_plane, is_refused, text, up_to};

/// What the fixtures' target CRDs add by themselves.
pub(crate) const DEFAULTS: [(&str, &str, &str, &str); 3] = [
    ("IPPool", "default-ipv4-ippool", "assignmentMode", "Automatic"),
    ("NetworkPolicy", "default.till", "tier", "default"),
    ("StagedGlobalNetworkPolicy", "next", "tier", "default"),
];

pub(crate) fn v1(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": {"name": name}})
}

fn v3(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}})
}

/// Calico's API server: it shows the v1 objects under other uids, and does not know the kinds of IPAM.
pub(crate) async fn api_server(stage: &Stage, group: &str) -> Aggregated {
    let stored = format!("crd.{group}");
    let of_source = stage
        .ready
        .crds
        .iter()
        .filter(|crd| crd["spec"]["group"] == stored);
    let plurals = of_source.map(|crd| text(&crd["spec"]["names"]["plural"]));
    let plurals: Vec<&str> = plurals.filter(|plural| !plural.starts_with("ipam")).collect();
    let server = Aggregated::start(control_plane().await, (group, "v3"), (&stored, "v1"), &plurals);
    let server = server.await.unwrap();
    server.install(&stage.client).await.unwrap();
    server
}

/// A workload of Calico, without the variable, rolled out on every node.
async fn consumer(stage: &Stage, kind: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "calico-system"},
        "spec": {
            "selector": {"matchLabels": {"k8s-app": name}},
            "template": {
                "metadata": {"labels": {"k8s-app": name}},
                "spec": {"containers": [{"name": name, "image": "calico:3.31"}]},
            },
        },
    });
    if kind == "Deployment" {
        object["spec"]["replicas"] = json!(2);
    }
    stage.create(&object).await;
    object
}

/// As `kubectl set env` does it.
async fn set_group(stage: &Stage, consumer: &Value) {
    let name = text(&consumer["metadata"]["name"]);
    let env = json!([{"name": "CALICO_API_GROUP", "value": "projectcalico.org/v3"}]);
    let containers = json!([{"name": name, "image": "calico:3.32", "env": env}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    stage.patch(consumer, patch).await.unwrap();
}

/// `datastoreReady` in v1 and in v3.
async fn ready_flags(stage: &Stage) -> [bool; 2] {
    let mut flags = [false; 2];
    let both = [
        v1("ClusterInformation", "default"),
        v3("ClusterInformation", "default"),
    ];
    for (flag, information) in flags.iter_mut().zip(&both) {
        let spec = &stage.get(information).await.data["spec"];
        *flag = spec["datastoreReady"].as_bool().unwrap();
    }
    flags
}

/// Objects that name moved ones: by the uid of the CRD, by the uid that the API server shows, and in the annotation.
async fn dependents(stage: &Stage) -> [Value; 3] {
    let owner = v1("GlobalNetworkSet", "blocked");
    let uid = stage.get(&owner).await.uid().unwrap();
    let map = |name: &str, api_version: &str, uid: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": name, "namespace": "shop", "ownerReferences": [
                {"apiVersion": api_version, "kind": "GlobalNetworkSet", "name": "blocked", "uid": uid},
            ],
        }})
    };
    let by_crd = map("by-crd", "crd.projectcalico.org/v1", &uid);
    let by_api = map("by-api", "projectcalico.org/v3", &alias_uid(&uid));
    for object in [&by_crd, &by_api] {
        stage.create(object).await;
    }
    let packed = json!({"ownerReferences": [
        {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet", "name": "blocked", "uid": uid},
    ]});
    let mut set = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkSet", "metadata": {
            "name": "owned", "namespace": "shop", "annotations": {"projectcalico.org/metadata": packed.to_string()},
        }, "spec": {"nets": ["192.0.2.0/24"]},
    });
    stage.create(&set).await;
    set["apiVersion"] = json!("projectcalico.org/v3");
    [by_crd, by_api, set]
}

/// What v3 refuses and 3.31 accepted: a field that is gone, and a rule that is new.
async fn refused(stage: &Stage) -> [Value; 2] {
    let mut felix = v1("FelixConfiguration", "node.node-a");
    felix["spec"] = json!({"iptablesLockFilePath": "/run/lock"});
    let mut pool = v1("IPPool", "both");
    pool["spec"] = json!({"cidr": "10.1.0.0/16", "ipipMode": "Always", "vxlanMode": "Always"});
    for object in [&felix, &pool] {
        stage.create(object).await;
    }
    [felix, pool]
}

async fn source_crds(stage: &Stage) -> usize {
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let all = crds.list_metadata(&ListParams::default()).await.unwrap();
    let of_source = all
        .items
        .iter()
        .filter(|crd| crd.name_any().ends_with(".crd.projectcalico.org"));
    of_source.count()
}

/// What cannot be moved is named, and nothing is locked.
async fn is_blocked_by(stage: &Stage, engine: &mut Engine, backend: &Aggregated, bad: &[Value; 2]) {
    assert_eq!(stage.drive(engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    let named = blockers
        .iter()
        .map(|blocker| (blocker.reason.as_str(), blocker.name.as_str()));
    let bad = bad
        .iter()
        .map(|object| ("Refused", text(&object["metadata"]["name"])));
    assert!(named.eq(bad), "{blockers:?}");
    let left = (
        stage.policies(engine.migration()).await,
        stage.clones(engine.migration()).await,
    );
    assert_eq!(left, (0, 0));
    assert_eq!(
        ready_flags(stage).await,
        [true, true],
        "the second one is the first, as the API server shows it"
    );
    assert!(backend.answers(&stage.client).await.unwrap());
}

/// After the commit one consumer after the other follows.
async fn rolls_out(stage: &Stage, engine: &mut Engine, consumers: [&Value; 2]) {
    let [node, typha] = consumers;
    let message = engine.message().unwrap().to_string();
    assert!(message.contains("calico-node"), "{message}");
    set_group(stage, node).await;
    until("calico-node has rolled out", async || {
        engine.retry(&Hold::WaitingFor);
        assert_eq!(stage.drive(engine).await, Ended::Held(Hold::WaitingFor));
        let message = engine.message().unwrap().to_string();
        let is_next = message.contains("calico-typha");
        if is_next { Ok(()) } else { Err(message) }
    })
    .await;
    set_group(stage, typha).await;
    assert_eq!(stage.goes_on(engine, Hold::WaitingFor).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
}

/// Nobody who reads was turned away, and who writes only in the freezes; no acknowledged write is lost.
async fn was_in_use(stage: &Stage, probes: Probes, freezes: usize) {
    let (reads, writes) = probes.end().await;
    for reader in &reads {
        assert!(reader.failed.is_empty() && reader.answered > 0, "{reader:?}");
    }
    assert!(writes.failed.is_empty() && writes.acknowledged > 0, "{writes:?}");
    assert_eq!(writes.pauses, freezes, "{writes:?}");
    let written = v3("GlobalNetworkSet", "blocked");
    let number = stage.get(&written).await.labels()["number"].clone();
    assert_eq!(number, format!("n{}", writes.last));
    let as_before = json!({"metadata": {"labels": {"number": null}}});
    stage.patch(&written, as_before).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calico_moves_while_it_is_read_and_written_and_rolls_out() {
    let is_expected = async |stage: &Stage| stage.assert_expected(&DEFAULTS).await;
    Box::pin(moves_and_rolls_out(Move::read("calico"), is_expected)).await;
}

/// The whole life of the move. `is_expected` looks whether everything is there in the end.
pub(crate) async fn moves_and_rolls_out(ready: Move, is_expected: impl AsyncFn(&Stage)) {
    let stage = Stage::new(ready).await;
    let backend = api_server(&stage, "projectcalico.org").await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "calico-system"}});
    stage.create(&namespace).await;
    let node = consumer(&stage, "DaemonSet", "calico-node").await;
    let typha = consumer(&stage, "Deployment", "calico-typha").await;
    let owned = dependents(&stage).await;
    let bad = refused(&stage).await;
    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    is_blocked_by(&stage, &mut engine, &backend, &bad).await;
    for object in &bad {
        stage.delete(object).await;
    }

    let read = [
        v1("GlobalNetworkPolicy", ""),
        v1("IPAMBlock", ""),
        v3("GlobalNetworkPolicy", ""),
    ];
    let read = read.iter().map(|object| stage.api(object)).collect();
    let probes = Probes::start(read, stage.api(&v3("GlobalNetworkSet", "")), "blocked");
    // Killed with everything copied: what only that process knew is lost, so it is undone and done again.
    engine.retry(&Hold::Blocked);
    up_to(&mut engine, Step::Verify).await;
    assert!(!backend.answers(&stage.client).await.unwrap());
    assert_eq!(ready_flags(&stage).await, [false, false]);
    drop(engine);
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::WaitingFor));

    assert_eq!(stage.phase().await, DatastorePhase::Converged);
    assert_eq!(
        ready_flags(&stage).await,
        [false, true],
        "the old side stays locked"
    );
    rolls_out(&stage, &mut engine, [&node, &typha]).await;
    was_in_use(&stage, probes, 2).await;
    is_expected(&stage).await;
    follows(&stage, &owned).await;

    // The end: the old CRDs go, and nothing of the new side with them.
    stage
        .edit(json!({"spec": {"cleanup": {"source": "DeleteCRDs"}}}))
        .await;
    assert_eq!(stage.end().await, Ended::Done);
    let left = (source_crds(&stage).await, stage.policies(&migration).await);
    assert_eq!(left, (0, 0));
    is_expected(&stage).await;
    follows(&stage, &owned).await;
    assert!(!backend.answers(&stage.client).await.unwrap());
}

/// Dependents name the new owner, and only that.
async fn follows(stage: &Stage, dependents: &[Value; 3]) {
    let owner = stage.get(&v3("GlobalNetworkSet", "blocked")).await;
    assert!(owner.annotations().contains_key(SOURCE_UIDS_ANNOTATION));
    for object in dependents {
        let references = stage.get(object).await.metadata.owner_references.unwrap();
        let uids: Vec<&str> = references
            .iter()
            .map(|reference| reference.uid.as_str())
            .collect();
        assert_eq!(uids, [owner.uid().unwrap()], "{}", object["metadata"]["name"]);
    }
}

/// Somebody without an exemption, at both APIs, for the checks of other tests.
pub(crate) async fn can_write(stage: &Stage, object: &Value) -> bool {
    let written = stage
        .patch(object, json!({"metadata": {"labels": {"written": "yes"}}}))
        .await;
    assert!(written.is_ok() || is_refused(&written), "{written:?}");
    written.is_ok()
}
