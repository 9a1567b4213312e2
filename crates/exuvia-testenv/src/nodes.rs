//! Fake nodes: kwok's stages, which make nodes and pods ready, and the node objects themselves.

use std::path::Path;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::Error;
use crate::access::write_private;
use crate::control_plane::ControlPlane;

const NODE_READY: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.phase', operator: NotIn, values: [Running]}
  next:
    statusTemplate: |
      phase: Running
      allocatable: {cpu: "64", memory: 64Gi, pods: "1000"}
      capacity: {cpu: "64", memory: 64Gi, pods: "1000"}
      conditions:
      - {type: Ready, status: "True", reason: Fake, message: fake node, lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}
"#;

const POD_READY: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: '.metadata.deletionTimestamp', operator: DoesNotExist}
    - {key: '.status.phase', operator: In, values: [Pending]}
  next:
    statusTemplate: |
      {{ $now := Now }}
      phase: Running
      startTime: {{ $now | Quote }}
      conditions:
      - {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
      - {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
      - {type: Ready, status: "True", lastTransitionTime: {{ $now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - {name: {{ .name | Quote }}, image: {{ .image | Quote }}, ready: true, restartCount: 0, state: {running: {startedAt: {{ $now | Quote }}}}}
      {{ end }}
"#;

const POD_GONE: &str = r"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-gone}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: '.metadata.deletionTimestamp', operator: Exists}
  next: {delete: true}
";

/// kwok's arguments; without a stage it exits, and it reads one from each file.
pub(crate) fn kwok_args(kubeconfig: &str, directory: &Path) -> Result<Vec<String>, Error> {
    let mut args = vec![
        format!("--kubeconfig={kubeconfig}"),
        "--manage-all-nodes=true".to_owned(),
    ];
    for (name, stage) in [
        ("node-ready", NODE_READY),
        ("pod-ready", POD_READY),
        ("pod-gone", POD_GONE),
    ] {
        let path = directory.join(format!("kwok-{name}.yaml"));
        write_private(&path, stage)?;
        args.push(format!("--config={}", path.display()));
    }
    Ok(args)
}

impl ControlPlane {
    /// Adds this many fake nodes; kwok makes them ready. Needs [`Builder::fake_nodes`](crate::Builder::fake_nodes).
    pub async fn add_nodes(&self, count: usize) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client()?);
        for _ in 0..count {
            let node = serde_json::from_value(json!({"metadata": {"generateName": "fake-"}}))
                .map_err(|e| Error::Client(e.into()))?;
            nodes.create(&PostParams::default(), &node).await?;
        }
        Ok(())
    }
}
