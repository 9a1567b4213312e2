//! What a user hands over may hold secrets: kubeconfigs, credential plugins, URLs, answers of any server. It is never
//! printed, however wrong it is and however much is logged.

#![allow(clippy::unwrap_used)] // a test may panic

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use exuvia_testenv::until_blocking;
use serde_json::{Value, json};

/// Planted wherever a secret may stand.
const CANARY: &str = "canary-c0ffee";

fn exuvia(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command.args(args).env_remove("KUBECONFIG");
    command
}

/// Everything that it printed, which holds no canary.
fn printed(what: &str, output: &Output) -> String {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains(&CANARY[..9]), "{what} shows it: {text}");
    text
}

/// What is said of a kubeconfig, by every way in which one is found. All say the same of it, one way or the other.
fn said_of(kubeconfig: &str) -> String {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(".kube/config");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, kubeconfig).unwrap();
    let given = path.to_str().unwrap();
    let mut by_variable = exuvia(&["-vv", "plan"]);
    by_variable.env("KUBECONFIG", format!("{given}:{given}"));
    let mut by_home = exuvia(&["plan"]);
    by_home.env("HOME", home.path());
    let mut by_context = exuvia(&["plan", "--context", "nope"]);
    by_context.env("HOME", home.path());
    for mut command in [
        exuvia(&["-vv", "plan", "--kubeconfig", given]),
        exuvia(&["storage", "droppable", "a.b.c", "v1", "--kubeconfig", given]),
        by_variable,
        by_home,
        by_context,
    ] {
        let output = command.output().unwrap();
        let said = printed(&format!("{command:?}"), &output);
        assert!(!output.status.success(), "{said}");
        assert_eq!(
            said.lines().filter(|line| line.starts_with("error: ")).count(),
            1,
            "{said}"
        );
    }
    operator(given, &home.path().join("log"));
    let first = exuvia(&["plan", "--kubeconfig", given]).output().unwrap();
    let first = printed("plan", &first);
    assert_eq!(first.lines().count(), 1, "{first}");
    first
}

/// The operator goes on trying where nobody answers; it has said what there is to say once it warns.
fn operator(kubeconfig: &str, log: &Path) {
    let file = std::fs::File::create(log).unwrap();
    let args = [
        "operator",
        "--kubeconfig",
        kubeconfig,
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "trace",
    ];
    let mut command = exuvia(&args);
    let mut child = command
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let said = || std::fs::read_to_string(log).unwrap();
    until_blocking("it ends or warns", || {
        child.try_wait().unwrap().is_some() || said().contains("WARN")
    });
    let _ = child.kill();
    child.wait().unwrap();
    assert!(
        !said().is_empty() && !said().contains(&CANARY[..9]),
        "the operator shows it: {}",
        said()
    );
}

/// The token stands in the line before the mistake, in the mistake, and after it.
#[test]
fn a_kubeconfig_that_does_not_parse_is_not_quoted() {
    let users = format!("users:\n- name: me\n  user:\n    token: {CANARY}\n    password: \"{CANARY}\"\n");
    let head = "apiVersion: v1\nkind: Config\ncurrent-context: here\n";
    for (name, text, parts) in [
        (
            "a colon too many",
            format!("{head}{users}    token: x: {CANARY}\n"),
            &["line 9"][..],
        ),
        (
            "a quote that is not closed",
            format!("{head}{users}    x: \"{CANARY}\n"),
            &["line"],
        ),
        ("a tab", format!("{head}{users}\t{CANARY}: x\n"), &["line"]),
        (
            "text where a list belongs",
            format!("{head}users: {CANARY}\n"),
            &["line 4", "expected a list"],
        ),
        (
            "text where a mapping belongs",
            format!("{head}users:\n- name: me\n  user: {CANARY}\n"),
            &["line", "expected"],
        ),
        (
            "a list where text belongs",
            format!("{head}users:\n- name: [{CANARY}]\n"),
            &["line", "expected"],
        ),
        (
            "a name that is missing",
            format!("{head}users:\n- user: {{token: {CANARY}}}\n"),
            &["name"],
        ),
        (
            "an alias to nothing",
            format!("{head}users: *{CANARY}\n"),
            &["line"],
        ),
        ("a tag", format!("{head}users: !{CANARY} x\n"), &["line"]),
        (
            "a key twice",
            format!("{head}{users}    token: {CANARY}\n"),
            &["line"],
        ),
        (
            "JSON that ends early",
            format!(r#"{{"users": [{{"name": "me", "user": {{"token": "{CANARY}""#),
            &["line"],
        ),
        ("no text at all", format!("{head}\u{0}{CANARY}"), &[]),
        (
            "two documents",
            format!("{head}---\n{users}---\n{CANARY}\n"),
            &["line"],
        ),
        ("just a token", CANARY.to_owned(), &["expected a mapping"]),
    ] {
        let said = said_of(&text);
        assert!(said.starts_with("error: invalid --kubeconfig"), "{name}: {said}");
        for part in parts {
            assert!(said.contains(part), "{name}: {part:?} is not in {said}");
        }
    }
}

/// A kubeconfig that parses.
#[allow(clippy::needless_pass_by_value)] // literals, all of them
fn kubeconfig(server: &str, cluster: Value, user: Value) -> String {
    let mut cluster = cluster;
    cluster["server"] = server.into();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "one", "user": "me"}}],
    })
    .to_string()
}

