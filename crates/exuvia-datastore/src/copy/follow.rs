//! Keeps all targets in step while writers go on: rounds over what has changed, until little is left; then, under the freeze,
//! everything up to a certain moment.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::datastore_reason as reason;
use exuvia_sweep::ResourceVersion;
use exuvia_write::{Name, Redacted, RetryPolicy, redacted};
use futures::{FutureExt, StreamExt};
use kube::Api;
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::findings::Problem;
use super::ledger::{Held, Key, Ledger, Named};
use super::settle::{Settled, Withdrawn};
use super::watched::{Orders, Side, Watched};
use super::{CONCURRENCY, Mover};
use crate::kinds::Kind;
use crate::lock::lock;
use crate::{Error, versions};

/// A round over what has changed that takes no longer than this leaves little to do under the freeze.
const SMALL_LAG: Duration = Duration::from_secs(1);
/// With so many objects to look at a freeze does not begin.
const FAR_BEHIND: usize = 200;
/// After so many rounds a backlog that does not become smaller is as small as it gets.
const MOST_ROUNDS: usize = 5;
/// What may pass by itself, such as an object that is being deleted, is waited for before the freeze.
const PATIENCE: Duration = Duration::from_secs(60);
/// A turn ends after this, so that somebody looks whether it is still wanted.
const TURN: Duration = Duration::from_secs(5);
/// For so long a watch may take to say that it has told everything; then its kind is listed again.
const WATCH_PATIENCE: Duration = Duration::from_secs(6);
/// And so long may that list take.
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions how far a server is: it asks etcd for that only while somebody waits for it.
const BETWEEN_NUDGES: Duration = Duration::from_millis(250);
/// Under the freeze only our own writes are left: an owner and its dependents take a round each.
const MOST_LAST_ROUNDS: usize = 50;
/// No object has this name.
const NOBODY: &str = "exuvia-nobody";

/// How far the targets are in step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// There is more to do.
    Behind,
    /// Everything that was told is done.
    InStep,
    /// Targets exist that differ; they are among the findings.
    Conflicts,
    /// Sources cannot be copied; they are among the findings.
    Refused,
    /// A target is not what was written.
    Wrong(Redacted),
    /// What has changed is not known any more: everything must be read again.
    Lost,
}

/// What workers and watches share.
pub(super) struct Followed {
    pub(super) sources: Vec<Kind>,
    pub(super) targets: Vec<Kind>,
    /// For each source kind, other versions at which objects may show more than at the one that is read.
    richer: Vec<Vec<versions::Richer>>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
}

/// One watch, which ends when it is dropped.
struct Watching {
    api: Api<DynamicObject>,
    orders: watch::Sender<Orders>,
    told: watch::Receiver<Option<ResourceVersion>>,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Follows the sources and targets of a migration. What it knows is lost with it.
pub(crate) struct Follower {
    followed: Followed,
    watches: Vec<Watching>,
    /// Everything was copied once, wave by wave.
    is_copied: bool,
    /// How many objects each round since then was about, and how long it took.
    rounds: Vec<(usize, Duration)>,
}

impl Follower {
    /// Whether so much is left that no freeze should begin.
    pub(crate) fn is_far_behind(&self) -> bool {
        lock(&self.followed.ledger).backlog() > FAR_BEHIND
    }

    /// A source that cannot be copied now, and why: the freeze waits for it.
    pub(crate) fn waits_for(&self) -> Option<Redacted> {
        let ledger = lock(&self.followed.ledger);
        let held = ledger.held().next()?;
        let kind = self.followed.sources[held.named.kind].shown();
        let (namespace, name) = (held.named.namespace.as_deref(), &held.named.name);
        let place = namespace.map_or_else(|| name.to_string(), |namespace| format!("{namespace}/{name}"));
        Some(redacted!(
            "waiting for {} {} before the freeze: {}",
            Name(&kind),
            Name(&place),
            held.problem.message
        ))
    }

    /// Whether the first list of every kind is read.
    async fn listed(&self) -> Result<(), Error> {
        let lists = self.watches.iter().map(|watching| {
            let mut told = watching.told.clone();
            async move { told.wait_for(Option::is_some).await.is_ok() }
        });
        match tokio::time::timeout(LIST_PATIENCE, futures::future::join_all(lists)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Changed("sources and targets are still being listed")),
        }
    }

