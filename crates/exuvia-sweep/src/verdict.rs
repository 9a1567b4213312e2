//! What a worker says of one object: the outcome, why it failed, and whether the server is under pressure.

use std::time::Duration;

use exuvia_write::{ErrorClass, Redacted};
use serde::Serialize;

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Something was stored.
    Changed,
    /// The server was asked, and there was nothing to change.
    Unchanged,
    /// The object does not exist any more.
    Gone,
    /// Another writer was faster, again and again. It is not done (PITFALLS A12).
    Conflict,
    /// It failed.
    Failed,
    /// There was no need to ask the server.
    Skipped,
}

impl Outcome {
    /// A bounded name for metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Gone => "gone",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// What a worker says of one object.
///
/// ```
/// use exuvia_sweep::{Outcome, Pressure, Verdict};
/// use exuvia_write::ErrorClass;
///
/// let denied = Verdict::failed("denied", "policy \"no-latest\" said no");
/// assert_eq!(denied.outcome(), Outcome::Failed);
/// let class = ErrorClass::Throttled(None);
/// let throttled = Verdict::failed(class.as_str(), "too many requests").under(Pressure::of(class));
/// # drop(throttled);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    pub(crate) outcome: Outcome,
    /// Class and message, where there is something to tell.
    pub(crate) cause: Option<(&'static str, Redacted)>,
    pub(crate) pressure: Option<Pressure>,
}

impl Verdict {
    /// Something was stored.
    pub fn changed() -> Self {
        Self::plain(Outcome::Changed)
    }

    /// The server was asked, and there was nothing to change.
    pub fn unchanged() -> Self {
        Self::plain(Outcome::Unchanged)
    }

    /// The object does not exist any more.
    pub fn gone() -> Self {
        Self::plain(Outcome::Gone)
    }

    /// There was no need to ask the server. Does not count against the rate limit, and tells nothing about the server's speed.
    pub fn skipped() -> Self {
        Self::plain(Outcome::Skipped)
    }

    /// Another writer was faster, more often than the retries allow. Reported by name like a failure, of class `conflict`.
    pub fn conflict(message: impl Into<Redacted>) -> Self {
        Self::because(Outcome::Conflict, ErrorClass::Conflict.as_str(), message)
    }

    /// It failed. `class` is a name from a bounded set, such as [`ErrorClass::as_str`] gives; the message goes
    /// into the report (cut at 1 KiB), so its type holds no values of objects (PITFALLS B27).
    pub fn failed(class: &'static str, message: impl Into<Redacted>) -> Self {
        Self::because(Outcome::Failed, class, message)
    }

    /// Whether the server showed signs of overload meanwhile, success or not.
    pub fn under(mut self, pressure: impl Into<Option<Pressure>>) -> Self {
        self.pressure = pressure.into();
        self
    }

    /// What became of the object.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    fn plain(outcome: Outcome) -> Self {
        Self {
            outcome,
            cause: None,
            pressure: None,
        }
    }

    fn because(outcome: Outcome, class: &'static str, message: impl Into<Redacted>) -> Self {
        Self {
            cause: Some((class, message.into())),
            ..Self::plain(outcome)
        }
    }
}

/// A sign that the server has more to do than it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// It said so (429), and perhaps for how long it wants to be left alone.
    Throttled(Option<Duration>),
    /// It did not answer in time.
    Timeout,
}

impl Pressure {
    /// The pressure that an error tells of, if it does.
    ///
    /// A webhook that is down and a storage that is being set up (PITFALLS A24) do not count: going slower would not bring
    /// them back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use exuvia_sweep::Pressure;
    /// use exuvia_write::ErrorClass;
    ///
    /// let after = Some(Duration::from_secs(1));
    /// assert_eq!(Pressure::of(ErrorClass::Throttled(after)), Some(Pressure::Throttled(after)));
    /// assert_eq!(Pressure::of(ErrorClass::Ambiguous), Some(Pressure::Timeout));
    /// assert_eq!(Pressure::of(ErrorClass::Denied), None);
    /// ```
    pub fn of(class: ErrorClass) -> Option<Self> {
        match class {
            ErrorClass::Throttled(after) => Some(Self::Throttled(after)),
            ErrorClass::Ambiguous => Some(Self::Timeout),
            _ => None,
        }
    }

    /// How long the server asked to be left alone.
    pub(crate) fn rest(self) -> Option<Duration> {
        match self {
            Self::Throttled(after) => after,
            Self::Timeout => None,
        }
    }
}
