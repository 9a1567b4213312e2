//! One process of the control plane: started under a supervisor that ends it when we die, signalled by name.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// Runs `$@`, with its output in `$EXUVIA_LOG` if that is set, and kills it as soon as standard input closes, which
/// the kernel does for us however we end, `kill -9` included. `prctl(PR_SET_PDEATHSIG)` would need `pre_exec`, and
/// with it unsafe code. The watcher is started before anything is printed: printing into a pipe whose reader is gone
/// ends the shell.
const SUPERVISOR: &str = r#"
exec 3<&0 </dev/null
if [ -n "$EXUVIA_LOG" ]; then exec 4>&1 >>"$EXUVIA_LOG" 2>&1; else exec 4>/dev/null; fi
"$@" 3<&- 4>&- &
child=$!
( exec >/dev/null 2>&1 4>&-; read -r _ <&3; kill -9 "$child" ) &
watcher=$!
echo "$child" >&4
wait "$child"
code=$?
echo "$code" >&4
kill "$watcher"
exit "$code"
"#;

/// A command that ends with us: keep the child's piped standard input open for as long as it is to run.
pub(crate) fn supervised(program: &Path, log: Option<&Path>) -> Command {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", SUPERVISOR, "exuvia-supervisor"])
        .arg(program)
        .env("EXUVIA_LOG", log.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0); // Ctrl-C is for us; we end our children in order
    command
}

/// How to start a process: kept, so that it can be started again.
#[derive(Clone, Debug)]
pub(crate) struct CommandLine {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) log: PathBuf,
}

/// A process of the control plane that can be paused, killed and started again.
#[derive(Debug)]
pub struct Process {
    command: CommandLine,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    supervisor: Child,
    lifeline: Option<ChildStdin>,
    pid: Pid,
    exit: Arc<Exit>,
}

/// The exit code, once there is one.
#[derive(Debug, Default)]
struct Exit {
    code: Mutex<Option<i32>>,
    known: Condvar,
}

impl Process {
    /// Starts any program. It ends with the test, however the test ends.
    pub fn run(
        name: &'static str,
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
        log: impl Into<PathBuf>,
    ) -> Result<Self, Error> {
        Self::start(CommandLine {
            name,
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            log: log.into(),
        })
    }

    pub(crate) fn start(command: CommandLine) -> Result<Self, Error> {
        let running = Running::start(&command)?;
        Ok(Self {
            command,
            running: Mutex::new(Some(running)),
        })
    }

