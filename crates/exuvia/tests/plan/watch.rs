//! `exuvia plan --watch`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use exuvia_testenv::{ControlPlane, Widgets, until_blocking};
use rustix::process::{Pid, Signal, kill_process};

use crate::binary::flipped;
use crate::terminal::{AtTerminal, without_codes};

const PATIENCE: Duration = exuvia_testenv::DEADLINE;

/// The binary that watches, and what it prints. It ends with the test.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(control_plane: &ControlPlane, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .args(["plan", "--watch", "--interval", "200ms"])
            .args(flags)
            .env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap())
            .env_remove("COLUMNS")
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
        Self { child, lines }
    }

    /// Waits for a line with all of these in it; gives all up to it.
    fn until(&self, parts: &[&str]) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut all = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("never a line with {parts:?}: {all:#?}");
            };
            all.push(line.clone());
            if parts.iter().all(|part| line.contains(part)) {
                return all;
            }
        }
    }

    /// Its exit code after this signal, and what it remarked.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let code = self.child.wait().unwrap().code();
        let mut remarked = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut remarked)
            .unwrap();
        (code, remarked)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended already, unless the test failed
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_gets_only_what_changed_and_ctrl_c_ends_it_cleanly() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let [still, moved] = ["a.watch.io", "b.watch.io"].map(Widgets::in_group);
    still.install(&client, "v1alpha1").await.unwrap();
    moved.install(&client, "v1alpha1").await.unwrap();
    let watching = Watching::start(control_plane, &["--groups", "watch.io"]);
    let first = watching.until(&["widgets.b.watch.io"]);
    assert!(
        first.iter().any(|line| line.starts_with("widgets.a.watch.io")),
        "{first:#?}"
    );

    moved.flip_storage(&client, "v1").await.unwrap();
    let then = watching.until(&["widgets.b.watch.io", "v1alpha1 may still be stored"]);
    assert!(
        !then.iter().any(|line| line.contains("widgets.a.watch.io")),
        "it did not change: {then:#?}"
    );
    assert!(
        !then.iter().any(|line| line.contains('\u{1b}')),
        "no escape codes in a pipe: {then:#?}"
    );

    let (code, remarked) = watching.end(Signal::INT);
    assert_eq!(code, Some(0), "{remarked}");
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
    let (code, raw) = terminal.end();
    assert_eq!(code, Some(0));
    assert!(raw.ends_with('\n'), "the prompt gets a new line: {raw:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_goes_away_meanwhile_is_told_of_and_waited_for() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    flipped(&control_plane.client().unwrap(), "down.watch.net", 1).await;
    let watching = Watching::start(&control_plane, &["-o", "json", "--groups", "down.watch.net"]);
    watching.until(&["\"crd\": \"widgets.down.watch.net\""]);
    control_plane.apiserver().process().kill().unwrap();
    let failed = watching.until(&["\"error\": "]);
    assert!(!failed.iter().any(|line| line.contains("gone")), "{failed:#?}");
    control_plane.apiserver().process().restart().unwrap();
    let back = watching.until(&["\"answers\": true"]);
    assert!(!back.iter().any(|line| line.contains("gone")), "{back:#?}");
    control_plane.apiserver().process().kill().unwrap();
    watching.until(&["\"error\": "]);
    assert_eq!(watching.end(Signal::TERM).0, Some(1), "the last look failed");
}

/// `exuvia plan --watch | head -1`: it does not wait for the next change to notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_nobody_reads_any_more_ends() {
    let control_plane = ControlPlane::shared().await;
    for reads in [0, 1] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .args([
                "plan",
                "--watch",
                "--interval",
                "1h",
                "--groups",
                "nobody.watch.net",
            ])
            .env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap())
            .stdout(writer)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        for line in BufReader::new(reader).lines().take(reads) {
            line.unwrap();
        }
        let status = until_blocking("it ends by itself", || child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0), "after {reads} lines");
    }
}
