//! The control plane of the benchmark: people whose requests flow control counts, the operator, and widgets to move.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use exuvia_api::{DatastoreMigration, StorageMigration};
use exuvia_testenv::{Access, ControlPlane, Process, Widgets, until};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;

use crate::writer::object_name;

/// As many as a migration works on at once by default.
pub(crate) const CONNECTIONS: usize = 10;
const OBJECT_BYTES: usize = 2_000; // of payload; with metadata about 2.5 kB
const PAGE: u32 = 1_000;

pub(crate) struct Arena {
    pub(crate) control_plane: ControlPlane,
    /// Somebody who may do everything, and is not a member of `system:masters`: their requests are counted.
    pub(crate) client: Client,
    operator: Access,
    program: PathBuf,
}

impl Arena {
    pub(crate) async fn start(program: &Path) -> anyhow::Result<Self> {
        let controllers = ["garbage-collector-controller", "namespace-controller"];
        let control_plane = ControlPlane::builder().controllers(controllers).start().await?;
        let admin = control_plane.client()?;
        let crds: Api<CustomResourceDefinition> = Api::all(admin);
        for crd in [StorageMigration::crd(), DatastoreMigration::crd()] {
            crds.create(&PostParams::default(), &crd).await?;
        }
        let anything = json!([
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["*"], "verbs": ["*"]},
        ]);
        let somebody = control_plane.user_with_rules("somebody", &anything).await?;
        let operator = control_plane
            .user_with_rules("exuvia-operator", &anything)
            .await?;
        let arena = Self {
            client: somebody.client()?,
            control_plane,
            operator,
            program: program.to_owned(),
        };
        let migrations = arena.migrations();
        until("DatastoreMigrations are served", async || {
            migrations.list(&ListParams::default()).await.is_ok()
        })
        .await;
        Ok(arena)
    }

    pub(crate) fn migrations(&self) -> Api<DatastoreMigration> {
        Api::all(self.client.clone())
    }

    /// A new process of the operator, so that its memory is that of one migration.
    pub(crate) fn operator(&self) -> anyhow::Result<Process> {
        let arguments = [
            "operator".to_owned(),
            format!("--kubeconfig={}", self.operator.kubeconfig()?.display()),
            "--listen=127.0.0.1:0".to_owned(),
            format!("--apiserver={}", self.control_plane.apiserver().url()),
        ];
        let log = self.control_plane.directory().join("operator.log");
        Ok(Process::run("exuvia", &self.program, arguments, log)?)
    }

    /// Installs the kind in this group.
    pub(crate) async fn install(&self, group: &str) -> anyhow::Result<Widgets> {
        let widgets = Widgets::in_group(format!("{group}.example.com"));
        widgets.install(&self.client, "v1").await?;
        Ok(widgets)
    }

    /// The bare client: creates objects over as many connections as a migration has, and does nothing else. In seconds.
    pub(crate) async fn create(&self, widgets: &Widgets, objects: usize) -> anyhow::Result<f64> {
        let api = widgets.api(&self.client, "v1");
        let payload = "x".repeat(OBJECT_BYTES);
        let began = Instant::now();
        futures::stream::iter(0..objects as u64)
            .map(|index| {
                let mut widget = widgets.widget("v1", &object_name(index));
                widget.data["spec"]["payload"] = json!(payload);
                let api = api.clone();
                async move { api.create(&PostParams::default(), &widget).await.map(drop) }
            })
            .buffer_unordered(CONNECTIONS)
            .try_collect::<()>()
            .await?;
        Ok(began.elapsed().as_secs_f64())
    }

    pub(crate) async fn all(&self, widgets: &Widgets) -> anyhow::Result<Vec<DynamicObject>> {
        let api = widgets.api(&self.client, "v1");
        let (mut params, mut all) = (ListParams::default().limit(PAGE), Vec::new());
        loop {
            let page = api.list(&params).await?;
            // Names and sizes are all that is looked at.
            all.extend(page.items.into_iter().map(|mut object| {
                object.data["spec"]["payload"].take();
                object.metadata.managed_fields = None;
                object
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Deletes the kind and waits until its objects are gone.
    pub(crate) async fn remove(&self, widgets: &Widgets) -> anyhow::Result<()> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.delete(&widgets.crd_name(), &DeleteParams::default()).await?;
        while crds.get_opt(&widgets.crd_name()).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }
}

/// The largest resident set of a process so far, in MiB.
pub(crate) fn peak_rss_mib(process: &Process) -> anyhow::Result<f64> {
    let pid = process.pid().context("the operator has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u32 = line
        .and_then(|line| line.split_whitespace().next())
        .context("the kernel does not tell VmHWM")?
        .parse()?;
    Ok(f64::from(kib) / 1024.0)
}

/// The load averages of the machine: over 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
