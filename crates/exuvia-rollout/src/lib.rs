//! Safe roll-outs for programs that apply resources themselves.
//!
//! When a helper pod applies resources, a rolling update has two generations of that pod alive at once. A restarted old
//! pod that reads new config with its old image defeats a plain check of generations, and the two overwrite each other for
//! ever. This crate has what stops them; `docs/rollout-safety.md` draws the race and has all tables.
//!
//! | part | what it does |
//! |---|---|
//! | [`StrictGate`] | observes owner and target, decides by a table ([`gate::strict`]), applies by compare-and-swap |
//! | [`CompatGate`] | the check of generations that ToolHive has ([`gate::compat`]), with its flaws |
//! | [`Fence`] | an admission policy: a stamp never goes back nor vanishes, with any writer |
//! | [`FrozenConfig`] | the run config in an immutable ConfigMap named by its hash |
//! | [`Generation`] | which generation a pod is of: its environment beats the file |
//! | [`Intent`] | what is to be applied, built once: its hash, and whether the live object differs |
//! | [`Stamps`], [`Token`], [`issue`] | the annotations by which a target says who applied it |
//! | [`Names`] | what all these are called |
//!
//! The decisions are pure functions. Only the gates, [`Fence::probe`], [`FrozenConfig::ensure`] and [`read_settled`] do IO, and all
//! writes go through [`exuvia_write`].

mod drift;
mod fence;
mod frozen;
pub mod gate;
mod generation;
mod hash;
pub mod names;
mod stamp;

pub use drift::{Difference, Drift, Edit, Intent, InvalidIntent};
pub use fence::{DEFAULT_FENCE, Fence, FencedKind, InForce, ProbeError};
pub use frozen::{FROZEN_LABEL, FrozenConfig, MOUNT_PATIENCE, ReadConfig, garbage, read_settled};
pub use gate::{
    Action, CompatGate, Decision, Error, EventText, HandOver, HandOvers, Next, ObjectRef, Ours, Outcome,
    StrictGate, exit,
};
pub use generation::{Generation, Note};
pub use hash::{hash_bytes, hash_value};
pub use names::{Names, StampOn};
pub use stamp::{FoundStamps, InvalidToken, Stamp, Stamps, Token, issue};
