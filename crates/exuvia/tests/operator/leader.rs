//! Who leads, and how it ends: a leader that is stopped and continued, one that is told to go, and who comes after.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex};

use exuvia_api::Phase;
use exuvia_testenv::proxy::{Match, Recorded, Rule};
use exuvia_testenv::{AuditEvent, ControlPlane, Widgets};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::harness::*;

/// Every change of some objects since it was asked for, one by one and in their order.
struct Changes<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone + Send + 'static> Changes<T> {
    async fn of<K>(api: Api<K>, what: impl Fn(&K) -> T + Send + 'static) -> Self
    where
        K: Clone + Debug + DeserializeOwned + Send + 'static,
    {
        // After a flip the server may have no storage for a moment.
        let events = until("a watch", async || {
            let list = api.list_metadata(&ListParams::default().limit(1)).await.ok()?;
            let from = list.metadata.resource_version?;
            api.watch(&WatchParams::default(), &from).await.ok()
        });
        let mut events = events.await.boxed();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                match event.unwrap() {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        told.lock().unwrap().push(what(&object));
                    }
                    WatchEvent::Deleted(_) | WatchEvent::Bookmark(_) => {}
                    WatchEvent::Error(error) => panic!("the test's own watch: {error}"),
                }
            }
        });
        Self(seen)
    }

    fn so_far(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }
}

impl Changes<String> {
    /// The names of widgets as they are written.
    async fn of_widgets(client: &Client, widgets: &Widgets) -> Self {
        Self::of(widgets.api(client, "v1"), ResourceExt::name_any).await
    }

    /// Each of so many was written, and none twice.
    async fn assert_each_once(&self, count: usize) {
        until("the watch has seen all", async || {
            (self.so_far().len() >= count).then_some(())
        })
        .await;
        let mut times = BTreeMap::<String, u32>::new();
        for name in self.so_far() {
            *times.entry(name).or_default() += 1;
        }
        assert_eq!(times.len(), count);
        times.retain(|_, times| *times > 1);
        assert!(times.is_empty(), "written more than once: {times:?}");
    }
}

/// The pod that holds a Lease, or nothing.
fn holder(lease: &Lease) -> String {
    let identity = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_deref());
    let identity = identity.unwrap_or_default();
    identity.split('_').next().unwrap_or_default().to_owned()
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "default")
}

