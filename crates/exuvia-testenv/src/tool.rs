//! Command-line tools that tests run to their end, isolated from the user's environment: helm (see `helm.rs`), promtool,
//! actionlint.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Stdio;

use crate::Error;
use crate::assets::{Assets, Binary};
use crate::process::supervised;

/// Runs the real `promtool`, such as `promtool(["check", "rules", "rules.yaml"])`, and returns what it printed.
///
/// Paths are relative to this process's directory. It is found or built as all binaries are: see
/// [`assets`](crate::assets).
///
/// # Errors
/// If it ends with anything but 0: [`Error::ToolFailed`] holds what it said.
pub async fn promtool<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Result<String, Error> {
    run_alone(Binary::Promtool, args).await
}

/// Runs the real `actionlint`, such as `actionlint([".github/workflows/ci.yml"])`, and returns what it printed.
///
/// It calls neither shellcheck nor pyflakes, so that the result is the same on every machine.
///
/// # Errors
/// If it finds a mistake, or a file is missing: [`Error::ToolFailed`] holds what it printed.
pub async fn actionlint<S: AsRef<OsStr>>(files: impl IntoIterator<Item = S>) -> Result<String, Error> {
    run_alone(Binary::Actionlint, files).await
}

async fn run_alone<S: AsRef<OsStr>>(
    binary: Binary,
    args: impl IntoIterator<Item = S>,
) -> Result<String, Error> {
    let home = temporary_directory()?;
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
    run(&Assets::from_env()?, binary, args, home.path(), &[]).await
}

pub(crate) fn temporary_directory() -> Result<tempfile::TempDir, Error> {
    tempfile::Builder::new()
        .prefix("exuvia-testenv-")
        .tempdir()
        .map_err(Error::file("create a directory in", std::env::temp_dir()))
}

/// Runs a tool with no environment but `HOME` and `variables`; what it printed is the result.
pub(crate) async fn run(
    assets: &Assets,
    binary: Binary,
    args: Vec<OsString>,
    home: &Path,
    variables: &[(&str, &OsStr)],
) -> Result<String, Error> {
    let assets = assets.clone();
    let program = blocking(move || assets.find(binary)).await??;
    let failed = |source| Error::Spawn {
        process: binary.name(),
        program: program.clone(),
        source,
    };
    let mut child = supervised(&program, None)
        .args(&args)
        .env_clear()
        .env("HOME", home)
        .envs(variables.iter().copied())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // Held here and not where it is waited for: who stops waiting for us ends the tool, too.
    let _lifeline = child.stdin.take();
    let output = blocking(move || child.wait_with_output())
        .await?
        .map_err(failed)?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(printed.into_owned());
    }
    let command: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
    // `helm lint` and `promtool` print what they found wrong, and only the sum of it to standard error.
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stderr).trim(), printed);
    Err(Error::ToolFailed {
        command: format!("{} {}", binary.name(), command.join(" ")),
        status: output.status,
        said: said.trim().to_owned(),
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::Client(e.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::until;

    #[tokio::test]
    async fn a_tool_that_nobody_waits_for_any_more_is_ended() {
        let directory = temporary_directory().unwrap();
        let program = directory.path().join("helm");
        std::fs::write(
            &program,
            "#!/bin/sh\necho $$ > \"$HOME/new\"; mv \"$HOME/new\" \"$HOME/pid\"; exec sleep 60\n",
        )
        .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let assets = Assets::only_in("/nonexistent", "").ready_binaries(directory.path());
        let pid_file = directory.path().join("pid");

        let pid: i32 = tokio::select! {
            ended = run(&assets, Binary::Helm, vec![], directory.path(), &[]) => panic!("{ended:?}"),
            pid = until("it tells its process id", async || std::fs::read_to_string(&pid_file)) => {
                pid.trim().parse().unwrap()
            }
        };

        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        until("it has ended", async || {
            rustix::process::test_kill_process(pid).is_err()
        })
        .await;
    }
}
