//! Storage migration: rewrite every object, prove it, trim `storedVersions`, say what may be dropped.
//!
//! [`protocol`] decides and [`Engine`] carries out; the same engine serves a command line and an operator.

mod audience;
pub mod audit;
pub mod builtin;
mod clock;
mod controller;
pub mod definition;
pub mod droppable;
mod engine;
mod error;
mod failures;
mod forbidden;
pub mod lint;
pub mod loss;
mod nearest;
mod optin;
mod options;
mod ownership;
mod preflight;
mod probe;
pub mod protocol;
pub mod rbac;
pub mod record;
mod redact;
pub mod references;
mod report;
mod rewrite;
pub mod servers;
mod shed;
mod survey;
pub mod usage;
mod verify;

pub use audience::Audience;
pub use controller::{ControllerSettings, STALL_REASONS, StorageController};
pub use engine::{Activity, Advance, Engine};
pub use error::Error;
pub use exuvia_api::{EXCLUDE_ANNOTATION, OPT_IN_LABEL};
pub use forbidden::MissingRule;
pub use loss::Losses;
pub use nearest::nearest;
pub use optin::{NotALabel, OptIn, OptInLabel, excluded, exclusion, is_in_groups};
pub use options::{ManagedFields, Options, Verify};
pub use ownership::{Owner, Owners, has_path};
pub use preflight::Obstacle;
pub use redact::{redact, redact_uncut, show_values};
pub use report::{End, Report, Timings, Verified};
pub use shed::unsheddable;
pub use survey::Survey;
