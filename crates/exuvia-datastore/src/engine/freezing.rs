//! The steps of the freeze: what counts writers, the flags, the shield, the probe and the drain.

use std::time::{Duration, Instant};

use exuvia_write::{Name, Redacted, Writer, redacted};

use super::locks::LockIdentity;
use super::{Engine, is_gone};
use crate::Error;
use crate::check::is_on_target;
use crate::copy::FIELD_MANAGER;
use crate::freeze::{Drain, Drained as DrainState, FlagNow, Form, freeze_flag, read_flag, save_flag};
use crate::protocol::{Denies, Drained, Stage};

/// Between two looks at API servers that do not refuse yet: each learns of a policy within about a second (PITFALLS D10).
pub(super) const BETWEEN_PROBES: Duration = Duration::from_millis(250);

/// Between two looks at identity Leases.
const BETWEEN_LEASES: Duration = Duration::from_millis(500);

/// For so long a step asks again by itself: to look at everything in between would be three requests in four. Then the engine
/// looks whether the step is still wanted.
const TURN: Duration = Duration::from_secs(2);

impl Engine {
    pub(super) async fn count_writers(&mut self) -> Result<(), Error> {
        self.can_count = self.work()?.freeze.count_writers().await?;
        if self.can_count {
            self.counting_since.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    /// What a flag had before is saved once. One that somebody has changed since, before it was set, is saved again.
    pub(super) async fn save_flags(&mut self) -> Result<(), Error> {
        let before = self.migration.status.clone().unwrap_or_default().saved.flags;
        let mut saved = Vec::new();
        for (index, flag) in self.migration.spec.freeze.flags.iter().enumerate() {
            let now = match read_flag(&self.client, flag).await {
                // Behind the APIService it is the backend's object, which the switch takes along.
                Ok(now) if !self.observed.wants.route || !is_on_target(flag, &self.migration.spec) => now,
                Err(error) if !is_gone(&error) || !is_on_target(flag, &self.migration.spec) => {
                    return Err(error.into());
                }
                Ok(_) | Err(_) => FlagNow {
                    uid: String::new(),
                    value: None,
                },
            };
            let known = before
                .iter()
                .find(|saved| usize::try_from(saved.index).is_ok_and(|at| at == index));
            saved.push(match known {
                Some(known) if now.value.as_ref() == Some(&flag.frozen) && now.uid == known.uid => {
                    known.clone()
                }
                _ => save_flag(index, &now),
            });
        }
        self.record(|status, _| status.saved.flags.clone_from(&saved))
            .await
    }

    /// A flag may be on an object that is moved itself: then our policies let no other field manager pass.
    pub(super) fn flag_writer(&self) -> Writer {
        self.writer.acting_as(FIELD_MANAGER)
    }

    pub(super) async fn set_flags(&mut self) -> Result<(), Error> {
        // Somebody may have let writers go: what they began must end, too. If an answer is lost, it counts from the next look.
        (self.flags_set_at, self.seen.drained) = (None, Drained::NotYet);
        let saved = self.migration.status.clone().unwrap_or_default().saved.flags;
        for (flag, saved) in self.migration.spec.freeze.flags.iter().zip(&saved) {
            if saved.comes_with_copy() {
                continue;
            }
            freeze_flag(&self.client, &self.flag_writer(), flag, saved).await?;
        }
        self.flags_set_at = Some(Instant::now());
        Ok(())
    }

    /// The shield must be up on every API server, or one of them lets the garbage collector pass.
    pub(super) async fn shield(&mut self) -> Result<(), Error> {
        let until = Instant::now() + TURN;
        self.work()?.freeze.set_shield(true).await?;
        loop {
            self.seen.shielded = self.work()?.freeze.probe_shield().await?.all_asked_deny();
            if self.seen.shielded || self.turn_is_over(until).await {
                return Ok(());
            }
        }
    }

    pub(super) async fn probe(&mut self) -> Result<(), Error> {
        if !self.migration.spec.freeze.admission {
            self.seen.probed();
            return Ok(());
        }
        let form = match Stage::from_record(&self.observed.record) {
            Stage::After => Form::Converged,
            _ => Form::Frozen,
        };
        let until = Instant::now() + TURN;
        let before = self.our_locks().await?;
        loop {
            if self.all_deny(form, &before).await? || self.turn_is_over(until).await {
                return Ok(());
            }
        }
    }

    /// Pauses; `true`: it was asked for long enough, and the engine should look at everything again.
    async fn turn_is_over(&self, until: Instant) -> bool {
        tokio::select! {
            () = self.control.cancelled() => true,
            () = tokio::time::sleep(BETWEEN_PROBES) => Instant::now() >= until,
        }
    }

    async fn all_deny(&mut self, form: Form, before: &[LockIdentity]) -> Result<bool, Error> {
        // Not the shield, which is probed after its own step. A process that ended between its policy and its binding left half of it:
        // to wait for that here would be to wait until the freeze is undone.
        let probed = self.work()?.freeze.probe(form).await?;
        // The same policies before and after: what was asked in between was about these.
        if probed.all_asked_deny() && self.our_locks().await? == before {
            self.locks_probed = before.to_vec();
            self.probed_at = Some(Instant::now());
            self.seen.probed();
            return Ok(true);
        }
        if let Some((server, why)) = probed.not_yet().next() {
            let why = why
                .first()
                .cloned()
                .unwrap_or_else(|| "does not refuse writes yet".into());
            self.message = Some(redacted!("{}: {}", Name(server), why));
        }
        Ok(false)
    }

    pub(super) async fn drain(&mut self) -> Result<(), Error> {
        let how = Drain::parse(&self.migration.spec.freeze.drain)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let is_after = Stage::from_record(&self.observed.record) == Stage::After;
        if is_after || !self.migration.spec.freeze.admission {
            let patience = match how {
                Drain::Auto => self.drains_within,
                Drain::Fixed(time) => time,
            };
            let since = match self.probed_at.filter(|_| is_after) {
                Some(probed_at) => probed_at,
                None => *self.flags_set_at.get_or_insert_with(Instant::now),
            };
            let left = patience.saturating_sub(since.elapsed());
            self.seen.drained = if left.is_zero() {
                Drained::Yes
            } else {
                tokio::time::sleep(left.min(TURN)).await;
                Drained::NotYet // and looked at again
            };
            return Ok(());
        }
        let until = Instant::now() + TURN;
        while Instant::now() < until && !self.control.is_cancelled() {
            let pause = match self.work()?.freeze.drained(how).await? {
                DrainState::ProvenByGauges | DrainState::WaitedOut => {
                    self.seen.drained = Drained::Yes;
                    return Ok(());
                }
                DrainState::WaitUntil { at, why } => {
                    self.message = Some(Redacted::ours(why));
                    // Gauges may prove it at any moment.
                    let pause = if how == Drain::Auto { BETWEEN_PROBES } else { TURN };
                    at.saturating_duration_since(Instant::now()).min(pause)
                }
                // They are renewed every 10 s, and nobody needs to be probed again for that.
                DrainState::WaitForLeases { why } => {
                    self.message = Some(Redacted::ours(why));
                    BETWEEN_LEASES
                }
                DrainState::NotYet { why } => {
                    self.message = Some(Redacted::ours(why));
                    (self.seen.denies, self.seen.drained) = (Denies::NotYet, Drained::NotYet);
                    tokio::time::sleep(BETWEEN_PROBES).await;
                    return Ok(());
                }
            };
            self.seen.drained = Drained::NotYet;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}
