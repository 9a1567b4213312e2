//! The program under test: a process, or a future on this runtime.

use tokio::task::{AbortHandle, JoinHandle};

use crate::{DEADLINE, Process};

/// Something that runs and can be ended.
#[allow(
    async_fn_in_trait,
    reason = "each lane runs on one thread: no future needs to be Send"
)]
pub trait Program {
    /// Ends it at once, so that it cannot clean up.
    async fn kill(&mut self);

    /// Ends it as its user would, and waits until it has ended.
    async fn stop(&mut self);
}

impl Program for Process {
    async fn kill(&mut self) {
        Process::kill(self).expect("a process can be killed");
    }

    async fn stop(&mut self) {
        Process::stop(self, DEADLINE).expect("the process stops");
    }
}

/// A future that runs in the background. Dropping it ends it.
#[derive(Debug)]
pub struct Task {
    running: Option<JoinHandle<Result<(), String>>>,
    abort: AbortHandle,
}

impl Task {
    /// Starts it.
    pub fn spawn<E: std::fmt::Display>(future: impl Future<Output = Result<(), E>> + Send + 'static) -> Self {
        let running = tokio::spawn(async move { future.await.map_err(|error| error.to_string()) });
        Self {
            abort: running.abort_handle(),
            running: Some(running),
        }
    }

    /// Waits until it ends by itself, and returns how.
    ///
    /// # Panics
    /// If it panicked, or its result was taken already.
    pub async fn result(&mut self) -> Result<(), String> {
        let running = self.running.take().expect("the result is taken once");
        running
            .await
            .unwrap_or_else(|error| panic!("the task failed: {error}"))
    }
}

impl Program for Task {
    async fn kill(&mut self) {
        self.abort.abort();
        if let Some(running) = self.running.take() {
            let _ = running.await; // it was aborted, or was just done
        }
    }

    async fn stop(&mut self) {
        self.kill().await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.abort.abort();
    }
}
