//! Waiting for a condition in a test: polled until it holds, with a panic that names what never came.

use std::fmt::Debug;
use std::panic::Location;
use std::time::{Duration, Instant};

/// Generous, because test machines are busy: only a condition that never holds takes this long.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// Between two polls. Who has waited for long can wait a little longer: a poll is a request, and eight tests that poll 50 times per
/// second keep an API server busy with nothing else.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(100));

/// What a poll may return: `true`, `Some` and `Ok` end the wait. The error of the last poll is part of the panic.
pub trait Condition {
    /// What the wait returns.
    type Answer;

    /// The answer, or what is known about why an answer has not come yet.
    fn answer(self) -> Result<Self::Answer, String>;
}

impl Condition for bool {
    type Answer = ();

    fn answer(self) -> Result<(), String> {
        self.then_some(()).answer()
    }
}

impl<T> Condition for Option<T> {
    type Answer = T;

    fn answer(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Debug> Condition for Result<T, E> {
    type Answer = T;

    fn answer(self) -> Result<T, String> {
        self.map_err(|error| format!("; last seen: {error:?}"))
    }
}

/// Polls until the condition holds, and returns its answer.
///
/// ```
/// # use exuvia_testenv::until;
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mut polls = 0;
/// let answer = until("the third poll", async || {
///     polls += 1;
///     (polls == 3).then_some("done")
/// });
/// assert_eq!(answer.await, "done");
/// # });
/// ```
///
/// # Panics
/// After [`DEADLINE`], with `what`, the last error and the place of the call.
#[track_caller]
pub fn until<C: Condition>(what: &str, mut poll: impl AsyncFnMut() -> C) -> impl Future<Output = C::Answer> {
    let caller = Location::caller();
    async move {
        let since = Instant::now();
        loop {
            match poll().await.answer() {
                Ok(answer) => return answer,
                Err(seen) => check_deadline(since, what, &seen, caller),
            }
            tokio::time::sleep(pause_after(since.elapsed())).await;
        }
    }
}

/// As [`until`], outside of an async runtime: conditions of processes and files.
#[track_caller]
pub fn until_blocking<C: Condition>(what: &str, mut poll: impl FnMut() -> C) -> C::Answer {
    let caller = Location::caller();
    let since = Instant::now();
    loop {
        match poll().answer() {
            Ok(answer) => return answer,
            Err(seen) => check_deadline(since, what, &seen, caller),
        }
        std::thread::sleep(pause_after(since.elapsed()));
    }
}

fn pause_after(waited: Duration) -> Duration {
    (waited / 8).clamp(PAUSES.0, PAUSES.1)
}

fn check_deadline(since: Instant, what: &str, seen: &str, caller: &Location<'_>) {
    assert!(
        since.elapsed() < DEADLINE,
        "gave up after {DEADLINE:?}: {what}{seen} (at {caller})"
    );
}

/// Waits for a future for as long as [`until`] would.
#[track_caller]
pub fn in_time<T>(what: &str, future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = Location::caller();
    async move {
        let waited = tokio::time::timeout(DEADLINE, future).await;
        waited.unwrap_or_else(|_| panic!("gave up after {DEADLINE:?}: {what} (at {caller})"))
    }
}

/// As [`in_time`], where the place of the call says enough.
#[track_caller]
pub fn soon<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    in_time("this to happen", future)
}
