//! The contestants: what each does to widgets that are stored at an old version, timed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exuvia_testenv::Widgets;
use exuvia_write::Writer;
use futures::{StreamExt, TryStreamExt};
use kube::api::{Api, DynamicObject, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::contest::{Arena, CONNECTIONS};
use crate::measured::Measured;

/// Who migrates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Only sends the patches, as fast as it can: the limit. Then once more, when nothing is left to write.
    Bare,
    /// `StorageVersionMigration` of kube-controller-manager: the peer.
    InTree,
    /// `exuvia storage migrate --verify proof`, from start to trim.
    Proof,
    /// `exuvia storage migrate --verify full`, from start to trim.
    Full,
}

/// How `exuvia storage migrate` is run.
pub(crate) struct Run<'a> {
    pub(crate) program: &'a Path,
    pub(crate) kubeconfig: PathBuf,
    /// What is migrated, and how it is verified.
    pub(crate) args: Vec<String>,
    pub(crate) settle: Duration,
}

impl Arena {
    pub(crate) async fn bare(&self, widgets: &Widgets) -> anyhow::Result<Measured> {
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
        let patch_all = async || -> anyhow::Result<f64> {
            let started = Instant::now();
            futures::stream::iter(&names)
                .map(|metadata: &ObjectMeta| writer.rewrite(&api, metadata))
                .buffer_unordered(CONNECTIONS)
                .try_for_each(|_| async { Ok(()) })
                .await?;
            Ok(started.elapsed().as_secs_f64())
        };
        Ok(Measured {
            contestant: "bare",
            seconds: patch_all().await?,
            elided_seconds: Some(patch_all().await?),
            ..Measured::default()
        })
    }

    pub(crate) async fn in_tree(&self, widgets: &Widgets) -> anyhow::Result<Measured> {
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

    /// Runs the command and returns what was measured, with its reports.
    pub(crate) async fn exuvia(&self, run: Run<'_>) -> anyhow::Result<(Measured, Vec<Value>)> {
        let mut command = std::process::Command::new(run.program);
        command
            .args(["storage", "migrate", "-o", "json"])
            .args(["--settle", &format!("{}ms", run.settle.as_millis())])
            .args(["--apiserver", self.control_plane.apiserver().url()])
            .args(&run.args)
            .env("KUBECONFIG", run.kubeconfig)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null()); // progress
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", run.program.display()))?;
        let pid = child.id();
        let waiting = tokio::task::spawn_blocking(move || {
            let output = child.wait_with_output();
            (output, started.elapsed())
        });
        let (mut peak, mut peak_heap) = (0, 0);
        while !waiting.is_finished() {
            peak = peak.max(memory_kib(pid, "VmHWM:").unwrap_or_default());
            peak_heap = peak_heap.max(memory_kib(pid, "RssAnon:").unwrap_or_default());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (output, took) = waiting.await?;
        let reports: Vec<Value> =
            serde_json::from_slice(&output?.stdout).context("exuvia printed no JSON")?;
        if let Some(report) = reports.iter().find(|report| report["end"]["state"] != "migrated") {
            bail!("exuvia did not migrate: {report}");
        }
        let sum = |part: &str| {
            let seconds = |report: &Value| report["timings"][part].as_f64();
            Some(reports.iter().filter_map(seconds).sum())
        };
        #[allow(clippy::cast_precision_loss)]
        let [peak_rss_mib, peak_heap_mib] = [peak, peak_heap].map(|kib| kib as f64 / 1024.0);
        let measured = Measured {
            contestant: "exuvia",
            seconds: took.as_secs_f64(),
            rewrite_seconds: sum("rewrite"),
            verify_seconds: sum("verify"),
            preflight_seconds: sum("preflight"),
            concurrency: reports.iter().filter_map(|r| r["peakConcurrency"].as_u64()).max(),
            peak_rss_mib: Some(peak_rss_mib),
            peak_heap_mib: Some(peak_heap_mib),
            ..Measured::default()
        };
        Ok((measured, reports))
    }
}

/// A figure of the kernel's: `VmHWM:` is its own high-water mark, `RssAnon:` the heap and the stacks as they are now.
fn memory_kib(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
