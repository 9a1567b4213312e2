//! A real Kubernetes control plane on loopback for tests: no container runtime, no mock.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use exuvia_testenv::ControlPlane;
//!
//! let control_plane = ControlPlane::shared().await; // one per test process, started on first use
//! let client = control_plane.client()?;             // a real kube::Client, as administrator
//! let widgets = control_plane.stored("example.com", "widgets").all().await?; // the bytes in etcd
//! # Ok(()) }
//! ```
//!
//! Binaries come from `KUBEBUILDER_ASSETS`, from the cache, from `setup-envtest`, or are built once with Go: see
//! [`assets`].
#![allow(
    clippy::disallowed_methods,
    reason = "it sets up the world of tests and demos"
)]

mod access;
pub mod aggregated;
mod apiserver;
pub mod assets;
mod audit;
mod builder;
pub mod certs;
mod control_plane;
pub mod crash;
mod error;
mod etcd;
mod helm;
mod http;
mod https;
mod identity;
pub mod kstatus;
pub mod kubelet;
mod namespaces;
mod nodes;
pub mod oracle;
mod process;
pub mod proxy;
mod stale;
mod tool;
mod until;
pub mod webhook;
mod widgets;

pub use access::{Access, Credential};
pub use apiserver::ApiServer;
pub use audit::{AuditEvent, AuditLog, AuditUser, ObjectRef, ResponseStatus};
pub use builder::{Builder, ENCRYPTION_FILE};
pub use control_plane::ControlPlane;
pub use error::Error;
pub use etcd::{Etcd, Stored, StoredReader};
pub use helm::Helm;
pub use kubelet::Kubelet;
pub use namespaces::force_finalize_namespace;
pub use process::Process;
pub use stale::StaleServer;
pub use tool::{actionlint, promtool};
pub use until::{Condition, DEADLINE, in_time, soon, until, until_blocking};
pub use widgets::Widgets;
