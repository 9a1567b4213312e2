//! A small roll-out, with a crash at every write of the operator.

use exuvia_testenv::crash::{Lane, Matrix, Run, RunEnd, Scenario};
use exuvia_testenv::{ControlPlane, Process, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPServer;
use serde_json::{Value, json};

use crate::harness::{install_crds, spec, template_annotation};

struct RollOut;

impl RollOut {
    /// The server and its Deployment, once both are of this generation.
    async fn settled(lane: &Lane, namespace: &str, generation: i64) {
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), namespace);
        let deployments: Api<Deployment> = Api::namespaced(lane.client.clone(), namespace);
        let configs: Api<ConfigMap> = Api::namespaced(lane.client.clone(), namespace);
        until(&format!("generation {generation} in {namespace}"), async || {
            let server = servers.get("a").await.map_err(|error| format!("{error:?}"))?;
            let status = server.status.unwrap_or_default();
            let deployment = deployments
                .get_opt("a")
                .await
                .map_err(|error| format!("{error:?}"))?;
            let stamp = deployment
                .and_then(|deployment| template_annotation(&deployment, "mcp.exuvia.dev/generation"));
            let kept = configs
                .list(&ListParams::default())
                .await
                .map_err(|error| format!("{error:?}"))?;
            let is_settled = status.observed_generation == Some(generation)
                && status.epoch == Some(generation)
                && stamp == Some(generation.to_string())
                && kept.items.len() == 1;
            if is_settled {
                Ok(())
            } else {
                Err(format!("{status:?} {stamp:?} {} configs", kept.items.len()))
            }
        })
        .await;
    }
}

impl Scenario for RollOut {
    type World = String;
    type Program = Process;

    async fn control_plane(&self) -> ControlPlane {
        // Without controllers: no pods, no ReplicaSets, so that only the operator writes.
        let control_plane = ControlPlane::builder().start().await.unwrap();
        install_crds(&control_plane.client().unwrap()).await;
        control_plane
    }

    async fn set_up(&self, lane: &Lane, run: &Run) -> String {
        let namespaces: Api<Namespace> = Api::all(lane.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": run.name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), &run.name);
        let server: MCPServer = serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": "a"},
            "spec": spec("example.com/mcp:1"),
        }))
        .unwrap();
        servers.create(&PostParams::default(), &server).await.unwrap();
        run.name.clone()
    }

    async fn start(&self, lane: &Lane, namespace: &String, run: &Run) -> Process {
        let log = lane
            .control_plane
            .directory()
            .join(format!("operator-{}-{}.log", run.name, run.life));
        let args = [
            format!("--kubeconfig={}", lane.access.kubeconfig().unwrap().display()),
            format!("--watch-namespace={namespace}"),
            "--runner-image=example.com/mcp-runner:1".to_owned(),
            "--leader-elect=false".to_owned(),
            "--listen=127.0.0.1:0".to_owned(),
            "--max-backoff=1s".to_owned(),
            "--pod-name=operator".to_owned(),
            "--resync=300ms".to_owned(),
        ];
        Process::run("mcp-operator", env!("CARGO_BIN_EXE_mcp-operator"), args, log).unwrap()
    }

    async fn meanwhile(&self, lane: &Lane, namespace: &String) {
        Self::settled(lane, namespace, 1).await;
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), namespace);
        let bump = Patch::Merge(json!({"spec": {"image": "example.com/mcp:2"}}));
        servers.patch("a", &PatchParams::default(), &bump).await.unwrap();
        Self::settled(lane, namespace, 2).await;
    }

    async fn finish(&self, lane: &Lane, namespace: &String, _run: &Run, _program: &mut Process) {
        Self::settled(lane, namespace, 2).await;
    }

    async fn check(&self, lane: &Lane, namespace: &String, _ended: &RunEnd) {
        let deployments: Api<Deployment> = Api::namespaced(lane.client.clone(), namespace);
        let deployment = deployments.get("a").await.unwrap();
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), namespace);
        let server = servers.get("a").await.unwrap();
        let token = format!("{}/2", server.uid().unwrap());
        assert_eq!(
            template_annotation(&deployment, "exuvia.dev/fence"),
            Some(token),
            "a crash issues no epoch"
        );
        assert_eq!(
            deployment.metadata.generation,
            Some(2),
            "the template changed once"
        );
        assert_eq!(server.finalizers(), ["mcp.exuvia.dev/cleanup"]);
    }

    /// What is on the Deployment and in the status, without uids and times.
    async fn leaves(&self, lane: &Lane, namespace: &String) -> Value {
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), namespace);
        let status = servers.get("a").await.unwrap().status.unwrap();
        let conditions: Vec<Value> = status
            .conditions
            .iter()
            .map(|fact| json!([fact.type_, fact.status, fact.reason]))
            .collect();
        json!({"phase": status.phase, "epoch": status.epoch, "conditions": conditions})
    }

    async fn tear_down(&self, lane: &Lane, namespace: &String) {
        let servers: Api<MCPServer> = Api::namespaced(lane.client.clone(), namespace);
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = servers.patch("a", &PatchParams::default(), &free).await;
    }
}

#[test]
fn a_roll_out_survives_a_crash_at_every_write() {
    let report = Matrix::new(RollOut).lanes(2).writes_may_vary().run();
    println!("{report:?}");
    report.assert_all_ended_well();
}
