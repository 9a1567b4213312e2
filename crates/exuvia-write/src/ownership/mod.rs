//! Field ownership (managedFields): sets of fields, plans to move them to another version, and what was lost.

mod fields;
mod lost;
mod plan;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use fields::{field_paths, unite_fields};
pub use lost::lost_owners;
pub use plan::{EntryId, Fate, Plan, plan_move};
