//! What is to be applied, built once, and whether the live object differs from it.

mod compare;
mod intent;
mod quantity;

pub use compare::{Difference, Drift, Edit};
pub use intent::{Intent, InvalidIntent};
