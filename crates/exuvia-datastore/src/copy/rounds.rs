//! Rounds over what has changed: while writers go on, until little is left; and under the freeze, until nothing is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exuvia_api::datastore_reason as reason;
use exuvia_write::{Name, Redacted, redacted};
use futures::{FutureExt, StreamExt};
use kube::api::ObjectMeta;

use super::findings::Problem;
use super::follow::{BETWEEN_NUDGES, Followed, Follower, Kept};
use super::ledger::{Held, Key, Named};
use super::settle::{Settled, Withdrawn};
use super::{CONCURRENCY, Mover};
use crate::lock::lock;
use crate::{Error, versions};

/// What may pass by itself, such as an object that is being deleted, is waited for before the freeze.
const PATIENCE: Duration = Duration::from_secs(60);
/// A turn ends after this, so that somebody looks whether it is still wanted.
const TURN: Duration = Duration::from_secs(5);
/// Under the freeze only our own writes are left: an owner and its dependents take a round each.
const MOST_LAST_ROUNDS: usize = 50;
/// So many rounds are remembered.
const ROUNDS_KEPT: usize = 10;

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
    /// Copies and verifies while writers go on, until little is left or the turn is over.
    ///
    /// # Errors
    ///
    /// Not everything could be looked at. What was done is known, and the next turn goes on from there.
    pub(crate) async fn keep_in_step(&self, follower: &mut Follower) -> Result<Kept, Error> {
        let until = Instant::now() + TURN;
        if !self.kinds.are_current(&self.client).await? {
            return Ok(Kept::Lost);
        }
        self.unless_cancelled(follower.listed()).await?;
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
                if !self.unless_cancelled(follower.reach_now()).await? {
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

    /// Nobody waits for watches when the process is to end.
    async fn unless_cancelled<T>(&self, wait: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.control.cancelled() => Err(Error::Changed("it was cancelled")),
            came = wait => came,
        }
    }

    /// One round while writers go on.
    async fn keep_up(&self, follower: &mut Follower) -> Result<Kept, Error> {
        let began = Instant::now();
        let round = self.round(&follower.followed).await?;
        follower.rounds.push((round.objects, began.elapsed()));
        if follower.rounds.len() > ROUNDS_KEPT {
            follower.rounds.remove(0);
        }
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

    /// Takes back what is ours and what no source wants. What somebody else has written to is a conflict.
    async fn withdraw_strays(&self, followed: &Followed, round: &mut Round) {
        let strays = lock(&followed.ledger).take_strays();
        round.objects += strays.len();
        for (place, named) in strays {
            let target = &followed.targets[named.kind];
            let came = self.withdraw(target, &named).await;
            let mut ledger = lock(&followed.ledger);
            // A source that wants it by now finds it gone: the watch tells of that.
            match came {
                Ok(Withdrawn::Gone) => round.in_step += 1,
                Ok(Withdrawn::Edited) => {
                    round.conflicts += 1;
                    self.contested_stray(target, named.namespace.as_deref(), &named.name);
                    ledger.put_back_stray(place, named);
                }
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
        if !self.kinds.are_current(&self.client).await? {
            return Ok(Kept::Lost);
        }
        let richer = versions::richer(&self.client, &follower.followed.sources).await?;
        if richer != follower.followed.richer || !self.unless_cancelled(follower.reach_now()).await? {
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
                if !self.kinds.are_current(&self.client).await? {
                    return Ok(Kept::Lost);
                }
                self.count_all(&follower.followed);
                return Ok(Kept::InStep);
            }
        }
        Err(Error::Changed("targets are changed all the time"))
    }

    /// The progress, from what is in step.
    fn count_all(&self, followed: &Followed) {
        self.forget_findings();
        let mut counts = BTreeMap::new();
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
        Ok(Settled::Wrong(mut problem)) => {
            let kind = followed.sources[named.kind].shown();
            let namespace = named.namespace.as_deref();
            let place = namespace.map_or_else(
                || named.name.to_string(),
                |namespace| format!("{namespace}/{}", named.name),
            );
            problem.message = redacted!("{} {}: {}", Name(&kind), Name(&place), problem.message);
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
