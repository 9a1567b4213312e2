//! Child processes: how they start, speak in lines, and end with everything that they started.

use std::{
    ffi::OsString,
    io,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{ChildStdin, ChildStdout, Command},
    sync::{OwnedSemaphorePermit, Semaphore},
};

use super::BridgeSettings;

/// How long a child may take to end after its stdin was closed, and again after SIGTERM.
const TIME_TO_END: Duration = Duration::from_secs(2);

/// So many children wait, started and unused, for requests without a session.
const MAX_SPARES: usize = 2;

/// All children of a bridge.
pub(crate) struct Children {
    command: Vec<OsString>,
    max_line: usize,
    max: usize,
    room: Arc<Semaphore>,
    spares: Mutex<Vec<(Instant, Child)>>,
}

/// A running child. Dropped, it is ended, without anyone waiting for it.
pub(crate) struct Child {
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: Option<Lines>,
    process: Option<(tokio::process::Child, OwnedSemaphorePermit)>,
}

/// A child cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("too many children are running")]
    Full,
    #[error("cannot start the command: {0}")]
    Io(#[from] io::Error),
}

impl Children {
    pub(crate) fn new(settings: &BridgeSettings) -> Self {
        Self {
            command: settings.command.clone(),
            max_line: settings.max_message_bytes,
            max: settings.max_children,
            room: Arc::new(Semaphore::new(settings.max_children)),
            spares: Mutex::default(),
        }
    }

    fn spares(&self) -> MutexGuard<'_, Vec<(Instant, Child)>> {
        self.spares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start(&self) -> Result<Child, StartError> {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            self.spares().pop(); // makes room for the next one, when it has ended
            return Err(StartError::Full);
        };
        let [program, args @ ..] = self.command.as_slice() else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        };
        let mut process = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0) // what it starts itself ends with it
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        Ok(Child {
            input: Some(input),
            output: Some(Lines {
                output,
                read: BytesMut::new(),
                seen: 0,
                max_line: self.max_line,
            }),
            process: Some((process, room)),
        })
    }

    /// A child for one request without a session. Nobody has spoken to it.
    pub(crate) fn unused(&self) -> Result<Child, StartError> {
        loop {
            let spare = self.spares().pop();
            let Some((_, mut child)) = spare else {
                return self.start();
            };
            if child.is_alive() {
                return Ok(child);
            }
        }
    }

    /// Starts a child for the next request without a session, so that it need not wait for the start. Not the last one that there
    /// is room for.
    pub(crate) fn prepare(&self) {
        if self.spares().len() >= MAX_SPARES || self.room.available_permits() <= 1 {
            return;
        }
        match self.start() {
            Ok(child) => self.spares().push((Instant::now(), child)),
            Err(error) => tracing::debug!(%error, "no child is prepared"),
        }
    }

    pub(crate) fn end_idle_spares(&self, idle: Duration) {
        self.spares().retain(|(since, _)| since.elapsed() < idle);
    }

    /// Ends the spares, and returns when no child is left.
    pub(crate) async fn all_ended(&self) {
        self.spares().clear();
        let all = u32::try_from(self.max).unwrap_or(u32::MAX);
        let _all = self.room.acquire_many(all).await;
    }
}

impl Child {
    pub(crate) fn is_alive(&mut self) -> bool {
        let process = self.process.as_mut().map(|(process, _)| process);
        process.is_some_and(|process| matches!(process.try_wait(), Ok(None)))
    }

    /// Writes one line.
    pub(crate) async fn say(&mut self, line: &[u8]) -> io::Result<()> {
        match &mut self.input {
            Some(input) => {
                input.write_all(line).await?;
                input.flush().await
            }
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Child {
    /// As MCP wants it: stdin is closed, then SIGTERM, then SIGKILL.
    fn drop(&mut self) {
        drop(self.input.take());
        let Some((mut process, room)) = self.process.take() else {
            return;
        };
        let group = process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let signal = move |signal| {
            if let Some(group) = group {
                let _ = kill_process_group(group, signal); // it may have ended
            }
        };
        let output = self.output.take();
        let end = async move {
            // A child that writes into a full pipe does not see that stdin is closed.
            let drained = tokio::spawn(async move {
                if let Some(mut lines) = output {
                    while matches!(lines.next().await, Ok(Some(_))) {}
                }
            });
            if tokio::time::timeout(TIME_TO_END, process.wait()).await.is_err() {
                signal(Signal::TERM);
                if tokio::time::timeout(TIME_TO_END, process.wait()).await.is_err() {
                    signal(Signal::KILL);
                    let _ = process.wait().await;
                }
            }
            signal(Signal::KILL); // what is left of its group
            drained.abort();
            drop(room);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(end)),
            Err(_) => signal(Signal::KILL),
        }
    }
}

/// The lines of a child's stdout, each of a bounded length.
pub(crate) struct Lines {
    output: ChildStdout,
    read: BytesMut,
    /// So many bytes of what was read have no end of a line.
    seen: usize,
    max_line: usize,
}

impl Lines {
    /// The next line that is not empty, without its end. `None` at the end of the output. A line that is too long is an error, because
    /// it may be the answer that somebody waits for.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(end) = self.read[self.seen..].iter().position(|byte| *byte == b'\n') {
                let line = self.read.split_to(self.seen + end + 1).freeze();
                self.seen = 0;
                let line = line.slice(..line.trim_ascii_end().len());
                if !line.is_empty() {
                    return Ok(Some(line));
                }
                continue;
            }
            self.seen = self.read.len();
            if self.seen > self.max_line {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a message is too long",
                ));
            }
            self.read.reserve(8 * 1024);
            if self.output.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        }
    }
}
