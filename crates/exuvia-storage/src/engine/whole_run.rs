//! A whole run for a command: drives the engine, sleeps while it waits, and says how it ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use exuvia_runtime::machine::{Ended, Flow, Machine, Teller, drive};
use tokio::sync::Semaphore;

use super::{Activity, Engine};
use crate::Error;
use crate::protocol::{Hold, Next, NextStep, Pass, Step, StepKind};
use crate::report::{End, MigrationReport};

/// API servers are looked at again at least this often while a run waits: one that falls behind is named early.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Tells nobody but the engine's own watcher, and stops at the trim unless the patrol is asked for.
struct UntilTrimmed;

impl Teller<Engine> for UntilTrimmed {
    async fn stepped(&mut self, engine: &Engine, _: Option<&Hold>) -> Result<Flow, Error> {
        Ok(if engine.is_trimmed_and_no_patrol_asked() {
            Flow::Stop
        } else {
            Flow::GoOn
        })
    }
}

/// Tells nobody but the engine's own watcher, and stops before the first step that needs a settled server or writes.
struct BeforeFirstWrite;

impl Teller<Engine> for BeforeFirstWrite {
    async fn tell(&mut self, _: &Engine, next: &Next, _: Option<&Hold>) -> Result<Flow, Error> {
        Ok(match next {
            NextStep::Do(Step::Begin | Step::Preflight) => Flow::GoOn,
            NextStep::Do(_) => Flow::Stop,
            NextStep::Wait(_) | NextStep::Hold(_) | NextStep::Done => Flow::GoOn, // it ends by itself
        })
    }
}

impl Engine {
    /// Steps until the trim is made or something stands in the way; with [`Options::patrol`](crate::Options::patrol) until
    /// the patrol is over.
    pub async fn run(&mut self) -> Result<MigrationReport, Error> {
        self.run_among(&Arc::new(Semaphore::new(1))).await
    }

    /// As [`run`](Self::run), one of several at the same time: it works only while it holds one of `slots`, and waits
    /// without.
    pub async fn run_among(&mut self, slots: &Arc<Semaphore>) -> Result<MigrationReport, Error> {
        let started = Instant::now();
        self.report.end = self.run_to_end(slots).await?;
        self.report.timings.all += started.elapsed().as_secs_f64();
        Ok(self.report.clone())
    }

    async fn run_to_end(&mut self, slots: &Arc<Semaphore>) -> Result<End, Error> {
        loop {
            let slot = Arc::clone(slots).acquire_owned().await.ok();
            let ended = drive(self, &mut UntilTrimmed).await?;
            drop(slot);
            match ended {
                Ended::Waits(time) => self.wait(time).await,
                Ended::Held(hold) => return Ok(self.ended(&hold)),
                Ended::Done | Ended::Stopped if self.is_trimmed_and_no_patrol_asked() => {
                    return Ok(End::Migrated);
                }
                Ended::Done if self.is_migrated() => return Ok(End::Migrated),
                Ended::Done => return Ok(End::Clean),
                Ended::Stopped => return Ok(End::Cancelled),
            }
        }
    }

    /// Waits, and says every second for how long still.
    async fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let look_again = Instant::now() + time.min(LOOK_AGAIN);
        while Instant::now() < look_again && !self.control.is_cancelled() {
            (self.watcher)(Activity {
                step: StepKind::Settle,
                progress: None,
                left: Some(until.saturating_duration_since(Instant::now())),
            });
            let nap = look_again.saturating_duration_since(Instant::now());
            tokio::select! {
                () = tokio::time::sleep(nap.min(Duration::from_secs(1))) => {}
                () = self.control.cancelled() => {}
            }
        }
    }

    /// Only what comes before the first write: says whether anything stands in the way, and writes nothing.
    ///
    /// [`End::WouldMigrate`] means that [`run`](Self::run) would go on from here.
    pub async fn rehearse(&mut self) -> Result<MigrationReport, Error> {
        self.rehearsing = true;
        let ended = drive(self, &mut BeforeFirstWrite).await;
        self.rehearsing = false;
        self.report.end = match ended? {
            Ended::Stopped if self.is_cancelled() => End::Cancelled,
            Ended::Stopped | Ended::Waits(_) | Ended::Held(Hold::ServerBehind(_)) => End::WouldMigrate,
            Ended::Held(hold) => self.ended(&hold),
            Ended::Done => End::Clean,
        };
        Ok(self.report.clone())
    }

    fn is_migrated(&self) -> bool {
        self.pass.as_ref().is_some_and(Pass::is_migrated)
    }

    fn is_trimmed_and_no_patrol_asked(&self) -> bool {
        self.is_migrated() && !self.options.patrol
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
}
