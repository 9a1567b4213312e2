//! Walks every object of a resource in bounded memory, with as many workers as the server can take.
//!
//! [`Pages`] is the pager: it lists, and everything that lists in pages uses it. [`Sweep`] gives each object of those pages
//! to a worker of its caller, metadata or whole. [`everything`] does so with every resource that [`catalog`] knows of; [`api_service`] says who
//! answers for them. Lists are always consistent, never `resourceVersion=0`. Progress is a
//! [`watch`](tokio::sync::watch) channel that a progress bar, a status and metrics can read at the same time:
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
//!     Verdict::unchanged()
//! });
//! assert!(report.await?.tally.is_clean());
//! # Ok(())
//! # }
//! ```

pub mod api_service;
pub mod catalog;
mod concealed;
mod control;
mod cursor;
mod error;
pub mod everything;
mod identity;
mod limit;
mod list;
mod pages;
mod progress;
mod report;
mod state;
mod sweep;
mod tally;
mod verdict;
mod version;
mod walk_to_end;

pub use control::Control;
pub use cursor::Recovery;
pub use error::Error;
pub use identity::Identity;
pub use list::Item;
pub use pages::{ListError, Page, Pages};
pub use progress::Progress;
pub use report::SweepReport;
pub use sweep::{Count, Sweep};
pub use tally::{Failure, Failures, Tally};
pub use verdict::{Outcome, Pressure, Verdict};
pub use version::{InvalidResourceVersion, ResourceVersion};