#[test]
fn credentials_that_cannot_be_used_are_not_quoted() {
    let server = "https://127.0.0.1:1";
    for (user, part) in [
        (
            json!({"client-certificate-data": CANARY, "client-key-data": CANARY}),
            "client-certificate",
        ),
        (
            json!({"client-certificate-data": "YQ==", "client-key-data": CANARY}),
            "client-key",
        ),
        (json!({"token": format!("{CANARY}\n{CANARY}")}), "cannot be sent"),
        (json!({"username": "me", "password": CANARY}), "cannot be reached"),
        (json!({"token": CANARY}), "cannot be reached"),
        (
            json!({"auth-provider": {"name": CANARY, "config": {"access-token": CANARY}}}),
            "ExecCredential",
        ),
    ] {
        let said = said_of(&kubeconfig(server, json!({}), user));
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn passwords_in_urls_are_not_quoted() {
    let with_password = |host: &str| format!("https://me:{CANARY}@{host}");
    for (server, cluster, part) in [
        (with_password("127.0.0.1:1"), json!({}), "127.0.0.1:1"),
        (with_password("127.0.0.1:no"), json!({}), "127.0.0.1:no"),
        (with_password("a b"), json!({}), "not a valid URL"),
        (
            "https://127.0.0.1:1".to_owned(),
            json!({"proxy-url": with_password("proxy.example.com")}),
            "proxy",
        ),
        (
            "https://127.0.0.1:1".to_owned(),
            json!({"proxy-url": with_password("a b")}),
            "proxy-url of the kubeconfig's cluster is not a valid URL",
        ),
    ] {
        let said = said_of(&kubeconfig(&server, cluster, json!({})));
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let url = with_password("127.0.0.1:1");
    for args in [
        vec!["storage", "migrate", "--all", "--apiserver", &url],
        vec!["storage", "migrate", "--all", "--ignore-apiserver", &url],
        vec!["operator", "--apiserver", &url],
        vec!["storage", "audit", "--etcd-endpoint", &url],
    ] {
        let output = exuvia(&args).output().unwrap();
        let said = printed(&format!("{args:?}"), &output);
        assert!(!output.status.success() && said.contains("127.0.0.1:1"), "{said}");
    }
    let by_variable = exuvia(&["operator"])
        .env("EXUVIA_APISERVERS", &url)
        .output()
        .unwrap();
    assert!(printed("the variable", &by_variable).contains("127.0.0.1:1"));
}

/// The arguments, the environment and the output of a credential plugin are all of its business.
#[test]
fn a_credential_plugin_that_fails_is_not_quoted() {
    let directory = tempfile::tempdir().unwrap();
    let plugin = |name: &str, script: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let answer = |token: &str| {
        let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                                "status": {"token": token}});
        format!("echo '{credential}'")
    };
    let failing = format!("echo {CANARY}; echo {CANARY} >&2; exit 3");
    for (command, part) in [
        (plugin("fails", &failing), "failed (exit status: 3)"),
        (
            plugin("babbles", &format!("echo 'token: [{CANARY}'")),
            "ExecCredential",
        ),
        (
            plugin("nothing", "echo '{\"kind\": \"ExecCredential\"}'"),
            "ExecCredential",
        ),
        (plugin("expired", &answer("{").replace('}', "")), "ExecCredential"),
        (format!("/nonexistent/{}", &CANARY[..4]), "cannot be started"),
        (plugin("fine", &answer(CANARY)), "cannot be reached"),
    ] {
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": command,
            "args": ["--password", CANARY], "env": [{"name": "TOKEN", "value": CANARY}],
        });
        let said = said_of(&kubeconfig(
            "https://127.0.0.1:1",
            json!({}),
            json!({"exec": exec}),
        ));
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

/// A server that repeats what it was sent, as debugging servers and some proxies do.
#[test]
fn what_a_foreign_server_answers_is_not_quoted() {
    for status in ["200 OK", "401 Unauthorized", "404 Not Found", "502 Bad Gateway"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let head = format!("HTTP/1.1 {status}");
        std::thread::spawn(move || echo_all(&listener, &head));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let user = json!({"token": CANARY});
        std::fs::write(&path, kubeconfig(&url, json!({}), user)).unwrap();
        let plan = exuvia(&["-vv", "plan", "--kubeconfig", path.to_str().unwrap()]);
        refused(plan, status);
        let prefix = format!("/{CANARY}");
        let args = [
            "-vv",
            "storage",
            "audit",
            "--etcd-endpoint",
            &url,
            "--etcd-prefix",
            &prefix,
        ];
        refused(exuvia(&args), status);
    }
}

fn refused(mut command: Command, status: &str) {
    let output = command.output().unwrap();
    let said = printed(&format!("{status}: {command:?}"), &output);
    assert_eq!(output.status.code(), Some(2), "{said}");
}

/// Answers everything with its own head, until the test ends.
fn echo_all(listener: &TcpListener, head: &str) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let request = BufReader::new(stream.try_clone().unwrap());
        let lines = request
            .lines()
            .map_while(Result::ok)
            .take_while(|line| !line.is_empty());
        let body = lines.collect::<Vec<_>>().join(" ") + " " + CANARY;
        let head = format!(
            "{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all((head + &body).as_bytes());
    }
}

