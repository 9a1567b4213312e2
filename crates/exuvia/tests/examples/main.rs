//! Every example of the documentation, on a real control plane: the library crates' `examples/` and the Helm hook.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

#[path = "../binary/mod.rs"]
mod binary;
mod hook;
mod libraries;
#[path = "../rendered/mod.rs"]
mod rendered;

use std::time::Duration;

/// Waits for a condition for a minute at most.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(waited.is_ok(), "waited for: {what}");
}
