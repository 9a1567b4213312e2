//! Safe writes for controllers built on kube-rs.

mod apply;
mod change;
mod class;
pub mod conditions;
mod create;
mod diff;
mod error;
mod finalizer;
mod ownership;
mod pace;
mod patch;
mod retry;
mod rewrite;
mod send;
mod status;
mod target;
mod writer;
mod written;

pub use apply::Apply;
pub use class::ErrorClass;
pub use create::{Adopted, Delete, Deleted};
pub use diff::{Inexpressible, diff};
pub use error::{Error, Refusal};
pub use finalizer::Finalizer;
pub use ownership::{EntryId, Fate, Plan, field_paths, plan_move, unite_fields};
pub use retry::RetryPolicy;
pub use rewrite::Moved;
pub use target::{Target, Verb};
pub use writer::{Attempt, Outcome, Report, Writer};
pub use written::{Effect, Writable, Written};
