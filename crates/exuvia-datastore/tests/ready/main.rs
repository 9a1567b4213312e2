//! The ready manifests under `migrations/`: what they make of their fixtures, as objects and on a real control plane.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod calico;
mod collected;
mod fixtures;
mod mapped;
mod moved;
mod parked;
mod probes;
mod real;
mod stage;
