//! The contestants, and the control plane they meet on.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exuvia_testenv::proxy::{Answer, Fault, Match, Proxy, Rule};
use exuvia_testenv::webhook::{Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets};
use exuvia_write::Writer;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::bystander::Bystander;
use crate::measured::Measured;

/// What the figures of CONTROL-PLANE.md were taken with.
const CONNECTIONS: usize = 32;
const OBJECT_BYTES: usize = 2_000; // of payload; with metadata about 2.5 kB

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Only sends the patches, as fast as it can: the limit.
    Bare,
    /// `StorageVersionMigration` of kube-controller-manager: the peer.
    InTree,
    /// `exuvia storage migrate`, from start to trim.
    Exuvia,
}

pub(crate) struct Arena {
    control_plane: ControlPlane,
    client: Client,
    webhooks: WebhookServer,
    rounds: AtomicUsize,
}

impl Arena {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let control_plane = ControlPlane::builder()
            .controllers([
                "storage-version-migrator-controller",
                "garbage-collector-controller",
            ])
            .start()
            .await?;
        let client = control_plane.client()?;
        let webhooks = control_plane.webhooks().await?;
        webhooks.delay(Endpoint::Validate, Duration::from_millis(10));
        Ok(Self {
            control_plane,
            client,
            webhooks,
            rounds: AtomicUsize::new(0),
        })
    }

    /// A validating webhook that takes 10 ms, for every update of a widget.
    pub(crate) async fn add_slow_webhook(&self) -> anyhow::Result<()> {
        let configuration = serde_json::from_value(json!({
            "metadata": {"name": "slow"},
            "webhooks": [{
                "name": "slow.example.com",
                "clientConfig": self.webhooks.client_config(Endpoint::Validate),
                "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"]}],
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            }],
        }))?;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &configuration).await?;
        tokio::time::sleep(Duration::from_secs(2)).await; // the server's informer
        Ok(())
    }

    pub(crate) async fn remove_slow_webhook(&self) -> anyhow::Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.delete("slow", &DeleteParams::default()).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    pub(crate) async fn run(
        &self,
        contestant: Contestant,
        objects: usize,
        exuvia: &Path,
        contest: &'static str,
    ) -> anyhow::Result<Measured> {
        let widgets = self.flipped(objects).await?;
        let before = Bystander::at_rest(self.client.clone()).await;
        let revision = self.control_plane.etcd().revision().await?;
        let bystander = Bystander::start(self.client.clone());
        let mut measured = match contestant {
            Contestant::Bare => self.bare(&widgets).await?,
            Contestant::InTree => self.in_tree(&widgets).await?,
            Contestant::Exuvia => {
                self.exuvia(&widgets, exuvia, self.control_plane.admin().kubeconfig()?)
                    .await?
            }
        };
        let (during, writes) = bystander.stop().await;
        let revisions = self.control_plane.etcd().revision().await? - revision;
        (measured.contest, measured.objects) = (contest, objects);
        measured.bystander_p99_ms = (before, during);
        #[allow(clippy::cast_precision_loss)]
        {
            measured.etcd_writes_per_object = (revisions as f64 - writes as f64) / objects as f64;
        }
        self.check_and_remove(&widgets, objects).await?;
        eprintln!(
            "{contest} {}: {:.0} objects/s",
            measured.contestant,
            measured.per_second()
        );
        Ok(measured)
    }

    /// Through the recording proxy: requests and bytes per object; with `throttled`, every 20th write is answered 429.
    pub(crate) async fn run_on_the_wire(
        &self,
        objects: usize,
        exuvia: &Path,
        throttled: bool,
    ) -> anyhow::Result<Measured> {
        let widgets = self.flipped(objects).await?;
        let proxy: Proxy = self.control_plane.proxy().await?;
        if throttled {
            for nth in 1..=objects as u64 / 20 {
                let answer = Answer::status(429).retry_after(1);
                proxy.inject(
                    Rule::on(Match::writes())
                        .nth(nth * 20)
                        .then(Fault::Refuse(answer)),
                );
            }
        }
        let kubeconfig = self.control_plane.admin().clone().at(proxy.url()).kubeconfig()?;
        let mut measured = self.exuvia(&widgets, exuvia, kubeconfig).await?;
        let requests = proxy.requests();
        #[allow(clippy::cast_precision_loss)]
        {
            let bytes: u64 = requests
                .iter()
                .map(|request| request.bytes_in + request.bytes_out)
                .sum();
            measured.requests_per_object = Some(requests.len() as f64 / objects as f64);
            measured.bytes_per_object = Some(bytes as f64 / objects as f64);
        }
        (measured.contest, measured.objects) = (if throttled { "throttled" } else { "wire" }, objects);
        self.check_and_remove(&widgets, objects).await?;
        Ok(measured)
    }

    /// A group of its own with this many objects at v1alpha1, and the storage version flipped.
    async fn flipped(&self, objects: usize) -> anyhow::Result<Widgets> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let widgets = Widgets::in_group(format!("round{round}.example.com"));
        widgets.install(&self.client, "v1alpha1").await?;
        let api = widgets.api(&self.client, "v1alpha1");
        let payload = "x".repeat(OBJECT_BYTES);
        futures::stream::iter(0..objects)
            .map(|index| {
                let mut widget = widgets.widget("v1alpha1", &format!("widget-{index:06}"));
                widget.data["spec"]["payload"] = json!(payload);
                let api = api.clone();
                async move { api.create(&PostParams::default(), &widget).await.map(drop) }
            })
            .buffer_unordered(CONNECTIONS)
            .try_collect::<()>()
            .await?;
        widgets.flip_storage(&self.client, "v1").await?;
        Ok(widgets)
    }

    async fn check_and_remove(&self, widgets: &Widgets, objects: usize) -> anyhow::Result<()> {
        let counts = self
            .control_plane
            .stored(widgets.group(), "widgets")
            .count_by_version()
            .await?;
        if counts.get(&format!("{}/v1", widgets.group())) != Some(&objects) {
            bail!("not all {objects} objects are stored at v1: {counts:?}");
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.delete(&widgets.crd_name(), &DeleteParams::default()).await?;
        while crds.get_opt(&widgets.crd_name()).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn bare(&self, widgets: &Widgets) -> anyhow::Result<Measured> {
        // Right after a flip the server may have no storage for the kind yet (429).
        let listing = widgets.api(&self.client, "v1");
        let list = loop {
            match listing.list_metadata(&ListParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                list => break list?,
            }
        };
        let names: Vec<_> = list.items.into_iter().map(|item| item.metadata).collect();
        let writer = Writer::named("bare");
        let client = writer.connect(self.control_plane.admin().config()?)?;
        let api = widgets.api(&client, "v1");
        let started = Instant::now();
        futures::stream::iter(&names)
            .map(|metadata| writer.rewrite(&api, metadata))
            .buffer_unordered(CONNECTIONS)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        Ok(Measured {
            contestant: "bare",
            seconds: started.elapsed().as_secs_f64(),
            ..Measured::default()
        })
    }

    async fn in_tree(&self, widgets: &Widgets) -> anyhow::Result<Measured> {
        let kind = GroupVersionKind::gvk("storagemigration.k8s.io", "v1", "StorageVersionMigration");
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let name = widgets.group().replace('.', "-");
        let mut migration = DynamicObject::new(&name, &resource);
        migration.data = json!({"spec": {"resource": {"group": widgets.group(), "resource": "widgets"}}});
        let started = Instant::now();
        api.create(&PostParams::default(), &migration).await?;
        loop {
            let status = api.get(&name).await?.data["status"].take();
            let has = |kind: &str| {
                let conditions = status["conditions"].as_array();
                conditions
                    .into_iter()
                    .flatten()
                    .any(|c| c["type"] == kind && c["status"] == "True")
            };
            if has("Failed") {
                bail!("the in-tree migrator failed: {status}");
            }
            if has("Succeeded") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(Measured {
            contestant: "in-tree",
            seconds,
            ..Measured::default()
        })
    }

    async fn exuvia(
        &self,
        widgets: &Widgets,
        program: &Path,
        kubeconfig: std::path::PathBuf,
    ) -> anyhow::Result<Measured> {
        let mut command = std::process::Command::new(program);
        command
            .args([
                "storage",
                "migrate",
                &widgets.crd_name(),
                "--settle",
                "0s",
                "-o",
                "json",
            ])
            .args(["--apiserver", self.control_plane.apiserver().url()])
            .env("KUBECONFIG", kubeconfig)
            .stdout(std::process::Stdio::piped());
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let pid = child.id();
        let waiting = tokio::task::spawn_blocking(move || child.wait_with_output());
        let mut peak = 0;
        while !waiting.is_finished() {
            peak = peak.max(peak_rss_kib(pid).unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        let output = waiting.await??;
        let report: Value = serde_json::from_slice(&output.stdout).context("exuvia printed no JSON")?;
        let report = &report[0];
        if report["end"]["state"] != "migrated" {
            bail!("exuvia did not migrate: {report}");
        }
        #[allow(clippy::cast_precision_loss)]
        let peak_rss_mib = peak as f64 / 1024.0;
        Ok(Measured {
            contestant: "exuvia",
            seconds,
            rewrite_seconds: report["timings"]["rewrite"].as_f64(),
            verify_seconds: report["timings"]["verify"].as_f64(),
            preflight_seconds: report["timings"]["preflight"].as_f64(),
            concurrency: report["peakConcurrency"].as_u64(),
            peak_rss_mib: Some(peak_rss_mib),
            ..Measured::default()
        })
    }
}

/// The kernel's own high-water mark.
fn peak_rss_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
