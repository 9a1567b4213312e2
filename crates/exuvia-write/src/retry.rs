//! Whether to try again, and after how long: a pure policy, usable without the writer.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use crate::ErrorClass;

/// Whether to try again, and after how long.
///
/// The delay doubles from `base` to `cap`, half of it is jitter, and it is never shorter than what the server asked for.
/// A server that asks for more than `patience` is not waited for: the error goes to the caller, who can come back later.
///
/// ```
/// use std::time::Duration;
/// use exuvia_write::{ErrorClass, RetryPolicy};
///
/// let policy = RetryPolicy::default();
/// assert_eq!(policy.after(1, ErrorClass::Denied), None);
/// assert!(policy.after(1, ErrorClass::Transient(None)).is_some());
/// let asked = ErrorClass::Throttled(Some(Duration::from_secs(3)));
/// assert!(policy.after(1, asked).unwrap() >= Duration::from_secs(3));
/// assert_eq!(policy.after(policy.attempts, asked), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Requests at most, the first one included.
    pub attempts: u32,
    /// How often at most a change is made at all, the first time included, when each time somebody else was faster (409).
    pub conflicts: u32,
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay of our own.
    pub cap: Duration,
    /// The longest delay that a server may ask for.
    pub patience: Duration,
}

impl RetryPolicy {
    /// Never tries again: every error, 409 included, goes to the caller at once.
    pub const ONCE: Self = Self {
        attempts: 1,
        conflicts: 1,
        base: Duration::ZERO,
        cap: Duration::ZERO,
        patience: Duration::ZERO,
    };

    /// The delay before trying again after `attempt` (counted from 1) failed with `class`; `None`: give up.
    ///
    /// For [`ErrorClass::Conflict`] trying again means to read the object again first.
    pub fn after(&self, attempt: u32, class: ErrorClass) -> Option<Duration> {
        self.after_with(attempt, class, jitter())
    }

    /// As [`after`](Self::after), with the jitter given (0 to 1) rather than drawn: the pure part.
    pub fn after_with(&self, attempt: u32, class: ErrorClass, jitter: f64) -> Option<Duration> {
        let limit = match class {
            ErrorClass::Conflict => self.conflicts,
            ErrorClass::Throttled(_) | ErrorClass::Transient(_) | ErrorClass::Ambiguous => self.attempts,
            ErrorClass::Gone
            | ErrorClass::Missing
            | ErrorClass::Denied
            | ErrorClass::Invalid
            | ErrorClass::Expired
            | ErrorClass::Fatal => return None,
        };
        if attempt >= limit {
            return None;
        }
        let asked = class.retry_after().unwrap_or_default();
        if asked > self.patience {
            return None;
        }
        let doublings = attempt.saturating_sub(1).min(31);
        let full = self.base.saturating_mul(1 << doublings).min(self.cap);
        Some(asked.saturating_add(full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))))
    }

    /// Reads, and reads again after what may pass: a healthy server answers 429 for a moment after a CRD was created, and
    /// one that is being replaced does not answer at all. For reads only, which may be repeated whatever became of them.
    ///
    /// ```no_run
    /// # use exuvia_write::RetryPolicy;
    /// # use k8s_openapi::api::core::v1::Node;
    /// # async fn example(nodes: kube::Api<Node>) -> Result<(), kube::Error> {
    /// let node = RetryPolicy::default().read(|| nodes.get("node-1")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The last one, when it will not pass or has not passed.
    pub async fn read<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, kube::Error>
    where
        F: Future<Output = Result<T, kube::Error>>,
    {
        let mut attempt = 1;
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(delay) = self.after(attempt, ErrorClass::of(&error)) else {
                return Err(error);
            };
            tokio::time::sleep(delay).await;
            attempt += 1;
        }
    }
}

impl Default for RetryPolicy {
    /// Four requests and five conflicts, from 100 ms up to 5 s apart, with patience for 30 s: a caller waits less than a
    /// minute for the answer to "no", unlike kube's own default of 15 tries up to 1000 s apart (PITFALLS A20).
    fn default() -> Self {
        Self {
            attempts: 4,
            conflicts: 5,
            base: Duration::from_millis(100),
            cap: Duration::from_secs(5),
            patience: Duration::from_secs(30),
        }
    }
}

/// A number between 0 and 1, from the keys that the standard library draws for its hash maps: enough for jitter, and no
/// dependency.
fn jitter() -> f64 {
    let drawn = RandomState::new().hash_one(0_u8);
    let upper = (drawn >> 32) as u32;
    f64::from(upper) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_may_pass_later_is_tried_again() {
        let policy = RetryPolicy::default();
        for class in [
            ErrorClass::Gone,
            ErrorClass::Missing,
            ErrorClass::Denied,
            ErrorClass::Invalid,
            ErrorClass::Expired,
            ErrorClass::Fatal,
        ] {
            assert_eq!(policy.after(1, class), None, "{class}");
        }
        for class in [
            ErrorClass::Conflict,
            ErrorClass::Throttled(None),
            ErrorClass::Transient(None),
            ErrorClass::Ambiguous,
        ] {
            assert!(policy.after(1, class).is_some(), "{class}");
            assert_eq!(RetryPolicy::ONCE.after(1, class), None, "{class}");
        }
    }

    #[test]
    fn a_server_that_asks_for_too_much_is_not_waited_for() {
        let policy = RetryPolicy::default();
        let asked = |seconds| ErrorClass::Throttled(Some(Duration::from_secs(seconds)));
        assert!(policy.after(1, asked(30)).is_some());
        assert_eq!(policy.after(1, asked(31)), None);
    }

    #[test]
    fn jitter_is_drawn_for_each_delay() {
        let drawn: Vec<f64> = (0..100).map(|_| jitter()).collect();
        assert!(drawn.iter().all(|j| (0.0..=1.0).contains(j)));
        assert!(drawn.iter().any(|j| *j < 0.5) && drawn.iter().any(|j| *j > 0.5));
    }

    proptest! {
        #[test]
        fn the_delay_is_bounded_and_never_shorter_than_asked(
            attempt in 1_u32..200, attempts in 1_u32..200, base in 0_u64..1_000, cap in 0_u64..10_000,
            asked in proptest::option::of(0_u64..60), jitter in 0.0..=1.0_f64,
        ) {
            let policy = RetryPolicy {
                attempts,
                conflicts: attempts,
                base: Duration::from_millis(base),
                cap: Duration::from_millis(cap),
                patience: Duration::from_secs(30),
            };
            let asked = asked.map(Duration::from_secs);
            let after = policy.after_with(attempt, ErrorClass::Throttled(asked), jitter);
            let patient = asked.unwrap_or_default() <= policy.patience;
            prop_assert_eq!(after.is_some(), attempt < attempts && patient);
            if let Some(after) = after {
                prop_assert!(after >= asked.unwrap_or_default());
                prop_assert!(after <= asked.unwrap_or_default() + policy.cap);
            }
        }
    }
}
