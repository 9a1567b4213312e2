//! A control plane with Exuvia's CRDs, the real binary as its operator, and widgets to move.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use exuvia_api::{DatastoreMigration, DatastoreMigrationStatus, DatastorePhase, StorageMigration};
use exuvia_testenv::assets::{Assets, Binary};
pub(crate) use exuvia_testenv::until;
use exuvia_testenv::{Access, ControlPlane, Process, Widgets};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::OnceCell;

/// The real binary, running as an operator.
pub(crate) struct Operator {
    pub(crate) process: Process,
}

impl Operator {
    pub(crate) fn start(control_plane: &ControlPlane, access: &Access, name: &str, args: &[&str]) -> Self {
        let log = control_plane.directory().join(format!("{name}.log"));
        let mut all = vec![
            "operator".to_owned(),
            format!("--kubeconfig={}", access.kubeconfig().unwrap().display()),
            format!("--pod-name={name}"),
            "--listen=127.0.0.1:0".to_owned(),
            // No test wants it to lose its leadership on a busy machine.
            "--lease-duration=30s".to_owned(),
            "--max-backoff=1s".to_owned(),
            "--settle=200ms".to_owned(),
            "--groups=example.com".to_owned(),
            // The cluster lists none. One that cannot be asked must renew its Lease under the freeze, which takes up to 10 s.
            format!("--apiserver={}", access.url()),
        ];
        if !args.iter().any(|arg| arg.starts_with("--lease-name")) {
            all.push(format!("--lease-name={name}"));
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let process = Process::run("exuvia", env!("CARGO_BIN_EXE_exuvia"), all, log).unwrap();
        Self { process }
    }

    /// Everything it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.process.log_path()).unwrap_or_default()
    }

    /// Lines in which it complains.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.log();
        // A busy machine may be late with the Lease; that is another matter.
        let complains = |line: &&str| {
            (line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("panicked"))
                && !line.contains(" exuvia_runtime::elect: ")
        };
        log.lines().filter(complains).map(str::to_owned).collect()
    }

    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.process.pid().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    }

    async fn address(&self) -> String {
        until("the operator says where it listens", async || {
            let log = self.log();
            let line = log.lines().rfind(|line| line.contains("operator starts"))?;
            let address = line.split("listen=").nth(1)?;
            Some(address.split_whitespace().next()?.to_owned())
        })
        .await
    }

    /// What it answers to a GET.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let address = self.address().await;
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (code, body.to_owned())
    }

    pub(crate) async fn ready(&self) {
        until("the operator is ready", async || {
            self.get("/readyz").await.0 == 200
        })
        .await;
    }
}

/// One control plane with one operator, which may do everything, for tests that each have groups of their own.
pub(crate) struct Shared {
    pub(crate) control_plane: ControlPlane,
    pub(crate) operator: Operator,
}

pub(crate) async fn shared() -> &'static Shared {
    static SHARED: OnceCell<Shared> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let control_plane = control_plane().await;
            let access = control_plane.user("exuvia", &["system:masters"]).unwrap();
            let operator =
                Operator::start(&control_plane, &access, "shared", &["--concurrent-migrations=32"]);
            operator.ready().await;
            Shared {
                control_plane,
                operator,
            }
        })
        .await
}

/// A control plane of its own, with Exuvia's CRDs.
pub(crate) async fn control_plane() -> ControlPlane {
    let control_plane = ControlPlane::builder()
        .controllers(["garbage-collector-controller", "namespace-controller"])
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    for crd in [StorageMigration::crd(), DatastoreMigration::crd()] {
        install(&client, &crd).await;
    }
    control_plane
}

/// Installs a CRD of Exuvia's and waits until it is served.
pub(crate) async fn install(client: &Client, crd: &CustomResourceDefinition) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), crd).await.unwrap();
    let group_version = format!("exuvia.dev/{}", crd.spec.versions[0].name);
    until("it is served", async || {
        let list = client.list_api_group_resources(&group_version).await;
        list.is_ok_and(|list| {
            list.resources
                .iter()
                .any(|resource| resource.name == crd.spec.names.plural)
        })
    })
    .await;
}

/// Widgets of an old and of a new group, in a namespace of their own, and a migration between them.
pub(crate) struct Stage {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) old: Widgets,
    pub(crate) new: Widgets,
}

impl Stage {
    /// On the shared control plane: both CRDs, and `count` widgets in the old group.
    pub(crate) async fn new(name: &str, count: usize) -> Self {
        Self::at(shared().await.control_plane.client().unwrap(), name, count).await
    }

    /// On a control plane of its own.
    pub(crate) async fn at(client: Client, name: &str, count: usize) -> Self {
        let stage = Self::without_target(client, name, count).await;
        stage.new.install(&stage.client, "v1").await.unwrap();
        stage
    }

