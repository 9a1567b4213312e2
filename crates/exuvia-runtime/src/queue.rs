//! The work queue: each key once, delayed or not, backed off for as long as it fails.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use exuvia_write::{ErrorClass, RetryPolicy};
use tokio::{sync::Notify, time::Instant};

use crate::metrics::QueueMeters;

/// The first pause after a failure, and the shortest time between two tries of a key that fails, whatever wakes it: a
/// controller that notes each failure in the object's status wakes itself.
const BASE: Duration = Duration::from_millis(500);

/// A year: further than anybody means, and not so far that the clock overflows.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where a controller's watches put the keys of what changed.
///
/// A key that waits already is not added twice. One that is being reconciled is reconciled once more afterwards, and the
/// running reconcile is [told](crate::Signal::changed).
#[derive(Clone)]
pub struct Queue(pub(crate) Arc<WorkQueue>);

impl Queue {
    /// Something about this key changed.
    pub fn add(&self, key: impl Into<String>) {
        self.0.add(key.into());
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.0.meters.name)
            .finish()
    }
}

/// What becomes of a key whose reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// All is well until something changes.
    Rest,
    /// All is well; once more after this time.
    After(Duration),
    /// It failed, or is stalled: once more after a pause that doubles each time.
    BackOff,
    /// It was not let finish: once more as soon as may be, and nothing is held against it.
    Again,
}

pub(crate) struct WorkQueue {
    state: Mutex<QueueState>,
    /// One consumer, so one permit is enough.
    wake: Notify,
    backoff: RetryPolicy,
    meters: QueueMeters,
}

#[derive(Default)]
struct QueueState {
    entries: HashMap<String, Entry>,
    ready: VecDeque<String>,
    due: BTreeSet<(Instant, String)>,
}

struct Entry {
    place: Place,
    /// How often in a row it failed.
    failures: u32,
    /// When it failed last.
    failed: Option<Instant>,
}

enum Place {
    Ready {
        since: Instant,
    },
    Due {
        at: Instant,
    },
    Running {
        since: Instant,
        again: bool,
        changed: Arc<Notify>,
    },
}

/// What a scrape shows of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Reading {
    pub(crate) depth: usize,
    pub(crate) unfinished: Duration,
    pub(crate) longest: Duration,
}

impl WorkQueue {
    pub(crate) fn new(max_backoff: Duration, meters: QueueMeters) -> Self {
        let backoff = RetryPolicy {
            attempts: u32::MAX,
            conflicts: 1,
            base: BASE.min(max_backoff),
            cap: max_backoff,
            patience: Duration::ZERO,
        };
        Self {
            state: Mutex::default(),
            wake: Notify::new(),
            backoff,
            meters,
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // No code that could panic half-way runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, key: String) {
        let mut state = self.state();
        let now = Instant::now();
        let at = match state.entries.get_mut(&key) {
            None => now,
            Some(entry) => match &mut entry.place {
                Place::Ready { .. } => return,
                Place::Due { at } => {
                    let at = *at;
                    entry.soonest(now, self.backoff.base).min(at)
                }
                Place::Running { again, changed, .. } => {
                    *again = true;
                    changed.notify_one();
                    return;
                }
            },
        };
        self.place(&mut state, key, at, now);
        drop(state);
        self.wake.notify_one();
    }

    /// The next key and what tells its reconcile of changes. Waits for one; nothing is lost if the wait is given up.
    pub(crate) async fn next(&self) -> (String, Arc<Notify>) {
        loop {
            let due = {
                let mut state = self.state();
                let now = Instant::now();
                while let Some((at, _)) = state.due.first()
                    && *at <= now
                    && let Some((_, key)) = state.due.pop_first()
                {
                    self.make_ready(&mut state, key, now);
                }
                if let Some(key) = state.ready.pop_front() {
                    let changed = Arc::new(Notify::new());
                    if let Some(entry) = state.entries.get_mut(&key) {
                        if let Place::Ready { since } = entry.place {
                            self.meters.queued.observe((now - since).as_secs_f64());
                        }
                        entry.place = Place::Running {
                            since: now,
                            again: false,
                            changed: Arc::clone(&changed),
                        };
                    }
                    return (key, changed);
                }
                state.due.first().map(|(at, _)| *at)
            };
            match due {
                Some(at) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Takes back a key whose reconcile ended; says after which time it is tried again by itself.
    pub(crate) fn done(&self, key: &str, fate: Fate) -> Option<Duration> {
        let mut state = self.state();
        let now = Instant::now();
        // Cleared meanwhile: nobody wants it back.
        let entry = state.entries.get_mut(key)?;
        let Place::Running { since, again, .. } = entry.place else {
            return None;
        };
        self.meters.worked.observe((now - since).as_secs_f64());
        let delay = match fate {
            Fate::Rest => None,
            Fate::After(delay) => Some(delay),
            Fate::Again => Some(Duration::ZERO),
            Fate::BackOff => {
                entry.failures = entry.failures.saturating_add(1);
                entry.failed = Some(now);
                self.meters.retries.inc();
                self.backoff.after(entry.failures, ErrorClass::Transient(None))
            }
        };
        if matches!(fate, Fate::Rest | Fate::After(_)) {
            entry.failures = 0;
            entry.failed = None;
        }
        let at = if again {
            Some(entry.soonest(now, self.backoff.base))
        } else {
            delay.map(|delay| now + delay.min(LONGEST))
        };
        let Some(at) = at else {
            state.entries.remove(key);
            return None;
        };
        self.place(&mut state, key.to_owned(), at, now);
        drop(state);
        self.wake.notify_one();
        Some(at - now)
    }

    /// Forgets all keys. A reconcile that still runs finds its own forgotten when it ends.
    pub(crate) fn clear(&self) {
        *self.state() = QueueState::default();
    }

    pub(crate) fn reading(&self) -> Reading {
        let state = self.state();
        let now = Instant::now();
        let mut reading = Reading {
            depth: state.ready.len(),
            ..Reading::default()
        };
        for entry in state.entries.values() {
            if let Place::Running { since, .. } = entry.place {
                reading.unfinished += now - since;
                reading.longest = reading.longest.max(now - since);
            }
        }
        reading
    }

    pub(crate) fn name(&self) -> &'static str {
        self.meters.name
    }

    /// Puts a key where it belongs: ready, or due at a time to come. A running one comes here when it has ended.
    fn place(&self, state: &mut QueueState, key: String, at: Instant, now: Instant) {
        if let Some(entry) = state.entries.get(&key)
            && let Place::Due { at } = entry.place
        {
            state.due.remove(&(at, key.clone()));
        }
        if at <= now {
            self.make_ready(state, key, now);
        } else {
            state.due.insert((at, key.clone()));
            state.entry(key).place = Place::Due { at };
        }
    }

    fn make_ready(&self, state: &mut QueueState, key: String, now: Instant) {
        self.meters.adds.inc();
        state.ready.push_back(key.clone());
        state.entry(key).place = Place::Ready { since: now };
    }
}

impl QueueState {
    fn entry(&mut self, key: String) -> &mut Entry {
        self.entries.entry(key).or_insert_with(|| Entry {
            place: Place::Ready {
                since: Instant::now(),
            },
            failures: 0,
            failed: None,
        })
    }
}

impl Entry {
    /// Now, unless it failed so lately that this would be a hot loop.
    fn soonest(&self, now: Instant, pause: Duration) -> Instant {
        self.failed.map_or(now, |failed| now.max(failed + pause))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
