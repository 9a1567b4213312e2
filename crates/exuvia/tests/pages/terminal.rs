//! A terminal next to a control plane: runs the commands of a page as a reader would who stands in the repository's root.

use std::path::{Path, PathBuf};
use std::process::Command;

use exuvia_storage::servers::storage_version_hash;
use exuvia_testenv::ControlPlane;
use exuvia_testenv::assets::{Assets, Binary};
use exuvia_testenv::webhook::{Endpoint, WebhookServer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use serde_json::Value;
use tempfile::TempDir;

/// In the manifest of a CRD: where the project's own webhook would be. Ours takes its place.
const SERVICE: &str = "clientConfig:\n        service: {namespace: certs, name: webhook, path: /convert}";

/// A directory with the examples, and a shell in it.
pub(crate) struct Terminal {
    directory: TempDir,
    client: Client,
    variables: Vec<(&'static str, String)>,
}

/// How a command ended.
pub(crate) struct CommandEnd {
    pub(crate) code: i32,
    pub(crate) printed: String,
}

impl Terminal {
    pub(crate) async fn new(control_plane: &ControlPlane, hooks: &WebhookServer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // JSON is YAML, too.
        let ours = format!("clientConfig: {}", hooks.client_config(Endpoint::Convert));
        let mut converted = 0;
        for manifest in manifests() {
            let text = std::fs::read_to_string(workspace().join(&manifest)).unwrap();
            converted += text.matches(SERVICE).count();
            let path = directory.path().join(&manifest);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text.replace(SERVICE, &ours)).unwrap();
        }
        assert_eq!(converted, 1, "one CRD has a conversion webhook");
        let tools = directory.path().join("bin");
        std::fs::create_dir(&tools).unwrap();
        let kubectl = tokio::task::spawn_blocking(|| Assets::from_env()?.find(Binary::Kubectl));
        let kubectl = kubectl.await.unwrap().unwrap();
        std::os::unix::fs::symlink(kubectl, tools.join("kubectl")).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_exuvia"), tools.join("exuvia")).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let kubeconfig = control_plane.admin().kubeconfig().unwrap();
        Self {
            variables: vec![
                ("PATH", format!("{}:{path}", tools.display())),
                ("HOME", directory.path().display().to_string()),
                ("KUBECONFIG", kubeconfig.display().to_string()),
                ("ETCD", control_plane.etcd().endpoint().to_owned()),
            ],
            client: control_plane.client().unwrap(),
            directory,
        }
    }

    /// Runs a command to its end. If it applied a CRD, the API server has understood that afterwards, as it has when a
    /// person types the next command.
    pub(crate) async fn run(&self, command: &str) -> CommandEnd {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .current_dir(self.directory.path())
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        let output = tokio::task::spawn_blocking(move || shell.output().unwrap())
            .await
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().filter(|line| !is_progress(line));
        let printed = String::from_utf8_lossy(&output.stdout);
        let code = output.status.code().expect("it ended by itself");
        if code == 0 && command.starts_with("kubectl apply") {
            self.wait_until_understood(command).await;
        }
        CommandEnd {
            code,
            printed: printed.lines().chain(said).collect::<Vec<_>>().join("\n"),
        }
    }

    async fn wait_until_understood(&self, command: &str) {
        for path in command.split_whitespace().filter(|word| is_manifest(word)) {
            let text = std::fs::read_to_string(self.directory.path().join(path)).unwrap();
            for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                if document["kind"] == "CustomResourceDefinition" {
                    self.understood(&serde_json::from_value(document).unwrap()).await;
                }
            }
        }
    }

    /// Each served version is in discovery with the hash of the storage version, and objects can be listed.
    async fn understood(&self, crd: &CustomResourceDefinition) {
        let spec = &crd.spec;
        let storage = spec.versions.iter().find(|version| version.storage).unwrap();
        let hash = storage_version_hash(&spec.group, &storage.name, &spec.names.kind);
        let is_understood = async |version: &str| {
            let group_version = format!("{}/{version}", spec.group);
            let shows_hash = (self.client.list_api_group_resources(&group_version).await).is_ok_and(|list| {
                let mut resources = list.resources.iter();
                resources.any(|one| {
                    one.name == spec.names.plural && one.storage_version_hash.as_ref() == Some(&hash)
                })
            });
            let resource = ApiResource {
                group: spec.group.clone(),
                version: version.to_owned(),
                api_version: group_version,
                kind: spec.names.kind.clone(),
                plural: spec.names.plural.clone(),
            };
            let objects: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            shows_hash && objects.list(&ListParams::default()).await.is_ok()
        };
        for version in spec.versions.iter().filter(|version| version.served) {
            let what = format!("{} of {} is served", version.name, spec.names.plural);
            exuvia_testenv::until(&what, async || is_understood(&version.name).await).await;
        }
    }
}

fn is_manifest(word: &str) -> bool {
    Path::new(word)
        .extension()
        .is_some_and(|extension| extension == "yaml")
}

/// Such as `widgets.example.com: rewriting`: which of them are printed depends on how fast the machine is.
fn is_progress(line: &str) -> bool {
    let first = line.split_whitespace().next().unwrap_or_default();
    first.contains('.') && first.ends_with(':')
}

/// All manifests of the examples, relative to the workspace.
pub(crate) fn manifests() -> Vec<PathBuf> {
    let examples = Path::new("examples/real-projects");
    let entries = |path: &Path| {
        let entries = std::fs::read_dir(workspace().join(path)).unwrap();
        entries
            .map(|entry| path.join(entry.unwrap().file_name()))
            .collect::<Vec<_>>()
    };
    let mut found: Vec<PathBuf> = entries(examples)
        .iter()
        .flat_map(|project| entries(project))
        .collect();
    found.sort();
    found
}

/// The workspace's root.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