    /// Waits until everything is told that happened up to now; `false`: what is known is not about this cluster as it is.
    async fn reach_now(&self) -> Result<bool, Error> {
        let reached = self.watches.iter().map(Watching::reach_now);
        let reached = futures::future::join_all(reached).await;
        for watching in &self.watches {
            watching.orders.send_modify(|orders| orders.hurry = false);
        }
        let reached: Result<Vec<bool>, Error> = reached.into_iter().collect();
        Ok(reached?.into_iter().all(|reached| reached))
    }

    /// Whether little is left: two short rounds in a row, or a backlog that does not become smaller any more.
    fn has_small_lag(&self) -> bool {
        lag_is_small(&self.rounds)
    }
}

fn lag_is_small(rounds: &[(usize, Duration)]) -> bool {
    let [earlier @ .., (objects, last)] = rounds else {
        return false;
    };
    let was_short = earlier.last().is_none_or(|(_, time)| *time <= SMALL_LAG);
    let smallest = earlier.iter().map(|(objects, _)| *objects).min();
    let is_as_small_as_it_gets =
        rounds.len() >= MOST_ROUNDS && smallest.is_some_and(|least| *objects >= least);
    *objects == 0 || (*last <= SMALL_LAG && was_short && rounds.len() > 1) || is_as_small_as_it_gets
}

impl Watching {
    /// PITFALLS D30: a consistent list's version is etcd's. What is asked for does not exist, so it costs the same for any number
    /// of objects. While such a list waits, the server asks etcd how far its watches are, and tells those who watch here.
    async fn version_now(&self) -> Result<ResourceVersion, Error> {
        let nobody = ListParams::default().fields(&format!("metadata.name={NOBODY}"));
        let list = RetryPolicy::default()
            .read(|| self.api.list_metadata(&nobody))
            .await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let parsed = version.parse();
        parsed.map_err(|_| Error::Changed("the API server gave no resourceVersion that can be compared"))
    }

    async fn reach_now(&self) -> Result<bool, Error> {
        let before = *self.told.borrow();
        let goal = self.version_now().await?;
        if before > Some(goal) {
            return Ok(false); // etcd was set back
        }
        let is_told = |told: &Option<ResourceVersion>| *told >= Some(goal);
        let mut told = self.told.clone();
        if is_told(&told.borrow_and_update()) {
            return Ok(true);
        }
        self.orders.send_modify(|orders| orders.hurry = true);
        let until = Instant::now() + WATCH_PATIENCE;
        while Instant::now() < until {
            if let Ok(told) = tokio::time::timeout(BETWEEN_NUDGES, told.wait_for(is_told)).await {
                return Ok(told.is_ok());
            }
            self.version_now().await?;
        }
        tracing::debug!(
            url = self.api.resource_url(),
            "the watch does not say how far it is: listing again"
        );
        self.orders.send_modify(|orders| orders.relists += 1);
        match tokio::time::timeout(LIST_PATIENCE, told.wait_for(is_told)).await {
            Ok(told) => Ok(told.is_ok()),
            Err(_) => Err(Error::Changed("objects are still being listed again")),
        }
    }
}

impl Followed {
    /// Content that a source shows only at another version.
    pub(super) async fn hidden_content(
        &self,
        mover: &Mover,
        kind: &Kind,
        source: &DynamicObject,
    ) -> Result<Option<Problem>, Error> {
        let index = self.sources.iter().position(|known| known == kind);
        let richer = index.and_then(|index| self.richer.get(index));
        for version in richer.into_iter().flatten() {
            if !version.is_served {
                let message = versions::unserved(&version.resource.version, &kind.resource.version);
                return Ok(Some(Problem::new(reason::CONVERSION, Redacted::ours(message))));
            }
            let api: Api<DynamicObject> = Api::all_with(mover.client.clone(), &version.resource);
            let there = match mover.writer.get(&api, &source.metadata).await {
                Ok(there) => there,
                Err(error) if error.class() == exuvia_write::ErrorClass::Gone => continue,
                Err(error) => return Err(error.into()),
            };
            // Another state of it is told of by the watch.
            if there.metadata.resource_version == source.metadata.resource_version
                && let Some(path) = mover.lacks_content_of(source, &there)
            {
                let message = versions::hidden(&path, &version.resource.version, &kind.resource.version);
                return Ok(Some(Problem::new(reason::CONVERSION, Redacted::ours(message))));
            }
        }
        Ok(None)
    }
}

