//! Datastore migrations by the operator: the real binary against a real control plane, looked at from outside.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod blocked;
mod harness;
mod killed;
mod life;
mod moved;
mod observability;
mod rights;
mod storage;
mod woken;