#[test]
fn certificates_that_are_none_are_not_quoted() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
        directory.path().join(name)
    };
    let key = format!("-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n");
    let broken = file("broken.pem", &key);
    let text = file("text.pem", CANARY);
    let show = |path: &Path| path.to_str().unwrap().to_owned();
    for (cacert, cert, key) in [
        (&text, &text, &text),
        (&broken, &broken, &broken),
        (&text, &broken, &broken),
    ] {
        let (cacert, cert, key) = (show(cacert), show(cert), show(key));
        let args = [
            "-vv",
            "storage",
            "audit",
            "--etcd-endpoint",
            "https://127.0.0.1:1",
            "--cacert",
            &cacert,
            "--cert",
            &cert,
            "--key",
            &key,
        ];
        let output = exuvia(&args).output().unwrap();
        let said = printed("audit", &output);
        assert!(!output.status.success() && said.contains(".pem"), "{said}");
    }
}

#[test]
fn manifests_that_do_not_parse_are_not_quoted() {
    let crd =
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.b.c}\n";
    let directory = tempfile::tempdir().unwrap();
    for (index, broken) in [
        format!("stringData: {{token: \"{CANARY}\n"),
        format!("token: x: {CANARY}\n"),
        format!("\t{CANARY}: x\n"),
        format!("token: *{CANARY}\n"),
        format!("token: !<{CANARY} x\n"),
        format!("- {CANARY}\n"),
    ]
    .iter()
    .enumerate()
    {
        let path = directory.path().join(format!("{index}.yaml"));
        std::fs::write(&path, format!("{crd}{broken}---\nkind: Secret\n{broken}")).unwrap();
        for format in ["table", "json", "yaml"] {
            let path = path.to_str().unwrap();
            let output = exuvia(&["-vv", "storage", "lint", path, "-o", format])
                .output()
                .unwrap();
            let said = printed(broken, &output);
            assert!(
                !output.status.success() && said.contains("not valid YAML"),
                "{said}"
            );
        }
    }
}
