//! What the command calls proven, as a user runs it against a real control plane.

#![allow(clippy::disallowed_methods)] // tests set up their world
#![allow(clippy::unwrap_used)] // a test may panic

mod binary;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Output;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use exuvia_testenv::proxy::{Match, Rule};
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::binary::{exuvia, json_of, printed as said};

async fn admin(args: &[&str]) -> Output {
    binary::admin(ControlPlane::shared().await, args).await
}

async fn migrate(args: &[&str]) -> Output {
    binary::migrate(ControlPlane::shared().await, args).await
}

async fn flipped(group: &str, count: usize) -> Widgets {
    let client = ControlPlane::shared().await.client().unwrap();
    binary::flipped(&client, group, count).await
}

/// How many objects etcd holds at each version.
async fn stored(widgets: &Widgets) -> BTreeMap<String, usize> {
    widgets.stored_at(ControlPlane::shared().await).await.unwrap()
}

/// PITFALLS A27, A35: a Job moves with the first write after its creation, on a healthy server. Some are created after the
/// rewrite has listed its objects, so that the verification is the first to write them.
#[tokio::test]
async fn fresh_jobs_are_not_taken_for_a_server_that_is_behind() {
    let control_plane = ControlPlane::shared().await;
    let jobs: Api<Job> = Api::namespaced(control_plane.client().unwrap(), "default");
    let create = async |jobs: Api<Job>, name: String| {
        let job = json!({
            "metadata": {"name": name},
            "spec": {"template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "c", "image": "example.com/none"}],
            }}},
        });
        let job = serde_json::from_value(job).unwrap();
        jobs.create(&PostParams::default(), &job).await.map(drop)
    };
    for index in 0..5 {
        create(jobs.clone(), format!("early-{index}")).await.unwrap();
    }
    let proxy = control_plane.proxy().await.unwrap();
    let (runtime, all) = (tokio::runtime::Handle::current(), jobs.clone());
    let meant = Match::method(http::Method::PATCH)
        .resource("jobs")
        .except(Match::any().query("dryRun=All"));
    let late = proxy.inject(Rule::on(meant).times(3).on_request(move |request| {
        let (done, created) = std::sync::mpsc::channel();
        let (jobs, name) = (all.clone(), format!("late-{}", request.id));
        runtime.spawn(async move { done.send(create(jobs, name).await) });
        created.recv().unwrap().unwrap();
    }));
    let kubeconfig = control_plane
        .admin()
        .clone()
        .at(proxy.url())
        .kubeconfig()
        .unwrap();
    let server = control_plane.apiserver().url();
    let args = [
        "storage",
        "migrate",
        "jobs.batch",
        "--settle",
        "300ms",
        "--apiserver",
        server,
    ];
    let migrated = exuvia(kubeconfig, &args).await;
    let said = said(&migrated);
    assert_eq!(late.applied(), 3, "{said}");
    assert_eq!(migrated.status.code(), Some(0), "{said}");
    for accusation in ["behind", "stalled", "keeps storing", "another configuration"] {
        assert!(!said.contains(accusation), "{said}");
    }
}

