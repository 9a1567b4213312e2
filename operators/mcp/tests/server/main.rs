//! The operator and the runner as they are shipped, on a real control plane with the controllers of workloads.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

#[path = "../kit/mod.rs"]
mod kit;

mod harness;
mod kubelet;
mod lone;
mod program;

mod chart;
mod children;
mod crash;
mod epochs;
mod facts;
mod gate;
mod life;
mod names;
mod outrun;
mod overruled;
mod recovery;
mod refused;
mod replay;
mod rights;
mod rows;
mod safe_writes;
mod stamps;
mod status;
mod stdio;
mod without_cluster;
