//! Somebody else who uses the same API server meanwhile: 20 writes per second, and how long each takes.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::oneshot;

pub(crate) struct Bystander {
    stop: oneshot::Sender<()>,
    running: tokio::task::JoinHandle<Vec<Duration>>,
}

impl Bystander {
    pub(crate) fn start(client: Client) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let api: Api<ConfigMap> = Api::namespaced(client, "default");
            let mut taken = Vec::new();
            let mut object = ConfigMap::default();
            object.metadata.name = Some("bystander".into());
            let _ = api.create(&PostParams::default(), &object).await; // may be there already
            let mut ticks = tokio::time::interval(Duration::from_millis(50));
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            for count in 0_u64.. {
                tokio::select! {
                    _ = &mut stopped => break,
                    _ = ticks.tick() => {}
                }
                let patch = Patch::Merge(json!({"data": {"count": count.to_string()}}));
                let started = Instant::now();
                if api
                    .patch("bystander", &PatchParams::default(), &patch)
                    .await
                    .is_ok()
                {
                    taken.push(started.elapsed());
                }
            }
            taken
        });
        Self { stop, running }
    }

    /// The 99th percentile in milliseconds, and how many writes there were.
    pub(crate) async fn stop(self) -> (f64, usize) {
        let _ = self.stop.send(());
        let mut taken = self.running.await.unwrap_or_default();
        taken.sort();
        let p99 = taken
            .get(taken.len().saturating_sub(1 + taken.len() / 100))
            .copied()
            .unwrap_or_default();
        (p99.as_secs_f64() * 1000.0, taken.len())
    }

    /// The 99th percentile over ten quiet seconds, after ten in which the cluster has come to rest.
    pub(crate) async fn at_rest(client: Client) -> f64 {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let bystander = Self::start(client);
        tokio::time::sleep(Duration::from_secs(10)).await;
        bystander.stop().await.0
    }
}
