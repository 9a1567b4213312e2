//! Storage migration: rewrite every object, prove it, trim `storedVersions`, say what may be dropped.
//!
//! [`protocol`] decides and [`Engine`] carries out; the same engine serves a command line and an operator.

pub mod audit;
mod builtin;
pub mod definition;
pub mod droppable;
mod engine;
mod error;
pub mod lint;
mod optin;
mod options;
mod ownership;
mod preflight;
pub mod protocol;
mod redact;
mod report;
mod rewrite;
pub mod schema;
pub mod servers;
mod survey;
mod verify;

pub use builtin::migrate_builtin;
pub use engine::{Activity, Advance, Engine};
pub use error::Error;
pub use optin::{EXCLUDE_ANNOTATION, NotALabel, OPT_IN_LABEL, OptIn, OptInLabel, excluded, is_in_groups};
pub use options::{ManagedFields, Options, Verify};
pub use ownership::{Owner, Owners};
pub use preflight::{Obstacle, Pruned};
pub use redact::redact;
pub use report::{End, Report, Timings, Verified};
pub use survey::Survey;
