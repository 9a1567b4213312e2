//! A real Kubernetes control plane on loopback for tests.

pub mod certs;
mod error;

pub use error::Error;
