//! What the two commands say of a command line with which they could not work: one sentence, without colours, and exit code 2.

use std::process::{Command, Output};

const PROXY: &str = env!("CARGO_BIN_EXE_mcp-proxy");
const BRIDGE: &str = env!("CARGO_BIN_EXE_mcp-bridge");

fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap()
}

fn assert_refused(program: &str, args: &[&str], code: i32, sentence: &str) {
    let output = output(program, args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, format!("error: {sentence}\n"), "{args:?}");
    assert_eq!(output.status.code(), Some(code), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
}

#[test]
fn values_with_which_nothing_could_work_are_refused_in_one_sentence() {
    let a_path = "expected a path that begins with /, without ? and #, such as /mcp";
    for (args, sentence) in [
        (
            &["--backend", "foo"][..],
            "invalid --backend \"foo\": expected http://host[:port] without a path, such as http://10.0.0.7:8080".to_owned(),
        ),
        (
            &["--backend", "http://me:s3cret@host"],
            "invalid --backend \"http://…@host\": expected http://host[:port] without a path, such as http://10.0.0.7:8080"
                .to_owned(),
        ),
        (
            &["--endpoint-prefix", "a"],
            format!("invalid --endpoint-prefix \"a\": {a_path}"),
        ),
        (
            &["--target-path=a"],
            format!("invalid --target-path \"a\": {a_path}"),
        ),
        (
            &["--max-body-bytes=0"],
            "invalid --max-body-bytes \"0\": expected a whole number, at least 1".to_owned(),
        ),
        (
            &["--tool", ""],
            "invalid --tool \"\": expected the name of a tool; without --tool, clients see all of them".to_owned(),
        ),
        (
            &["--allowed-origin=app"],
            "invalid --allowed-origin \"app\": expected scheme://host[:port], such as https://app.example.com, or *"
                .to_owned(),
        ),
        (
            &[],
            "missing --backend: expected the URL of a server, with port and without a path; may be given more than once"
                .to_owned(),
        ),
    ] {
        assert_refused(PROXY, args, 2, &sentence);
    }
    for (args, sentence) in [
        (
            &["--max-children=0", "--", "sh"][..],
            "invalid --max-children \"0\": expected a whole number from 1 to 65535".to_owned(),
        ),
        (
            &["--path=mcp", "--", "sh"],
            format!("invalid --path \"mcp\": {a_path}"),
        ),
        (
            &[],
            "missing `-- COMMAND`: expected the program and its arguments, after --".to_owned(),
        ),
    ] {
        assert_refused(BRIDGE, args, 2, &sentence);
    }
}

#[test]
fn a_bridge_to_a_program_that_does_not_exist_fails_at_its_start() {
    assert_refused(
        BRIDGE,
        &["--listen=127.0.0.1:0", "--", "no-such-program", "--stdio"],
        1,
        "cannot start \"no-such-program\": expected a program in PATH, or the path of one; its arguments are words of their own",
    );
    let path = "/nonexistent/program";
    assert_refused(
        BRIDGE,
        &["--listen=127.0.0.1:0", "--", path],
        1,
        &format!("cannot start {path:?}: no such file"),
    );
}

#[test]
fn a_port_that_is_taken_is_one_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = output(PROXY, &["--backend=http://127.0.0.1:9", "--listen", &address]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with(&format!("error: cannot listen on {address}: ")),
        "{said}"
    );
    assert_eq!(
        (said.lines().count(), output.status.code()),
        (1, Some(1)),
        "{said}"
    );
}

#[test]
fn help_and_version_are_printed_for_people() {
    for (program, name) in [(PROXY, "mcp-proxy"), (BRIDGE, "mcp-bridge")] {
        let help = output(program, &["--help"]);
        let text = String::from_utf8_lossy(&help.stdout);
        assert!(help.status.success() && text.contains("Usage: "), "{text}");
        let version = output(program, &["--version"]);
        let text = String::from_utf8_lossy(&version.stdout);
        assert!(
            version.status.success() && text.starts_with(&format!("{name} ")),
            "{text}"
        );
    }
}
