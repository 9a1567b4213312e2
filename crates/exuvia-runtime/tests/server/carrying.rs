//! The runtime with a small controller: when it starts, what it reconciles, what it survives.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use exuvia_runtime::{
    Claim, Controller, Health, Metrics, Next, Queue, Runtime, RuntimeSettings, Signal, Synced,
};
use exuvia_testenv::{
    Widgets,
    proxy::{Match, Rule},
};
use futures::FutureExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::{
    Stage,
    keeper::{Bad, Behaviour, Carried, Happened, at_ease, began, ended},
    open_metrics::assert_open_metrics,
    soon, until,
};

async fn delete_crd(client: &Client, name: &str) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.delete(name, &DeleteParams::default()).await.unwrap();
    until("the CRD is gone", async || {
        crds.get_opt(name).await.unwrap().is_none()
    })
    .await;
}

#[tokio::test]
async fn a_controller_comes_and_goes_with_its_crd_and_ignores_others() {
    let stage = Stage::bare("comes").await;
    let mut carried = Carried::start(&stage, &stage.direct, &Claim::always(), at_ease());
    until("it is ready", async || carried.health.is_ready()).await;
    let waits = format!(
        "[+] controller keeper: waits for crd {}",
        stage.widgets.crd_name()
    );
    assert!(
        carried.health.describe().contains(&waits),
        "{}",
        carried.health.describe()
    );

    let other = Widgets::in_group("other.comes.example.com");
    other.install(&stage.direct, "v1").await.unwrap();
    for round in ["one", "two"] {
        stage.widgets.install(&stage.direct, "v1").await.unwrap();
        assert_eq!(carried.next().await, Happened::Watches);
        stage.create(round).await;
        carried.shows(vec![began(round), ended(round)]).await;
        assert!(
            carried
                .health
                .describe()
                .contains("[+] controller keeper: synced")
        );
        if round == "one" {
            delete_crd(&stage.direct, &other.crd_name()).await;
        }
        delete_crd(&stage.direct, &stage.widgets.crd_name()).await;
        // The server deletes the objects first, one by one.
        while carried.next().await != Happened::Forgets {}
        assert!(
            carried.health.is_ready(),
            "a missing crd is nothing to be restarted for"
        );
    }
    assert_eq!(carried.stop().await, []);
}

/// A CRD whose names are taken by another one is there and not served.
#[tokio::test]
async fn a_crd_that_is_there_but_not_established_is_waited_for() {
    let stage = Stage::bare("established").await;
    let squatter = Widgets::in_group(stage.widgets.group());
    let mut taken = squatter.crd("v1");
    taken["metadata"]["name"] = format!("gadgets.{}", stage.widgets.group()).into();
    taken["spec"]["names"]["plural"] = "gadgets".into();
    let crds: Api<CustomResourceDefinition> = Api::all(stage.direct.clone());
    let create = async |crd| {
        let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    };
    create(taken).await; // it has the kind, and the short and singular names
    create(stage.widgets.crd("v1")).await;
    let refused = async || {
        let crd = crds.get(&stage.widgets.crd_name()).await.unwrap();
        let conditions = crd
            .status
            .and_then(|status| status.conditions)
            .unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == "Established" && condition.status == "False")
    };
    until("it is refused", refused).await;
    let mut carried = Carried::start(&stage, &stage.direct, &Claim::always(), at_ease());
    until("it is ready", async || carried.health.is_ready()).await;
    assert!(carried.happenings.try_recv().is_err(), "it must not have started");
    delete_crd(&stage.direct, &format!("gadgets.{}", stage.widgets.group())).await;
    assert_eq!(carried.next().await, Happened::Watches);
    carried.stop().await;
}

