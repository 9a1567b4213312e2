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
mod promtool;
mod stale_server;
mod stored_bytes;

/// Waits for a condition for a minute at most: a real server answers in its own time.
async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let waiting = async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    assert!(
        tokio::time::timeout(std::time::Duration::from_secs(60), waiting)
            .await
            .is_ok(),
        "waited for: {what}"
    );
}
