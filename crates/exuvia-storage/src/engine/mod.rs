//! Carries the protocol out: observes, asks for the next step, does it, remembers what came of it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exuvia_sweep::{Control, Progress, Sweep};
use exuvia_write::Writer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::Error;
use crate::audience::Audience;
use crate::builtin::resource_name;
use crate::clock::ServerClock;
use crate::definition::Definition;
use crate::options::{Options, Verify};
use crate::ownership::REWRITER;
use crate::protocol::{self, Crd, Hold, Observed, Pass, Settled, Step};
use crate::record::Record;
use crate::report::Report;
use crate::servers::{ApiServers, Awake, Settling};
use crate::survey::Survey;
use crate::verify::{Found, Trust, Verifier};

/// How soon it is looked again whether a server has renewed its identity Lease, which it does every 10 s.
const LEASES_AGAIN: Duration = Duration::from_secs(2);

mod run;
mod steps;
mod stored_versions;
mod sweeps;

/// What a migration is busy with, for a progress bar or a status.
#[derive(Clone, Debug)]
pub enum Activity {
    /// Metadata is looked at, samples are dry-run.
    Preflight,
    /// Nothing but waiting, for so long.
    Settling(Duration),
    /// The rewrite sweep runs.
    Rewriting(watch::Receiver<Progress>),
    /// The verify sweep runs.
    Verifying(watch::Receiver<Progress>),
    /// `storedVersions` is trimmed.
    Trimming,
    /// The patrol's sweep runs.
    Patrolling(watch::Receiver<Progress>),
}

/// What is migrated.
#[derive(Clone, Debug)]
enum Subject {
    /// A CRD by name.
    Crd(String),
    /// A built-in resource. It has no versions to shed, nothing to trim, and nothing tells when the API servers'
    /// configuration last changed: every object is patched twice.
    BuiltIn(ApiResource),
}

/// Migrates one resource's objects. It can be dropped and made again at any time: all that matters is in the cluster.
pub struct Engine {
    client: Client,
    writer: Writer,
    subject: Subject,
    name: String,
    options: Options,
    suspended: bool,
    control: Control,
    settling: Settling,
    clock: ServerClock,
    pass: Option<Pass>,
    definition: Option<Arc<Definition>>,
    /// What the CRD has on record, as it was last read.
    record: Option<Record>,
    /// When objects were last found to move without an explanation.
    unsettled_at: Option<Instant>,
    trimmed_at: Option<Instant>,
    /// When every API server was first seen to be awake after the trim.
    awake_since: Option<Instant>,
    /// What the last sweep over all metadata of this engine saw.
    survey: Option<Survey>,
    /// Nothing is written: everything that can be told is looked at.
    rehearsing: bool,
    /// What a rewrite would lose was looked for when every API server had understood the newest schemas.
    looked_when_settled: bool,
    /// Whether every API server had, when they were last asked.
    is_settled: bool,
    watcher: Box<dyn Fn(Activity) + Send + Sync>,
    /// Who reads why it does not go on.
    audience: Audience,
    report: Report,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("name", &self.name)
            .field("pass", &self.pass)
            .finish_non_exhaustive()
    }
}

/// What [`Engine::advance`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A step was done; call again.
    Stepped,
    /// Call again after this time.
    Wait(Duration),
    /// Something stands in the way.
    Held(Hold),
    /// There is nothing left to do.
    Done,
    /// It was cancelled.
    Cancelled,
}

impl Engine {
    /// An engine for one CRD. `config` is what `client` was made from: API servers are asked one by one with it.
    pub fn new(
        config: &Config,
        client: Client,
        writer: Writer,
        crd: impl Into<String>,
        options: Options,
    ) -> Self {
        Self::about(Subject::Crd(crd.into()), config, client, writer, options)
    }

    /// An engine for one built-in resource: see [`builtin::find`](crate::builtin::find).
    pub fn for_builtin(
        config: &Config,
        client: Client,
        writer: Writer,
        resource: ApiResource,
        options: Options,
    ) -> Self {
        Self::about(Subject::BuiltIn(resource), config, client, writer, options)
    }

