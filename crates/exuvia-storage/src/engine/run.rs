//! A whole run, for callers that do not step by themselves; and how it ended, in words.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::{Activity, Advance, Engine};
use crate::Error;
use crate::preflight::Obstacle;
use crate::protocol::{self, Hold, Step};
use crate::report::{End, Report, objects};

/// API servers are looked at again at least this often while a run waits: one that falls behind is named early.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

impl Engine {
    /// Steps until the trim is made or something stands in the way; with [`Options::patrol`](crate::Options::patrol) until
    /// the patrol has been.
    pub async fn run(&mut self) -> Result<Report, Error> {
        self.run_among(&Arc::new(Semaphore::new(1))).await
    }

    /// As [`run`](Self::run), one of several at the same time: it works only while it holds one of `slots`, and waits
    /// without.
    pub async fn run_among(&mut self, slots: &Arc<Semaphore>) -> Result<Report, Error> {
        let started = Instant::now();
        self.report.end = self.run_to_end(slots).await?;
        self.report.timings.all += started.elapsed().as_secs_f64();
        Ok(self.report.clone())
    }

    async fn run_to_end(&mut self, slots: &Arc<Semaphore>) -> Result<End, Error> {
        let mut slot = None;
        loop {
            if slot.is_none() {
                slot = Arc::clone(slots).acquire_owned().await.ok();
            }
            match self.advance().await? {
                Advance::Stepped if self.is_migrated() && !self.options.patrol => return Ok(End::Migrated),
                Advance::Stepped => {}
                Advance::Wait(time) => {
                    slot = None;
                    self.wait(time).await;
                }
                Advance::Held(hold) => return Ok(self.ended(&hold)),
                Advance::Done if self.is_migrated() => return Ok(End::Migrated),
                Advance::Done => return Ok(End::Clean),
                Advance::Cancelled => return Ok(End::Cancelled),
            }
        }
    }

    /// Waits, and says every second for how long still.
    async fn wait(&self, time: Duration) {
        let until = Instant::now() + time;
        let look_again = Instant::now() + time.min(LOOK_AGAIN);
        while Instant::now() < look_again && !self.control.is_cancelled() {
            (self.watcher)(Activity::Settling(
                until.saturating_duration_since(Instant::now()),
            ));
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
    pub async fn rehearse(&mut self) -> Result<Report, Error> {
        self.rehearsing = true;
        self.report.end = loop {
            match protocol::next(&self.observe().await?) {
                Step::Begin => self.begin(),
                Step::Preflight => self.preflight().await?,
                Step::Hold(Hold::ServerBehind(_)) => break End::WouldMigrate,
                Step::Hold(hold) => break self.ended(&hold),
                Step::Done => break End::Clean,
                _ => break End::WouldMigrate,
            }
        };
        self.rehearsing = false;
        Ok(self.report.clone())
    }

    /// Verified, and trimmed or nothing to trim.
    fn is_migrated(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.trimmed)
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
        let trimmed = self.pass.as_ref().is_some_and(|pass| pass.trimmed);
        match hold {
            Hold::Gone => "the CRD is gone".to_owned(),
            Hold::Suspended => "it is suspended".to_owned(),
            Hold::Blocked(_) => match &self.report.obstacle {
                Some(Obstacle::Pruning(losses)) => losses.sentence(self.audience),
                obstacle => obstacle.as_ref().map(ToString::to_string).unwrap_or_default(),
            },
            Hold::ServerBehind(names) if names.is_empty() => format!(
                "{} came back at an old version right after being rewritten: an API server is behind; nothing was trimmed; \
                 name the servers with {} to find it",
                objects(self.report.came_back),
                self.audience.setting("--apiserver", "spec.apiServers")
            ),
            Hold::ServerBehind(names) if trimmed => format!(
                "{}; storedVersions is trimmed, but the patrol waits for that",
                names.join(", ")
            ),
            Hold::ServerBehind(names) => format!(
                "{}; nothing was trimmed; bring it up to date, or if it is gone for good go on without it: {}, which \
                 verifies in full",
                names.join(", "),
                self.audience
                    .setting("--ignore-apiserver", "spec.ignoreApiServers")
            ),
            Hold::NotProven => self.doubt(),
            Hold::Failures(count) if trimmed => {
                format!(
                    "{} could not be looked at once more after the trim",
                    objects(*count)
                )
            }
            Hold::Failures(count) => {
                format!("{} could not be migrated; nothing was trimmed", objects(*count))
            }
        }
    }

    fn doubt(&self) -> String {
        let in_etcd = self.report.audit.as_ref().filter(|audit| !audit.is_current());
        if let Some(resource) = in_etcd.and_then(|audit| audit.resources.first()) {
            let unreadable: u64 = resource
                .unreadable
                .iter()
                .map(|unreadable| unreadable.objects)
                .sum();
            let example = resource.offenders.first().map(|offender| offender.key.as_str());
            return format!(
                "not proven: etcd holds {} at another version than the sweeps saw, and {unreadable} that cannot be read{}; \
                 nothing was trimmed",
                objects(resource.offending),
                example.map(|key| format!(", such as {key}")).unwrap_or_default(),
            );
        }
        format!(
            "not proven: {} changed again when verified, sweep after sweep, and nothing tells why (a webhook that changes \
             objects now and then, or an API server that nobody asked); nothing was trimmed; `exuvia storage audit` reads etcd",
            objects(self.report.unexplained)
        )
    }
}
