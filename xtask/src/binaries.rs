//! Runs the test binaries, several at a time: tests on a real server mostly wait for it, and one binary after another takes
//! half as long again.

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

/// So many binaries run at the same time. With two, and four tests of each, two cores were idle for half of the time: tests wait for
/// policies that take a second to bite, and for Leases.
const AT_ONCE: usize = 3;
/// And so many tests of each.
const TESTS_AT_ONCE: &str = "5";
/// A binary that takes longer hangs: the slowest took 28 minutes beside four busy loops and other builds.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

/// These take minutes each: they begin first, so that none of them is waited for alone at the end.
const SLOWEST: [&str; 9] = [
    "exuvia-datastore: test engine",
    "exuvia: test operator",
    "model: test model",
    "exuvia-storage: test storage",
    "exuvia-storage: test unnoticed",
    "mcp: test server",
    "exuvia: test datastore",
    "exuvia: test datastore_cli",
    "exuvia: test command",
];

/// A test binary, and where `cargo test` would run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestBinary {
    name: String,
    path: PathBuf,
    directory: PathBuf,
}

/// Builds the test binaries of the workspace and runs them all. One that fails does not hide what the others say.
pub(crate) fn run(mut cargo: Command) -> anyhow::Result<()> {
    cargo.stdout(Stdio::piped());
    let built = cargo
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .context("cannot run cargo")?;
    if !built.status.success() {
        bail!("the tests do not compile ({})", built.status);
    }
    let mut binaries = listed(&String::from_utf8_lossy(&built.stdout));
    if binaries.is_empty() {
        bail!("cargo names no test binary; expected a line with \"executable\" for each");
    }
    binaries.sort_by_key(|binary| {
        SLOWEST
            .iter()
            .position(|slow| *slow == binary.name)
            .unwrap_or(SLOWEST.len())
    });
    let waiting = Mutex::new(VecDeque::from(binaries));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(binary) = next(&waiting) {
                    if let Err(failure) = run_one(&binary, &[]) {
                        println!("{:#}", failure.error);
                        lock(&failed).push((binary, failure.tests));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    let (mut unsteady, mut broken) = (Vec::new(), Vec::new());
    for (binary, tests) in failed {
        // A binary that names no test has crashed as a whole.
        if tests.is_empty() || run_one(&binary, &tests).is_err() {
            broken.push(binary.name);
        } else {
            unsteady.extend(tests);
        }
    }
    if !unsteady.is_empty() {
        println!(
            "\nunsteady: these failed, and passed when they were run once more, alone; each is a defect of the test or of the product:"
        );
        println!("  {}", unsteady.join("\n  "));
    }
    if !broken.is_empty() {
        bail!("tests failed in {}", broken.join(", "));
    }
    Ok(())
}

/// Why a binary failed, and the tests in it that did.
struct Failure {
    error: anyhow::Error,
    tests: Vec<String>,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            error,
            tests: Vec::new(),
        }
    }
}

/// The tests that failed, by what the binary printed.
fn failed_tests(output: &str) -> Vec<String> {
    let named = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    output.lines().filter_map(named).collect()
}

fn next(waiting: &Mutex<VecDeque<TestBinary>>) -> Option<TestBinary> {
    lock(waiting).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs one binary, or only these tests of it. Its output is printed in one piece when it ends, so that two do not mix.
fn run_one(binary: &TestBinary, only: &[String]) -> Result<(), Failure> {
    println!("started {}", binary.name);
    let started = Instant::now();
    let mut command = Command::new(&binary.path);
    if !only.is_empty() {
        command.args(["--exact", "--test-threads", "1"]).args(only);
    }
    let mut child = command
        .current_dir(&binary.directory)
        .env("RUST_TEST_THREADS", TESTS_AT_ONCE)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", binary.path.display()))?;
    let (stdout, stderr) = (
        gathered(child.stdout.take(), started),
        gathered(child.stderr.take(), started),
    );
    let status = waited_for(&mut child, started).context("cannot wait for a test binary")?;
    let (printed, complained) = (stdout(), stderr());
    println!(
        "\n$ {} ({:.0} s)\n{printed}{complained}",
        binary.name,
        started.elapsed().as_secs_f64(),
    );
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Failure {
            error: anyhow::anyhow!("{} failed ({status})", binary.name),
            tests: failed_tests(&printed),
        }),
        None => Err(Failure::from(anyhow::anyhow!(
            "{} was ended after {} minutes; still running: {}",
            binary.name,
            TIME_LIMIT.as_secs() / 60,
            hanging_tests(&printed).join(", ")
        ))),
    }
}

