//! Fake nodes: kwok's stages, which make nodes and pods ready, which pods they leave alone, and the node objects themselves.

use std::path::Path;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::access::write_private;
use crate::control_plane::ControlPlane;
use crate::{Builder, Error};

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

/// Pods that kwok does not treat as it treats all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exceptions {
    /// Label and value of pods that a [`Kubelet`](crate::Kubelet) runs.
    left: Vec<(String, String)>,
    /// Words in the image of pods that never become ready.
    unready: Vec<String>,
}

impl Exceptions {
    /// Selectors of pods that kwok may touch at all.
    fn touched(&self) -> Vec<String> {
        let labels = self.left.iter();
        labels
            .map(|(label, value)| {
                format!("{{key: '.metadata.labels[\"{label}\"]', operator: NotIn, values: [\"{value}\"]}}")
            })
            .collect()
    }

    /// Selectors of pods that it may make ready.
    fn ready(&self) -> Vec<String> {
        let mut selectors = self.touched();
        selectors.extend(self.unready.iter().map(|word| {
            format!("{{key: '.spec.containers[0].image | contains(\"{word}\")', operator: NotIn, values: [\"true\"]}}")
        }));
        selectors
    }
}

/// The stage, for pods only for which all of these hold, too.
fn narrowed(stage: &str, selectors: &[String]) -> String {
    let list = "    matchExpressions:\n";
    let mut more = list.to_owned();
    for selector in selectors {
        more.push_str(&format!(
            "    - {selector}
"
        ));
    }
    stage.replace(list, &more)
}

impl Builder {
    /// With [`fake_nodes`](Self::fake_nodes): kwok leaves pods with this label alone. They are scheduled, and a
    /// [`Kubelet`](crate::Kubelet) of the test runs them.
    #[must_use]
    pub fn leave_pods(mut self, label: impl Into<String>, value: impl Into<String>) -> Self {
        self.exceptions.left.push((label.into(), value.into()));
        self
    }

    /// With [`fake_nodes`](Self::fake_nodes): pods whose first image has this word in its name never become ready, as if it could
    /// not be pulled.
    #[must_use]
    pub fn unready_images(mut self, word: impl Into<String>) -> Self {
        self.exceptions.unready.push(word.into());
        self
    }
}

/// kwok's arguments; without a stage it exits, and it reads one from each file.
pub(crate) fn kwok_args(
    kubeconfig: &str,
    directory: &Path,
    exceptions: &Exceptions,
) -> Result<Vec<String>, Error> {
    let mut args = vec![
        format!("--kubeconfig={kubeconfig}"),
        "--manage-all-nodes=true".to_owned(),
    ];
    for (name, stage) in [
        ("node-ready", NODE_READY.to_owned()),
        ("pod-ready", narrowed(POD_READY, &exceptions.ready())),
        ("pod-gone", narrowed(POD_GONE, &exceptions.touched())),
    ] {
        let path = directory.join(format!("kwok-{name}.yaml"));
        write_private(&path, &stage)?;
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
