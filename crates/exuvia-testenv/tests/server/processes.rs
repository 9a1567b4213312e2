//! Processes: they start, pause, die and come back on command, and never outlive us.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use exuvia_testenv::{ControlPlane, Widgets};

#[tokio::test]
async fn version_tells_the_truth() {
    let control_plane = ControlPlane::shared().await;
    let version = control_plane.client().unwrap().apiserver_version().await.unwrap();
    let expected = exuvia_testenv::assets::Assets::from_env()
        .unwrap()
        .kube_version()
        .full();
    assert_eq!(version.git_version, format!("v{expected}"));
}

#[tokio::test]
async fn each_process_can_be_killed_stopped_paused_and_restarted() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("restart.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 2).await.unwrap();

    let server = control_plane.apiserver();
    let first_pid = server.process().pid().unwrap();
    server.process().kill().unwrap();
    assert!(!is_running(first_pid));
    assert_eq!(server.process().pid(), None);
    let error = server.process().pause().unwrap_err().to_string();
    assert_eq!(
        error,
        "kube-apiserver is not running: start it with restart() first"
    );
    client.apiserver_version().await.unwrap_err();

    control_plane
        .etcd()
        .process()
        .stop(Duration::from_secs(20))
        .unwrap();
    control_plane.etcd().process().restart().unwrap();
    server.process().restart().unwrap();
    server.ready().await.unwrap();
    assert_eq!(
        control_plane
            .stored("restart.example.com", "widgets")
            .all()
            .await
            .unwrap()
            .len(),
        2
    );

    server.process().pause().unwrap();
    let pid = server.process().pid().unwrap();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(
        state.rsplit(')').next().unwrap().trim().starts_with('T'),
        "stopped: {state}"
    );
    server.process().resume().unwrap();
    server.ready().await.unwrap();
}

#[tokio::test]
async fn dropping_it_ends_everything() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let (pids, directory) = describe(&control_plane);
    drop(control_plane);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
    assert!(!Path::new(&directory).exists());
}

/// No unsafe code, so no parent-death signal: a supervisor on a pipe does it.
#[tokio::test]
async fn kill_9_of_the_test_process_leaves_nothing_behind() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::hold_a_control_plane", "--nocapture"])
        .env(HOLD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let says = BufReader::new(child.stdout.take().unwrap());
    let line = says
        .lines()
        .map(Result::unwrap)
        .find_map(|l| l.split_once("holding ").map(|s| s.1.to_owned()));
    let line = line.expect("the child tells what it started");
    let mut words = line.split(' ');
    let directory = words.next().unwrap().to_owned();
    let pids: Vec<u32> = words.map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| is_running(*pid)));

    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    exuvia_testenv::until("etcd and kube-apiserver end", async || {
        pids.iter().all(|pid| !is_running(*pid))
    })
    .await;
    exuvia_testenv::until("their files are removed", async || {
        !Path::new(&directory).exists()
    })
    .await;
}

const HOLD: &str = "EXUVIA_TEST_HOLD";

/// The other half of the test above; on its own it has nothing to do.
#[tokio::test]
async fn hold_a_control_plane() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let (pids, directory) = describe(&control_plane);
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    println!("holding {directory} {}", pids.join(" "));
    std::future::pending::<()>().await;
}

fn describe(control_plane: &ControlPlane) -> (Vec<u32>, String) {
    let processes = [
        control_plane.etcd().process(),
        control_plane.apiserver().process(),
    ];
    let pids = processes.iter().map(|process| process.pid().unwrap()).collect();
    (pids, control_plane.directory().display().to_string())
}

/// A zombie does not count: the process that inherits it will reap it.
fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim()
            .starts_with('Z')
    })
}
