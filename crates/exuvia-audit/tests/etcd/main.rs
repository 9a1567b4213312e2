//! The audit on a real etcd, compared with what the control plane of the tests reads there by itself.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

mod history;
mod mistakes;
mod raw;
mod sealed;
mod versions;

use exuvia_audit::{AuditOptions, EndpointError, Error, Fault};
use exuvia_testenv::ControlPlane;

/// How to read the etcd of this control plane.
fn options(control_plane: &ControlPlane) -> AuditOptions {
    let etcd = control_plane.etcd();
    let file = |name: &str| etcd.identity().map(|_| control_plane.directory().join(name));
    AuditOptions {
        endpoints: vec![etcd.endpoint().to_owned()],
        cacert: file("ca.crt"),
        cert: file("etcd-client.crt"),
        key: file("etcd-client.key"),
        prefix: etcd.prefix().to_owned(),
        ..AuditOptions::default()
    }
}

/// The one fault of the one endpoint.
fn fault(error: Error) -> Fault {
    match error {
        Error::NoAnswer(errors) => match <[EndpointError; 1]>::try_from(errors) {
            Ok([error]) => error.fault,
            Err(errors) => panic!("one endpoint, and {errors:?}"),
        },
        error => panic!("{error}"),
    }
}