    /// The CRD of the new group is missing.
    pub(crate) async fn without_target(client: Client, name: &str, count: usize) -> Self {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let stage = Self {
            client,
            name: name.to_owned(),
            old: Widgets::in_group(format!("old.{name}.dev")),
            new: Widgets::in_group(format!("new.{name}.dev")),
        };
        stage.old.install(&stage.client, "v1").await.unwrap();
        for index in 0..count {
            stage.create(&stage.old, &format!("w{index}"), "red").await;
        }
        stage
    }

    pub(crate) fn api(&self, widgets: &Widgets) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.name, &widgets.resource("v1"))
    }

    pub(crate) async fn create(&self, widgets: &Widgets, name: &str, color: &str) -> DynamicObject {
        let mut widget = widgets.widget("v1", name);
        widget.metadata.namespace = Some(self.name.clone());
        widget.data["spec"] = json!({"color": color});
        let api = self.api(widgets);
        api.create(&PostParams::default(), &widget).await.unwrap()
    }

    /// A plain move. The drain is short: nothing but the tests writes here.
    pub(crate) fn spec(&self) -> Value {
        json!({
            "mappings": [{
                "name": "widgets",
                "from": {"group": self.old.group(), "version": "v1", "kinds": ["Widget"]},
                "to": {"group": self.new.group(), "version": "v1"},
            }],
            "freeze": {"drain": "1s"},
        })
    }

    pub(crate) fn migrations(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    /// Creates the migration, called as the stage.
    pub(crate) async fn migrate(&self, spec: Value) -> DatastoreMigration {
        self.migrate_as(&self.name, spec).await
    }

    pub(crate) async fn migrate_as(&self, name: &str, spec: Value) -> DatastoreMigration {
        let migration = serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": {"name": name}, "spec": spec,
        }))
        .unwrap();
        let migrations = self.migrations();
        migrations
            .create(&PostParams::default(), &migration)
            .await
            .unwrap()
    }

    pub(crate) async fn change(&self, patch: Value) {
        let (migrations, params) = (self.migrations(), PatchParams::default());
        migrations
            .patch(&self.name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// The status, once it is as wanted.
    pub(crate) async fn status_when(
        &self,
        what: &str,
        wanted: impl Fn(&DatastoreMigrationStatus) -> bool,
    ) -> DatastoreMigrationStatus {
        status_when(&self.client, &self.name, what, wanted).await
    }

    pub(crate) async fn in_phase(&self, phase: DatastorePhase) -> DatastoreMigrationStatus {
        self.status_when(phase.as_str(), |status| status.phase == Some(phase))
            .await
    }

    /// The names of all widgets of one group.
    pub(crate) async fn names(&self, widgets: &Widgets) -> Vec<String> {
        let all = self.api(widgets).list(&ListParams::default()).await.unwrap();
        let mut names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        names.sort();
        names
    }

    /// Reasons of the events about the migration, each as often as there is an event.
    pub(crate) async fn event_reasons(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap();
        let about = |event: &&Event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|about| {
                about.kind.as_deref() == Some("DatastoreMigration")
                    && about.name.as_deref() == Some(&self.name)
            })
        };
        let mut reasons: Vec<String> = all
            .iter()
            .filter(about)
            .filter_map(|event| event.reason.clone())
            .collect();
        reasons.sort();
        reasons
    }
}

/// The status of a migration, once it is as wanted.
pub(crate) async fn status_when(
    client: &Client,
    name: &str,
    what: &str,
    wanted: impl Fn(&DatastoreMigrationStatus) -> bool,
) -> DatastoreMigrationStatus {
    let migrations: Api<DatastoreMigration> = Api::all(client.clone());
    until(&format!("{name}: {what}"), async || {
        let migration = migrations.get_opt(name).await.ok().flatten();
        let status = migration.and_then(|migration| migration.status);
        status.clone().filter(&wanted).ok_or(status)
    })
    .await
}

/// A condition: status and reason.
pub(crate) fn condition(status: &DatastoreMigrationStatus, wanted: &str) -> (String, String) {
    let mut conditions = status.conditions.iter();
    let found = conditions.find(|condition| condition.type_ == wanted);
    found.map_or_else(Default::default, |found| {
        (found.status.clone(), found.reason.clone())
    })
}

pub(crate) fn is_stalled_for(status: &DatastoreMigrationStatus, reason: &str) -> bool {
    condition(status, "Stalled") == ("True".to_owned(), reason.to_owned())
}

/// The real kubectl.
pub(crate) async fn kubectl(kubeconfig: PathBuf, args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    tokio::task::spawn_blocking(move || {
        let mut command = Command::new(Assets::from_env().unwrap().find(Binary::Kubectl).unwrap());
        command.args(args).env("KUBECONFIG", kubeconfig);
        command.output().unwrap()
    })
    .await
    .unwrap()
}

/// Runs the binary as the administrator, with this on its standard input; returns what it prints.
pub(crate) async fn exuvia(
    control_plane: &ControlPlane,
    args: &[&str],
    input: Option<String>,
) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command
        .args(args)
        .env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.unwrap_or_default().as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        (
            output.status.success(),
            text(&output.stdout),
            text(&output.stderr),
        )
    })
    .await
    .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
