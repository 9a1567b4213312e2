//! Walks every object of a resource in bounded memory, with as many workers as the server can take.
//!
//! The crate lists and schedules; what is done with an object is up to its caller: see [`Sweep`]. A page is metadata only
//! and always consistent, never `resourceVersion=0`. Progress is a [`watch`](tokio::sync::watch) channel that a progress
//! bar, a status and metrics can read at the same time:
//!
//! ```no_run
//! use exuvia_sweep::{Control, Sweep, Verdict};
//!
//! # async fn example(client: kube::Client, resource: kube::api::ApiResource) -> Result<(), exuvia_sweep::Error> {
//! let control = Control::new(); // `control.cancel()` when the user has had enough
//! let sweep = Sweep::of(client, &resource).controlled_by(&control);
//! let mut progress = sweep.progress();
//! tokio::spawn(async move {
//!     while progress.changed().await.is_ok() {
//!         let now = progress.borrow_and_update();
//!         println!("{} of {:?}, {:.0}/s, {:?} left", now.done(), now.total, now.rate, now.eta);
//!     }
//! });
//! let report = sweep.run(async |object| {
//!     println!("{:?}", object.metadata.name);
//!     Verdict::current()
//! });
//! assert!(report.await?.tally.is_clean());
//! # Ok(())
//! # }
//! ```

mod control;
mod cursor;
mod drive;
mod error;
mod limit;
mod list;
mod pace;
mod progress;
mod report;
mod state;
mod sweep;
mod tally;
mod verdict;
mod version;

pub use control::Control;
pub use error::Error;
pub use progress::Progress;
pub use report::Report;
pub use sweep::{Count, Sweep};
pub use tally::{Failure, Failures, Tally};
pub use verdict::{Outcome, Pressure, Verdict};
pub use version::{InvalidResourceVersion, ResourceVersion};
