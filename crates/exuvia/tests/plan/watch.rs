//! `exuvia plan --watch`.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use exuvia_testenv::{ControlPlane, Widgets};
use rustix::process::{Pid, Signal, kill_process};

use crate::binary::flipped;
use crate::terminal::{AtTerminal, without_codes};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a line with all of these in it; gives all up to it.
fn lines_until(lines: &Receiver<String>, parts: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let line = lines
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("never a line with {parts:?}: {all:#?}"));
        all.push(line.clone());
        if parts.iter().all(|part| line.contains(part)) {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_only_what_changed_and_ctrl_c_ends_it_cleanly() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let [one, two] = ["one.watch.io", "two.watch.io"].map(Widgets::in_group);
    one.install(&client, "v1alpha1").await.unwrap();
    two.install(&client, "v1alpha1").await.unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
        .args(["plan", "--watch", "--interval", "200ms", "--groups", "watch.io"])
        .env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (tell, lines) = channel();
    let stdout = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.for_each(|line| drop(tell.send(line)));
    });
    let first = lines_until(&lines, &["widgets.two.watch.io"]);
    assert!(
        first.iter().any(|line| line.starts_with("widgets.one.watch.io")),
        "{first:#?}"
    );

    one.flip_storage(&client, "v1").await.unwrap();
    let then = lines_until(&lines, &["widgets.one.watch.io", "v1alpha1 may still be stored"]);
    assert!(
        !then.iter().any(|line| line.contains("widgets.two.watch.io")),
        "it did not change: {then:#?}"
    );
    assert!(
        !then.iter().any(|line| line.contains('\u{1b}')),
        "no escape codes in a pipe: {then:#?}"
    );

    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let remarked = String::from_utf8(output.stderr).unwrap();
    assert!(
        remarked.lines().all(|line| line.starts_with("note: ")),
        "{remarked}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_drawn_over() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("terminal.watch.org");
    widgets.install(&client, "v1alpha1").await.unwrap();
    let args = [
        "plan",
        "-w",
        "--interval",
        "200ms",
        "--groups",
        "terminal.watch.org",
    ];
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let terminal = AtTerminal::start(kubeconfig, 80, 24, &args);
    terminal
        .until("it is drawn", |raw| raw.contains("widgets.terminal.watch.org"))
        .await;
    widgets.flip_storage(&client, "v1").await.unwrap();
    let raw = terminal
        .until("the flip shows", |raw| {
            raw.contains("v1alpha1 may still be stored")
        })
        .await;
    assert_eq!(
        raw.matches("\u{1b}[2J").count(),
        1,
        "cleared once, drawn over since: {raw:?}"
    );
    let screens: Vec<&str> = raw.split("\u{1b}[H").skip(1).collect();
    assert!(screens.len() > 1, "{raw:?}");
    let last = without_codes(screens.last().unwrap());
    assert!(last.lines().all(|line| line.chars().count() <= 80), "{last}");
    kill_process(Pid::from_child(&terminal.child), Signal::INT).unwrap();
    let (code, raw) = terminal.end().await;
    assert_eq!(code, Some(0));
    assert!(raw.ends_with('\n'), "the prompt gets a line of its own: {raw:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_goes_away_meanwhile_is_told_of_and_waited_for() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    flipped(&control_plane.client().unwrap(), "down.watch.net", 1).await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
        .args([
            "plan",
            "--watch",
            "--interval",
            "200ms",
            "-o",
            "json",
            "--groups",
            "down.watch.net",
        ])
        .env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (tell, lines) = channel();
    let stdout = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.for_each(|line| drop(tell.send(line)));
    });
    lines_until(&lines, &["\"crd\": \"widgets.down.watch.net\""]);
    control_plane.apiserver().process().kill().unwrap();
    let failed = lines_until(&lines, &["\"error\": "]);
    assert!(!failed.iter().any(|line| line.contains("gone")), "{failed:#?}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "the last look failed");
}