/// Problems that may pass by themselves while writers go on.
fn may_pass(problem: &Problem) -> bool {
    matches!(
        problem.reason,
        reason::TERMINATING | reason::NOT_READY | reason::MISSING_OWNER | reason::NAME_COLLISION
    )
}

/// What a round came to.
#[derive(Default)]
struct Round {
    objects: usize,
    in_step: usize,
    conflicts: usize,
    wrong: Option<Problem>,
    failed: u64,
    first_failure: Option<Redacted>,
    is_ambiguous: bool,
}

impl Mover {
    /// Begins to follow all sources and targets.
    pub(crate) async fn follow(&self) -> Result<Follower, Error> {
        let sources: Vec<Kind> = self.kinds.sources().into_iter().cloned().collect();
        let targets: Vec<Kind> = self.kinds.targets().into_iter().cloned().collect();
        let richer = versions::richer(&self.client, &sources).await?;
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let side = |side: Side, kinds: &[Kind]| -> Vec<Watching> {
            let each = kinds.iter().enumerate();
            each.map(|(index, kind)| self.watch(side, index, kind, &ledger))
                .collect()
        };
        // Targets first: what is ours and nobody wants is known before anything is copied.
        let mut watches = side(Side::Target, &targets);
        watches.extend(side(Side::Source, &sources));
        Ok(Follower {
            followed: Followed {
                sources,
                targets,
                richer,
                ledger,
            },
            watches,
            is_copied: false,
            rounds: Vec::new(),
        })
    }

    fn watch(&self, side: Side, index: usize, kind: &Kind, ledger: &Arc<Mutex<Ledger>>) -> Watching {
        let (orders, obeyed) = watch::channel(Orders::default());
        let (tell, told) = watch::channel(None);
        let watched = Watched {
            client: self.client.clone(),
            kind: kind.clone(),
            index,
            side,
            uid: self.uid.clone(),
            ledger: Arc::clone(ledger),
            orders: obeyed,
            told: tell,
        };
        let client = self.client.clone();
        Watching {
            // A namespace that need not exist: the list of one name in it is one look at one key.
            api: if kind.namespaced {
                Api::namespaced_with(client, NOBODY, &kind.resource)
            } else {
                Api::all_with(client, &kind.resource)
            },
            orders,
            told,
            task: tokio::spawn(watched.run()),
        }
    }

    /// Copies and verifies while writers go on, until little is left or the turn is over.
    ///
    /// # Errors
    ///
    /// Not everything could be looked at. What was done is known, and the next turn goes on from there.
    pub(crate) async fn keep_in_step(&self, follower: &mut Follower) -> Result<Kept, Error> {
        let until = Instant::now() + TURN;
        follower.listed().await?;
        if !follower.is_copied {
            let found = self.copy_all().await?;
            if found.progress.conflicts > 0 {
                return Ok(Kept::Conflicts);
            }
            // Each of them is looked at again, and it may have passed by then.
            let mut found = self.found();
            (found.blocked, found.blockers) = (0, Vec::new());
            follower.is_copied = true;
        }
        while Instant::now() < until {
            let kept = self.keep_up(follower).await?;
            if kept != Kept::InStep {
                return Ok(kept);
            }
            if lock(&follower.followed.ledger).held().next().is_some() {
                tokio::time::sleep(BETWEEN_NUDGES).await;
                continue;
            }
            if follower.has_small_lag() {
                // Once before the freeze: what a watch was slow to tell is copied while nobody is refused.
                if !follower.reach_now().await? {
                    return Ok(Kept::Lost);
                }
                let kept = self.keep_up(follower).await?;
                let holds = lock(&follower.followed.ledger).held().next().is_some();
                return Ok(if kept == Kept::InStep && (holds || follower.is_far_behind()) {
                    Kept::Behind
                } else {
                    kept
                });
            }
        }
        Ok(Kept::Behind)
    }

