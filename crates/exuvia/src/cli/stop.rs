//! SIGINT and SIGTERM: objects in work are finished, one sentence says so, and the exit code tells which signal it was.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Context;
use exuvia_sweep::Control;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::output::remark;

/// Ended by a signal before it was done.
#[derive(Debug)]
pub(super) struct Stopped {
    /// As a shell has it: 128 plus the signal's number.
    pub(super) code: u8,
    what: String,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Stopped {}

/// Stops migrations when a signal says so.
pub(super) struct Stop(Arc<AtomicU8>);

impl Stop {
    /// On the first signal, objects in work are finished and nothing else is begun; the second ends the process at once.
    pub(super) fn when_signalled(control: &Control) -> anyhow::Result<Self> {
        let mut signals = Signals::new()?;
        let (control, code) = (control.clone(), Arc::new(AtomicU8::new(0)));
        let stop = Self(Arc::clone(&code));
        tokio::spawn(async move {
            let (name, number) = signals.next().await;
            code.store(128 + number, Ordering::Relaxed);
            remark(&format!(
                "stopping because of {name}: objects in work are finished, nothing else is begun; run the same command again to \
                 continue where it stopped"
            ));
            control.cancel();
            let (name, number) = signals.next().await;
            remark(&format!(
                "ended at once because of a second {name}; run the same command again to continue"
            ));
            std::process::exit((128 + number).into());
        });
        Ok(stop)
    }

    /// The exit code, if a signal came.
    pub(super) fn code(&self) -> Option<u8> {
        Some(self.0.load(Ordering::Relaxed)).filter(|code| *code > 0)
    }

    /// An error, if a signal came.
    pub(super) fn check(&self) -> Result<(), Stopped> {
        let stopped = |code| Stopped {
            code,
            what: "stopped before there was an answer; run the same command again".to_owned(),
        };
        self.code().map_or(Ok(()), |code| Err(stopped(code)))
    }
}

/// Does work that writes nothing, and says so if a signal ends it.
pub(super) async fn unless_stopped<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut signals = Signals::new()?;
    tokio::select! {
        done = work => done,
        (name, number) = signals.next() => {
            let what = match name {
                "SIGINT" => "interrupted; nothing was written".to_owned(),
                name => format!("stopped by {name}; nothing was written"),
            };
            Err(Stopped { code: 128 + number, what }.into())
        }
    }
}

/// The exit code, if the error is that a signal came.
pub(super) fn exit_code(error: &anyhow::Error) -> Option<ExitCode> {
    error
        .downcast_ref()
        .map(|Stopped { code, .. }| ExitCode::from(*code))
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    async fn next(&mut self) -> (&'static str, u8) {
        tokio::select! {
            _ = self.interrupt.recv() => ("SIGINT", 2),
            _ = self.terminate.recv() => ("SIGTERM", 15),
        }
    }
}