/// How the binary ended; nothing if it had to be ended.
fn waited_for(child: &mut Child, started: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > TIME_LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Reads what a binary prints while it runs. The answer is what came until its end; a server that outlives an ended binary may
/// hold the pipe open, so nobody waits for that longer than for the binary itself.
fn gathered(pipe: Option<impl Read + Send + 'static>, started: Instant) -> impl FnOnce() -> String {
    let bytes = Arc::new(Mutex::new(Vec::new()));
    let reader = pipe.map(|mut pipe| {
        let bytes = Arc::clone(&bytes);
        std::thread::spawn(move || {
            let mut part = [0; 8192];
            while let Ok(read @ 1..) = pipe.read(&mut part) {
                lock(&bytes).extend_from_slice(&part[..read]);
            }
        })
    });
    move || {
        while let Some(reader) = &reader
            && !reader.is_finished()
            && started.elapsed() <= TIME_LIMIT
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        String::from_utf8_lossy(&lock(&bytes)).into_owned()
    }
}

/// The tests that began to take long and never ended, by what the binary printed.
fn hanging_tests(output: &str) -> Vec<String> {
    let slow = |line: &str| {
        let name = line
            .strip_prefix("test ")?
            .strip_suffix(" has been running for over 60 seconds")?;
        Some(name.to_owned())
    };
    let ended = |name: &String| {
        let result = format!("test {name} ... ");
        output.lines().any(|line| line.starts_with(&result))
    };
    output
        .lines()
        .filter_map(slow)
        .filter(|name| !ended(name))
        .collect()
}

/// The test binaries that cargo's messages name, in the order in which they come.
fn listed(messages: &str) -> Vec<TestBinary> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter_map(|message| of_message(&message)).collect()
}

fn of_message(message: &Value) -> Option<TestBinary> {
    let is_test = message["profile"]["test"].as_bool()?;
    let path = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_str()?;
    let target = &message["target"];
    let kind = target["kind"][0].as_str()?;
    let name = format!("{package}: {kind} {}", target["name"].as_str()?);
    is_test.then_some(TestBinary {
        name,
        path,
        directory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_failed_are_known_by_name() {
        let printed = "running 2 tests\ntest a::b ... ok\ntest a::c has been running for over 60 seconds\ntest a::c ... FAILED\n\nfailures:\n    a::c\n";
        assert_eq!(failed_tests(printed), ["a::c"]);
    }

    #[test]
    fn tests_that_hang_are_known_by_name() {
        let printed = "running 3 tests\ntest a::b ... ok\ntest a::c has been running for over 60 seconds\ntest a::d has been running for over 60 seconds\ntest a::c ... ok\n";
        assert_eq!(hanging_tests(printed), ["a::d"]);
    }

    #[test]
    fn only_test_binaries_are_listed_with_the_directory_of_their_package() {
        let messages = r#"
{"reason":"compiler-artifact","manifest_path":"/p/crates/a/Cargo.toml","target":{"kind":["lib"],"name":"a"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/p/crates/a/Cargo.toml","target":{"kind":["bin"],"name":"a"},"profile":{"test":false},"executable":"/p/target/debug/a"}
{"reason":"compiler-artifact","manifest_path":"/p/crates/a/Cargo.toml","target":{"kind":["test"],"name":"server"},"profile":{"test":true},"executable":"/p/target/debug/deps/server-1"}
{"reason":"build-finished","success":true}
"#;
        let server = TestBinary {
            name: "a: test server".to_owned(),
            path: "/p/target/debug/deps/server-1".into(),
            directory: "/p/crates/a".into(),
        };
        assert_eq!(listed(messages), [server]);
    }
}
