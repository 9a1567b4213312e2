//! One migration by the operator, with a writer and a bystander beside it, measured from outside.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use exuvia_api::{DatastoreMigration, DatastorePhase, MigrationMode};
use exuvia_testenv::Widgets;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use crate::arena::{Arena, load_average, peak_rss_mib};
use crate::bystander::Bystander;
use crate::results::Measured;
use crate::timeline::Timeline;
use crate::writer::{Writer, Written};

/// For so long a writer goes on before the migration begins and after it has ended.
const BEFORE_AND_AFTER: Duration = Duration::from_secs(2);

/// What to run.
pub(crate) struct Run<'a> {
    pub(crate) contest: &'static str,
    pub(crate) mode: MigrationMode,
    pub(crate) objects: usize,
    pub(crate) source: &'a Widgets,
    pub(crate) target: &'a Widgets,
    /// `spec.freeze.drain`.
    pub(crate) drain: &'a str,
    /// 0: nobody writes to the source.
    pub(crate) writes_per_second: u32,
    /// Where to stop: `Complete`, or `Converged` if nothing more is to be measured on this control plane.
    pub(crate) last: DatastorePhase,
}

impl Run<'_> {
    fn migration(&self, name: &str) -> anyhow::Result<DatastoreMigration> {
        Ok(serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": {"name": name},
            "spec": {
                "mode": self.mode,
                "mappings": [{
                    "name": "widgets",
                    "from": {"group": self.source.group(), "version": "v1", "kinds": ["Widget"]},
                    "to": {"group": self.target.group(), "version": "v1"},
                }],
                "freeze": {"drain": self.drain, "maxDuration": "30m"},
                "cleanup": {"source": "Thaw"},
            },
        }))?)
    }

    pub(crate) async fn measure(&self, arena: &Arena) -> anyhow::Result<Measured> {
        let name = self.target.group().replace('.', "-");
        let load_average = load_average();
        let operator = arena.operator()?;
        let converged = Arc::new(AtomicBool::new(false));
        let bystander = Bystander::start(arena.client.clone());
        let writer = (self.writes_per_second > 0).then(|| {
            let sides = (self.source.clone(), self.target.clone());
            let how_many = (self.objects, self.writes_per_second);
            Writer::start(&arena.client, sides, how_many, converged.clone())
        });
        if writer.is_some() {
            tokio::time::sleep(BEFORE_AND_AFTER).await;
        }
        let began = Instant::now();
        let migrations = arena.migrations();
        migrations
            .create(&PostParams::default(), &self.migration(&name)?)
            .await?;
        let timeline = Timeline::follow(&migrations, &name, self.last, &converged)
            .await
            .with_context(|| format!("the operator's last words: {}", operator.log_tail(5)))?;
        let seconds = began.elapsed().as_secs_f64();
        let peak_rss_mib = peak_rss_mib(&operator)?;
        let written = match writer {
            Some(writer) => {
                tokio::time::sleep(BEFORE_AND_AFTER).await;
                Some(writer.stop().await?)
            }
            None => None,
        };
        let (bystander_p99_ms, bystander_writes) = bystander.stop().await;

        let targets = arena.all(self.target).await?;
        match &written {
            Some(written) => written.check(&targets, self.objects)?,
            None => ensure!(targets.len() == self.objects, "{} targets", targets.len()),
        }
        if let Some(failed) = written.as_ref().and_then(|written| written.failed.first()) {
            bail!("a write was neither acknowledged nor refused: {failed}");
        }
        if self.last == DatastorePhase::Complete {
            migrations.delete(&name, &DeleteParams::default()).await?;
            while migrations.get_opt(&name).await?.is_some() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            operator.stop(Duration::from_secs(30))?;
        } else {
            operator.kill()?;
        }
        let is_counted = self.drain == "Auto";
        Ok(Measured {
            contest: self.contest,
            mode: Some(self.mode),
            objects: self.objects,
            seconds,
            load_average,
            preflight_seconds: Some(timeline.seconds_in("Trying", false)),
            sync_seconds: Some(timeline.seconds_in("Syncing", false)).filter(|seconds| *seconds > 0.0),
            frozen_seconds: timeline.frozen_seconds(),
            drain_seconds: Some(timeline.seconds_in("Draining", true)).filter(|_| is_counted),
            copy_seconds: Some(timeline.seconds_in("Copying", true)),
            verify_seconds: Some(timeline.seconds_in("Verifying", true)).filter(|seconds| *seconds > 0.0),
            refused_seconds: written.as_ref().and_then(Written::refused_seconds),
            writes_per_second: written.as_ref().and_then(Written::per_second),
            acknowledged: written.as_ref().map(|written| written.acknowledged),
            refused: written.as_ref().map(|written| written.refused),
            peak_rss_mib: Some(peak_rss_mib),
            bystander_p99_ms: Some(bystander_p99_ms),
            bystander_writes: Some(bystander_writes),
        }
        .shown())
    }
}