    /// One round while writers go on.
    async fn keep_up(&self, follower: &mut Follower) -> Result<Kept, Error> {
        let began = Instant::now();
        let round = self.round(&follower.followed).await?;
        follower.rounds.push((round.objects, began.elapsed()));
        let is_refused = |held: &&Held| !may_pass(&held.problem) || held.since.elapsed() > PATIENCE;
        let refused: Vec<Held> = lock(&follower.followed.ledger)
            .held()
            .filter(is_refused)
            .cloned()
            .collect();
        Ok(self.judged(&follower.followed, round, &refused))
    }

    fn judged(&self, followed: &Followed, round: Round, refused: &[Held]) -> Kept {
        if round.conflicts > 0 {
            return Kept::Conflicts;
        }
        if let Some(wrong) = round.wrong {
            return Kept::Wrong(wrong.message);
        }
        for held in refused {
            let object = ObjectMeta {
                namespace: held.named.namespace.as_deref().map(str::to_owned),
                name: Some(held.named.name.to_string()),
                ..ObjectMeta::default()
            };
            let kind = &followed.sources[held.named.kind];
            self.found().block(kind, &object, held.problem.clone());
        }
        if refused.is_empty() {
            Kept::InStep
        } else {
            Kept::Refused
        }
    }

    /// Everything that must be looked at, once. Waves in their order.
    async fn round(&self, followed: &Followed) -> Result<Round, Error> {
        self.forget_successors();
        let lookup = self.lookup();
        let mut taken = lock(&followed.ledger).take();
        let wave = |named: &Named| {
            let kind = &followed.sources[named.kind];
            let moved = self.kinds.moved.iter().filter(|moved| moved.source == *kind);
            moved.map(|moved| moved.wave).min().unwrap_or_default()
        };
        taken.sort_by_cached_key(|(_, named)| wave(named));
        let mut round = Round {
            objects: taken.len(),
            ..Round::default()
        };
        let at_once = self.migration.spec.concurrency.map_or(CONCURRENCY, usize::from);
        for same_wave in taken.chunk_by(|(_, one), (_, other)| wave(one) == wave(other)) {
            // Boxed and by value, so that the compiler sees that the whole can be sent to another thread.
            let each = futures::stream::iter(same_wave.to_vec());
            let settling = each.map(|(key, named)| {
                let lookup = &lookup;
                async move {
                    let came = if self.control.is_cancelled() {
                        Err(Error::Changed("it was cancelled"))
                    } else {
                        self.settle(followed, (key, &named), lookup).await
                    };
                    (key, named, came)
                }
                .boxed()
            });
            let mut settled = settling.buffer_unordered(at_once);
            while let Some((key, named, came)) = settled.next().await {
                take_note(followed, &mut round, (key, named), came);
            }
        }
        self.withdraw_strays(followed, &mut round).await;
        let nothing_done = round.in_step == 0 && round.conflicts == 0 && round.wrong.is_none();
        if round.failed > 0 && (nothing_done || round.is_ambiguous) {
            return Err(Error::Unfinished {
                objects: round.failed,
                first: round.first_failure.unwrap_or_else(|| "not known".into()),
                ambiguous: round.is_ambiguous,
            });
        }
        Ok(round)
    }

    /// Takes back what is ours and what no source wants. What somebody else has written to is not ours any more.
    async fn withdraw_strays(&self, followed: &Followed, round: &mut Round) {
        let strays = lock(&followed.ledger).take_strays();
        round.objects += strays.len();
        for (place, named) in strays {
            let target = &followed.targets[named.kind];
            let came = self.withdraw(target, &named).await;
            let mut ledger = lock(&followed.ledger);
            // A source that wants it by now finds it gone: the watch tells of that.
            match came {
                Ok(Withdrawn::Gone | Withdrawn::Edited) => round.in_step += 1,
                Ok(Withdrawn::Going) => ledger.put_back_stray(place, named),
                Err(error) => {
                    ledger.put_back_stray(place, named);
                    drop(ledger);
                    round.fails(&error);
                }
            }
        }
    }

