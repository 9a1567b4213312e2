//! What came of all runs, in words from which each failure can be run again.

use std::collections::BTreeSet;
use std::fmt;

use super::Point;

/// A run that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Where it crashed; `None`: the clean run itself failed.
    pub point: Option<Point>,
    /// The write at that point, in the scenario's words.
    pub write: String,
    /// What does not hold.
    pub message: String,
}

/// What came of all runs.
#[derive(Clone, Debug, Default)]
pub struct CrashReport {
    /// The writes of a clean run, in the scenario's words.
    pub writes: Vec<String>,
    /// The points at which a run really crashed.
    pub struck: BTreeSet<Point>,
    /// All runs that failed.
    pub failures: Vec<Failure>,
    /// How many runs there were, clean ones included.
    pub runs: usize,
}

impl CrashReport {
    /// Panics if any run failed.
    #[track_caller]
    pub fn assert_all_ended_well(&self) {
        assert!(self.failures.is_empty(), "{self}");
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.message;
        match self.point {
            None => write!(f, "the clean run: {message}"),
            Some(point) => write!(
                f,
                "{point} ({}): {message}\n  run it alone: {}={point}",
                self.write,
                super::matrix::ONLY
            ),
        }
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs, {} crashes, {} writes in a clean run, {} failures",
            self.runs,
            self.struck.len(),
            self.writes.len(),
            self.failures.len()
        )?;
        for failure in &self.failures {
            write!(f, "\n{failure}")?;
        }
        Ok(())
    }
}
