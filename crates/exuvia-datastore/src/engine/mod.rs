//! Carries one migration out: observes, asks the protocol, does one step.
//!
//! What must survive a crash is in the status of the `DatastoreMigration`; it is read again before each step. What the engine
//! keeps in memory can all be found out again.

mod after;
#[cfg(feature = "controller")]
mod awaited;
mod freezing;
mod locks;
mod observe;
mod record;
mod routing;
mod second;
mod steps;
mod syncing;
pub(crate) mod work;

use std::time::{Duration, Instant};

use exuvia_api::{Blocker, DatastoreMigration, DatastoreMigrationSpec, DatastoreProgress};
use exuvia_runtime::ServerClock;
use exuvia_runtime::machine::Machine;
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::Control;
use exuvia_write::{Redacted, Writer};
use kube::{Api, Client, Config};

#[cfg(feature = "controller")]
pub(crate) use self::awaited::Awaited;
use self::locks::LockIdentity;
pub(crate) use self::observe::is_gone;
pub(crate) use self::second::second_version;
pub(crate) use self::work::Work;
use crate::Error;
use crate::copy::{Findings, Follower};
use crate::freeze::{FlagPlaces, SCHEMA_COUNTS_AFTER, WRITE_ENDS_WITHIN};
use crate::protocol::{Copied, Hold, Next, NextStep, Observed, Seen, Step, Synced};
use crate::route::Marked;

/// Carries one `DatastoreMigration` out.
pub struct Engine {
    client: Client,
    writer: Writer,
    servers: ApiServers,
    api: Api<DatastoreMigration>,
    name: String,
    uid: String,
    /// As it was last read.
    migration: DatastoreMigration,
    clock: ServerClock,
    flag_places: FlagPlaces,
    control: Control,
    work: Option<Work>,
    /// Keeps targets in step before the freeze, with the parts of the spec that it works by.
    follower: Option<(DatastoreMigrationSpec, Follower)>,
    seen: Seen,
    /// The generation that `seen` is about while nothing has begun.
    checked_generation: Option<i64>,
    observed: Observed,
    /// Since when writes to the source are counted, as far as this process knows.
    counting_since: Option<Instant>,
    /// Whether writes can be counted here at all.
    can_count: bool,
    /// When the flags were set: without a policy, time alone drains.
    flags_set_at: Option<Instant>,
    /// Our policies as they were when every API server refused: another one of the same name is not the same lock.
    locks_probed: Vec<LockIdentity>,
    /// When every API server was last seen to refuse: what began before may end later.
    probed_at: Option<Instant>,
    /// The APIService as it was when the target CRDs answered everywhere: another one is another route.
    routed_by: Option<String>,
    /// The CRDs with a second version, as they were when every API server served it: another generation is another spec.
    second_seen: Vec<Marked>,
    /// Whether all clones answer, as far as this process made them.
    clones_ready: bool,
    /// Until when a write may take effect that nobody waits for any more. `None`: it is not known yet whether there is one.
    unsettled_until: Option<Instant>,
    is_first_look: bool,
    /// Whether `cutover.hold` was set when it was last looked at.
    held_before_cutover: bool,
    /// For how long a write may take effect after it was sent.
    writes_end_within: Duration,
    /// For how long a write of others may be under way after it was refused to begin.
    drains_within: Duration,
    /// How long writes must have been counted until the count says something.
    gauges_count_after: Duration,
    /// Since when our copies cannot be deleted.
    undeletable_since: Option<Instant>,
    /// What is wrong with parts of the spec that were changed on the way: nothing that needs them is done.
    invalid: Option<String>,
    /// Why a spec that was changed before the commit cannot be carried out: everything is undone.
    refused: Vec<Blocker>,
    blockers: Vec<Blocker>,
    found: Findings,
    message: Option<Redacted>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine for this migration. `config` is what the client was made from: API servers are asked one by one with it.
    pub fn new(config: &Config, client: Client, writer: &Writer, migration: DatastoreMigration) -> Self {
        let servers = ApiServers::new(config, &[], &[]);
        Self::with_servers(servers, client, writer, migration)
    }

    /// As [`new`](Self::new), with API servers that are known already.
    pub fn with_servers(
        servers: ApiServers,
        client: Client,
        writer: &Writer,
        migration: DatastoreMigration,
    ) -> Self {
        Self {
            api: Api::all(client.clone()),
            client,
            writer: writer.clone(),
            servers,
            name: migration.metadata.name.clone().unwrap_or_default(),
            uid: migration.metadata.uid.clone().unwrap_or_default(),
            migration,
            clock: ServerClock::default(),
            flag_places: FlagPlaces::default(),
            control: Control::new(),
            work: None,
            follower: None,
            seen: Seen::default(),
            checked_generation: None,
            observed: Observed::default(),
            counting_since: None,
            can_count: true,
            flags_set_at: None,
            locks_probed: Vec::new(),
            probed_at: None,
            routed_by: None,
            second_seen: Vec::new(),
            clones_ready: false,
            unsettled_until: None,
            is_first_look: true,
            held_before_cutover: false,
            writes_end_within: WRITE_ENDS_WITHIN,
            drains_within: WRITE_ENDS_WITHIN,
            gauges_count_after: SCHEMA_COUNTS_AFTER,
            undeletable_since: None,
            invalid: None,
            refused: Vec::new(),
            blockers: Vec::new(),
            found: Findings::default(),
            message: None,
        }
    }

