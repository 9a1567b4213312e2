//! The gate: whether a helper pod that holds an intent may apply it to a target that others apply, too.
//!
//! Two rule sets, both pure: [`compat`] is what ToolHive has, [`strict`] is the default. [`StrictGate`] and [`CompatGate`]
//! observe, decide and carry out, and return an [`Outcome`].

pub mod compat;
mod error;
mod handover;
mod object;
mod outcome;
mod runner;
pub mod strict;

pub use error::Error;
pub use handover::{HandOver, HandOvers};
pub use object::ObjectRef;
pub use outcome::{Action, Decision, EventText, Next, Outcome, exit};
pub use runner::{CompatGate, Ours, StrictGate};
