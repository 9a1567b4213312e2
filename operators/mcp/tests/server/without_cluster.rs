//! What the runner says when it cannot run: a clear error and an exit code, never a panic. No control plane is needed.

use std::process::{Command, Output};

use exuvia_testenv::{Process, until};

use crate::program::RUNNER;

const CONFIG: &str =
    r#"{"name": "a", "namespace": "b", "image": "i", "path": "/mcp", "mcpPort": 1, "proxyPort": 2}"#;

fn runner(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(RUNNER);
    command.env_clear().envs(env.iter().copied());
    command.args([
        "run",
        "--listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
        "--mount-patience=0s",
    ]);
    command.args(["--backend=http://127.0.0.1:9"]); // no cluster is needed
    command.args(args).output().unwrap()
}

fn assert_refused(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_runner_without_a_run_config_says_where_it_looked() {
    let output = runner(
        &["--config=/nonexistent/a.json", "--config=/nonexistent/b.json"],
        &[],
    );
    assert_refused(
        &output,
        78,
        "expected one of /nonexistent/a.json, /nonexistent/b.json",
    );
}

#[test]
fn the_names_of_another_operator_have_other_paths() {
    let output = runner(&["--names=toolhive"], &[]);
    assert_refused(&output, 78, "/etc/toolhive/runconfig.json");
    assert_refused(
        &runner(&["--names=other"], &[]),
        2,
        "expected default or toolhive",
    );
}

#[test]
fn a_broken_run_config_is_refused_without_its_content() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    for broken in ["", "{", "[]", r#"{"name": "s3cret"}"#, "s3cret"] {
        std::fs::write(&path, broken).unwrap();
        let config = format!("--config={}", path.display());
        let output = runner(&[&config], &[]);
        assert_refused(&output, 78, "invalid run config");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("s3cret"));
    }
}

#[test]
fn a_field_of_the_run_config_that_is_wrong_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    for (config, words) in [
        (CONFIG.replace("image", "imgae"), "missing field `image`"),
        (CONFIG.replace("\"i\"", "5"), "field `image`: expected a string"),
        (CONFIG.replace("\"i\"", "\"\""), "field `image` is empty"),
    ] {
        std::fs::write(&path, config).unwrap();
        assert_refused(
            &runner(&[&format!("--config={}", path.display())], &[]),
            78,
            words,
        );
    }
}

#[test]
fn a_token_that_is_not_one_is_refused_before_the_run_config_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    std::fs::write(&path, CONFIG).unwrap();
    let config = format!("--config={}", path.display());
    let env = [("MCP_FENCE", "nonsense"), ("MCP_CONFIG_HASH", "another")];
    // A test that hangs has failed.
    assert_refused(
        &runner(&[&config, "--mount-patience=1h"], &env),
        78,
        "invalid MCP_FENCE",
    );
}

#[tokio::test]
async fn a_runner_that_waits_for_its_run_config_says_so_and_ends_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    std::fs::write(&path, CONFIG).unwrap();
    let args = [
        "-i",
        "MCP_CONFIG_HASH=another",
        RUNNER,
        "run",
        "--admin-listen=127.0.0.1:0",
        "--mount-patience=1h",
        "--backend=http://127.0.0.1:9",
        &format!("--config={}", path.display()),
    ];
    let log = directory.path().join("runner.log");
    let process = Process::run("mcp-runner", "/usr/bin/env", args.map(str::to_owned), &log).unwrap();
    until("the runner waits", async || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let waits = log.contains("this pod was made for another: waiting up to 3600 s");
        if waits { Ok(()) } else { Err(log) }
    })
    .await;
    let pid = process.pid().unwrap().to_string();
    assert!(
        Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .unwrap()
            .success()
    );
    let code = until("the runner ends", async || process.exit_code().ok_or("it runs")).await;
    let log = std::fs::read_to_string(&log).unwrap();
    assert_eq!(code, 0, "{log}");
    assert_eq!(log.matches("waiting up to").count(), 1, "{log}");
}

#[test]
fn an_origin_that_is_not_one_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runconfig.json");
    let config = r#"{"name": "a", "namespace": "b", "image": "i", "path": "/mcp", "mcpPort": 1, "proxyPort": 2,
                     "allowedOrigins": ["not an origin"]}"#;
    std::fs::write(&path, config).unwrap();
    let config = format!("--config={}", path.display());
    assert_refused(&runner(&[&config], &[]), 78, "invalid allowedOrigins");
}

/// Any of the two programs, with nothing of our own environment.
fn assert_says(program: &str, args: &[&str], code: i32, sentence: &str) {
    let output = Command::new(program).args(args).env_clear().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, format!("error: {sentence}\n"), "{args:?}");
    assert_eq!(output.status.code(), Some(code), "{args:?}");
}

