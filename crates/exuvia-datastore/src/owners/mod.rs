//! Owners of moved objects, and objects owned by moved ones.
//!
//! The garbage collector resolves an owner by group, kind and name, then compares the uid. It deletes what names the new
//! group with the old uid, or the old group with a new uid (PITFALLS A13, D20). So a reference is written right or not at
//! all, and never fixed afterwards (B17): an owner is copied before its dependents ([`Edges`]), and each reference of a copy
//! is made from what is known of its owner ([`rewritten`]). Dependents that are not moved get their new owner in one
//! locked write ([`Dependents`]).
//!
//! | decides (pure) | asks the server |
//! |---|---|
//! | [`rewritten`]: the references of a copy | [`Lookup`]: whether an owner exists, by uid |
//! | [`replaced`]: the references of a dependent that stays | [`Owners`]: both kinds of owners, for one copy |
//! | [`Edges`]: what is copied before what | [`Dependents`]: all objects that moved ones own |

mod dependents;
mod lookup;
mod order;
mod resolve;
mod rewritten;
mod successor;

pub use dependents::{Dependents, Examples, Found, Left, Rewrite};
pub use exuvia_sweep::everything::OwnerKind;
pub use lookup::{Answer, Lookup};
pub use order::{Disorder, Edges, Member, Order};
pub use resolve::Owners;
pub use rewritten::{Absence, Fault, Outcome, Owner, Replaced, Why, replaced, rewritten};
pub use successor::{Fate, Moves, Successor, Successors, source_uids};
