//! Field ownership (managedFields): sets of fields, and plans to move them to another version.

mod fields;
mod plan;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use fields::{field_paths, unite_fields};
pub use plan::{EntryId, Fate, Plan, plan_move};
