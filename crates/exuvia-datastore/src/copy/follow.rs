//! Follows all sources and targets of a migration: watches that fill a ledger, and the moment up to which they have told.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::{counted, datastore_reason as reason};
use exuvia_sweep::ResourceVersion;
use exuvia_write::{Name, Redacted, RetryPolicy, redacted};
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Mover;
use super::findings::Problem;
use super::ledger::Ledger;
use super::watched::{Orders, Side, Watched};
use crate::kinds::Kind;
use crate::lock::lock;
use crate::{Error, versions};

/// A round over what has changed that takes no longer than this leaves little to do under the freeze.
const SMALL_LAG: Duration = Duration::from_secs(1);
/// With so many objects to look at a freeze does not begin.
const FAR_BEHIND: usize = 200;
/// After so many rounds a backlog that does not become smaller is as small as it gets.
const MOST_ROUNDS: usize = 5;
/// For so long a watch may take to say that it has told everything; then its kind is listed again.
const WATCH_PATIENCE: Duration = Duration::from_secs(6);
/// And so long may that list take.
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions how far a server is: it asks etcd for that only while somebody waits for it.
pub(super) const BETWEEN_NUDGES: Duration = Duration::from_millis(250);
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
    pub(super) richer: Vec<Vec<versions::Richer>>,
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
    pub(super) followed: Followed,
    watches: Vec<Watching>,
    /// Everything was copied once, wave by wave.
    pub(super) is_copied: bool,
    /// How many objects each round since then was about, and how long it took.
    pub(super) rounds: Vec<(usize, Duration)>,
}

impl Follower {
    /// Whether it follows the kinds that the mover works on, by the same CRDs.
    pub(crate) fn follows(&self, mover: &Mover) -> bool {
        let is_same = |followed: &[Kind], worked_on: Vec<&Kind>| followed.iter().eq(worked_on);
        is_same(&self.followed.sources, mover.kinds.sources())
            && is_same(&self.followed.targets, mover.kinds.targets())
    }

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
            held.problem.message.clone()
        ))
    }

    /// How much is left before the freeze, in words; `None`: nothing. Who sees only that everything is copied would wonder.
    pub(crate) fn lag(&self) -> Option<Redacted> {
        let backlog = lock(&self.followed.ledger).backlog();
        let falls_behind = self.rounds.len() >= MOST_ROUNDS && backlog > FAR_BEHIND;
        lag_in_words(backlog, falls_behind).map(Redacted::ours)
    }

    /// Whether the first list of every kind is read.
    pub(super) async fn listed(&self) -> Result<(), Error> {
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
    pub(super) async fn reach_now(&self) -> Result<bool, Error> {
        let reached = self.watches.iter().map(Watching::reach_now);
        let reached = futures::future::join_all(reached).await;
        for watching in &self.watches {
            watching.orders.send_modify(|orders| orders.hurry = false);
        }
        let reached: Result<Vec<bool>, Error> = reached.into_iter().collect();
        Ok(reached?.into_iter().all(|reached| reached))
    }

    /// Whether little is left: two short rounds in a row, or a backlog that does not become smaller any more.
    pub(super) fn has_small_lag(&self) -> bool {
        lag_is_small(&self.rounds)
    }
}

fn lag_in_words(backlog: usize, falls_behind: bool) -> Option<String> {
    if backlog == 0 {
        return None;
    }
    let objects = counted(u64::try_from(backlog).unwrap_or(u64::MAX), "object");
    let are = if backlog == 1 { "is" } else { "are" };
    let advice = if falls_behind {
        ", and writers change them as fast as they are copied: raise spec.concurrency, or let writers pause"
    } else {
        ""
    };
    Some(format!(
        "{objects} {are} to be compared or copied again before the freeze{advice}"
    ))
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
                Api::namespaced_with(client, NOBODY, &kind.through)
            } else {
                Api::all_with(client, &kind.through)
            },
            orders,
            told,
            task: tokio::spawn(watched.run()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_before_the_freeze_is_said() {
        assert_eq!(lag_in_words(0, true), None);
        let words = lag_in_words(1, false).unwrap_or_default();
        assert_eq!(
            words,
            "1 object is to be compared or copied again before the freeze"
        );
        let words = lag_in_words(300, true).unwrap_or_default();
        assert!(words.starts_with("300 objects are to be"), "{words}");
        assert!(words.contains("raise spec.concurrency"), "{words}");
    }

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