    /// The name of the binary, such as `kube-apiserver`.
    pub fn name(&self) -> &'static str {
        self.command.name
    }

    /// The process id, or `None` if it was stopped or killed, or ended by itself.
    pub fn pid(&self) -> Option<u32> {
        let running = self.running();
        let running = running.as_ref().filter(|r| r.exit.code().is_none())?;
        running.pid.as_raw_nonzero().get().try_into().ok()
    }

    /// The exit code if the process has ended by itself (128 plus the signal's number if a signal ended it).
    pub fn exit_code(&self) -> Option<i32> {
        self.running().as_ref().and_then(|r| *r.exit.code())
    }

    /// Where the process writes its output.
    pub fn log_path(&self) -> &Path {
        &self.command.log
    }

    /// The last lines of what the process has written.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.command.log, lines)
    }

    /// Freezes the process (SIGSTOP). Connections to it stay open, requests queue up in their sockets.
    ///
    /// When this returns it stands still: the kernel needs a moment to stop threads that run on another core.
    pub fn pause(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        while self.pid().and_then(state).is_some_and(|state| state != 'T') {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Lets a paused process go on (SIGCONT).
    pub fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)
    }

    /// Ends the process at once (SIGKILL). What it had not written is lost, as in a crash.
    pub fn kill(&self) -> Result<(), Error> {
        drop(self.running().take()); // dropping closes the lifeline and waits
        Ok(())
    }

    /// Asks the process to end (SIGTERM) and waits; after `grace` it is killed.
    pub fn stop(&self, grace: Duration) -> Result<(), Error> {
        let Some(running) = self.running().take() else {
            return Ok(());
        };
        let deadline = Instant::now() + grace;
        signal(running.pid, Signal::TERM, self.command.name)?;
        let mut code = running.exit.code();
        while code.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break; // dropping `running` kills it
            }
            code = running
                .exit
                .known
                .wait_timeout(code, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(code);
        Ok(())
    }

    /// Starts the process again with the arguments it had; one that is still running is killed first.
    pub fn restart(&self) -> Result<(), Error> {
        let mut running = self.running();
        drop(running.take());
        *running = Some(Running::start(&self.command)?);
        Ok(())
    }

    fn signal(&self, sig: Signal) -> Result<(), Error> {
        match &*self.running() {
            Some(running) if running.exit.code().is_none() => signal(running.pid, sig, self.command.name),
            _ => Err(Error::NotRunning {
                process: self.command.name,
            }),
        }
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn start(command: &CommandLine) -> Result<Self, Error> {
        let failed = |source| Error::Spawn {
            process: command.name,
            program: command.program.clone(),
            source,
        };
        let mut supervisor = supervised(&command.program, Some(&command.log))
            .args(&command.args)
            // A developer's proxy, CA or Go settings must not reach into the control plane.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", command.log.parent().unwrap_or(Path::new("/")))
            .env("EXUVIA_LOG", &command.log)
            // Memory for time: the heaps are small, and collecting them takes an eighth of what an API server's start costs.
            .env("GOGC", "400")
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let lifeline = supervisor.stdin.take();
        let mut says = BufReader::new(supervisor.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        says.read_line(&mut line).map_err(failed)?;
        let pid = line
            .trim()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| failed(std::io::Error::other("the supervising shell did not start it")))?;
        let exit = Arc::new(Exit::default());
        std::thread::spawn({
            let exit = exit.clone();
            move || {
                let mut line = String::new();
                // No line means that the shell itself was killed, and with it we lost the code.
                let code = says
                    .read_line(&mut line)
                    .ok()
                    .and_then(|_| line.trim().parse().ok())
                    .unwrap_or(-1);
                *exit.code() = Some(code);
                exit.known.notify_all();
            }
        });
        Ok(Self {
            supervisor,
            lifeline,
            pid,
            exit,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.supervisor.wait();
    }
}

impl Exit {
    fn code(&self) -> MutexGuard<'_, Option<i32>> {
        self.code.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signal(pid: Pid, signal: Signal, process: &'static str) -> Result<(), Error> {
    kill_process(pid, signal).map_err(|e| Error::Signal {
        process,
        source: e.into(),
    })
}

/// The state letter that Linux shows for a process; other systems show none, and there is nothing to wait for.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next() // the name before it may hold anything
}

/// The last `lines` lines of a file that may be large; what cannot be read is empty.
fn tail(path: &Path, lines: usize) -> String {
    const ENOUGH: i64 = 16 * 1024;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::End(-ENOUGH.min(i64::try_from(size).unwrap_or(ENOUGH))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Removes a directory once we are gone, however we end: a killed test must not leave an etcd's 64 MB behind.
/// A directory that is already gone is fine.
#[derive(Debug)]
pub(crate) struct Janitor {
    shell: Child,
}

impl Janitor {
    pub(crate) fn watch(directory: &Path) -> Result<Self, Error> {
        // The processes die at the same moment and may still write a file: hence more than one try.
        let script =
            r#"read -r _; for _ in 1 2 3 4 5; do rm -rf -- "$1" && [ ! -e "$1" ] && exit; sleep 1; done"#;
        let shell = Command::new("/bin/sh")
            .args(["-c", script, "exuvia-janitor"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                process: "janitor",
                program: "/bin/sh".into(),
                source,
            })?;
        Ok(Self { shell })
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
