//! Carries the protocol out: observes, asks for the next step, does it, remembers what came of it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exuvia_sweep::{Control, Progress, ResourceVersion, Sweep};
use exuvia_write::Writer;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::Error;
use crate::definition::Definition;
use crate::droppable::Outlook;
use crate::options::{Options, Verify};
use crate::protocol::{self, Hold, Observed, Pass, Settled, Step};
use crate::report::Report;
use crate::servers::Servers;
use crate::verify::{Found, Verifier, sample_share};

mod run;
mod steps;

/// What a migration is busy with, for whoever shows it.
#[derive(Clone, Debug)]
pub enum Activity {
    /// Every object's metadata is looked at, samples are dry-run.
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

/// Migrates one CRD's objects. It can be dropped and made anew at any time: all that matters is in the cluster.
pub struct Engine {
    client: Client,
    writer: Writer,
    name: String,
    options: Options,
    suspended: bool,
    control: Control,
    servers: Servers,
    pass: Option<Pass>,
    definition: Option<Arc<Definition>>,
    /// When R0 was taken, as far as this process knows.
    r0_at: Option<Instant>,
    /// When a server was last found behind by what it wrote.
    unsettled_at: Option<Instant>,
    trimmed_at: Option<Instant>,
    /// Whether a sweep of this engine has looked at all managedFields.
    surveyed: bool,
    watcher: Box<dyn Fn(Activity) + Send + Sync>,
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

/// Our monotonic clock at a time that was kept; not later than now, whatever the other clock says.
fn instant(at: Timestamp) -> Instant {
    let now = Instant::now();
    let passed = Duration::try_from(Timestamp::now().duration_since(at)).unwrap_or_default();
    now.checked_sub(passed).unwrap_or(now)
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
        let name = crd.into();
        let report = Report {
            resource: name.clone(),
            ..Report::default()
        };
        Self {
            client,
            writer,
            name,
            servers: Servers::new(config, &options.api_servers),
            options,
            suspended: false,
            control: Control::new(),
            pass: None,
            definition: None,
            r0_at: None,
            unsettled_at: None,
            trimmed_at: None,
            surveyed: false,
            watcher: Box::new(|_| {}),
            report,
        }
    }