/// PITFALLS A39: followed, "clean" and "yes" would destroy the objects.
#[tokio::test]
async fn stored_versions_that_somebody_else_trimmed_are_not_believed() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = flipped("believed.example.com", 20).await;
    let crd = widgets.crd_name();
    widgets.set_stored_versions(&client, &["v1"]).await.unwrap();
    assert_eq!(stored(&widgets).await, [("v1alpha1".to_owned(), 20)].into());

    let plan = admin(&["plan", "--groups", widgets.group()]).await;
    assert!(said(&plan).contains("no sweep has proven it"), "{}", said(&plan));
    let verdict = json_of(&admin(&["plan", "--groups", widgets.group(), "-o", "json"]).await);
    let verdict = verdict[0]["verdict"].as_str().unwrap().to_owned();
    assert!(verdict.contains("no sweep has proven it"), "{verdict}");
    let droppable = admin(&["storage", "droppable", &crd, "v1alpha1"]).await;
    // Entries at v1alpha1 hold it in any case; beside that, nothing is known about the bytes.
    assert_eq!(droppable.status.code(), Some(1), "{}", said(&droppable));
    let known = said(&droppable);
    assert!(
        known.contains("bytes: not known") && known.contains("--prove"),
        "{known}"
    );

    let migrated = migrate(&[&crd, "--verify", "full"]).await;
    assert_eq!(migrated.status.code(), Some(0), "{}", said(&migrated));
    assert_eq!(
        stored(&widgets).await,
        [("v1".to_owned(), 20)].into(),
        "a name and --verify full always sweep: {}",
        said(&migrated)
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_and_can_be_ignored() {
    let widgets = flipped("unreachable.example.com", 3).await;
    let crd = widgets.crd_name();
    let dead = "https://127.0.0.1:1";
    let held = migrate(&[&crd, "--apiserver", dead]).await;
    let text = said(&held);
    assert_eq!(held.status.code(), Some(1), "{text}");
    assert!(
        text.contains("127.0.0.1:1") && text.contains("--ignore-apiserver"),
        "{text}"
    );
    assert_eq!(stored(&widgets).await.get("v1alpha1"), Some(&3), "{text}");

    let ignored = [
        &crd,
        "--apiserver",
        dead,
        "--ignore-apiserver",
        dead,
        "-o",
        "json",
    ];
    let migrated = migrate(&ignored).await;
    assert_eq!(migrated.status.code(), Some(0), "{}", said(&migrated));
    assert_eq!(json_of(&migrated)[0]["verified"], "full");
    assert_eq!(stored(&widgets).await, [("v1".to_owned(), 3)].into());
}

/// Holds up rewrites until those of several groups are there at one moment.
#[derive(Default)]
struct Together {
    state: Mutex<(BTreeSet<String>, Option<usize>)>,
    changed: Condvar,
}

impl Together {
    /// Waits until so many groups are here, or for half a minute: one after the other they never are. Then all may pass.
    fn wait(&self, group: &str, enough: usize) {
        let mut state = self.state.lock().unwrap();
        state.0.insert(group.to_owned());
        let shut =
            |(groups, open): &mut (BTreeSet<String>, Option<usize>)| open.is_none() && groups.len() < enough;
        self.changed.notify_all();
        let limit = Duration::from_secs(30);
        let (mut state, _) = self.changed.wait_timeout_while(state, limit, shut).unwrap();
        if state.1.is_none() {
            state.1 = Some(state.0.len());
            self.changed.notify_all();
        }
    }

    /// How many groups were there when the first rewrite passed.
    fn most(&self) -> Option<usize> {
        self.state.lock().unwrap().1
    }
}

/// They settle together and are rewritten four at a time: the first rewrites of four CRDs are in flight at one moment.
#[tokio::test]
async fn crds_of_one_run_are_migrated_several_at_a_time() {
    let control_plane = ControlPlane::shared().await;
    let mut all = Vec::new();
    for index in 0..6 {
        all.push(flipped(&format!("g{index}.together.io"), 3).await);
    }
    let proxy = control_plane.proxy().await.unwrap();
    let together = Arc::new(Together::default());
    let gate = Arc::clone(&together);
    let rewrites = Match::method(http::Method::PATCH)
        .resource("widgets")
        .except(Match::any().query("dryRun=All"));
    proxy.inject(Rule::on(rewrites).on_request(move |request| {
        gate.wait(request.object().unwrap().group, 4);
    }));
    let kubeconfig = control_plane
        .admin()
        .clone()
        .at(proxy.url())
        .kubeconfig()
        .unwrap();
    let server = control_plane.apiserver().url();
    let args = [
        "storage",
        "migrate",
        "--all",
        "--groups",
        "together.io",
        "--settle",
        "1s",
        "--apiserver",
        server,
    ];
    let migrated = exuvia(kubeconfig, &args).await;
    assert_eq!(migrated.status.code(), Some(0), "{}", said(&migrated));
    assert_eq!(
        together.most(),
        Some(4),
        "CRDs were in work when the first rewrite passed"
    );
    for widgets in &all {
        assert_eq!(stored(widgets).await, [("v1".to_owned(), 3)].into());
    }
}