    fn about(subject: Subject, config: &Config, client: Client, writer: Writer, options: Options) -> Self {
        let name = match &subject {
            Subject::Crd(name) => name.clone(),
            Subject::BuiltIn(resource) => resource_name(resource),
        };
        let servers = ApiServers::new(config, &options.api_servers, &options.ignored_api_servers);
        let report = Report {
            resource: name.clone(),
            ..Report::default()
        };
        Self {
            client,
            writer,
            subject,
            name,
            settling: Settling::new(servers),
            clock: ServerClock::default(),
            options,
            suspended: false,
            control: Control::new(),
            pass: None,
            definition: None,
            record: None,
            unsettled_at: None,
            trimmed_at: None,
            awake_since: None,
            survey: None,
            rehearsing: false,
            looked_when_settled: false,
            is_settled: false,
            watcher: Box::new(|_| {}),
            audience: Audience::default(),
            report,
        }
    }

    /// Shares what is known about the API servers with migrations that run at the same time.
    #[must_use]
    pub fn asking(mut self, servers: &ApiServers) -> Self {
        self.settling = Settling::new(servers.clone());
        self
    }

    /// Goes on with a pass that was kept.
    #[must_use]
    pub fn resume(mut self, pass: Option<Pass>) -> Self {
        if let Some(pass) = &pass {
            self.unsettled_at = (pass.unexplained > 0 || pass.patrol_owed).then(Instant::now);
            self.report.stored_before.clone_from(&pass.stored_before);
        }
        self.pass = pass;
        self
    }

    /// Whether the user asked to hold.
    #[must_use]
    pub fn suspended(mut self, suspended: bool) -> Self {
        self.suspended = suspended;
        self
    }

    /// Tells `watcher` what it is busy with.
    #[must_use]
    pub fn watched_by(mut self, watcher: impl Fn(Activity) + Send + Sync + 'static) -> Self {
        self.watcher = Box::new(watcher);
        self
    }

    /// Says for this audience what to do about what stands in the way.
    #[must_use]
    pub fn read_by(mut self, audience: Audience) -> Self {
        self.audience = audience;
        self
    }

    /// Cancels, pauses or slows down its sweeps from outside.
    #[must_use]
    pub fn controlled_by(mut self, control: Control) -> Self {
        self.control = control;
        self
    }

    /// What is to be kept, for [`resume`](Self::resume).
    pub fn pass(&self) -> Option<&Pass> {
        self.pass.as_ref()
    }

    /// The CRD as it was last read.
    pub fn definition(&self) -> Option<&Definition> {
        self.definition.as_deref()
    }

    /// What the CRD has on record about its bytes, as it was last read.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// What this engine's last sweep over all metadata saw; `None`: there was none.
    pub fn survey(&self) -> Option<&Survey> {
        self.survey.as_ref()
    }

    /// The API servers, as far as they are known.
    pub fn api_servers(&self) -> &ApiServers {
        self.settling.servers()
    }

    /// What was done so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Observes, and does the next step.
    pub async fn advance(&mut self) -> Result<Advance, Error> {
        let step = self.next().await?;
        self.carry_out(step).await
    }

    /// Observes, and says what the next step is, so that it can be told before it is done.
    pub async fn next(&mut self) -> Result<Step, Error> {
        let step = protocol::next(&self.observe().await?);
        tracing::debug!(resource = %self.name, ?step, "next step");
        Ok(step)
    }

    /// Does what [`next`](Self::next) said. A step that would be dangerous if the world had changed since looks again
    /// itself.
    pub async fn carry_out(&mut self, step: Step) -> Result<Advance, Error> {
        if self.control.is_cancelled() {
            return Ok(Advance::Cancelled);
        }
        let started = Instant::now();
        let mut hold = None;
        match step {
            Step::Begin => self.begin(),
            Step::Preflight => {
                self.preflight().await?;
                self.report.timings.preflight += started.elapsed().as_secs_f64();
            }
            Step::TakeR0 => self.take_r0().await?,
            Step::Rewrite => {
                self.rewrite().await?;
                self.report.timings.rewrite += started.elapsed().as_secs_f64();
            }
            Step::Verify { full } => {
                self.verify(full).await?;
                self.report.timings.verify += started.elapsed().as_secs_f64();
            }
            Step::Trim(old) => hold = self.trim(&old).await?,
            Step::Patrol => hold = self.patrol().await?,
            Step::Wait(time) => return Ok(Advance::Wait(time)),
            Step::Hold(hold) => return Ok(Advance::Held(hold)),
            Step::Done => return Ok(Advance::Done),
        }
        Ok(hold.map_or(Advance::Stepped, Advance::Held))
    }