    /// Goes on with a pass that was kept.
    #[must_use]
    pub fn resume(mut self, pass: Option<Pass>) -> Self {
        if let Some(pass) = &pass {
            // Where it is not kept when something was, all of the time is waited for.
            let since = |at: Option<Timestamp>, was: bool| at.map(instant).or(was.then(Instant::now));
            self.r0_at = since(pass.r0_at, pass.r0.is_some());
            self.trimmed_at = since(pass.trimmed_at, pass.trimmed);
            self.unsettled_at = (pass.times_behind > 0).then(Instant::now);
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
    pub(crate) fn observed(&self) -> Option<&Definition> {
        self.definition.as_deref()
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

    /// Observes, and says what the next step is, for whoever wants to tell of it before it is done.
    pub async fn next(&mut self) -> Result<Step, Error> {
        let step = protocol::next(&self.observe().await?);
        tracing::debug!(crd = %self.name, ?step, "next step");
        Ok(step)
    }

    /// Does what [`next`](Self::next) said. Whatever would be dangerous if the world had changed since looks again itself.
    pub async fn carry_out(&mut self, step: Step) -> Result<Advance, Error> {
        if self.control.is_cancelled() {
            return Ok(Advance::Cancelled);
        }
        let started = Instant::now();
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
            Step::Trim(old) => self.trim(&old).await?,
            Step::Patrol => {
                if let Some(unfinished) = self.patrol().await? {
                    return Ok(Advance::Held(Hold::Failures(unfinished)));
                }
            }
            Step::Wait(time) => return Ok(Advance::Wait(time)),
            Step::Hold(hold) => return Ok(Advance::Held(hold)),
            Step::Done => return Ok(Advance::Done),
        }
        Ok(Advance::Stepped)
    }

    /// Leaves a hold: the next [`advance`](Self::advance) tries again what was in the way.
    pub fn retry(&mut self, hold: &Hold) {
        self.pass = self.pass.as_ref().and_then(|pass| protocol::resume(hold, pass));
    }

    async fn observe(&mut self) -> Result<Observed, Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = crds.get_opt(&self.name).await?;
        self.definition = crd.as_ref().map(|crd| {
            let shed = self.options.shed.clone();
            Arc::new(Definition {
                shed,
                ..Definition::read(crd)
            })
        });
        let mut settled = Settled::Yes { one_by_one: false };
        if let Some(definition) = &self.definition {
            self.report.storage_version.clone_from(&definition.crd.storage);
            self.report.stored_after.clone_from(&definition.crd.stored);
            if let Some(pass) = &mut self.pass
                && pass.finds_the_trim_made(&definition.crd)
            {
                pass.trimmed_at = Some(Timestamp::now());
                self.trimmed_at = Some(Instant::now());
            }
            if self.needs_servers() {
                settled = self
                    .servers
                    .look(&self.client, definition, self.options.settle)
                    .await?;
            }
        }
        if let (Some(since), Settled::Yes { .. }) = (self.unsettled_at, &settled)
            && let Some(left) = self.left_of_settle(Some(since))
        {
            settled = Settled::Wait(left);
        }
        match (self.options.verify, &settled) {
            (Verify::Full, Settled::Yes { .. }) => settled = Settled::Yes { one_by_one: false },
            (Verify::Proof, Settled::Yes { one_by_one: false }) if self.needs_servers() => {
                return Err(Error::ProofImpossible);
            }
            _ => {}
        }
        Ok(Observed {
            crd: self.definition.as_ref().map(|definition| definition.crd.clone()),
            pass: self.pass.clone(),
            settled,
            full_verify_in: self.left_of_settle(self.r0_at).unwrap_or_default(),
            patrol_in: self.left_of_settle(self.trimmed_at).unwrap_or_default(),
            suspended: self.suspended,
        })
    }

    /// Whether the next step depends on what the API servers have understood.
    fn needs_servers(&self) -> bool {
        let pass = self.pass.as_ref();
        pass.is_some_and(|pass| pass.preflight.is_some() && !pass.trimmed)
    }

    /// What is left of one settle time that began then; nothing of one that never began.
    fn left_of_settle(&self, since: Option<Instant>) -> Option<Duration> {
        let left = self.options.settle.saturating_sub(since?.elapsed());
        Some(left).filter(|left| !left.is_zero())
    }

    /// What a kept report of this CRD may say of its versions now: those that may be dropped, and what holds the others.
    ///
    /// Ownership is as the last survey, verify or patrol sweep of this engine saw it; `None`: there was none.
    pub fn outlook(&self) -> Option<Outlook> {
        let definition = self.definition.as_ref().filter(|_| self.surveyed)?;
        Some(Outlook::of(definition, &self.report.owners))
    }

    fn verifier(&self, proof: Option<ResourceVersion>) -> Verifier {
        Verifier {
            writer: self.writer.clone(),
            api: self.api(),
            proof,
            status_fallback: self.options.status_fallback,
            sample: sample_share(self.report.rewrite.done()),
            found: Found::default(),
        }
    }

    fn sweep(&self, resource: &ApiResource) -> Sweep {
        let sweep = Sweep::of(self.client.clone(), resource)
            .page_size(self.options.page_size)
            .max_concurrency(self.options.max_concurrency)
            .controlled_by(&self.control);
        match self.options.qps.and_then(NonZeroU32::new) {
            Some(qps) => sweep.qps(qps),
            None => sweep,
        }
    }

    fn resource(&self) -> ApiResource {
        let definition = self.definition();
        definition.resource(definition.endpoint().unwrap_or(&definition.crd.storage))
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &self.resource())
    }

    fn definition(&self) -> Arc<Definition> {
        self.definition
            .clone()
            .expect("a step other than Begin needs a CRD, and the rules saw one")
    }

    fn remember(&mut self, change: impl FnOnce(&mut Pass)) {
        if let Some(pass) = &mut self.pass {
            change(pass);
        }
    }
}
