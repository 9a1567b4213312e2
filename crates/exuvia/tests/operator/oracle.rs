//! Stops a pass half-way, and judges it afterwards by etcd's history, with no code of the thing under test.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) use exuvia_testenv::oracle::assert_every_trim_was_right;
use exuvia_testenv::proxy::{Match, Proxy, Recorded, Rule};
use exuvia_testenv::{ControlPlane, Widgets, until};
use http::Method;

use crate::harness::{Operator, stored_at};

/// Starts the operator behind the proxy, four objects at a time. Its lease outlasts a moment in which the machine is busy.
pub(crate) fn start_behind(proxy: &Proxy, control_plane: &ControlPlane, args: &[&str]) -> Operator {
    let access = control_plane.admin().clone().at(proxy.url());
    let args = [&["--max-concurrency=4", "--lease-duration=3s"], args].concat();
    Operator::start(control_plane, &access, "a", &args)
}

/// How long a request is held up at most: of a test that failed nobody opens the gate any more.
const HELD: Duration = Duration::from_secs(60);

/// All objects are stored at this version, it is the only one that `storedVersions` lists, and every trim was right.
pub(crate) async fn assert_all_at(
    control_plane: &ControlPlane,
    widgets: &Widgets,
    version: &str,
    count: usize,
) {
    let stored = stored_at(control_plane, widgets).await;
    assert_eq!(stored, [(version.to_owned(), count)].into());
    let values = assert_every_trim_was_right(control_plane, widgets).await;
    assert_eq!(values.last().unwrap(), &[version]);
}

/// Every object was made, and then written so often.
pub(crate) async fn assert_each_written(control_plane: &ControlPlane, widgets: &Widgets, times: i64) {
    let all = control_plane
        .stored(widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    let others = all.iter().filter(|stored| stored.version != 1 + times);
    let others: Vec<(&str, i64)> = others.map(|stored| (stored.name(), stored.version - 1)).collect();
    assert!(others.is_empty(), "not written {times} times: {others:?}");
}

/// Whether it is a write of a widget of this group that is meant to be stored.
pub(crate) fn is_rewrite(request: &Recorded, widgets: &Widgets) -> bool {
    let ours = |object: exuvia_testenv::proxy::ObjectPath<'_>| {
        (object.group, object.resource) == (widgets.group(), "widgets")
    };
    request.method == Method::PATCH
        && request.object().is_some_and(ours)
        && !request.query.contains("dryRun=All")
}

/// How many requests were meant to rewrite an object, by object.
pub(crate) fn rewrites(proxy: &Proxy, widgets: &Widgets) -> std::collections::BTreeMap<String, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for request in proxy
        .writes()
        .iter()
        .filter(|request| is_rewrite(request, widgets))
    {
        let name = request.object().unwrap().name.to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// No object that was rewritten was asked for again before the verification, whose patches hold a resourceVersion: every
/// widget here has an owner at the old version, so that the first patch of each holds managedFields.
pub(crate) fn assert_none_asked_twice(proxy: &Proxy, widgets: &Widgets) {
    let writes = proxy
        .writes()
        .into_iter()
        .filter(|request| is_rewrite(request, widgets));
    let again: Vec<String> = writes
        .filter(|request| request.body == b"{}".as_slice())
        .map(|request| request.path)
        .collect();
    assert!(again.is_empty(), "{again:?}");
}

/// Whether it is about a Lease.
pub(crate) fn is_lease(request: &Recorded) -> bool {
    request.object().is_some_and(|object| object.resource == "leases")
}

/// A fault on the writes of widgets, but not on dry-runs.
pub(crate) fn on_rewrites() -> Match {
    Match::method(Method::PATCH)
        .resource("widgets")
        .except(Match::any().query("dryRun=All"))
}

/// Holds up a group's rewrites once so many were stored.
pub(crate) struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    stored: usize,
    waiting: usize,
    /// How many are let through; `None`: all.
    limit: Option<usize>,
}

