//! What decides about the next step: the CRD, freshly read, and what the API servers have understood of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Engine;
use crate::Error;
use crate::definition::Definition;
use crate::options::Verify;
use crate::protocol::{Observed, Settled};
use crate::record::Record;
use crate::servers::Awake;

/// How soon it is looked again whether a server has renewed its identity Lease, which it does every 10 s.
const LEASES_AGAIN: Duration = Duration::from_secs(2);

impl Engine {
    /// Everything that decides about the next step for a CRD.
    pub(super) async fn observe(&mut self, name: &str) -> Result<Observed, Error> {
        let found = self.find_crd(name).await?;
        self.record = found.as_ref().and_then(Record::read);
        self.definition = found.as_ref().map(|crd| {
            Arc::new(Definition {
                shed: self.options.shed.clone(),
                ..Definition::read(crd)
            })
        });
        let crd = self.definition.as_ref().map(|definition| definition.crd.clone());
        if let Some(crd) = &crd {
            self.report.storage_version.clone_from(&crd.storage);
            self.report.stored_after.clone_from(&crd.stored);
        }
        self.recall_trim();
        let (asleep, awake_in) = self.asleep().await?;
        let settled = self.settled().await?;
        if matches!(settled, Settled::Behind(_)) {
            // Another server's discovery shows no hash of ours either: nobody is accused then.
            self.unless_hidden().await;
        }
        self.is_settled = matches!(settled, Settled::Yes { .. });
        Ok(Observed {
            crd,
            pass: self.pass.clone(),
            settled,
            patrol_in: self
                .left_of_settle(self.trimmed_at)
                .unwrap_or_default()
                .max(awake_in),
            asleep,
            suspended: self.suspended,
        })
    }

    /// API servers that may have slept since the trim, if the patrol is next. From when all are seen to be awake, requests in
    /// flight are waited for once more.
    async fn asleep(&mut self) -> Result<(Vec<String>, Duration), Error> {
        let nothing = (Vec::new(), Duration::ZERO);
        let pass = self.pass.as_ref().filter(|pass| pass.trimmed && !pass.patrolled);
        let (Some(_), Some(_)) = (pass, &self.definition) else {
            self.awake_since = None;
            return Ok(nothing);
        };
        let since = self.trimmed_at.unwrap_or_else(Instant::now);
        Ok(match self.settling.servers().awake(&self.client, since).await? {
            Awake::NoMatter => nothing,
            Awake::All => {
                let since = *self.awake_since.get_or_insert_with(Instant::now);
                (Vec::new(), self.left_of_settle(Some(since)).unwrap_or_default())
            }
            Awake::Not(asleep) => {
                self.awake_since = None;
                (asleep, LEASES_AGAIN)
            }
        })
    }

    /// Whether all API servers have understood, as far as the next step depends on it.
    async fn settled(&mut self) -> Result<Settled, Error> {
        let mut settled = Settled::Yes { accounted: false };
        let pass = self.pass.as_ref();
        let is_asked = pass.is_none_or(|pass| pass.wanted && !pass.trimmed);
        if let Some(definition) = self.definition.clone().filter(|_| is_asked) {
            let changed = definition.spec_changed_at;
            let since_change = changed.map(|at| self.clock.since(at)).unwrap_or_default();
            settled = self
                .settling
                .look(&self.client, &definition, since_change, self.options.settle)
                .await?;
            let pass = self.pass.as_ref();
            let matters = pass.is_some_and(|pass| pass.preflight.is_some());
            if self.options.verify == Verify::Proof
                && settled == (Settled::Yes { accounted: false })
                && matters
            {
                return Err(Error::ProofImpossible);
            }
        }
        if let (Some(left), Settled::Yes { .. }) = (self.left_of_settle(self.unsettled_at), &settled) {
            settled = Settled::Wait(left);
        }
        if let (Verify::Full, Settled::Yes { accounted }) = (self.options.verify, &mut settled) {
            *accounted = false;
        }
        Ok(settled)
    }

    /// Turns a time that was kept into our own monotonic clock's. Where none was kept, all of the time is waited for.
    fn recall_trim(&mut self) {
        let pass = self.pass.as_ref().filter(|pass| pass.trimmed);
        if let (Some(pass), None) = (pass, self.trimmed_at) {
            let passed = pass.trimmed_at.map(|at| self.clock.since(at)).unwrap_or_default();
            let now = Instant::now();
            self.trimmed_at = Some(now.checked_sub(passed).unwrap_or(now));
        }
    }

    /// What is left of one settle time that began then; nothing of one that never began.
    fn left_of_settle(&self, since: Option<Instant>) -> Option<Duration> {
        let left = self.options.settle.saturating_sub(since?.elapsed());
        Some(left).filter(|left| !left.is_zero())
    }
}
