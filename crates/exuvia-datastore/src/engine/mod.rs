//! Carries one migration out: observes, asks the protocol, does one step.
//!
//! What must survive a crash is in the status of the `DatastoreMigration`; it is read again before each step. What the engine
//! keeps in memory can all be found out again.

mod after;
mod observe;
mod record;
mod steps;
pub(crate) mod work;

use std::time::{Duration, Instant};

use exuvia_api::{Blocker, DatastoreMigration, DatastoreProgress};
use exuvia_runtime::ServerClock;
use exuvia_runtime::machine::Machine;
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::Control;
use exuvia_write::{Redacted, Writer};
use kube::{Api, Client, Config};

pub(crate) use self::work::Work;
use crate::Error;
use crate::copy::Findings;
use crate::freeze::WRITE_ENDS_WITHIN;
use crate::protocol::{Copied, Hold, Next, NextStep, Observed, Seen, Step};

/// After the first undo that is followed by another try.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// However often it was undone.
const LONGEST_PAUSE: Duration = Duration::from_secs(15 * 60);

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
    control: Control,
    work: Option<Work>,
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
    locks_probed: Vec<(String, String, Option<i64>)>,
    /// When every API server was last seen to refuse: what began before may end later.
    probed_at: Option<Instant>,
    /// The APIService as it was when the target CRDs answered everywhere: another one is another route.
    routed_by: Option<String>,
    /// Whether all clones answer, as far as this process made them.
    clones_ready: bool,
    /// Until when a write may take effect that nobody waits for any more. `None`: it is not known yet whether there is one.
    unsettled_until: Option<Instant>,
    is_first_look: bool,
    /// For how long a write may take effect after it was sent.
    writes_end_within: Duration,
    /// How often in a row everything was undone and tried again, and when the next try may begin.
    undone: u32,
    not_before: Option<Instant>,
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
            control: Control::new(),
            work: None,
            seen: Seen::default(),
            checked_generation: None,
            observed: Observed::default(),
            counting_since: None,
            can_count: true,
            flags_set_at: None,
            locks_probed: Vec::new(),
            probed_at: None,
            routed_by: None,
            clones_ready: false,
            unsettled_until: None,
            is_first_look: true,
            writes_end_within: WRITE_ENDS_WITHIN,
            undone: 0,
            not_before: None,
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

    /// What a dry run does not see is found under the freeze. To freeze again at once would keep writers away for good.
    fn pause(&mut self) {
        let doubled = 2_u32.saturating_pow(self.undone);
        self.undone = self.undone.saturating_add(1);
        let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
        self.not_before = Some(Instant::now() + pause);
    }

    fn pause_left(&self) -> Option<Duration> {
        let left = self.not_before?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// A spec that cannot be carried out any more is as good as an object that the target refuses. Said again at each step that
    /// would go on: another probe has everything copied again, and forgets what was found before.
    fn refuse(&mut self) -> bool {
        if !self.refused.is_empty() {
            self.blockers.clone_from(&self.refused);
            self.seen.copied = Copied::Refused;
        }
        !self.refused.is_empty()
    }

    /// What the running step finds, to look at while it runs.
    #[cfg(feature = "controller")]
    pub(crate) fn shared_findings(&self) -> Option<std::sync::Arc<std::sync::Mutex<Findings>>> {
        self.work.as_ref().map(|work| work.mover.shared_findings())
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
        self.message = None;
        if matches!(step, Step::Copy | Step::Verify | Step::Commit) && self.refuse() {
            return Ok(None);
        }
        let needs_all = matches!(step, Step::RewriteReferences | Step::LookAtWaits);
        if let Some(invalid) = self.invalid.as_ref().filter(|_| needs_all) {
            return Err(Error::Invalid(invalid.clone()));
        }
        let carried_out = self.carry_out_step(step).await;
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
            Hold::Suspended | Hold::Failed | Hold::BeforeCutover => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        self.control.is_cancelled()
    }
}