impl Gate {
    /// A gate in front of the server that lets `limit` rewrites through.
    pub(crate) fn after(limit: usize, proxy: &Proxy, widgets: &Widgets) -> Arc<Self> {
        let gate = Arc::new(Self {
            state: Mutex::new(GateState {
                limit: Some(limit),
                ..GateState::default()
            }),
            changed: Condvar::new(),
        });
        let (coming, passed) = (Arc::clone(&gate), Arc::clone(&gate));
        let (ours, ours_too) = (widgets.clone(), widgets.clone());
        proxy.inject(
            Rule::on(on_rewrites())
                .on_request(move |request| {
                    if is_rewrite(request, &ours) {
                        coming.wait();
                    }
                })
                .on_commit(move |request| {
                    if is_rewrite(request, &ours_too) && request.upstream == Some(200) {
                        passed.state().stored += 1;
                    }
                }),
        );
        gate
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap()
    }

    fn wait(&self) {
        let mut state = self.state();
        state.waiting += 1;
        let is_shut = |state: &mut GateState| state.limit.is_some_and(|limit| state.stored >= limit);
        let (mut state, _) = self.changed.wait_timeout_while(state, HELD, is_shut).unwrap();
        state.waiting -= 1;
    }

    /// Waits until the gate holds somebody up.
    pub(crate) async fn reached(&self) {
        until("the pass comes to the gate", async || {
            let state = self.state();
            let shut = state.limit.is_some_and(|limit| state.stored >= limit);
            (shut && state.waiting > 0).then_some(())
        })
        .await;
    }

    /// Lets so many more through, counted from now.
    pub(crate) fn open_for(&self, more: usize) {
        let mut state = self.state();
        state.limit = Some(state.stored + more);
        self.changed.notify_all();
    }

    /// Lets all through.
    pub(crate) fn open(&self) {
        self.state().limit = None;
        self.changed.notify_all();
    }
}

/// Keeps back the answer of the first request that is as wanted, once the server has carried it out.
pub(crate) struct Stop {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn once_stored(
        proxy: &Proxy,
        about: Match,
        wanted: impl Fn(&Recorded) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let stop = Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let held = Arc::clone(&stop);
        proxy.inject(Rule::on(about).on_commit(move |request| {
            let mut state = held.state.lock().unwrap();
            if request.upstream == Some(200) && !state.0 && wanted(request) {
                state.0 = true;
                let shut = |(_, free): &mut (bool, bool)| !*free;
                drop(held.changed.wait_timeout_while(state, HELD, shut).unwrap());
            }
        }));
        stop
    }

    /// Waits until it was carried out.
    pub(crate) async fn reached(&self) {
        let reached = async || self.state.lock().unwrap().0.then_some(());
        until("the request that is to be stopped comes", reached).await;
    }

    /// Lets the answer go.
    pub(crate) fn go(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// The writes of a CRD's `storedVersions`.
pub(crate) fn on_trims(widgets: &Widgets) -> Match {
    Match::method(Method::PATCH)
        .resource("customresourcedefinitions")
        .subresource("status")
        .object("", widgets.crd_name())
        .except(Match::any().query("dryRun=All"))
}

/// The notes of all events with this reason, by the kind of object that they are about.
pub(crate) async fn events(client: &kube::Client, reason: &str) -> Vec<(String, String)> {
    let api: kube::Api<k8s_openapi::api::events::v1::Event> =
        kube::Api::namespaced(client.clone(), "default");
    let all = api.list(&kube::api::ListParams::default()).await.unwrap();
    let wanted = all
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some(reason));
    wanted
        .map(|event| {
            let kind = event.regarding.and_then(|about| about.kind);
            (kind.unwrap_or_default(), event.note.unwrap_or_default())
        })
        .collect()
}

/// What a counter adds up to over all its label sets that contain `labels`.
pub(crate) fn metric(text: &str, name: &str, labels: &str) -> u64 {
    let lines = text
        .lines()
        .filter(|line| line.starts_with(name) && line.contains(labels));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}