#[tokio::test]
async fn nothing_is_reconciled_and_nobody_is_ready_before_everything_was_seen_once() {
    let stage = Stage::set("sync").await;
    for name in ["a", "b", "c"] {
        stage.create(name).await;
    }
    // The second page of the list is held.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let second_page = Match::any().resource("widgets").query("continue=");
    stage
        .proxy
        .inject(Rule::on(second_page).nth(1).on_request(move |_| {
            released.lock().unwrap().recv().ok();
        }));
    let mut carried = Carried::start(&stage, &stage.proxied, &Claim::always(), at_ease());
    assert_eq!(carried.next().await, Happened::Watches);
    until("the metric is shown", async || {
        carried.shows_metric(r#"workqueue_depth{name="keeper"} 2"#)
    })
    .await;
    soon(
        stage
            .proxy
            .wait_for(|request| request.query.contains("continue=")),
    )
    .await;
    assert!(!carried.health.is_ready(), "{}", carried.health.describe());
    assert!(
        carried.happenings.try_recv().is_err(),
        "c is not missing, it was not seen yet"
    );
    release.send(()).unwrap();
    let all = ["a", "b", "c"];
    carried
        .shows(all.into_iter().flat_map(|key| [began(key), ended(key)]).collect())
        .await;
    assert!(carried.health.is_ready());
    carried.stop().await;
}

#[tokio::test]
async fn an_error_and_a_panic_are_counted_and_tried_again_and_harm_no_other_key() {
    let stage = Stage::set("harm").await;
    let tries = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let behaviour: Behaviour = Arc::new(move |key, _| {
        let nth = {
            let mut tries = tries.lock().unwrap();
            let nth = tries.entry(key.to_owned()).or_default();
            *nth += 1;
            *nth
        };
        match (key, nth) {
            ("errs", 1..=2) => async { Err(Bad) }.boxed(),
            ("panics", 1) => panic!("on purpose"),
            ("panics", 2) => async { panic!("on purpose, too") }.boxed(),
            ("stalls", 1) => async { Ok(Next::Retry) }.boxed(),
            ("returns", 1) => async { Ok(Next::After(Duration::from_millis(10))) }.boxed(),
            _ => async { Ok(Next::Await) }.boxed(),
        }
    });
    for name in ["errs", "panics", "stalls", "returns", "well"] {
        stage.create(name).await;
    }
    let carried = Carried::start(&stage, &stage.direct, &Claim::always(), behaviour);
    let lines = [
        r#"controller_runtime_reconcile_total{controller="keeper",result="error"} 4"#,
        r#"controller_runtime_reconcile_total{controller="keeper",result="requeue"} 1"#,
        r#"controller_runtime_reconcile_total{controller="keeper",result="requeue_after"} 1"#,
        r#"controller_runtime_reconcile_total{controller="keeper",result="success"} 5"#,
        r#"controller_runtime_reconcile_errors_total{controller="keeper"} 4"#,
        r#"controller_runtime_reconcile_time_seconds_count{controller="keeper"} 11"#,
        r#"controller_runtime_active_workers{controller="keeper"} 0"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="keeper"} 2"#,
        r#"workqueue_retries_total{name="keeper"} 5"#,
        r#"workqueue_depth{name="keeper"} 0"#,
    ];
    until("the metrics are shown", async || {
        lines.iter().all(|line| carried.shows_metric(line))
    })
    .await;
    let types = assert_open_metrics(&carried.metrics.encode());
    for (family, kind) in [
        ("controller_runtime_reconcile", "counter"),
        ("controller_runtime_reconcile_time_seconds", "histogram"),
        ("workqueue_adds", "counter"),
        ("workqueue_queue_duration_seconds", "histogram"),
        ("workqueue_work_duration_seconds", "histogram"),
        ("workqueue_unfinished_work_seconds", "gauge"),
        ("workqueue_longest_running_processor_seconds", "gauge"),
    ] {
        assert_eq!(types.get(family).map(String::as_str), Some(kind), "{family}");
    }
    carried.stop().await;
}

#[tokio::test]
async fn a_running_reconcile_is_told_of_changes_and_the_key_comes_once_more() {
    let stage = Stage::set("told").await;
    let rounds = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&rounds);
    let behaviour: Behaviour = Arc::new(move |_, signal| {
        *seen.lock().unwrap() += 1;
        let first = *seen.lock().unwrap() == 1;
        async move {
            if first {
                signal.changed().await;
                signal.changed().await;
            }
            Ok(Next::Await)
        }
        .boxed()
    });
    stage.create("a").await;
    let mut carried = Carried::start(&stage, &stage.direct, &Claim::always(), behaviour);
    assert_eq!(carried.next().await, Happened::Watches);
    assert_eq!(carried.next().await, began("a"));
    stage.resize("a", 2).await;
    stage.resize("a", 3).await;
    // Two changes may be told as one if they come at once; a third is told in any case.
    tokio::select! {
        happened = carried.next() => assert_eq!(happened, ended("a")),
        () = async { loop { stage.resize("a", 4).await; stage.resize("a", 5).await; } } => {}
    }
    assert_eq!(carried.next().await, began("a"));
    assert_eq!(carried.next().await, ended("a"));
    carried.stop().await;
}

