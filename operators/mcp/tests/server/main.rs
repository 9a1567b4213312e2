//! The operator and the runner as they are shipped, on a real control plane with the controllers of workloads.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

mod harness;
mod kubelet;
mod program;

mod chart;
mod crash;
mod gate;
mod life;
mod recovery;
mod rights;
mod safe_writes;
mod stamps;
mod status;
mod stdio;
mod without_cluster;
