//! Every example of the documentation, on a real control plane: the library crates' `examples/` and the Helm hook.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

#[path = "../binary/mod.rs"]
mod binary;
mod hook;
mod libraries;
#[path = "../rendered/mod.rs"]
mod rendered;