#[tokio::test]
async fn what_runs_may_end_within_the_grace_period_and_nothing_new_begins() {
    let stage = Stage::set("drains").await;
    let behaviour: Behaviour = Arc::new(|key, signal| match key {
        "stops" => async move {
            signal.stopping().await;
            assert!(signal.is_stopping());
            tokio::task::yield_now().await;
            Ok(Next::Await)
        }
        .boxed(),
        _ => std::future::pending().boxed(),
    });
    stage.create("stops").await;
    stage.create("ignores").await;
    let mut carried = Carried::start(&stage, &stage.direct, &Claim::always(), behaviour);
    carried
        .shows(vec![Happened::Watches, began("stops"), began("ignores")])
        .await;
    carried.begin_stop();
    assert_eq!(carried.next().await, ended("stops"));
    stage.create("late").await;
    let rest = carried.stop().await;
    assert_eq!(rest, [Happened::CutOff("ignores".to_owned())]);
}

#[tokio::test]
async fn a_watch_that_panics_starts_again_from_nothing() {
    struct Clumsy(UnboundedSender<&'static str>, &'static str);
    impl Controller for Clumsy {
        type Error = Bad;
        fn name(&self) -> &'static str {
            "clumsy"
        }
        fn crd(&self) -> &'static str {
            self.1
        }
        async fn watch(&self, _: Queue, _: Synced) {
            self.0.send("watches").ok();
            panic!("on purpose");
        }
        fn forget(&self) {
            self.0.send("forgets").ok();
        }
        async fn reconcile(&self, _: &str, _: Signal) -> Result<Next, Bad> {
            Ok(Next::Await)
        }
    }
    let stage = Stage::set("clumsy").await;
    let (tell, mut happenings) = unbounded_channel();
    let settings = RuntimeSettings {
        concurrency: 1,
        max_backoff: Duration::from_secs(1),
        grace: Duration::ZERO,
    };
    let metrics = Metrics::new("test");
    let mut runtime = Runtime::new(
        stage.direct.clone(),
        Claim::always(),
        Health::new(),
        &metrics,
        settings,
    );
    runtime.add(Clumsy(tell, stage.widgets.crd_name().leak()));
    let task = tokio::spawn(runtime.run(std::future::pending()));
    for expected in ["watches", "forgets", "watches"] {
        assert_eq!(soon(happenings.recv()).await, Some(expected));
    }
    task.abort();
}

/// The server takes the condition away only when names clash, so this is played by writing the status.
#[tokio::test]
async fn a_crd_that_is_no_longer_established_stops_its_controller() {
    let stage = Stage::set("demoted").await;
    let behaviour: Behaviour = Arc::new(|_, _| std::future::pending().boxed());
    stage.create("a").await;
    let mut carried = Carried::start(&stage, &stage.direct, &Claim::always(), behaviour);
    carried.shows(vec![Happened::Watches, began("a")]).await;
    let crds: Api<CustomResourceDefinition> = Api::all(stage.direct.clone());
    let demoted = json!({"status": {"conditions": [
        {"type": "Established", "status": "False", "reason": "Test", "message": "", "lastTransitionTime": null},
    ]}});
    let name = stage.widgets.crd_name();
    crds.patch_status(&name, &PatchParams::default(), &Patch::Merge(&demoted))
        .await
        .unwrap();
    carried
        .shows(vec![Happened::CutOff("a".to_owned()), Happened::Forgets])
        .await;
    carried.stop().await;
}
