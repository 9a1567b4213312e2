//! Runs the test binaries, several at a time: tests on a real server mostly wait for it, and one binary after another takes
//! half as long again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

/// So many binaries run at the same time.
const AT_ONCE: usize = 2;

/// These take minutes each: they begin first, so that none of them is waited for alone at the end.
const SLOWEST: [&str; 5] = [
    "exuvia: test operator",
    "exuvia-datastore: test engine",
    "exuvia-storage: test unnoticed",
    "exuvia-storage: test storage",
    "model: test model",
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
                    if let Err(error) = run_one(&binary) {
                        println!("{error:#}");
                        lock(&failed).push(binary.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_default();
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    Ok(())
}

fn next(waiting: &Mutex<VecDeque<TestBinary>>) -> Option<TestBinary> {
    lock(waiting).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs one binary. Its output is printed in one piece when it ends, so that two do not mix.
fn run_one(binary: &TestBinary) -> anyhow::Result<()> {
    println!("started {}", binary.name);
    let started = Instant::now();
    let output = Command::new(&binary.path)
        .current_dir(&binary.directory)
        // Four at a time on two cores are about twice as fast as two.
        .env("RUST_TEST_THREADS", "4")
        .output()
        .with_context(|| format!("cannot run {}", binary.path.display()))?;
    println!(
        "\n$ {} ({:.0} s)\n{}{}",
        binary.name,
        started.elapsed().as_secs_f64(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    if !output.status.success() {
        bail!("{} failed ({})", binary.name, output.status);
    }
    Ok(())
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
