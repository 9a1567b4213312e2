//! Watches that survive what a server and a network can do.

use std::time::{Duration, Instant};

use exuvia_runtime::{Metrics, Seen, follow, follow_metadata};
use exuvia_testenv::{
    ControlPlane,
    proxy::{Answer, Fault, Match, Rule},
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
                    Seen::Restarted => "restarted".to_owned(),
                    Seen::Applied(widget) => format!("{} {}", widget.name_any(), widget.spec.size),
                    Seen::Deleted(widget) => format!("{} gone", widget.name_any()),
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
    diary
        .reads(&["restarted", "a 1", "b 1", "c 1", "d 1", "e 1", "synced"])
        .await;
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
        diary.reads(&["restarted", "a 1", "synced"]).await;
    }
    stage.create("b").await;
    diary.reads(&["b 1"]).await;
    assert_eq!(diary.restarts("expired"), 2);
}

#[tokio::test]
async fn a_410_in_the_midst_of_a_watch_is_a_new_list() {
    let stage = Stage::set("expired-midst").await;
    stage.create("a").await;
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version: 1 (2)", "reason": "Expired", "code": 410});
    let event = format!("{}\n", json!({"type": "ERROR", "object": status}));
    let answer = Answer::status(200).body("application/json", event);
    stage
        .proxy
        .inject(Rule::on(watches()).nth(1).then(Fault::refuse(answer)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["restarted", "a 1", "synced"]).await;
    diary.reads(&["restarted", "a 1", "synced"]).await;
    stage.create("b").await;
    diary.reads(&["b 1"]).await;
    assert_eq!(diary.restarts("expired"), 1);
}

#[tokio::test]
async fn after_a_cut_the_watch_goes_on_where_it_was() {
    let stage = Stage::set("cut").await;
    // The first event passes, the second is cut in its midst.
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
    diary.reads(&["restarted", "synced"]).await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    diary.reads(&["a 1", "b 1", "c 1"]).await;
    assert_eq!(watches_so_far(&stage), 5);
    assert_eq!(diary.restarts("throttled"), 1);
}

#[tokio::test]
async fn a_list_that_fails_half_way_is_begun_anew() {
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
    diary.reads(&["restarted", "a 1", "b 1"]).await;
    diary.reads(&["restarted", "a 1", "b 1", "c 1", "synced"]).await;
}

#[tokio::test]
async fn a_watch_that_is_cut_at_once_each_time_is_no_hot_loop() {
    let stage = Stage::set("hot").await;
    let began = Instant::now();
    let nothing = Answer::status(200).body("application/json", "");
    stage
        .proxy
        .inject(Rule::on(watches()).then(Fault::refuse(nothing)));
    let mut diary = Diary::of(&stage, &stage.proxied);
    diary.reads(&["restarted", "synced"]).await;
    soon(
        stage
            .proxy
            .wait_for(|request| request.query.contains("watch=true")),
    )
    .await;
    crate::until(async || watches_so_far(&stage) >= 5).await;
    // Four pauses, of at least 100, 200, 400 and 800 ms.
    assert!(
        began.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        began.elapsed()
    );
    stage.proxy.clear();
    // After some failures in a row it lists anew: the fault may be in the resourceVersion.
    diary.reads(&["restarted", "synced"]).await;
    stage.create("a").await;
    diary.comes_to("a 1").await;
}

#[tokio::test]
async fn one_object_that_does_not_fit_stops_nobody() {
    let stage = Stage::set("broken").await;
    stage.create_sized("a", 1).await;
    stage.create_sized("b", 300).await;
    let mut diary = Diary::of(&stage, &stage.direct);
    diary.reads(&["restarted", "a 1", "synced"]).await;
    stage.create_sized("c", 301).await;
    stage.resize("b", 302).await;
    stage.create_sized("d", 4).await;
    stage.delete("c").await;
    stage.resize("b", 2).await;
    diary.reads(&["d 4", "b 2"]).await;
}

#[tokio::test]
async fn a_watch_outlives_its_server() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let stage = Stage::at(&control_plane, "outlive").await;
    stage.widgets.install(&stage.direct, "v1").await.unwrap();
    stage.create("a").await;
    let mut diary = Diary::of(&stage, &stage.direct);
    diary.reads(&["restarted", "a 1", "synced"]).await;
    let server = control_plane.apiserver();
    server.process().kill().unwrap();
    server.process().restart().unwrap();
    server.ready().await.unwrap();
    let fresh = Stage {
        direct: control_plane.client().unwrap(),
        ..stage
    };
    crate::until(async || fresh.widgets.api(&fresh.direct, "v1").get("a").await.is_ok()).await;
    fresh.create("b").await;
    diary.comes_to("b 1").await;
}