    /// The handle that cancels it.
    #[must_use]
    pub fn controlled_by(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    /// For how long a write may take effect after it was sent: 34 s by default. A process that follows another one waits for
    /// so long before it believes what it sees. Less is for tests, whose processes leave nothing under way.
    #[must_use]
    pub fn writes_end_within(mut self, time: Duration) -> Self {
        self.writes_end_within = time;
        self
    }

    /// How long the drain `Auto` waits where nobody counts writes, and how long they must have been counted where somebody does:
    /// 34 s and 94 s by default. Less is for tests, who know how long their writers take.
    #[doc(hidden)]
    #[must_use]
    pub fn drains_within(mut self, time: Duration, gauges_count_after: Duration) -> Self {
        (self.drains_within, self.gauges_count_after) = (time, gauges_count_after);
        self
    }

    fn timed(&self, mut work: Work) -> Work {
        work.freeze = work
            .freeze
            .gauges_count_after(self.gauges_count_after)
            .drains_within(self.drains_within);
        work
    }

    /// The migration as it was last read.
    pub fn migration(&self) -> &DatastoreMigration {
        &self.migration
    }

    /// What was last observed.
    pub fn observed(&self) -> &Observed {
        &self.observed
    }

    /// Why it does not begin.
    pub fn blockers(&self) -> &[Blocker] {
        &self.blockers
    }

    /// What the last pass over the objects found, up to now if one runs.
    pub fn found(&self) -> Findings {
        match &self.work {
            Some(work) if !work.mover.is_untouched() => work.mover.findings(),
            _ => self.found.clone(),
        }
    }

    /// How many objects are done.
    pub fn progress(&self) -> DatastoreProgress {
        self.found().progress
    }

    /// For how long nothing may be frozen again. It is on record, so that another process waits, too.
    fn pause_left(&self) -> Option<Duration> {
        let until = self.migration.status.as_ref()?.not_before.as_ref()?;
        let left = Duration::try_from(until.0.duration_since(self.clock.now())).ok()?;
        Some(left).filter(|left| !left.is_zero())
    }

    /// For how long a step over all objects may run before the freeze has lasted too long.
    fn freeze_left(&self, step: Step) -> Option<Duration> {
        if !matches!(step, Step::Copy | Step::Verify | Step::CatchUp | Step::TryAgain) {
            return None;
        }
        let most = self.observed.wants.max_duration?;
        Some(most.saturating_sub(self.observed.record.frozen_for?))
    }

    /// A spec that cannot be carried out any more is as good as an object that the target refuses. Said again at each step that
    /// would go on: another probe has everything copied again, and forgets what was found before.
    fn refuse(&mut self) -> bool {
        if !self.refused.is_empty() {
            self.blockers.clone_from(&self.refused);
            (self.seen.copied, self.seen.synced) = (Copied::Refused, Synced::Refused);
        }
        !self.refused.is_empty()
    }

    /// What the running step finds, to look at while it runs.
    #[cfg(feature = "controller")]
    pub(crate) fn shared_findings(&self) -> Option<std::sync::Arc<std::sync::Mutex<Findings>>> {
        self.work.as_ref().map(|work| work.mover.shared_findings())
    }

    /// The kinds that are moved, once they are known.
    #[cfg(feature = "controller")]
    pub(crate) fn kinds(&self) -> Option<&crate::Kinds> {
        self.work.as_ref().map(|work| &work.mover.kinds)
    }

    /// One more sentence about what it waits for.
    pub fn message(&self) -> Option<&Redacted> {
        self.message.as_ref()
    }
}

impl Machine for Engine {
    type Step = Step;
    type Hold = Hold;
    type Error = Error;

    async fn next(&mut self) -> Result<Next, Error> {
        if !self.observe().await? {
            return Ok(NextStep::Done);
        }
        let next = crate::protocol::next(&self.observed);
        Ok(match self.pause_left() {
            Some(left) if next == NextStep::Do(Step::Start) => {
                self.message = Some("it was undone a moment ago, and waits before it freezes again".into());
                NextStep::Wait(left)
            }
            _ => next,
        })
    }

    async fn carry_out(&mut self, step: Step) -> Result<Option<Hold>, Error> {
        // Why everything is undone was found by the step before.
        if !matches!(step, Step::Undo(_)) {
            self.message = None;
        }
        let goes_on = matches!(
            step,
            Step::Sync | Step::Copy | Step::Verify | Step::CatchUp | Step::Commit
        );
        if goes_on && self.refuse() {
            return Ok(None);
        }
        let needs_all = matches!(step, Step::RewriteReferences | Step::LookAtWaits);
        if let Some(invalid) = self.invalid.as_ref().filter(|_| needs_all) {
            return Err(Error::Invalid(invalid.clone()));
        }
        let carried_out = if let Some(left) = self.freeze_left(step) {
            let Ok(in_time) = tokio::time::timeout(left, self.carry_out_step(step)).await else {
                // What was under way may still take effect. The next look undoes everything.
                self.unsettled_until = Some(Instant::now() + self.writes_end_within);
                return Ok(None);
            };
            in_time
        } else {
            self.carry_out_step(step).await
        };
        if carried_out.as_ref().is_err_and(Error::may_take_effect) {
            self.unsettled_until = Some(Instant::now() + self.writes_end_within);
        }
        carried_out?;
        Ok(None)
    }

    /// What was found is looked at again: the world may have changed.
    fn retry(&mut self, hold: &Hold) {
        match hold {
            Hold::Blocked | Hold::Conflicts => {
                self.work = None;
                self.seen = Seen::default();
            }
            Hold::WaitingFor => self.seen.waits = crate::protocol::Waits::Unknown,
            Hold::CleanupBlocked => self.seen.cleaned = None,
            Hold::CopiesLeft => self.seen.tried_copies_left = false,
            Hold::Suspended | Hold::Failed | Hold::BeforeCutover => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }
}
