//! What the control plane of the tests really does, on one shared control plane where that will do.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

mod access;
mod bad_input;
mod controllers;
mod flags;
mod helm;
mod hosts;
mod namespaces;
mod processes;

mod stale_server;
mod stored_bytes;
mod tools;
