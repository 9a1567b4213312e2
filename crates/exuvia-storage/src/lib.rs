//! Storage migration: rewrite every object, prove it, trim `storedVersions`, say what may be dropped.
//!
//! [`protocol`] decides and [`Engine`] carries out; the same engine serves a command line and an operator.
//!
//! | feature | what it adds |
//! |---|---|
//! | `controller` | `StorageController`, which reconciles `StorageMigration` objects, with metrics and events |
//! | `etcd` | `Options::etcd`: an audit of etcd as the last gate before the trim |
//!
//! Neither is on by default: a program that migrates its own CRDs at start-up needs the engine alone.

mod audience;
pub mod built_in_resource;
#[cfg(feature = "controller")]
mod controller;
pub mod definition;
pub mod droppable;
mod engine;
mod error;
mod failures;
mod forbidden;
pub mod loss;
mod optin;
mod options;
mod ownership;
mod preflight;
mod probe;
pub mod protocol;
#[cfg(feature = "controller")]
pub mod rbac;
pub mod record;
pub mod references;
mod report;
mod rewrite;
pub mod servers;
mod shed;
mod survey;
pub mod usage;
mod verify;

pub use audience::Audience;
#[cfg(feature = "controller")]
pub use controller::{ControllerSettings, STALL_REASONS, StorageController};
pub use engine::{Activity, Engine};
pub use error::Error;
pub use exuvia_api::{EXCLUDE_ANNOTATION, InvalidLabel, OPT_IN_LABEL, OptInLabel, is_in_groups};
pub use exuvia_write::{redact_uncut, show_values};
pub use forbidden::MissingRule;
pub use loss::Losses;
pub use optin::{OptIn, excluded, exclusion};
pub use options::{ManagedFields, Options, Verify};
pub use ownership::{Owner, Owners, has_path, in_words};
pub use preflight::Obstacle;
pub use report::{End, MigrationReport, RewriteTally, Timings, Verified, VerifiedBy, counted};
pub use shed::unsheddable;
pub use survey::Survey;