    /// Leaves a hold: the next [`advance`](Self::advance) tries again what was in the way.
    pub fn retry(&mut self, hold: &Hold) {
        self.pass = self.pass.as_ref().map(|pass| protocol::resume(hold, pass));
    }

    /// Reads the CRD and asks the API servers for the first time, so that waiting for them begins now.
    pub async fn look_around(&mut self) -> Result<(), Error> {
        self.observe().await.map(drop)
    }

    async fn observe(&mut self) -> Result<Observed, Error> {
        self.clock.ask(&self.client).await;
        let crd = match &self.subject {
            Subject::BuiltIn(_) => Some(Crd::default()),
            Subject::Crd(name) => {
                let found = self.find_crd(name).await?;
                self.record = found.as_ref().and_then(Record::read);
                self.definition = found.as_ref().map(|crd| {
                    Arc::new(Definition {
                        shed: self.options.shed.clone(),
                        ..Definition::read(crd)
                    })
                });
                self.definition.as_ref().map(|definition| definition.crd.clone())
            }
        };
        if let Some(crd) = &crd {
            self.report.storage_version.clone_from(&crd.storage);
            self.report.stored_after.clone_from(&crd.stored);
        }
        self.recall_trim();
        let (asleep, awake_in) = self.asleep().await?;
        let settled = self.settled().await?;
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
        let (Some(pass), Some(_)) = (pass, &self.definition) else {
            self.awake_since = None;
            return Ok(nothing);
        };
        let now = self.clock.now();
        let since = pass.trimmed_at.unwrap_or(now);
        Ok(
            match self.settling.servers().awake(&self.client, since, now).await? {
                Awake::NoMatter => nothing,
                Awake::All => {
                    let since = *self.awake_since.get_or_insert_with(Instant::now);
                    (Vec::new(), self.left_of_settle(Some(since)).unwrap_or_default())
                }
                Awake::Not(asleep) => {
                    self.awake_since = None;
                    (asleep, LEASES_AGAIN)
                }
            },
        )
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

    /// What is left of one settle time that began then; nothing of one that never began. Nothing tells when an API server
    /// was given another configuration, so a built-in resource has nothing to wait for.
    fn left_of_settle(&self, since: Option<Instant>) -> Option<Duration> {
        if matches!(self.subject, Subject::BuiltIn(_)) {
            return None;
        }
        let left = self.options.settle.saturating_sub(since?.elapsed());
        Some(left).filter(|left| !left.is_zero())
    }

    fn verifier(&self, trust: Trust) -> Verifier {
        Verifier {
            writer: self.writer.acting_as(REWRITER),
            api: self.api(),
            definition: self.definition.clone(),
            trust,
            since: self.pass.as_ref().and_then(|pass| pass.r0_at),
            status_fallback: self.options.status_fallback,
            found: Found::default(),
        }
    }

    fn sweep(&self) -> Sweep {
        let sweep = Sweep::of(self.client.clone(), &self.resource())
            .page_size(self.options.page_size)
            .max_concurrency(self.options.max_concurrency)
            .controlled_by(&self.control);
        match self.options.qps.and_then(NonZeroU32::new) {
            Some(qps) => sweep.qps(qps),
            None => sweep,
        }
    }

    /// The resource at the endpoint that is asked.
    fn resource(&self) -> ApiResource {
        match (&self.subject, &self.definition) {
            (Subject::BuiltIn(resource), _) => resource.clone(),
            (Subject::Crd(_), Some(definition)) => {
                definition.resource(definition.endpoint().unwrap_or(&definition.crd.storage))
            }
            (Subject::Crd(_), None) => {
                unreachable!("a step other than Begin needs a CRD, and the rules saw one")
            }
        }
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.resource())
    }

    fn crds(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    async fn find_crd(&self, name: &str) -> Result<Option<CustomResourceDefinition>, kube::Error> {
        let crds = self.crds();
        self.writer.retry_policy().read(|| crds.get_opt(name)).await
    }

    fn remember(&mut self, change: impl FnOnce(&mut Pass)) {
        if let Some(pass) = &mut self.pass {
            change(pass);
        }
    }
}
