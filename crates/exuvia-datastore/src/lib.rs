//! Moves kinds to another API group on a live cluster, with a way back until everything is copied and verified.

pub mod freeze;
pub mod mapping;
pub mod owners;
pub mod protocol;
pub mod route;
