//! The binary from outside: what it prints, how it exits, and that nothing is left running.

#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::NamedTempFile;

fn exuvia(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command.args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One line on standard error, and a failure.
fn assert_one_sentence(output: &Output, parts: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn the_demo_tells_what_etcd_holds_and_what_the_server_refuses() {
    // Outside the repository, as an installed binary would run.
    let elsewhere = tempfile::tempdir().unwrap();
    let output = exuvia(&["demo", "--objects", "20"])
        .current_dir(elsewhere.path())
        .output()
        .unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let line_with = |what: &str| {
        let line = said
            .lines()
            .find(|line| line.contains(what))
            .unwrap_or_else(|| panic!("{what} in {said}"));
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(line_with("demo.exuvia.dev/v1alpha1"), "20");
    assert_eq!(line_with("demo.exuvia.dev/v1 "), "0");
    assert!(
        said.contains("must remain in spec.versions until a storage migration"),
        "{said}"
    );
}

#[test]
fn ctrl_c_ends_a_kept_control_plane_with_all_it_started() {
    let mut child = exuvia(&["demo", "--objects", "5", "--keep"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let kubeconfig = lines
        .find_map(|line| line.trim().strip_prefix("export KUBECONFIG=").map(PathBuf::from))
        .expect("it prints where its kubeconfig is");
    lines.find(|line| line.contains("kubectl get")).unwrap();
    let directory = kubeconfig.parent().unwrap();
    let started = processes_that_mention(directory);
    assert!(started.iter().any(|name| name.contains("etcd")), "{started:?}");

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!directory.exists(), "its files are gone");
    assert_eq!(processes_that_mention(directory), Vec::<String>::new());
}

#[test]
fn a_busy_port_is_one_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    assert_one_sentence(
        &exuvia(&["demo", "--port", &port]).output().unwrap(),
        &[&port, "in use", "choose another"],
    );
}

#[test]
fn a_wrong_binary_path_is_one_sentence() {
    let output = exuvia(&["demo"])
        .env("KUBEBUILDER_ASSETS", "/nonexistent")
        .output()
        .unwrap();
    assert_one_sentence(&output, &["no etcd is in /nonexistent", "KUBEBUILDER_ASSETS"]);
}

#[test]
fn a_missing_go_is_one_sentence() {
    let empty = tempfile::tempdir().unwrap();
    let output = exuvia(&["demo"])
        .env_remove("KUBEBUILDER_ASSETS")
        .env("XDG_DATA_HOME", empty.path())
        .env("EXUVIA_TESTENV_CACHE", empty.path())
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    assert_one_sentence(
        &output,
        &["`go` is not on PATH", "install Go 1.26", "KUBEBUILDER_ASSETS"],
    );
}

#[test]
fn a_corrupt_cache_is_one_sentence() {
    let cache = tempfile::tempdir().unwrap();
    let etcd = cache.path().join("etcd-3.7.0");
    std::fs::create_dir(&etcd).unwrap();
    std::fs::write(etcd.join("etcd"), "half").unwrap();
    std::fs::write(etcd.join("etcd.size"), "24793250").unwrap();
    let output = exuvia(&["demo"])
        .env_remove("KUBEBUILDER_ASSETS")
        .env("EXUVIA_TESTENV_CACHE", cache.path())
        .output();
    assert_one_sentence(&output.unwrap(), &["damaged", "has 4 bytes", "delete that file"]);
}

#[test]
fn an_unknown_kubernetes_version_is_one_sentence() {
    let output = exuvia(&["demo"])
        .env("EXUVIA_KUBE_VERSION", "1.12")
        .output()
        .unwrap();
    assert_one_sentence(&output, &["EXUVIA_KUBE_VERSION \"1.12\"", "1.37 or 1.34"]);
}

#[test]
fn a_url_that_is_not_valid_is_refused_before_anything_is_done() {
    for command in [&["operator"][..], &["storage", "migrate", "--all"]] {
        for url in ["foo", "https://x:notaport"] {
            let output = exuvia(&[command, &["--apiserver", url]].concat())
                .output()
                .unwrap();
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            let wanted = format!("invalid --apiserver {url:?}: expected the URL of an API server");
            assert!(error.contains(&wanted), "{error}");
        }
    }
}

#[test]
fn a_storage_command_without_storage_is_hinted_at() {
    for (name, hint) in [
        ("migrate", Some("did you mean `exuvia storage migrate`?")),
        ("lint", Some("did you mean `exuvia storage lint`?")),
        ("nonsense", None),
    ] {
        let output = exuvia(&[name, "widgets.example.com"]).output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.contains("exuvia storage"), hint.is_some(), "{error}");
        assert!(
            error.contains(hint.unwrap_or("invalid command \"nonsense\": expected demo, plan")),
            "{error}"
        );
    }
}

#[test]
fn names_that_no_cluster_takes_are_refused() {
    for (flag, value) in [
        ("--namespace", "Bad_NS"),
        ("--name", "a b"),
        ("--service-account", "X"),
        ("--lease-name", "x-"),
    ] {
        let output = exuvia(&["rbac", "--crds", "widgets.example.com", flag, value])
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        let wanted = format!("invalid {flag} {value:?}: expected");
        assert!(error.contains(&wanted), "{error}");
    }
    let fine = [
        "rbac",
        "--crds",
        "widgets.example.com",
        "--namespace",
        "exuvia-system",
    ];
    assert!(exuvia(&fine).output().unwrap().status.success());
}

#[test]
fn nobody_has_to_listen_to_what_it_says() {
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    let lint = ["storage", "lint", "/nonexistent"];
    for (args, code) in [
        (&lint[..], 2),
        (&["plan", "--kubeconfig", "/nonexistent", "-vv"], 2),
        (&["completions", "bash"], 0),
    ] {
        let status = exuvia(args).stdout(closed()).stderr(closed()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn a_kubeconfig_that_leads_nowhere_is_one_sentence() {
    let plan = |args: &[&str]| exuvia(&[&["plan"], args].concat()).output().unwrap();
    let missing = plan(&["--kubeconfig", "/nonexistent"]);
    assert_one_sentence(
        &missing,
        &["invalid --kubeconfig \"/nonexistent\"", "No such file"],
    );

    let file = kubeconfig("https://127.0.0.1:1");
    let path = file.path().to_str().unwrap();
    let no_context = ["invalid context \"nope\": expected", "here, there"];
    assert_one_sentence(&plan(&["--kubeconfig", path, "--context", "nope"]), &no_context);
    let by_variable = exuvia(&["plan", "--context", "nope"])
        .env("KUBECONFIG", path)
        .output()
        .unwrap();
    assert_one_sentence(&by_variable, &no_context);
}

#[test]
fn a_settle_time_of_zero_is_warned_of() {
    for command in [&["operator"][..], &["storage", "migrate", "--all"]] {
        for (settle, warned) in [("0s", true), ("1s", false)] {
            let args = ["--settle", settle, "--kubeconfig", "/nonexistent"];
            let said = text(&exuvia(&[command, &args].concat()).output().unwrap().stderr);
            assert_eq!(said.contains("nothing is waited for"), warned, "{said}");
        }
    }
}

#[test]
fn a_server_that_speaks_another_protocol_or_refuses_us_is_one_short_sentence() {
    let page = format!("<html>\n<body>{}</body>\n</html>", "welcome ".repeat(500));
    let unauthorized = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 401,
        "reason": "Unauthorized", "message": "Unauthorized",
    });
    for (status, body, parts) in [
        (
            "200 OK",
            page.clone(),
            ["does not answer as a Kubernetes API does", "URL"],
        ),
        ("404 Not Found", page, ["HTTP 404, with a web page", "URL"]),
        (
            "401 Unauthorized",
            unauthorized.to_string(),
            ["not accepted; log in again", "--context"],
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let file = kubeconfig(&format!("http://{}", listener.local_addr().unwrap()));
        std::thread::spawn(move || answer_all(&listener, status, &body));
        let path = file.path().to_str().unwrap();
        let output = exuvia(&["plan", "--kubeconfig", path]).output().unwrap();
        assert_one_sentence(&output, &parts);
        assert!(output.stderr.len() < 400, "{}", text(&output.stderr));
    }
}

/// Gives every request the same answer, until the test ends.
fn answer_all(listener: &TcpListener, status: &str, body: &str) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let request = BufReader::new(stream.try_clone().unwrap());
        let _ = request.lines().map_while(Result::ok).find(String::is_empty);
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all((head + body).as_bytes());
    }
}

/// Two contexts, which lead to one server.
fn kubeconfig(server: &str) -> NamedTempFile {
    let context = |name: &str| json!({"name": name, "context": {"cluster": "one", "user": "me"}});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "one", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [context("here"), context("there")],
    });
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    file
}

