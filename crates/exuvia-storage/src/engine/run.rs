//! A whole run, for whoever does not step by itself; and how it ended, in words.

use std::time::{Duration, Instant};

use super::{Activity, Advance, Engine};
use crate::Error;
use crate::protocol::{self, Hold, Step};
use crate::report::{End, Report, objects};

impl Engine {
    /// Steps until the trim is made or something stands in the way. The patrol is not waited for: see
    /// [`advance`](Self::advance).
    pub async fn run(&mut self) -> Result<Report, Error> {
        let started = Instant::now();
        self.report.end = self.run_to_end().await?;
        self.report.timings.all += started.elapsed().as_secs_f64();
        Ok(self.report.clone())
    }

    async fn run_to_end(&mut self) -> Result<End, Error> {
        loop {
            match self.advance().await? {
                Advance::Stepped if self.is_migrated() => return Ok(End::Migrated),
                Advance::Stepped => {}
                Advance::Wait(time) => {
                    (self.watcher)(Activity::Settling(time));
                    // Servers are looked at again and again: one that falls behind meanwhile is named early.
                    let nap = time.min(Duration::from_secs(5));
                    tokio::select! {
                        () = tokio::time::sleep(nap) => {}
                        () = self.control.cancelled() => {}
                    }
                }
                Advance::Held(hold) => return Ok(self.ended(&hold)),
                Advance::Done if self.is_migrated() => return Ok(End::Migrated),
                Advance::Done => return Ok(End::Clean),
                Advance::Cancelled => return Ok(End::Cancelled),
            }
        }
    }

    /// Only what comes before the first write: says whether anything stands in the way, and writes nothing.
    ///
    /// [`End::Unfinished`] means that [`run`](Self::run) would go on from here.
    pub async fn rehearse(&mut self) -> Result<Report, Error> {
        self.report.end = loop {
            match protocol::next(&self.observe().await?) {
                Step::Begin => self.begin(),
                Step::Preflight => self.preflight().await?,
                Step::Hold(Hold::ServerBehind(_)) => break End::Unfinished,
                Step::Hold(hold) => break self.ended(&hold),
                Step::Done => break End::Clean,
                _ => break End::Unfinished,
            }
        };
        Ok(self.report.clone())
    }

    /// Verified, and nothing (more) to trim.
    fn is_migrated(&self) -> bool {
        let verified = self
            .pass
            .as_ref()
            .and_then(|pass| pass.verify)
            .is_some_and(|end| end.unfinished == 0);
        verified
            && self
                .report
                .stored_after
                .iter()
                .all(|version| *version == self.report.storage_version)
    }

    fn ended(&self, hold: &Hold) -> End {
        match (hold, hold.reason()) {
            (Hold::Gone, _) => End::Gone,
            (_, None) => End::Unfinished,
            (_, Some(reason)) => End::Stalled {
                reason,
                message: self.sentence(hold),
            },
        }
    }

    /// Why it does not go on, for people.
    pub fn sentence(&self, hold: &Hold) -> String {
        match hold {
            Hold::Gone => "the CRD is gone".to_owned(),
            Hold::Suspended => "it is suspended".to_owned(),
            Hold::Blocked(_) => self
                .report
                .obstacle
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            Hold::ServerBehind(names) if names.is_empty() => {
                "an API server keeps storing at an old version: name the servers with --apiserver (spec.apiServers) to find it"
                    .to_owned()
            }
            Hold::ServerBehind(names) => format!(
                "these API servers do not show the new storage version, or do not answer: {}",
                names.join(", ")
            ),
            Hold::Failures(count) if self.pass.as_ref().is_some_and(|pass| pass.trimmed) => {
                format!("{} could not be looked at once more after the trim", objects(*count))
            }
            Hold::Failures(count) => {
                format!("{} could not be migrated; nothing was trimmed", objects(*count))
            }
        }
    }
}
