//! Health: whether the process is ready to be counted on, and whether it is alive at all.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A minute without a heartbeat: longer than any list, garbage in the page cache or noisy neighbour explains.
const STUCK: Duration = Duration::from_secs(60);

/// The check that stands for the runtime as a whole, so that a process is not ready before it has controllers.
const RUNTIME: &str = "runtime";

/// Whether the process is ready and alive.
///
/// Ready once the runtime runs and each controller has either seen everything or found that its CRD is missing, and the Lease
/// could be read ([`elect_with_health`](crate::elect_with_health)); from then on until it drains: a watch that breaks is
/// retried, which does not make the process unready. Alive while
/// every main loop shows a heartbeat.
#[derive(Clone)]
pub struct Health(Arc<Mutex<HealthState>>);

#[derive(Default)]
struct HealthState {
    checks: BTreeMap<String, Check>,
    beats: BTreeMap<&'static str, Instant>,
    draining: bool,
}

struct Check {
    passed: bool,
    note: String,
}

impl Health {
    /// Alive, and not ready yet.
    pub fn new() -> Self {
        let health = Self(Arc::default());
        health.expect(RUNTIME, "not running yet");
        health
    }

    /// For a program without a [`Runtime`](crate::Runtime): alive, and not ready until each of these checks has
    /// [passed](Self::passed). Each is a name and a note for people.
    ///
    /// ```
    /// use exuvia_runtime::Health;
    ///
    /// let health = Health::for_checks(&[("backend", "not there yet")]);
    /// assert!(!health.is_ready());
    /// health.passed("backend", "there");
    /// assert!(health.is_ready());
    /// ```
    pub fn for_checks(checks: &[(&str, &str)]) -> Self {
        let health = Self(Arc::default());
        for (name, note) in checks {
            health.expect(name, note);
        }
        health
    }

    /// Whether every check has passed and the process does not drain.
    pub fn is_ready(&self) -> bool {
        let state = self.state();
        !state.draining && state.checks.values().all(|check| check.passed)
    }

    /// Whether every main loop has shown a heartbeat lately.
    pub fn is_live(&self) -> bool {
        self.is_live_at(Instant::now())
    }

    fn is_live_at(&self, now: Instant) -> bool {
        let beats = &self.state().beats;
        beats
            .values()
            .all(|beat| now.saturating_duration_since(*beat) < STUCK)
    }

    /// One line per check, for people.
    pub fn describe(&self) -> String {
        let state = self.state();
        let mut text = String::new();
        let mut line = |good: bool, name: &str, note: &str| {
            let mark = if good { '+' } else { '-' };
            let _ = writeln!(text, "[{mark}] {name}: {note}");
        };
        for (name, check) in &state.checks {
            line(check.passed, name, &check.note);
        }
        for (name, beat) in &state.beats {
            let age = beat.elapsed();
            line(
                age < STUCK,
                &format!("heartbeat {name}"),
                &format!("{} s ago", age.as_secs()),
            );
        }
        if state.draining {
            line(false, "shutdown", "draining");
        }
        text
    }

    /// Not ready until this has passed.
    pub(crate) fn expect(&self, name: &str, note: &str) {
        let check = Check {
            passed: false,
            note: note.to_owned(),
        };
        self.state().checks.insert(name.to_owned(), check);
    }

    /// It has passed, for good; the note may change.
    pub fn passed(&self, name: &str, note: &str) {
        let check = Check {
            passed: true,
            note: note.to_owned(),
        };
        self.state().checks.insert(name.to_owned(), check);
    }

    /// Says more about a check; whether it has passed stays as it is.
    pub(crate) fn note(&self, name: &str, note: &str) {
        if let Some(check) = self.state().checks.get_mut(name) {
            note.clone_into(&mut check.note);
        }
    }

    pub(crate) fn running(&self) {
        self.passed(RUNTIME, "running");
    }

    /// Not ready any more, because the process is about to end.
    pub fn draining(&self) {
        self.state().draining = true;
    }

    /// A sign of life of this main loop.
    pub(crate) fn beat(&self, name: &'static str) {
        self.state().beats.insert(name, Instant::now());
    }

    /// This main loop has ended as it should.
    pub(crate) fn rest(&self, name: &'static str) {
        self.state().beats.remove(name);
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        // No code that could panic half-way runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("ready", &self.is_ready())
            .field("live", &self.is_live())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_all_have_passed_and_until_it_drains() {
        let health = Health::new();
        assert!(!health.is_ready(), "nothing runs yet");
        health.expect("controller/widget", "waiting for its first sync");
        health.running();
        assert!(!health.is_ready());
        assert!(
            health
                .describe()
                .contains("[-] controller/widget: waiting for its first sync")
        );
        health.passed("controller/widget", "synced");
        assert!(health.is_ready());
        health.draining();
        assert!(!health.is_ready());
        assert!(health.describe().contains("[-] shutdown: draining"));
        assert!(health.is_live());
    }

    #[test]
    fn a_loop_without_heartbeat_is_not_alive_and_one_that_ended_is_not_missed() {
        let health = Health::new();
        health.beat("widget");
        assert!(health.is_live());
        let later = Instant::now() + STUCK;
        assert!(!health.is_live_at(later));
        health.rest("widget");
        assert!(health.is_live_at(later));
    }
}