#[test]
fn a_command_line_with_which_nothing_could_work_is_refused_in_one_sentence() {
    for (args, sentence) in [
        (
            &["bridge"][..],
            "missing `-- COMMAND`: expected the program and its arguments, after --; one is started for each session",
        ),
        (
            &["bridge", "--path=mcp", "--", "sh"],
            "invalid --path \"mcp\": expected a path that begins with /, without ? and #, such as /mcp",
        ),
        (
            &["run", "--backend=foo"],
            "invalid --backend \"foo\": expected http://host[:port] without a path, such as http://10.0.0.7:8080",
        ),
        (
            &["run", "--gate=loose"],
            "invalid --gate \"loose\": expected strict or compat",
        ),
        (
            &["run", "--grace=5"],
            "invalid --grace \"5\": expected a number with a unit, such as 500ms, 60s, 15m or 1h",
        ),
        (
            &["runn"],
            "invalid command \"runn\": did you mean `mcp-runner run`?",
        ),
        (
            &["run", "--backend=http://127.0.0.1:99999"],
            "invalid --backend \"http://127.0.0.1:99999\": expected http://host[:port] without a path, such as http://10.0.0.7:8080",
        ),
        (
            &["run", "--mount-patience", "-5s"],
            "invalid --mount-patience \"-5s\": expected a number with a unit, such as 500ms, 60s, 15m or 1h",
        ),
        (
            &["run", "--fence=Bad Name"],
            "invalid --fence \"Bad Name\": expected at most 253 lower-case letters, digits, '-' and '.', such as mcp-operator",
        ),
        (
            &["run", "--log-level=loud"],
            "invalid log level \"loud\": expected error, warn, info, debug or trace, or directives such as \
             exuvia=debug,hyper=info",
        ),
        (
            &["run", "--kubeconfig=/nonexistent/config"],
            "invalid --kubeconfig \"/nonexistent/config\": failed to read kubeconfig from '\"/nonexistent/config\"': \
             No such file or directory (os error 2)",
        ),
    ] {
        assert_says(RUNNER, args, 2, sentence);
    }
    let operator = env!("CARGO_BIN_EXE_mcp-operator");
    for (args, sentence) in [
        (
            &[][..],
            "missing --runner-image: expected the image of mcp-runner",
        ),
        (
            &["--runner-image", ""],
            "invalid --runner-image \"\": expected an image without spaces, such as example.com/mcp-runner:1",
        ),
        (
            &["--runner-image=i", "--watch-namespace=Bad_"],
            "invalid --watch-namespace \"Bad_\": expected at most 63 lower-case letters, digits and '-', such as mcp-servers",
        ),
        (
            &["--runner-image=i", "--concurrency=0"],
            "invalid --concurrency \"0\": expected a whole number from 1 to 65535",
        ),
        (
            &["--runner-image=i", "--resync=0s"],
            "invalid --resync \"0s\": expected more than 0s, such as 10m",
        ),
        (
            &["--runner-image=i", "--lease-name=Bad Name"],
            "invalid --lease-name \"Bad Name\": expected at most 253 lower-case letters, digits, '-' and '.', such as mcp-operator",
        ),
        (
            &["--runner-image=i", "--leader-elect=false", "--leader-elect=true"],
            "--leader-elect is given more than once: give it once",
        ),
        (
            &["--runner-imag=i"],
            "invalid option \"--runner-imag\" of `mcp-operator`: did you mean --runner-image?",
        ),
    ] {
        assert_says(operator, args, 2, sentence);
    }
    // A variable is named as what it is.
    let output = Command::new(operator)
        .env_clear()
        .env("MCP_RUNNER_IMAGE", "")
        .output()
        .unwrap();
    assert_refused(
        &output,
        2,
        "error: invalid MCP_RUNNER_IMAGE \"\": expected an image",
    );
}

#[test]
fn a_bridge_to_a_program_that_does_not_exist_fails_at_its_start() {
    assert_says(
        RUNNER,
        &[
            "bridge",
            "--listen=127.0.0.1:0",
            "--",
            "no-such-program",
            "--stdio",
        ],
        1,
        "cannot start \"no-such-program\": expected a program in PATH, or the path of one; its arguments are words of their own",
    );
}

#[test]
fn the_runner_copies_itself_for_pods_that_run_the_bridge() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("mcp-runner");
    let installed = Command::new(RUNNER).arg("install").arg(&copy).output().unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let version = Command::new(&copy).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("mcp-runner "));
}
