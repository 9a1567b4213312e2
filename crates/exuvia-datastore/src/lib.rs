//! Moves kinds to another API group on a live cluster, with a way back until everything is copied and verified.
//!
//! | part | what it does |
//! |---|---|
//! | [`mapping`] | turns one source into its targets: a raw copy, of which only what is declared is converted |
//! | [`protocol`] | what is next, given what was observed: pure rules |
//! | [`Engine`] | carries a `DatastoreMigration` out, step by step |
//! | [`freeze`] | keeps writers away from the source, and proves that none is under way |
//! | [`route`] | lets the target CRDs answer instead of another API server |
//! | [`copy`] | tries, writes and verifies the targets, and takes them back |
//! | `DatastoreController` | carries out every `DatastoreMigration` of a cluster (feature `controller`) |
//! | [`owners`] | owners of moved objects, and objects owned by moved ones |
//! | [`plan`] | what a migration would do or has done, looked at without a write |

mod check;
mod compare;
#[cfg(feature = "controller")]
mod controller;
pub mod copy;
mod engine;
mod error;
pub mod freeze;
mod kinds;
mod lock;
pub mod mapping;
pub mod owners;
pub mod plan;
pub mod protocol;
mod references;
pub mod rights;
pub mod route;
mod source;
mod versions;
mod waits;

#[cfg(feature = "controller")]
pub use controller::{DatastoreController, DatastoreSettings, ReconcileError};
pub use engine::Engine;
pub use error::Error;
pub use kinds::{Kind, Kinds, MovedKind};
