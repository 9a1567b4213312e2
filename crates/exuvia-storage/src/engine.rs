//! Carries the protocol out: observes, asks for the next step, does it, remembers what came of it.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use exuvia_sweep::{Control, Progress, ResourceVersion, Sweep, Verdict};
use exuvia_write::{ErrorClass, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::Error;
use crate::definition::Definition;
use crate::options::{Options, Verify};
use crate::preflight::{self, Obstacle};
use crate::protocol::{self, Blocked, Hold, Observed, Pass, Preflight, Settled, Step, SweepEnd};
use crate::redact::redact;
use crate::report::{End, Report, Verified};
use crate::rewrite::Rewriter;
use crate::servers::Servers;
use crate::survey::{self, Survey};
use crate::verify::{Found, Verifier, sample_share};

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
}

/// Migrates one CRD's objects. It can be dropped and made anew at any time: all that matters is in the cluster.
pub struct Engine {
    client: Client,
    writer: Writer,
    name: String,
    options: Options,
    control: Control,
    servers: Servers,
    pass: Option<Pass>,
    definition: Option<Arc<Definition>>,
    /// When R0 was taken, as far as this process knows.
    r0_at: Option<Instant>,
    /// When a server was last found behind by what it wrote.
    unsettled_at: Option<Instant>,
    trimmed_at: Option<Instant>,
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
    pub async fn new(
        config: &Config,
        client: Client,
        writer: Writer,
        crd: impl Into<String>,
        options: Options,
    ) -> Result<Self, Error> {
        let servers = Servers::find(config, &client, &options.api_servers).await?;
        let name = crd.into();
        let report = Report {
            resource: name.clone(),
            ..Report::default()
        };
        Ok(Self {
            client,
            writer,
            name,
            options,
            control: Control::new(),
            servers,
            pass: None,
            definition: None,
            r0_at: None,
            unsettled_at: None,
            trimmed_at: None,
            watcher: Box::new(|_| {}),
            report,
        })
    }

