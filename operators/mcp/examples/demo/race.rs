//! The race of two generations of runners, as a timeline: without the freeze, and with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use exuvia_testenv::Kubelet;
use exuvia_testenv::kubelet::Running;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use mcp_operator::workload::is_deployment_rolled_out;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::kit::live;
use crate::say;
use crate::stage::{Stage, image, wait};

/// How often each of the two runners restarts.
const ROUNDS: usize = 3;

/// Prints what happens, each thing in the column of the one who does it.
struct Timeline {
    started: Instant,
}

#[derive(Clone, Copy)]
enum Who {
    Old,
    New,
    Backend,
}

impl Timeline {
    fn start(title: &str) -> Arc<Self> {
        say(&format!(
            "\n{title}\n\n     time │ {:<36} │ {:<36} │ StatefulSet\n  ────────┼─{:─<36}─┼─{:─<36}─┼─{:─<36}\n",
            "old runner", "new runner", "", "", ""
        ));
        Arc::new(Self {
            started: Instant::now(),
        })
    }

    fn line(&self, who: Who, what: &str) {
        let mut columns = [""; 3];
        columns[who as usize] = what;
        let [old, new, backend] = columns;
        let text = format!(
            "  {:5.1} s │ {old:<36} │ {new:<36} │ {backend}",
            self.started.elapsed().as_secs_f64()
        );
        say(&format!("{}\n", text.trim_end()));
    }
}