    /// Under the freeze: copies and verifies everything that happened up to now. Nothing of it grows with the number of objects.
    ///
    /// # Errors
    ///
    /// Not everything could be looked at.
    pub(crate) async fn catch_up(&self, follower: &mut Follower) -> Result<Kept, Error> {
        let richer = versions::richer(&self.client, &follower.followed.sources).await?;
        if richer != follower.followed.richer || !follower.reach_now().await? {
            return Ok(Kept::Lost);
        }
        for _ in 0..MOST_LAST_ROUNDS {
            let round = self.round(&follower.followed).await?;
            let (backlog, held) = {
                let ledger = lock(&follower.followed.ledger);
                (
                    ledger.backlog_of_ours(),
                    ledger.held().cloned().collect::<Vec<_>>(),
                )
            };
            // What waits for others is given up only when nothing else is done any more: nobody else writes under a freeze.
            let is_stuck = round.in_step == 0 && round.failed == 0;
            let refused = held.iter().filter(|held| is_stuck || !may_pass(&held.problem));
            let refused: Vec<_> = refused.cloned().collect();
            let kept = self.judged(&follower.followed, round, &refused);
            if kept != Kept::InStep {
                return Ok(kept);
            }
            if backlog == 0 && held.is_empty() {
                self.count_all(&follower.followed);
                return Ok(Kept::InStep);
            }
        }
        Err(Error::Changed("targets are changed all the time"))
    }

    /// The progress, from what is in step.
    fn count_all(&self, followed: &Followed) {
        self.forget_findings();
        let mut counts = std::collections::BTreeMap::new();
        let ledger = lock(&followed.ledger);
        for source in ledger.in_step() {
            for made in &source.targets {
                let (migrated, skipped) = counts.entry((source.named.kind, made.mapping)).or_insert((0, 0));
                *if made.is_ours { migrated } else { skipped } += 1;
            }
        }
        drop(ledger);
        for ((kind, mapping), (migrated, skipped)) in counts {
            let kind = &followed.sources[kind].resource.kind;
            let mapping = &self.migration.spec.mappings[mapping].name;
            self.found().count(kind, mapping, |progress| {
                progress.total += migrated + skipped;
                progress.migrated += migrated;
                progress.skipped += skipped;
            });
        }
        self.found().at_kind("", self.kinds.moved.len());
    }
}

fn take_note(
    followed: &Followed,
    round: &mut Round,
    (key, named): (Key, Named),
    came: Result<Settled, Error>,
) {
    let mut ledger = lock(&followed.ledger);
    match came {
        Ok(Settled::InStep) => round.in_step += 1,
        Ok(Settled::Held(problem)) => ledger.hold(key, named, problem),
        Ok(Settled::Conflict) => {
            round.conflicts += 1;
            ledger.put_back(key, named);
        }
        Ok(Settled::Wrong(problem)) => {
            let _ = round.wrong.get_or_insert(problem);
            ledger.put_back(key, named);
        }
        Err(error) => {
            ledger.put_back(key, named);
            round.fails(&error);
        }
    }
}

impl Round {
    fn fails(&mut self, error: &Error) {
        self.failed += 1;
        self.is_ambiguous |= error.may_take_effect();
        let _ = self
            .first_failure
            .get_or_insert_with(|| Redacted::from_error(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_begins_when_rounds_are_short_or_do_not_become_shorter() {
        let seconds = |rounds: &[(usize, u64)]| -> Vec<(usize, Duration)> {
            let rounds = rounds.iter();
            rounds
                .map(|(objects, time)| (*objects, Duration::from_secs(*time)))
                .collect()
        };
        for (rounds, expected) in [
            (&[][..], false),
            (&[(1000, 60)], false),
            (&[(1000, 60), (0, 0)], true),
            (&[(1000, 60), (50, 1)], false),
            (&[(1000, 60), (50, 1), (50, 1)], true),
            (&[(1000, 60), (500, 30), (250, 15), (120, 8), (60, 4)], false),
            (
                &[(1000, 60), (500, 30), (250, 15), (120, 8), (60, 4), (60, 4)],
                true,
            ),
        ] {
            assert_eq!(lag_is_small(&seconds(rounds)), expected, "{rounds:?}");
        }
    }
}