    /// Goes on with a pass that was kept.
    #[must_use]
    pub fn resume(mut self, pass: Option<Pass>) -> Self {
        self.pass = pass;
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

    /// What was done so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

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

    /// Observes, and does the next step.
    pub async fn advance(&mut self) -> Result<Advance, Error> {
        if self.control.is_cancelled() {
            return Ok(Advance::Cancelled);
        }
        let observed = self.observe().await?;
        let step = protocol::next(&observed);
        let started = Instant::now();
        tracing::debug!(crd = %self.name, ?step, "next step");
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
            Step::Patrol => self.patrol().await?,
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
        self.definition = crd.as_ref().map(Definition::read).map(Arc::new);
        let mut settled = Settled::Yes { one_by_one: false };
        if let Some(definition) = &self.definition {
            self.report.storage_version.clone_from(&definition.crd.storage);
            self.report.stored_after.clone_from(&definition.crd.stored);
            let preflown = self
                .pass
                .as_ref()
                .is_some_and(|pass| pass.preflight.is_some() && !pass.trimmed);
            if preflown {
                settled = self.servers.look(definition, self.options.settle).await;
            }
        }
        if let (Some(since), Settled::Yes { .. }) = (self.unsettled_at, &settled)
            && let Some(left) = self.left_of_settle(Some(since))
        {
            settled = Settled::Wait(left);
        }
        match (self.options.verify, &settled) {
            (Verify::Full, Settled::Yes { .. }) => settled = Settled::Yes { one_by_one: false },
            (Verify::Proof, Settled::Yes { one_by_one: false })
                if self
                    .pass
                    .as_ref()
                    .is_some_and(|pass| pass.preflight.is_some() && !pass.trimmed) =>
            {
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
            suspended: false,
        })
    }

    /// What is left of one settle time that began then; a beginning that is not known begins now.
    fn left_of_settle(&self, since: Option<Instant>) -> Option<Duration> {
        let passed = since.map(|since| since.elapsed()).unwrap_or_default();
        Some(self.options.settle.saturating_sub(passed)).filter(|left| !left.is_zero())
    }

    fn begin(&mut self) {
        let Some(definition) = &self.definition else {
            return;
        };
        self.report.stored_before.clone_from(&definition.crd.stored);
        self.pass = Some(Pass {
            uid: definition.crd.uid.clone(),
            generation: definition.crd.generation,
            // Whether old entries are left can only be told by looking.
            wanted: true,
            ..Pass::default()
        });
        (self.r0_at, self.unsettled_at, self.trimmed_at) = (None, None, None);
    }

    async fn preflight(&mut self) -> Result<(), Error> {
        let definition = self.definition();
        (self.watcher)(Activity::Preflight);
        let obstacle = match definition.endpoint() {
            None => Some(Obstacle::NothingServed),
            Some(endpoint) => match Survey::of(self.sweep(&definition.resource(endpoint))).await {
                Err(error) if error.is_cancelled() => return Ok(()),
                Err(error) => Some(Obstacle::NoList {
                    message: redact(&error.to_string()),
                }),
                Ok(survey) => {
                    self.report.owners = survey.owners.clone();
                    let old = definition.old_among(survey.owners.versions());
                    if old.is_empty() && definition.crd.old_versions().is_empty() {
                        // Clean after all: the rules say so as soon as nothing is wanted.
                        self.remember(|pass| pass.wanted = false);
                        return Ok(());
                    }
                    self.obstacle(&definition, &survey).await?
                }
            },
        };
        let found = match &obstacle {
            None => Preflight::Passed,
            Some(Obstacle::Pruning { .. } | Obstacle::Unreadable { .. }) => {
                Preflight::Blocked(Blocked::Pruning)
            }
            Some(_) => Preflight::Blocked(Blocked::Preflight),
        };
        self.report.obstacle = obstacle;
        self.remember(|pass| pass.preflight = Some(found.clone()));
        Ok(())
    }

    async fn obstacle(&self, definition: &Definition, survey: &Survey) -> Result<Option<Obstacle>, Error> {
        match preflight::answers(&self.client, &self.writer, definition, survey).await {
            None if self.options.accept_pruning => Ok(None),
            None => preflight::pruning(&self.client, definition).await,
            obstacle => Ok(obstacle),
        }
    }

    async fn take_r0(&mut self) -> Result<(), Error> {
        let count = self
            .sweep(&self.resource())
            .count()
            .await
            .map_err(|source| self.unlisted(source))?;
        self.r0_at = Some(Instant::now());
        self.remember(|pass| pass.r0 = count.resource_version);
        Ok(())
    }

    async fn rewrite(&mut self) -> Result<(), Error> {
        let Some(r0) = self.pass.as_ref().and_then(|pass| pass.r0) else {
            return Ok(());
        };
        let rewriter = Rewriter {
            writer: self.writer.clone(),
            api: self.api(),
            definition: Some(self.definition()),
            managed_fields: self.options.managed_fields,
            status_fallback: self.options.status_fallback,
            r0: Some(r0),
        };
        let sweep = self.sweep(&self.resource());
        (self.watcher)(Activity::Rewriting(sweep.progress()));
        let rewriter = &rewriter;
        let done = sweep
            .run(async |object| rewriter.rewrite(&object.metadata).await)
            .await;
        let Some(done) = self.unless_cancelled(done)? else {
            return Ok(());
        };
        let unfinished = done.tally.failed + done.tally.conflict;
        self.report.rewrite = done.tally;
        self.report.failures = done.failures;
        self.report.peak_concurrency = done.peak_concurrency;
        self.remember(|pass| pass.rewrite = Some(SweepEnd { unfinished }));
        Ok(())
    }

    async fn verify(&mut self, full: bool) -> Result<(), Error> {
        let pass = self.pass.clone().unwrap_or_default();
        let verifier = &self.verifier(pass.r0.filter(|_| !full));
        let survey = &Mutex::new(Survey::default());
        let sweep = self.sweep(&self.resource());
        (self.watcher)(Activity::Verifying(sweep.progress()));
        let done = sweep
            .run(async |object| {
                // The same look at all metadata tells who still owns fields at an old version.
                survey::add(survey, &object.metadata);
                verifier.verify(&object.metadata).await
            })
            .await;
        let Some(done) = self.unless_cancelled(done)? else {
            return Ok(());
        };
        self.report.verify = done.tally;
        if !done.tally.is_clean() {
            self.report.failures = done.failures;
        }
        self.report.mutated = verifier.found.mutated.load(Ordering::Relaxed);
        self.report.owners = survey
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .owners
            .clone();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(crd) = crds.get_opt(&self.name).await? else {
            return Ok(());
        };
        let end = SweepEnd {
            unfinished: done.tally.failed + done.tally.conflict,
        };
        let moved = verifier.found.moved.load(Ordering::Relaxed) > 0;
        let mut pass = protocol::verified(&pass, &Definition::read(&crd).crd, end, moved);
        if moved {
            self.unsettled_at = Some(Instant::now());
        } else {
            pass.r1 = done.smallest_list;
            pass.verified_in_full = full;
            self.report.verified = Some(if full { Verified::Full } else { Verified::Proof });
        }
        self.pass = Some(pass);
        Ok(())
    }

    /// Removes exactly the old versions, under the lock. On a 409 the next observation decides anew; nothing else is done
    /// twice (PITFALLS B4, B7).
    async fn trim(&mut self, old: &[String]) -> Result<(), Error> {
        (self.watcher)(Activity::Trimming);
        let keep = |stored: &mut Vec<String>| stored.retain(|version| !old.contains(version));
        if self.write_stored_versions(keep).await? {
            self.trimmed_at = Some(Instant::now());
            self.report.stored_after.retain(|version| !old.contains(version));
            self.remember(|pass| pass.trimmed = true);
        }
        Ok(())
    }

    /// Patches what the verify sweep did not see. Whatever moves was written by a server behind our back.
    async fn patrol(&mut self) -> Result<(), Error> {
        let pass = self.pass.clone().unwrap_or_default();
        let verifier = &self.verifier(None);
        let seen_up_to = pass.r1.filter(|_| !pass.verified_in_full);
        let done = self
            .sweep(&self.resource())
            .run(async |object| {
                let version = ResourceVersion::of(&object.metadata);
                if version.is_some() && version <= seen_up_to {
                    return Verdict::skipped();
                }
                verifier.verify(&object.metadata).await
            })
            .await;
        let Some(done) = self.unless_cancelled(done)? else {
            return Ok(());
        };
        if verifier.found.moved.load(Ordering::Relaxed) > 0 {
            let old = self.report.stored_before.clone();
            let put_back = |stored: &mut Vec<String>| {
                for version in &old {
                    if !stored.contains(version) {
                        stored.push(version.clone());
                    }
                }
            };
            if self.write_stored_versions(put_back).await? {
                self.pass = None;
            }
        } else if done.tally.is_clean() {
            self.remember(|pass| pass.patrolled = true);
        }
        Ok(())
    }

    /// Writes `storedVersions` if the CRD is still the one that was observed; `false`: it is not, observe again.
    async fn write_stored_versions(&self, change: impl Fn(&mut Vec<String>)) -> Result<bool, Error> {
        let definition = self.definition();
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let Some(crd) = crds.get_opt(&self.name).await? else {
            return Ok(false);
        };
        if Definition::read(&crd).crd != definition.crd {
            return Ok(false);
        }
        let written = self
            .writer
            .once()
            .patch_status_locked(&crds, &crd, |crd| {
                let stored = crd
                    .status
                    .get_or_insert_default()
                    .stored_versions
                    .get_or_insert_default();
                change(stored);
            })
            .await;
        match written {
            Ok(_) => Ok(true),
            Err(error) if error.class() == ErrorClass::Conflict => Ok(false),
            Err(error) => Err(error.into()),
        }
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

    /// A cancelled sweep is no error; the next [`advance`](Self::advance) says so.
    fn unless_cancelled(
        &self,
        swept: Result<exuvia_sweep::Report, exuvia_sweep::Error>,
    ) -> Result<Option<exuvia_sweep::Report>, Error> {
        match swept {
            Ok(report) => Ok(Some(report)),
            Err(error) if error.is_cancelled() => Ok(None),
            Err(error) => Err(self.unlisted(error)),
        }
    }

    fn unlisted(&self, source: exuvia_sweep::Error) -> Error {
        Error::Sweep {
            resource: self.name.clone(),
            source,
        }
    }

    fn ended(&self, hold: &Hold) -> End {
        let stalled = |reason, message| End::Stalled { reason, message };
        match hold {
            Hold::Gone => End::Gone,
            Hold::Suspended => End::Unfinished,
            Hold::Blocked(Blocked::Preflight) => stalled("Preflight", self.obstacle_text()),
            Hold::Blocked(Blocked::Pruning) => stalled("Pruning", self.obstacle_text()),
            Hold::ServerBehind(names) if names.is_empty() => stalled(
                "ServerBehind",
                "an API server keeps storing at an old version: name the servers with --apiserver to find it"
                    .into(),
            ),
            Hold::ServerBehind(names) => stalled(
                "ServerBehind",
                format!(
                    "these API servers do not show the new storage version: {}",
                    names.join(", ")
                ),
            ),
            Hold::Failures(count) => stalled(
                "Failures",
                format!("{count} objects could not be migrated; nothing was trimmed"),
            ),
        }
    }

    fn obstacle_text(&self) -> String {
        match &self.report.obstacle {
            Some(Obstacle::NoAnswer {
                object,
                version,
                message,
            }) => {
                format!("a dry-run write of {object} at {version} was not answered: {message}")
            }
            Some(Obstacle::NoList { message }) => format!("the objects cannot be listed: {message}"),
            Some(Obstacle::Pruning { objects, examples }) => {
                let first = examples.first().map(|pruned| {
                    format!(
                        "{} holds {}, which only {} knows",
                        pruned.object, pruned.field, pruned.version
                    )
                });
                format!(
                    "the rewrite would erase fields of {objects} objects ({}): add the field to the storage version, or \
                     accept the loss with --accept-pruning",
                    first.unwrap_or_default()
                )
            }
            Some(Obstacle::Unreadable { version, fields }) => format!(
                "{version} is not served, and only it knows {}: serve it so that objects can be looked at, or accept the \
                 loss with --accept-pruning",
                fields.join(", ")
            ),
            Some(Obstacle::NothingServed) => {
                "no version is served, so no object can be asked for: serve one".into()
            }
            None => String::new(),
        }
    }
}