/// Of these two pods the one that leads, once one does, and the other.
async fn who_leads(client: &Client, pods: [&'static str; 2]) -> (&'static str, &'static str) {
    until("somebody leads", async || {
        let lease = leases(client).get_opt("exuvia").await.ok()??;
        let led_by = holder(&lease);
        let [a, b] = pods;
        [(a, b), (b, a)].into_iter().find(|(leader, _)| *leader == led_by)
    })
    .await
}

/// An operator with a separate user, so that the audit log tells it from others.
pub(crate) fn replica(control_plane: &ControlPlane, name: &str, args: &[&str]) -> Operator {
    let access = control_plane.user(name, &["system:masters"]).unwrap();
    Operator::start(control_plane, &access, name, args)
}

/// Waits for so many more requests of a user's, the answered ones, about this resource; dry-runs do not count.
async fn asks(
    control_plane: &ControlPlane,
    user: &str,
    about: &str,
    is_meant: fn(&AuditEvent) -> bool,
    count: usize,
) {
    let so_far = || {
        let mut events = control_plane.audit().of(user).unwrap();
        events.retain(|event| {
            event.resource() == about && !event.request_uri.contains("dryRun=All") && is_meant(event)
        });
        events.len()
    };
    let before = so_far();
    until(&format!("{user} asks for {about} {count} times"), async || {
        (so_far() >= before + count).then_some(())
    })
    .await;
}

/// Writes that came from somebody who did not hold the Lease, by the last renewal before them, whatever the answer.
fn writes_out_of_term(control_plane: &ControlPlane, users: [&str; 2]) -> Vec<AuditEvent> {
    let mut events = control_plane.audit().events().unwrap();
    events.retain(|event| event.is_write() && users.contains(&event.user.username.as_str()));
    // By arrival, and not by answer: that a request took long is not its sender's fault.
    events.sort_by(|a, b| a.request_received_timestamp.cmp(&b.request_received_timestamp));
    let mut last_renewal = None;
    let mut stray = Vec::new();
    for event in events {
        let by = |renewal: &AuditEvent| renewal.user.username == event.user.username;
        if event.resource() == "leases" {
            last_renewal = Some(event).filter(|event| event.code() < 300).or(last_renewal);
        } else if !last_renewal.as_ref().is_some_and(by) {
            stray.push(event);
        }
    }
    stray
}

/// An event in a few words.
pub(crate) fn told(event: &AuditEvent) -> String {
    let (at, user) = (&event.request_received_timestamp, &event.user.username);
    format!(
        "{at} {user} {} {} {}",
        event.verb,
        event.request_uri,
        event.code()
    )
}

/// Requests that wait at the proxy until they are let go.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<(Mutex<bool>, Condvar)>);

impl Held {
    pub(crate) fn hold(&self) -> impl Fn(&Recorded) + Send + Sync + use<> {
        let held = self.clone();
        move |_| {
            let (free, freed) = &*held.0;
            drop(freed.wait_while(free.lock().unwrap(), |free| !*free).unwrap());
        }
    }

    pub(crate) fn let_go(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Tells an operator to go, and nothing more: its exit code and the end of its log can be awaited.
pub(crate) fn terminate(operator: &Operator) {
    let pid = i32::try_from(operator.process.pid().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
}

/// Lines in which an operator complains.
pub(crate) fn complaints(operator: &Operator) -> Vec<String> {
    let complains =
        |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ") || line.contains("panicked");
    operator
        .log()
        .lines()
        .filter(complains)
        .map(str::to_owned)
        .collect()
}

#[tokio::test]
async fn a_leader_that_was_stopped_and_continued_does_no_harm_in_its_successors_term() {
    const OBJECTS: usize = 1_500;
    const PAUSES: usize = 4;
    const CONCURRENCY: usize = 8;
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "paused.example.com", OBJECTS, true).await;
    let written = Changes::of_widgets(&client, &widgets).await;
    let holders = Changes::of(leases(&client), holder).await;
    // So fast that a pause may well meet a request between the gate and the socket (decision 003).
    let concurrency = format!("--max-concurrency={CONCURRENCY}");
    let args = ["--lease-duration=2s", "--qps=300", &concurrency];
    let pods = ["a", "b"];
    let operators = BTreeMap::from(pods.map(|pod| (pod, replica(&control_plane, pod, &args))));
    for operator in operators.values() {
        operator.ready().await;
    }
    for _ in 0..PAUSES {
        let (leader, follower) = who_leads(&client, pods).await;
        // Wherever in the midst of its work that may be.
        asks(&control_plane, leader, "widgets", AuditEvent::is_write, 20).await;
        operators[leader].process.pause().unwrap();
        asks(&control_plane, follower, "widgets", AuditEvent::is_write, 1).await;
        operators[leader].process.resume().unwrap();
    }
    for pod in pods {
        // By then each has found out, and whatever it had in hand is sent or dropped.
        asks(&control_plane, pod, "leases", |_| true, 3).await;
    }
    // The rest need not last.
    change_spec(&client, &widgets.crd_name(), json!({"qps": 10_000})).await;
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    // What was past the gate and not yet in the socket is sent late: no more than was in hand. Of a widget's patch, which is
    // empty or locked, nothing comes: none is written twice. Anything else the server has refused.
    let stray = writes_out_of_term(&control_plane, ["a", "b"]);
    let (of_widgets, others): (Vec<_>, Vec<_>) =
        stray.iter().partition(|event| event.resource() == "widgets");
    assert!(of_widgets.len() <= PAUSES * CONCURRENCY, "{of_widgets:#?}");
    let others = others.into_iter().filter(|event| event.code() < 300);
    let carried_out: Vec<String> = others.map(told).collect();
    assert!(carried_out.is_empty(), "{carried_out:#?}");
    written.assert_each_once(OBJECTS).await;
    assert_eq!(
        stored_at(&control_plane, &widgets).await,
        [("v1".to_owned(), OBJECTS)].into()
    );

    // Only the leader shows what the migrations are in: an alert on a former leader's gauge would never end.
    let (leader, follower) = who_leads(&client, pods).await;
    let shown = async |pod| {
        let metrics = operators[pod].get("/metrics").await.1;
        metrics
            .lines()
            .filter(|line| line.starts_with("exuvia_storage_phase{"))
            .count()
    };
    assert!(shown(leader).await > 0);
    assert_eq!(shown(follower).await, 0);

    // Told to go, it gives the Lease back; and the one that was stopped has been watching all the while.
    operators[leader]
        .process
        .stop(std::time::Duration::from_secs(30))
        .unwrap();
    let terms = until("the other one leads", async || {
        let mut terms = holders.so_far();
        terms.dedup();
        terms.last().is_some_and(|last| last == follower).then_some(terms)
    })
    .await;
    assert!(
        terms.ends_with(&[leader.into(), String::new(), follower.into()]),
        "{terms:?}"
    );
    assert!(
        terms.len() >= PAUSES + 3,
        "as many successors as pauses: {terms:?}"
    );
    let next = flipped(&client, "next.example.com", 5, true).await;
    in_phase(&client, &next.crd_name(), Phase::Migrated).await;
}

#[tokio::test]
async fn an_operator_told_to_go_in_the_midst_of_a_sweep_finishes_what_is_in_work_and_the_next_one_goes_on() {
    const OBJECTS: usize = 60;
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "drained.example.com", OBJECTS, true).await;
    let written = Changes::of_widgets(&client, &widgets).await;
    let proxy = control_plane.proxy().await.unwrap();
    let held = Held::default();
    let patches = Match::method(http::Method::PATCH).resource("widgets");
    let holding = proxy.inject(Rule::on(patches).nth(20).always().on_request(held.hold()));
    let access = control_plane.admin().clone().at(proxy.url());
    let first = Operator::start(&control_plane, &access, "first", &["--lease-duration=10s"]);
    until("a rewrite is under way", async || {
        (holding.applied() > 0).then_some(())
    })
    .await;
    let r0 = in_phase(&client, &widgets.crd_name(), Phase::Rewriting)
        .await
        .settled_resource_version;
    assert!(r0.is_some());

    terminate(&first);
    first.logs("operator stops").await;
    let (code, text) = first.get("/readyz").await;
    assert!(code == 503 && text.contains("draining"), "{code} {text}");
    held.let_go();
    let code = until("the operator ends", async || first.process.exit_code()).await;
    assert_eq!((code, complaints(&first)), (0, Vec::new()), "{}", first.log());
    first.logs("operator has stopped").await;
    let asked: Vec<Recorded> = proxy.writes();
    let asked: Vec<&Recorded> = asked
        .iter()
        .filter(|request| request.path.contains("/widgets/"))
        .collect();
    assert!(asked.len() < OBJECTS, "the sweep was cut off: {}", asked.len());
    let unanswered: Vec<_> = asked
        .iter()
        .filter(|request| request.answer != Some(200))
        .collect();
    assert!(unanswered.is_empty(), "{unanswered:#?}");
    assert_eq!(holder(&leases(&client).get("exuvia").await.unwrap()), "");

    let second = Operator::start(
        &control_plane,
        control_plane.admin(),
        "second",
        &["--lease-duration=10s"],
    );
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(status.settled_resource_version, r0);
    written.assert_each_once(OBJECTS).await;
    assert_eq!(complaints(&second), Vec::<String>::new());
}
