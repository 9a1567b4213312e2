//! What a sweep gives back.

use std::time::Duration;

use serde::Serialize;

use crate::{Failures, ResourceVersion, Tally};

/// What a sweep saw and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SweepReport {
    /// What came of the objects.
    pub tally: Tally,
    /// What went wrong.
    pub failures: Failures,
    /// The resourceVersion of the first list: an object whose version is higher was written after it. `None` if the server
    /// gave none that can be compared.
    pub first_list: Option<ResourceVersion>,
    /// The smallest resourceVersion of all lists: no object was looked at as of before it. `None` if one list had none
    /// that can be compared.
    pub smallest_list: Option<ResourceVersion>,
    /// Requests for pages, failed ones included. The worker's own requests are not counted.
    pub list_requests: u64,
    /// Pages that came.
    pub pages: u64,
    /// How often a continue token had expired and the server handed back another (PITFALLS A8). Nothing is seen twice by
    /// that, and nothing that was there all the time is missed.
    pub resumed: u32,
    /// How often a token had expired and there was no other, so that the sweep started over. Objects of before were then
    /// seen, and counted, twice.
    pub restarts: u32,
    /// The most objects that were in work at once.
    pub peak_concurrency: usize,
    /// How many were allowed in the end.
    pub last_concurrency: usize,
    /// How long it took, pauses included.
    pub elapsed: Duration,
}
