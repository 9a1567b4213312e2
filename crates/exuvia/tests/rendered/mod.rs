//! A chart rendered by the real helm: how its container is started, and which rights it has.
//!
//! For any test target: `mod rendered;`, or with `#[path]` from a directory.

#![allow(dead_code)] // each test target takes what it needs

use std::path::{Path, PathBuf};

use exuvia_testenv::Helm;
use serde_json::Value;

/// The directory of the charts.
pub(crate) fn charts() -> PathBuf {
    workspace().join("charts")
}

/// The workspace's root.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The objects of a rendered chart.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) namespace: String,
    pub(crate) objects: Vec<Value>,
}

/// How the operator's container is started.
#[derive(Debug)]
pub(crate) struct Container {
    /// `operator` and its flags.
    pub(crate) args: Vec<String>,
    /// Names and values, including those that the downward API would set.
    pub(crate) env: Vec<(String, String)>,
    /// The name of the service account, which is in the chart's namespace.
    pub(crate) service_account: String,
}

impl Rendered {
    /// `charts/exuvia` as release `exuvia`, with helm's own flags, such as `["--set", "replicas=2"]`.
    pub(crate) async fn exuvia(namespace: &str, flags: &[&str]) -> Self {
        let text = Helm::offline()
            .unwrap()
            .template(charts().join("exuvia"), "exuvia", namespace, flags)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        Self {
            namespace: namespace.to_owned(),
            objects: documents(&text),
        }
    }

    /// All objects of a kind.
    pub(crate) fn of_kind(&self, kind: &str) -> Vec<&Value> {
        self.objects
            .iter()
            .filter(|object| object["kind"] == kind)
            .collect()
    }

    /// The only object of a kind.
    pub(crate) fn one(&self, kind: &str) -> &Value {
        match self.of_kind(kind)[..] {
            [object] => object,
            ref objects => panic!("{} objects of kind {kind}", objects.len()),
        }
    }

    /// The operator's container, as a pod of this name would run it.
    pub(crate) fn container(&self, pod_name: &str) -> Container {
        let pod = &self.one("Deployment")["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let env = container["env"].as_array().into_iter().flatten().map(|entry| {
            let value = match entry["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.name") => pod_name,
                Some("metadata.namespace") => &self.namespace,
                Some(other) => panic!("{other} is not supported here"),
                None => entry["value"].as_str().unwrap(),
            };
            (entry["name"].as_str().unwrap().to_owned(), value.to_owned())
        });
        Container {
            args: strings(&container["args"]),
            env: env.collect(),
            service_account: pod["serviceAccountName"].as_str().unwrap().to_owned(),
        }
    }

    /// Roles and bindings, in the order in which helm renders them.
    pub(crate) fn rbac(&self) -> Vec<Value> {
        self.objects
            .iter()
            .filter(|object| object["apiVersion"] == "rbac.authorization.k8s.io/v1")
            .cloned()
            .collect()
    }
}

/// The YAML documents that are not empty.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

/// A list of strings.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.map(|text| text.as_str().unwrap().to_owned()).collect()
}