/// Shows every change of the backend's image, until it is dropped.
struct Watched(JoinHandle<()>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn watch(stage: &Stage, namespace: &str, timeline: &Arc<Timeline>) -> Watched {
    let sets: Api<StatefulSet> = stage.api(namespace);
    let timeline = Arc::clone(timeline);
    Watched(tokio::spawn(async move {
        let mut shown = None;
        loop {
            if let Ok(Some(set)) = sets.get_opt("a-backend").await {
                let now = (image(&set), set.metadata.generation.unwrap_or_default());
                if shown.as_ref() != Some(&now) {
                    timeline.line(Who::Backend, &format!("image {}, generation {}", now.0, now.1));
                    shown = Some(now);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }))
}

/// What the runner logs about its decision.
async fn decision(running: &Running) -> anyhow::Result<String> {
    wait("the runner decides", async || {
        let log = running.log();
        let line = log
            .lines()
            .find_map(|line| line.split_once("decision=").map(|(_, rest)| rest));
        Ok(line.map(|line| {
            // Up to the numbers: what follows is the sentence, and the row.
            let words = line.split([':', ' ']).filter(|word| !word.is_empty());
            words.take(5).collect::<Vec<_>>().join(" ")
        }))
    })
    .await
}

async fn restart(timeline: &Timeline, kubelet: &Kubelet, pod: &Pod, who: Who) -> anyhow::Result<String> {
    timeline.line(who, "its container restarts");
    let running = kubelet.restart_container(pod).await?;
    let decided = decision(&running).await?;
    timeline.line(who, &decided);
    Ok(decided)
}

/// How many revisions there are, and the highest number that one of them has.
async fn revisions(stage: &Stage, namespace: &str) -> anyhow::Result<(usize, i64)> {
    let api: Api<ControllerRevision> = stage.api(namespace);
    let all = api.list(&ListParams::default()).await?.items;
    let highest = all.iter().filter_map(|revision| revision.revision).max();
    Ok((all.len(), highest.unwrap_or_default()))
}

async fn backend_has(stage: &Stage, namespace: &str, wanted: &str) -> anyhow::Result<()> {
    wait(&format!("the backend has the image {wanted}"), async || {
        let backend = stage.backend(namespace, "a").await?;
        Ok(backend.filter(|backend| image(backend) == wanted).map(|_| ()))
    })
    .await
}

/// The run config is one that all pods mount, and it follows the server: a restarted old runner takes itself for a new one.
pub(crate) async fn without_the_freeze(stage: &Stage) -> anyhow::Result<String> {
    let namespace = "race-live";
    let kubelet = stage.namespace(namespace).await?;
    let (first, second) = ("example.com/tools:1", "example.com/tools:2");
    live::roll_out(&stage.client, namespace, first, 1, false).await?;
    let deployments: Api<Deployment> = stage.api(namespace);
    wait("the first roll-out is done", async || {
        let deployment = deployments.get_opt("a").await?;
        Ok(deployment.filter(is_deployment_rolled_out))
    })
    .await?;
    let old = stage.proxy_with(namespace, "a", "image", first).await?;
    let timeline = Timeline::start(
        "Without the freeze: the run config is mounted live, the gate compares generations (--gate compat)",
    );
    let _watched = watch(stage, namespace, &timeline);
    timeline.line(Who::Old, "serves, generation 1");
    live::roll_out(&stage.client, namespace, second, 2, true).await?;
    let new = stage.proxy_with(namespace, "a", "image", second).await?;
    timeline.line(Who::New, "its pod is bound, generation 2");
    let decided = decision(&kubelet.running(&new).await).await?;
    timeline.line(Who::New, &decided);
    backend_has(stage, namespace, "tools:2").await?;
    for _ in 0..ROUNDS {
        for (pod, who, wanted) in [(&old, Who::Old, "tools:1"), (&new, Who::New, "tools:2")] {
            let (_, before) = revisions(stage, namespace).await?;
            restart(&timeline, &kubelet, pod, who).await?;
            backend_has(stage, namespace, wanted).await?;
            wait("the backend has another revision", async || {
                let (_, now) = revisions(stage, namespace).await?;
                Ok((now > before).then_some(()))
            })
            .await?;
        }
    }
    let (_, highest) = revisions(stage, namespace).await?;
    let restarts = 2 * ROUNDS;
    Ok(format!(
        "{highest} after {restarts} restarts, one more with each: the two overwrite each other"
    ))
}

/// The operator's layout: each generation of pods has its own immutable run config, and a token.
pub(crate) async fn with_the_freeze(stage: &Stage) -> anyhow::Result<String> {
    let namespace = "race-frozen";
    let kubelet = stage.namespace(namespace).await?;
    stage
        .create_server(namespace, "a", "example.com/tools:1", 1)
        .await?;
    stage.server_when(namespace, "a", "RolledOut").await?;
    let generation = "mcp.exuvia.dev/generation";
    let old = stage.proxy_with(namespace, "a", generation, "1").await?;
    let timeline = Timeline::start(
        "With the freeze: each generation has its own run config and a token (--gate strict). The image bad never becomes ready: both stay",
    );
    let watched = watch(stage, namespace, &timeline);
    timeline.line(Who::Old, "serves, epoch 1");
    let bad = json!({"spec": {"image": "example.com/tools:bad"}});
    stage.patch_server(namespace, "a", bad).await?;
    let new = stage.proxy_with(namespace, "a", generation, "2").await?;
    timeline.line(Who::New, "its pod is bound, epoch 2");
    let decided = decision(&kubelet.running(&new).await).await?;
    timeline.line(Who::New, &decided);
    backend_has(stage, namespace, "tools:bad").await?;
    for _ in 0..ROUNDS {
        let skipped = restart(&timeline, &kubelet, &old, Who::Old).await?;
        anyhow::ensure!(
            skipped.starts_with("skip"),
            "the old runner was not skipped: {skipped}"
        );
        restart(&timeline, &kubelet, &new, Who::New).await?;
    }
    let (count, highest) = revisions(stage, namespace).await?;
    // A good image comes up by itself.
    let good = json!({"spec": {"image": "example.com/tools:3"}});
    stage.patch_server(namespace, "a", good).await?;
    stage.server_when(namespace, "a", "RolledOut").await?;
    let backend = stage.backend(namespace, "a").await?.context("no backend")?;
    anyhow::ensure!(image(&backend) == "tools:3", "the good image did not come up");
    timeline.line(Who::Backend, "the next good image is rolled out");
    drop(watched);
    anyhow::ensure!(count == 2, "expected 2 revisions, found {count}");
    let restarts = 2 * ROUNDS;
    Ok(format!(
        "{highest} after {restarts} restarts: the old one is skipped"
    ))
}
