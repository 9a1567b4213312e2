//! What was measured, as a table, and next to the aims.

use std::path::PathBuf;

use anyhow::Context;
use exuvia_api::MigrationMode;
use serde::Serialize;

/// One run.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) contest: &'static str,
    /// None: the bare client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<MigrationMode>,
    pub(crate) objects: usize,
    /// From the creation of the migration to its end, or of the bare client's creates.
    pub(crate) seconds: f64,
    /// Of the machine when the run began: over 1, 5 and 15 minutes.
    pub(crate) load_average: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preflight_seconds: Option<f64>,
    /// In which everything was copied and followed while writers went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sync_seconds: Option<f64>,
    /// From `frozenAt` to the commit, as the status shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) frozen_seconds: Option<f64>,
    /// Of that: until no write was under way, by gauges.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copy_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verify_seconds: Option<f64>,
    /// From the writer's first refused write to its first acknowledged one at the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acknowledged: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_mib: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bystander_p99_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bystander_writes: Option<usize>,
}

impl Measured {
    /// Told at once: a run takes long.
    pub(crate) fn shown(self) -> Self {
        eprintln!(
            "{} {}: {} objects in {:.1} s, refused for {} s",
            self.contest,
            self.who(),
            self.objects,
            self.seconds,
            or_dash(self.refused_seconds, 2)
        );
        self
    }

    fn who(&self) -> &'static str {
        match self.mode {
            None => "bare client",
            Some(MigrationMode::FreezeAndCopy) => "FreezeAndCopy",
            Some(MigrationMode::SyncThenFreeze) => "SyncThenFreeze",
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn count(&self) -> f64 {
        self.objects as f64
    }

    /// What the writer noticed, without the drain.
    fn window(&self) -> Option<f64> {
        Some(self.refused_seconds? - self.drain_seconds.unwrap_or_default())
    }
}

/// Everything, as it is written to a file.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Results {
    pub(crate) cores: usize,
    pub(crate) bystander_at_rest_p99_ms: f64,
    pub(crate) cel_evaluations_per_second: f64,
    pub(crate) runs: Vec<Measured>,
    pub(crate) aims: Vec<Aim>,
    /// Where they are kept.
    #[serde(skip)]
    pub(crate) file: Option<PathBuf>,
}

/// An aim, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Aim {
    aim: String,
    measured: f64,
    /// None: there is nothing to reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

fn or_dash(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}