#[test]
fn version_help_and_completions() {
    let version = exuvia(&["version"]).output().unwrap();
    assert_eq!(
        text(&version.stdout),
        format!("exuvia {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert!(text(&exuvia(&["--help"]).output().unwrap().stdout).contains("demo"));
    assert!(text(&exuvia(&["completions", "bash"]).output().unwrap().stdout).contains("_exuvia"));
}

/// Command lines of running processes in which the path stands.
fn processes_that_mention(path: &Path) -> Vec<String> {
    let path = path.display().to_string();
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&path))
        .collect()
}

#[test]
fn the_datastore_demo_loses_no_acknowledged_write_and_undoes_what_is_aborted() {
    let output = exuvia(&["demo", "datastore", "--objects", "9"]).output().unwrap();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    // What etcd holds in the old, the new and the third group: moved, cleaned up, copied once more, undone.
    let counts: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("    s") || line.starts_with("    m"))
        .filter(|line| line.contains(".demo.exuvia.dev "))
        .map(|line| line.split_whitespace().last().unwrap())
        .collect();
    let expected = [["9", "9", "0"], ["0", "9", "0"], ["0", "9", "9"], ["0", "9", "0"]];
    assert_eq!(counts, expected.concat(), "{said}");
    assert!(said.contains("denied request: this kind is being moved by DatastoreMigration rename"));
    assert_eq!(said.matches("reads failed             0 of").count(), 2, "{said}");
}

#[test]
fn the_fence_is_printed_without_a_cluster_and_a_slip_is_told() {
    let args = [
        "rollout",
        "fence",
        "--namespaces",
        "shop",
        "--objects",
        "till-backend",
    ];
    let output = exuvia(&args).args(["-o", "json"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (policy, binding) = (&list["items"][0], &list["items"][1]);
    assert_eq!(policy["kind"], "ValidatingAdmissionPolicy");
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
    assert_eq!(rule["resources"], json!(["statefulsets", "statefulsets/status"]));
    assert_eq!(rule["resourceNames"], json!(["till-backend"]));
    let yaml = text(&exuvia(&args).output().unwrap().stdout);
    assert!(
        yaml.contains("\n---\n") && yaml.contains("kind: ValidatingAdmissionPolicyBinding"),
        "{yaml}"
    );
    let wrong = exuvia(&["rollout", "fence", "--resources", "StatefulSet"])
        .output()
        .unwrap();
    assert_one_sentence(&wrong, &["--resources", "StatefulSet", "statefulsets.apps"]);
}
