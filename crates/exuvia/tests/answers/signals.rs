//! What a command says when it is told to stop, and that logs are plain text in a pipe.

use std::process::{Command, Stdio};

use exuvia_testenv::ControlPlane;
use exuvia_testenv::proxy::{Match, Rule};
use http::Method;
use rustix::process::{Pid, Signal, kill_process};

use super::{admin, flipped, migrate, printed, text};

/// Starts a command, sends a signal as soon as `is_time` returns, and hands back how it exited and what it printed.
async fn stopped(
    mut command: Command,
    signal: Signal,
    is_time: impl Future<Output = ()>,
) -> (Option<i32>, String, String) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    is_time.await;
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = output.await.unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn a_migration_that_is_told_to_stop_says_what_was_done_and_how_to_go_on() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    for (group, signal, code, name) in [
        ("term.answers.io", Signal::TERM, 143, "SIGTERM"),
        ("int.answers.io", Signal::INT, 130, "SIGINT"),
    ] {
        let widgets = flipped(&client, group, 8).await;
        let proxy = control_plane.proxy().await.unwrap();
        // The third rewrite waits until the signal is on its way, and then some: it is finished anyway.
        let (reached, mut is_reached) = tokio::sync::mpsc::unbounded_channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
        let may_go_on = std::sync::Mutex::new(may_go_on);
        let rewrites = Match::method(Method::PATCH)
            .resource("widgets")
            .except(Match::any().query("dryRun=All"));
        let seen = std::sync::atomic::AtomicUsize::new(0);
        proxy.inject(Rule::on(rewrites).on_request(move |_| {
            if seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 2 {
                reached.send(()).unwrap();
                let _ = may_go_on.lock().unwrap().recv();
            }
        }));
        let kubeconfig = control_plane
            .admin()
            .clone()
            .at(proxy.url())
            .kubeconfig()
            .unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
        let (crd, server) = (widgets.crd_name(), control_plane.apiserver().url());
        command.args([
            "storage",
            "migrate",
            &crd,
            "--settle",
            "300ms",
            "--apiserver",
            server,
        ]);
        command
            .args(["--max-concurrency", "1"])
            .env("KUBECONFIG", kubeconfig);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        is_reached.recv().await.unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        let mut stderr = child.stderr.take().unwrap();
        // It says so before it is done.
        let stderr = tokio::task::spawn_blocking(move || {
            let (mut said, mut byte) = (Vec::new(), [0]);
            while !text(&said).contains("run the same command again") {
                assert_eq!(
                    std::io::Read::read(&mut stderr, &mut byte).unwrap(),
                    1,
                    "{}",
                    text(&said)
                );
                said.extend(byte);
            }
            (text(&said), stderr)
        });
        let (said, _stderr) = stderr.await.unwrap();
        assert!(
            said.contains(name) && said.contains("nothing else is begun"),
            "{said}"
        );
        go_on.send(()).unwrap();
        let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
        let output = output.await.unwrap();
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(
            said.contains("stopped, nothing was trimmed") && said.contains("3 rewritten"),
            "{said}"
        );

        let again = printed(&migrate(control_plane, &[&crd]).await);
        assert!(again.contains("5 rewritten, 3 already current"), "{again}");
    }
}

#[tokio::test]
async fn a_look_that_is_told_to_stop_says_that_nothing_was_written() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "look.answers.io", 1).await.crd_name();
    let droppable = vec!["storage", "droppable", crd.as_str(), "v1alpha1"];
    for (args, signal, code, sentence) in [
        (
            vec!["plan"],
            Signal::TERM,
            143,
            "stopped by SIGTERM; nothing was written\n",
        ),
        (
            vec!["plan"],
            Signal::INT,
            130,
            "interrupted; nothing was written\n",
        ),
        (
            droppable.clone(),
            Signal::TERM,
            143,
            "stopped by SIGTERM; nothing was written\n",
        ),
        (droppable, Signal::INT, 130, "interrupted; nothing was written\n"),
        (
            vec!["storage", "migrate", &crd],
            Signal::INT,
            130,
            "interrupted; nothing was written\n",
        ),
    ] {
        let proxy = control_plane.proxy().await.unwrap();
        let (reached, mut is_reached) = tokio::sync::mpsc::unbounded_channel();
        let lists = Match::method(Method::GET).resource("customresourcedefinitions");
        let (_never, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        proxy.inject(Rule::on(lists).times(1).on_request(move |_| {
            let _ = reached.send(());
            let _ = wait
                .lock()
                .unwrap()
                .recv_timeout(std::time::Duration::from_secs(5));
        }));
        let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
        command.args(&args);
        command.env(
            "KUBECONFIG",
            control_plane
                .admin()
                .clone()
                .at(proxy.url())
                .kubeconfig()
                .unwrap(),
        );
        let (ended, _, said) = stopped(command, signal, async {
            is_reached.recv().await.unwrap();
        })
        .await;
        assert_eq!((ended, said.as_str()), (Some(code), sentence), "{args:?}");
    }
}

#[tokio::test]
async fn what_is_logged_into_a_pipe_has_no_colours() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "plain.answers.io", 1).await.crd_name();
    for verbose in ["-v", "-vv"] {
        let output = migrate(control_plane, &[&crd, verbose]).await;
        let logged = text(&output.stderr);
        assert!(logged.contains("connecting"), "{logged}");
        assert!(!printed(&output).contains('\x1b'), "{logged:?}");
    }
}

/// Commands that only look log as well, and what they log has no bodies in it.
#[tokio::test]
async fn requests_of_a_look_are_logged() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    flipped(&client, "logged.answers.io", 1).await;
    let plan = ["plan", "--groups", "logged.answers.io"];
    let logged = text(&admin(control_plane, &[&plan[..], &["-v"]].concat()).await.stderr);
    assert!(
        logged.contains("listed CRDs") && logged.contains("widgets.logged.answers.io"),
        "{logged}"
    );
    assert!(!logged.contains("/apis/logged.answers.io"), "{logged}");
    let logged = text(&admin(control_plane, &[&plan[..], &["-vv"]].concat()).await.stderr);
    assert!(
        logged.contains("GET")
            && logged.contains("/apis/logged.answers.io/v1/widgets")
            && logged.contains("code=200"),
        "{logged}"
    );
}