impl Results {
    /// Adds a run, and writes everything down: somebody may lose patience with the next one.
    pub(crate) fn add(&mut self, run: Measured) -> anyhow::Result<()> {
        self.runs.push(run);
        self.judge();
        let Some(path) = &self.file else {
            return Ok(());
        };
        std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Compares what was measured with the aims.
    fn judge(&mut self) {
        let mut aims = Vec::new();
        let mut add = |aim: String, measured: Option<f64>, is_met: Option<fn(f64) -> bool>| {
            if let Some(measured) = measured {
                let met = is_met.map(|is_met| is_met(measured));
                aims.push(Aim { aim, measured, met });
            }
        };
        add(
            "copy rate next to the bare client (≥ 0.8)".to_owned(),
            self.copy_ratio(),
            Some(|ratio| ratio >= 0.8),
        );
        let [sync_few, sync_many] = self.few_and_many(MigrationMode::SyncThenFreeze);
        let [copy_few, copy_many] = self.few_and_many(MigrationMode::FreezeAndCopy);
        let ratio = |one: Option<f64>, other: Option<f64>| Some(one? / other?);
        let window = |run: Option<&Measured>| run.and_then(Measured::window);
        let whole = |run: Option<&Measured>| run.and_then(|run| run.refused_seconds);
        if let (Some(few), Some(many)) = (sync_few, sync_many) {
            let (few, many) = (few.objects, many.objects);
            add(
                format!("SyncThenFreeze: window at {many} to that at {few}, drain apart (≤ 1.5)"),
                ratio(window(sync_many), window(sync_few)),
                Some(|ratio| ratio <= 1.5),
            );
            add(
                format!("at {many}: window of FreezeAndCopy to that of SyncThenFreeze, drain apart (≥ 20)"),
                ratio(window(copy_many), window(sync_many)),
                Some(|ratio| ratio >= 20.0),
            );
            add(
                format!("at {many}: the same with the drain"),
                ratio(whole(copy_many), whole(sync_many)),
                None,
            );
            add(
                format!("FreezeAndCopy: window at {many} to that at {few}, drain apart"),
                ratio(window(copy_many), window(copy_few)),
                None,
            );
        }
        let drains = self.runs.iter().filter_map(|run| run.drain_seconds);
        add(
            "the longest drain, proven by gauges, in seconds (≤ 1)".to_owned(),
            drains.reduce(f64::max),
            Some(|seconds| seconds <= 1.0),
        );
        for run in self.runs.iter().filter(|run| run.contest == "copy") {
            let each = run
                .preflight_seconds
                .map(|seconds| 1000.0 * seconds / run.count());
            add("preflight per object, in milliseconds".to_owned(), each, None);
        }
        let peaks = self.runs.iter().filter_map(|run| run.peak_rss_mib);
        add(
            "the largest peak RSS, in MiB (≤ 96)".to_owned(),
            peaks.reduce(f64::max),
            Some(|mib| mib <= 96.0),
        );
        for (mode, [few, many]) in [
            (
                "FreezeAndCopy",
                [copy_few, self.largest(MigrationMode::FreezeAndCopy)],
            ),
            (
                "SyncThenFreeze",
                [sync_few, self.largest(MigrationMode::SyncThenFreeze)],
            ),
        ] {
            let (Some(few), Some(many)) = (few, many) else {
                continue;
            };
            add(
                format!(
                    "{mode}: peak RSS at {} to that at {} (≤ 1.1)",
                    many.objects, few.objects
                ),
                ratio(many.peak_rss_mib, few.peak_rss_mib),
                Some(|ratio| ratio <= 1.1),
            );
        }
        let others = self.runs.iter().filter_map(|run| run.bystander_p99_ms);
        let at_rest = self.bystander_at_rest_p99_ms;
        add(
            "a bystander's largest p99 to that at rest".to_owned(),
            others.reduce(f64::max).map(|p99| p99 / at_rest),
            None,
        );
        let evaluations = Some(self.cel_evaluations_per_second);
        add(
            "CEL evaluations per second, one thread".to_owned(),
            evaluations,
            None,
        );
        self.aims = aims;
    }

    /// The bare client's seconds to ours, over all turns.
    fn copy_ratio(&self) -> Option<f64> {
        let turns = self.runs.iter().filter(|run| run.contest == "copy");
        let (bare, ours): (Vec<_>, Vec<_>) = turns.partition(|run| run.mode.is_none());
        let bare: f64 = bare.iter().map(|run| run.seconds).sum();
        let ours: f64 = ours.iter().filter_map(|run| run.copy_seconds).sum();
        (ours > 0.0).then(|| bare / ours)
    }

    /// The runs with the fewest and with the most objects that had a writer.
    fn few_and_many(&self, mode: MigrationMode) -> [Option<&Measured>; 2] {
        let of_mode = || {
            let runs = self.runs.iter();
            runs.filter(move |run| run.contest == "freeze" && run.mode == Some(mode))
        };
        [
            of_mode().min_by_key(|run| run.objects),
            of_mode().max_by_key(|run| run.objects),
        ]
    }

    fn largest(&self, mode: MigrationMode) -> Option<&Measured> {
        let of_mode = self.runs.iter().filter(|run| run.mode == Some(mode));
        of_mode.max_by_key(|run| run.objects)
    }

    pub(crate) fn print(&self) {
        println!(
            "\n| contest | who | objects | objects/s | preflight | sync | writes refused | drain | copy | verify | refused | acknowledged | peak RSS | bystander p99 |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for run in &self.runs {
            let seconds =
                |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2} s"));
            let count = |value: Option<usize>| value.map_or_else(String::new, |value| value.to_string());
            let copying = if run.mode.is_none() {
                Some(run.seconds)
            } else {
                run.copy_seconds
                    .filter(|_| run.mode == Some(MigrationMode::FreezeAndCopy))
            };
            println!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                run.contest,
                run.who(),
                run.objects,
                copying.map_or_else(String::new, |seconds| format!("{:.0}", run.count() / seconds)),
                seconds(run.preflight_seconds),
                seconds(run.sync_seconds),
                seconds(run.refused_seconds),
                seconds(run.drain_seconds),
                seconds(run.copy_seconds),
                seconds(run.verify_seconds),
                count(run.refused),
                count(run.acknowledged),
                run.peak_rss_mib
                    .map_or_else(String::new, |mib| format!("{mib:.1} MiB")),
                run.bystander_p99_ms
                    .map_or_else(String::new, |p99| format!("{p99:.0} ms")),
            );
        }
        println!("\n| aim | measured |\n|---|---|");
        for aim in &self.aims {
            let missed = if aim.met == Some(false) {
                "**missed**: "
            } else {
                ""
            };
            println!("| {} | {missed}{:.2} |", aim.aim, aim.measured);
        }
        println!("\nbystander p99 at rest: {:.1} ms", self.bystander_at_rest_p99_ms);
    }
}
