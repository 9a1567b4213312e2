//! Watches that survive what a server and a network can do.

use std::{
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use exuvia_runtime::{Metrics, Seen, follow, follow_metadata};
use exuvia_testenv::{
    ControlPlane,
    proxy::{Answer, Fault, Match, Recorded, Rule},
};
use http::Method;
use kube::{
    Client, ResourceExt,
    api::{ListParams, PartialObjectMeta},
};
use serde_json::json;
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinHandle,
};

use crate::{Stage, Widget, soon};

/// What a watch saw, in words.
struct Diary {
    entries: UnboundedReceiver<String>,
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl Diary {
    fn of(stage: &Stage, client: &Client) -> Self {
        Self::with(stage, client, ListParams::default())
    }

    fn with(stage: &Stage, client: &Client, config: ListParams) -> Self {
        let (write, entries) = unbounded_channel();
        let metrics = Metrics::new("test");
        let (api, meters) = (stage.api(client), metrics.clone());
        let task = tokio::spawn(async move {
            follow(api, config, &meters, "widgets", |seen: Seen<Widget>| {
                let entry = match seen {
                    Seen::Applied(widget) => format!("{} {}", widget.name_any(), widget.spec.size),
                    Seen::Deleted(widget) => format!("{} gone", widget.name),
                    Seen::Synced => "synced".to_owned(),
                };
                let _ = write.send(entry);
            })
            .await;
        });
        Self {
            entries,
            metrics,
            task,
        }
    }

    /// The next entries are these.
    async fn reads(&mut self, expected: &[&str]) {
        for expected in expected {
            let entry = soon(self.entries.recv()).await.unwrap();
            assert_eq!(&entry, expected);
        }
    }

    /// Passes over entries until this one.
    async fn comes_to(&mut self, expected: &str) {
        while soon(self.entries.recv()).await.unwrap() != expected {}
    }

    fn restarts(&self, reason: &str) -> u64 {
        let start = format!("exuvia_watch_restarts_total{{resource=\"widgets\",reason=\"{reason}\"}} ");
        let text = self.metrics.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.map_or(0, |count| count.parse().unwrap())
    }
}

impl Drop for Diary {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn watches() -> Match {
    Match::method(Method::GET).resource("widgets").query("watch=true")
}

fn watches_so_far(stage: &Stage) -> usize {
    let requests = stage.proxy.requests();
    requests
        .iter()
        .filter(|request| request.query.contains("watch=true"))
        .count()
}

#[tokio::test]
async fn all_that_is_there_is_listed_in_pages_and_then_each_change_comes() {
    let stage = Stage::set("followed").await;
    for name in ["a", "b", "c", "d", "e"] {
        stage.create(name).await;
    }
    let mut diary = Diary::with(&stage, &stage.proxied, ListParams::default().limit(2));
    diary.reads(&["a 1", "b 1", "c 1", "d 1", "e 1", "synced"]).await;
    stage.resize("b", 2).await;
    stage.delete("d").await;
    stage.create("f").await;
    diary.reads(&["b 2", "d gone", "f 1"]).await;
    let requests = stage.proxy.requests();
    let pages = requests
        .iter()
        .filter(|request| request.query.contains("limit=2"))
        .count();
    assert_eq!((pages, watches_so_far(&stage)), (3, 1));
}

#[tokio::test]
async fn metadata_is_all_that_is_asked_for() {
    let stage = Stage::set("metadata").await;
    stage.create("a").await;
    let (write, mut entries) = unbounded_channel();
    let (api, metrics) = (stage.api(&stage.proxied), Metrics::new("test"));
    let task = tokio::spawn(async move {
        let config = ListParams::default().fields("metadata.name=a");
        follow_metadata(
            api,
            config,
            &metrics,
            "widgets",
            |seen: Seen<PartialObjectMeta<Widget>>| {
                if let Seen::Applied(widget) = seen {
                    let _ = write.send(widget.name_any());
                }
            },
        )
        .await;
    });
    assert_eq!(soon(entries.recv()).await.unwrap(), "a");
    stage.create("b").await;
    stage.resize("a", 2).await;
    assert_eq!(soon(entries.recv()).await.unwrap(), "a");
    for request in stage.proxy.requests() {
        let accept = request.headers["accept"].to_str().unwrap();
        assert!(accept.contains("as=PartialObjectMetadata"), "{accept}");
    }
    task.abort();
}

/// PITFALLS A20: kube's own watcher asks for the same resourceVersion for ever.
#[tokio::test]
async fn a_410_at_the_start_of_a_watch_is_a_new_list() {
    let stage = Stage::set("expired-start").await;
    stage.create("a").await;
    stage
        .proxy
        .inject(Rule::on(watches()).times(2).then(Fault::refuse(410)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    for _ in 0..3 {
        diary.reads(&["a 1", "synced"]).await;
    }
    stage.create("b").await;
    diary.reads(&["b 1"]).await;
    assert_eq!(diary.restarts("expired"), 2);
}

#[tokio::test]
async fn a_410_in_the_middle_of_a_watch_is_a_new_list() {
    let stage = Stage::set("expired-middle").await;
    stage.create("a").await;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410});
    let event = format!("{}\n", json!({"type": "ERROR", "object": status}));
    let answer = Answer::status(200).body("application/json", event);
    stage
        .proxy
        .inject(Rule::on(watches()).nth(1).then(Fault::refuse(answer)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["a 1", "synced"]).await;
    diary.reads(&["a 1", "synced"]).await;
    stage.create("b").await;
    diary.reads(&["b 1"]).await;
    assert_eq!(diary.restarts("expired"), 1);
}

#[tokio::test]
async fn after_a_cut_the_watch_goes_on_where_it_was() {
    let stage = Stage::set("cut").await;
    // The first event passes, the second is cut in the middle.
    stage
        .proxy
        .inject(Rule::on(watches()).nth(1).then(Fault::Truncate(1000)));
    stage
        .proxy
        .inject(Rule::on(watches()).nth(2).then(Fault::ResetRequest));
    stage
        .proxy
        .inject(Rule::on(watches()).nth(3).then(Fault::refuse(429)));
    stage
        .proxy
        .inject(Rule::on(watches()).nth(4).then(Fault::refuse(500)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["synced"]).await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    diary.reads(&["a 1", "b 1", "c 1"]).await;
    assert_eq!(watches_so_far(&stage), 5);
    assert_eq!(diary.restarts("throttled"), 1);
}

/// Holds the request that `rule` applies to, in the callback that it is given.
fn held(hold: impl FnOnce(Box<dyn Fn(&Recorded) + Send + Sync>) -> Rule) -> (Rule, Held) {
    let (arrive, arrived) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let rule = hold(Box::new(move |_| {
        arrive.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
    }));
    (rule, Held { arrived, release })
}

struct Held {
    arrived: Receiver<()>,
    release: Sender<()>,
}

impl Held {
    /// Once the request has arrived; it goes on when the sender is used.
    async fn arrived(self) -> Sender<()> {
        let Self { arrived, release } = self;
        let arrived = tokio::task::spawn_blocking(move || arrived.recv().unwrap());
        soon(arrived).await.unwrap();
        release
    }
}

/// The watch is cut, and what it missed is so old that the server has forgotten it.
#[tokio::test]
async fn what_vanished_while_the_watch_was_cut_is_deleted() {
    let stage = Stage::set("vanished").await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    let (rule, cut) = held(|hold| {
        Rule::on(watches())
            .nth(1)
            .on_request(hold)
            .then(Fault::ResetRequest)
    });
    stage.proxy.inject(rule);
    stage
        .proxy
        .inject(Rule::on(watches()).nth(2).then(Fault::refuse(410)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["a 1", "b 1", "c 1", "synced"]).await;
    let release = cut.arrived().await;
    stage.delete("a").await;
    stage.delete("b").await;
    stage.create_sized("b", 2).await;
    release.send(()).unwrap();
    diary.reads(&["b gone", "b 2", "c 1", "a gone", "synced"]).await;
    stage.delete("b").await;
    diary.reads(&["b gone"]).await;
}

/// Follows five objects in pages of two. After the first page come `changes`, and the token of that page expires: the rest
/// of the list is of a later moment than its beginning (PITFALLS A8).
async fn follow_a_list_of_two_moments(stage: &Stage, changes: impl AsyncFnOnce()) -> Diary {
    for name in ["a", "b", "c", "d", "e"] {
        stage.create(name).await;
    }
    let page = ListParams::default().limit(2);
    let lists = Match::method(Method::GET).resource("widgets").query("limit=2");
    let (rule, first_page) = held(|hold| Rule::on(lists).nth(1).on_commit(hold));
    stage.proxy.inject(rule);
    let diary = Diary::with(stage, &stage.proxied, page.clone());
    let release = first_page.arrived().await;
    changes().await;
    let now = stage.api(&stage.direct).list(&page).await.unwrap();
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired",
        "metadata": {"continue": now.metadata.continue_}, "message": "too old", "code": 410});
    let expired = Fault::refuse(Answer::status(410).json(&status));
    let next_pages = Match::method(Method::GET).query("continue=");
    stage.proxy.inject(Rule::on(next_pages).nth(1).then(expired));
    release.send(()).unwrap();
    diary
}

#[tokio::test]
async fn a_410_in_the_middle_of_a_list_resumes_it_and_misses_no_change() {
    let stage = Stage::set("resumed").await;
    let mut diary = follow_a_list_of_two_moments(&stage, async || stage.resize("a", 2).await).await;
    diary.reads(&["a 1", "b 1", "c 1", "d 1", "e 1", "synced"]).await;
    diary.reads(&["a 2", "b 1", "c 1", "d 1", "e 1", "synced"]).await;
    stage.resize("b", 3).await;
    diary.reads(&["b 3"]).await;
    assert_eq!((diary.restarts("expired"), watches_so_far(&stage)), (2, 1));
}

/// A watch from the first page's moment would show the end of the first "d" after the second one.
#[tokio::test]
async fn a_list_that_was_resumed_deletes_nothing_that_exists() {
    let stage = Stage::set("replayed").await;
    let changes = async || {
        stage.resize("d", 2).await;
        stage.delete("d").await;
        stage.create_sized("d", 3).await;
    };
    let mut diary = follow_a_list_of_two_moments(&stage, changes).await;
    for _ in 0..2 {
        diary.reads(&["a 1", "b 1", "c 1", "d 3", "e 1", "synced"]).await;
    }
    stage.create("f").await;
    stage.delete("d").await;
    stage.create("g").await;
    diary.reads(&["f 1", "d gone", "g 1"]).await;
}

/// A gateway in front of the API server may answer for it.
#[tokio::test]
async fn an_answer_that_is_not_a_list_deletes_nothing() {
    let stage = Stage::set("not-a-list").await;
    stage.create("a").await;
    stage.create("b").await;
    stage
        .proxy
        .inject(Rule::on(watches()).nth(1).then(Fault::refuse(410)));
    let lists = Match::method(Method::GET).resource("widgets").query("limit=2");
    let gateway = Answer::status(200).json(&json!({"error": "session expired"}));
    let rule = stage
        .proxy
        .inject(Rule::on(lists).nth(2).then(Fault::refuse(gateway)));
    let mut diary = Diary::with(&stage, &stage.proxied, ListParams::default().limit(2));
    for _ in 0..2 {
        diary.reads(&["a 1", "b 1", "synced"]).await;
    }
    stage.create("c").await;
    diary.reads(&["c 1"]).await;
    assert_eq!((rule.applied(), diary.restarts("ambiguous")), (1, 1));
}

#[tokio::test]
async fn a_list_that_fails_half_way_goes_on_where_it_was() {
    let stage = Stage::set("hiccup").await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    let next_pages = Match::method(Method::GET).query("continue=");
    let rule = stage
        .proxy
        .inject(Rule::on(next_pages).times(2).then(Fault::refuse(503)));
    let mut diary = Diary::with(&stage, &stage.proxied, ListParams::default().limit(2));
    diary.reads(&["a 1", "b 1", "c 1", "synced"]).await;
    assert_eq!((rule.applied(), diary.restarts("transient")), (2, 2));
}

#[tokio::test]
async fn a_list_that_loses_its_place_starts_over() {
    let stage = Stage::set("half").await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    let next_pages = Match::method(Method::GET).query("continue=");
    stage
        .proxy
        .inject(Rule::on(next_pages).nth(1).then(Fault::refuse(410)));
    let first = Rule::on(Match::method(Method::GET).resource("widgets")).nth(1);
    stage.proxy.inject(first.then(Fault::DropRequest));
    let mut diary = Diary::with(&stage, &stage.proxied, ListParams::default().limit(2));
    diary.reads(&["a 1", "b 1"]).await;
    diary.reads(&["a 1", "b 1", "c 1", "synced"]).await;
}

#[tokio::test]
async fn a_watch_that_is_cut_at_once_each_time_is_started_after_a_pause() {
    let stage = Stage::set("hot").await;
    let began = Instant::now();
    let nothing = Answer::status(200).body("application/json", "");
    stage
        .proxy
        .inject(Rule::on(watches()).then(Fault::refuse(nothing)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["synced"]).await;
    soon(
        stage
            .proxy
            .wait_for(|request| request.query.contains("watch=true")),
    )
    .await;
    crate::until("five watches", async || watches_so_far(&stage) >= 5).await;
    // Four pauses, of at least 100, 200, 400 and 800 ms.
    assert!(
        began.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        began.elapsed()
    );
    stage.proxy.clear();
    // After some failures in a row it lists again: the fault may be in the resourceVersion.
    diary.reads(&["synced"]).await;
    stage.create("a").await;
    diary.comes_to("a 1").await;
}

#[tokio::test]
async fn one_object_that_does_not_fit_stops_nobody() {
    let stage = Stage::set("broken").await;
    stage.create_sized("a", 1).await;
    stage.create_sized("b", 300).await;
    let mut diary = Diary::of(&stage, &stage.direct);
    diary.reads(&["a 1", "synced"]).await;
    stage.create_sized("c", 301).await;
    stage.resize("b", 302).await;
    stage.create_sized("d", 4).await;
    stage.delete("c").await;
    stage.resize("b", 2).await;
    diary.reads(&["d 4", "b 2"]).await;
}

/// Its last state stays known while it is there, and not for ever.
#[tokio::test]
async fn an_object_that_no_longer_fits_is_deleted_when_it_goes() {
    let stage = Stage::set("unfit").await;
    stage.create_sized("a", 1).await;
    let mut diary = Diary::of(&stage, &stage.direct);
    diary.reads(&["a 1", "synced"]).await;
    stage.resize("a", 300).await;
    stage.create_sized("b", 2).await;
    diary.reads(&["b 2"]).await;
    stage.delete("a").await;
    diary.reads(&["a gone"]).await;
}

#[tokio::test]
async fn a_watch_outlives_its_server() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let stage = Stage::at(&control_plane, "outlive").await;
    stage.widgets.install(&stage.direct, "v1").await.unwrap();
    stage.create("a").await;
    let mut diary = Diary::of(&stage, &stage.direct);
    diary.reads(&["a 1", "synced"]).await;
    let server = control_plane.apiserver();
    server.process().kill().unwrap();
    server.process().restart().unwrap();
    server.ready().await.unwrap();
    let fresh = Stage {
        direct: control_plane.client().unwrap(),
        ..stage
    };
    crate::until("the object is served", async || {
        fresh.widgets.api(&fresh.direct, "v1").get("a").await.is_ok()
    })
    .await;
    fresh.create("b").await;
    diary.comes_to("b 1").await;
}
