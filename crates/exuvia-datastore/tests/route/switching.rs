//! The switch to the CRDs and the way back, seen by readers that never try again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exuvia_datastore::route::{
    AUTOMANAGED_LABEL, Alias, Answers, Error, Observed, Route, Saved, Switched, Verdict,
};
use exuvia_testenv::aggregated::alias_uid;
use exuvia_testenv::{Widgets, in_time, until};
use exuvia_write::Writer;
use http::Request;
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::Body;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{World, both, is_automanaged, servers};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// One request, never repeated: its answer's code, whether it came from the backend, and its body.
async fn ask(world: &World, client: &Client, path: &str, accept: &str) -> (u16, bool, Value) {
    let request = Request::get(path).header("accept", accept).body(Body::empty());
    let response = client.send(request.unwrap()).await.unwrap();
    let (code, from_backend) = (response.status().as_u16(), world.backend.is_from_here(&response));
    let body = response.into_body().collect_bytes().await.unwrap();
    (
        code,
        from_backend,
        serde_json::from_slice(&body).unwrap_or_default(),
    )
}

/// Readers of both servers that count each answer by request, code and message, until they are told to stop.
struct Readers {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<BTreeMap<String, usize>>,
}

impl Readers {
    fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        let widgets = format!("/apis/{}/v1/namespaces/default/widgets", world.shown.group());
        for client in &world.clients {
            for path in [format!("{widgets}/widget-0000"), widgets.clone()] {
                let (client, stop) = (client.clone(), stop.clone());
                tasks.spawn(async move {
                    let mut codes = BTreeMap::new();
                    while !stop.load(Ordering::Relaxed) {
                        let request = Request::get(&path).body(Body::empty()).unwrap();
                        let response = client.send(request).await.unwrap();
                        let code = response.status();
                        let body = response.into_body().collect_bytes().await.unwrap();
                        let said = if code.is_success() {
                            code.to_string()
                        } else {
                            format!("{code}: {}", String::from_utf8_lossy(&body))
                        };
                        *codes.entry(said).or_default() += 1;
                    }
                    codes
                });
            }
        }
        Self { stop, tasks }
    }

    /// What they saw, all together.
    async fn stop(self) -> BTreeMap<String, usize> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for codes in self.tasks.join_all().await {
            for (code, count) in codes {
                *all.entry(code).or_default() += count;
            }
        }
        all
    }
}

/// Nobody was told that something is missing or out of order. A CRD whose storage is being set up says 429 (PITFALLS D2).
fn assert_undisturbed(what: &str, seen: &BTreeMap<String, usize>) {
    println!("reads during {what}: {seen:?}");
    assert!(seen.get("200 OK").is_some_and(|count| *count > 0));
    let is_fine = |code: &String| code == "200 OK" || code.contains("(re)initializing");
    assert!(seen.keys().all(is_fine), "{what}: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_switch_every_server_answers_from_crds_and_after_the_way_back_from_the_backend() {
    let world = World::new("switch").await;
    let kinds = world.kinds();
    let path = format!("/apis/{}/v1", world.shown.group());
    let widgets = format!("{path}/widgets");
    let object = format!("{path}/namespaces/default/widgets/widget-0000");

    // Before: the backend, under uids of its own.
    let aliases = world.aliases().await;
    let stored = world.stored.api(&world.clients[0], "v1");
    let stored = stored.list(&ListParams::default()).await.unwrap();
    let expected: Vec<Alias> = stored
        .iter()
        .map(|widget| Alias {
            kind: "Widget".to_owned(),
            namespace: widget.namespace(),
            name: widget.name_any(),
            uid: alias_uid(&widget.uid().unwrap()),
        })
        .collect();
    assert_eq!(aliases, expected);
    let before = world.route.answered_by_crds(&kinds, &aliases).await.unwrap();
    assert!(before.all_by_backend() && !before.all_by_crds(), "{before:?}");
    assert_eq!(before.why_not_all, None);
    // Discovery alone tells it, too, where there are no objects.
    let without = world.route.answered_by_crds(&kinds, &[]).await.unwrap();
    assert!(without.all_by_backend(), "{without:?}");

    let readers = Readers::start(&world);
    let saved = world.route.save().await.unwrap();
    let answers = switch(&world, &saved, &aliases).await;
    assert_undisturbed("the switch", &readers.stop().await);
    assert_eq!(answers.servers.len(), 2);
    assert_eq!(answers.not_yet(), [] as [&str; 0]);
    assert!(is_automanaged(&world.route.observe().await.unwrap()));

    // Seen from outside, on each server: GET, LIST, discovery, aggregated discovery.
    let requests = world.backend.requests();
    for client in &world.clients {
        let (code, from_backend, list) = ask(&world, client, &widgets, "application/json").await;
        let names: Vec<_> = list["items"].as_array().unwrap().iter().collect();
        assert_eq!(
            (code, from_backend, names.len()),
            (200, false, 1),
            "the CRD has one"
        );
        let (code, from_backend, widget) = ask(&world, client, &object, "application/json").await;
        assert_eq!((code, from_backend), (200, false));
        assert!(aliases.iter().all(|alias| widget["metadata"]["uid"] != alias.uid));
        let (_, from_backend, plain) = ask(&world, client, &path, "application/json").await;
        assert!(!from_backend && plain["resources"][0]["storageVersionHash"].is_string());
        let (_, _, groups) = ask(&world, client, "/apis", AGGREGATED).await;
        let groups = groups["items"].as_array().unwrap();
        let group = groups
            .iter()
            .find(|group| group["metadata"]["name"] == world.shown.group());
        let versions = group.unwrap()["versions"].as_array().unwrap();
        let v1 = versions
            .iter()
            .find(|version| version["version"] == "v1")
            .unwrap();
        assert_eq!(v1["freshness"], "Current");
        assert_eq!(v1["resources"][0]["verbs"][0], "delete", "the order of CRDs");
    }
    assert_eq!(world.backend.requests(), requests, "nobody asked the backend");
    // Again: there is nothing to do.
    let again = world.route.switch(&saved, &kinds, &aliases).await.unwrap();
    assert!(matches!(again, Switched::Done(_)), "{again:?}");

    // And back.
    let readers = Readers::start(&world);
    world.route.restore(&saved).await.unwrap();
    until("every server answers from the backend", async || {
        let answers = world.route.answered_by_crds(&kinds, &aliases).await.unwrap();
        answers.all_by_backend().then_some(()).ok_or(answers)
    })
    .await;
    assert_undisturbed("the way back", &readers.stop().await);
    world.until_backend_answers().await;
    let restored = world.api_service().await.unwrap();
    let given = world.backend.api_service();
    assert_eq!(restored.data["spec"], given["spec"]);
    assert_eq!(json!(restored.labels()), given["metadata"]["labels"]);
    assert_eq!(json!(restored.annotations()), given["metadata"]["annotations"]);
    let Observed::Backend(backend) = world.route.observe().await.unwrap() else {
        panic!("it has no backend")
    };
    assert!(backend.is_available());
    // Again: nothing is written.
    world.route.restore(&saved).await.unwrap();
    let again = world.api_service().await.unwrap();
    assert_eq!(again.metadata.generation, restored.metadata.generation);
    assert_eq!(again.data["spec"], restored.data["spec"]);
}

/// PITFALLS D3: the server itself turns a labelled one into a local one, as a PUT would, and discovery keeps the backend.
#[tokio::test]
async fn discovery_that_keeps_the_old_backend_is_seen_and_cured() {
    let world = World::new("stale").await;
    let (kinds, aliases) = (world.kinds(), world.aliases().await);
    let saved = world.route.save().await.unwrap();
    let label = Patch::Merge(json!({"metadata": {"labels": {AUTOMANAGED_LABEL: "true"}}}));
    let (api, name) = (world.api_services(), world.route.api_service());
    api.patch(name, &PatchParams::default(), &label).await.unwrap();
    until(
        "objects come from CRDs, and discovery from the backend",
        async || {
            let answers = world.route.answered_by_crds(&kinds, &aliases).await.unwrap();
            answers.is_discovery_stale().then_some(()).ok_or(answers)
        },
    )
    .await;
    let stale = world.route.answered_by_crds(&kinds, &aliases).await.unwrap();
    let is_stale = |verdict: &Verdict| matches!(verdict, Verdict::StaleDiscovery(_));
    assert!(stale.servers.iter().any(|server| is_stale(&server.verdict)));
    assert!(!stale.all_by_crds());

    switch(&world, &saved, &aliases).await;
    assert!(is_automanaged(&world.route.observe().await.unwrap()));
}

#[tokio::test]
async fn an_automanaged_one_is_never_touched() {
    let (control_plane, _) = servers().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("plain.example.com");
    widgets.install(&client, "v1").await.unwrap();
    let proxy = control_plane.proxy().await.unwrap();
    let writer = Writer::named("exuvia-datastore");
    let route = Route::new(
        proxy.client().unwrap(),
        writer,
        both().await,
        "v1.plain.example.com",
    )
    .unwrap();
    let observed = route.observe().await.unwrap();
    assert!(is_automanaged(&observed), "{observed:?}");
    assert!(matches!(route.save().await, Err(Error::NoBackend { .. })));
    let kinds = [widgets.resource("v1")];
    let told = route.alias_uids(&kinds, |alias| panic!("{alias:?}")).await;
    assert!(matches!(told, Err(Error::NoBackend { .. })));
    // Somebody saved another one and it is gone long since.
    let saved = Saved {
        name: route.api_service().to_owned(),
        uid: "gone".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        owner_references: Vec::new(),
        spec: json!({"service": {"name": "x", "namespace": "y"}}),
    };
    let switched = in_time("the switch", async {
        loop {
            match route.switch(&saved.to_value(), &kinds, &[]).await.unwrap() {
                Switched::NotYet(_) => {}
                switched => break switched,
            }
        }
    });
    assert!(matches!(switched.await, Switched::Done(_)));
    assert_eq!(proxy.writes().len(), 0, "{:?}", proxy.writes());
}

#[tokio::test]
async fn without_crds_nothing_would_answer_so_it_is_refused_by_name() {
    let world = World::new("no-crd").await;
    let mut kind = world.shown.resource("v1");
    kind.plural = "gadgets".to_owned();
    let refused = world.route.answered_by_crds(&[kind], &[]).await.unwrap_err();
    assert!(
        refused
            .to_string()
            .starts_with("no CRD gadgets.no-crd.shown.example.com that serves v1"),
        "{refused}"
    );
    let elsewhere = world
        .route
        .answered_by_crds(&[world.stored.resource("v1")], &[])
        .await;
    assert!(matches!(elsewhere, Err(Error::Elsewhere { .. })));
}

/// One switch is over in a moment: several, so that the readers meet it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_no_switch_however_often_it_goes_there_and_back() {
    let world = World::new("often").await;
    let (kinds, aliases) = (world.kinds(), world.aliases().await);
    let readers = Readers::start(&world);
    for _ in 0..5 {
        let saved = world.route.save().await.unwrap();
        switch(&world, &saved, &aliases).await;
        world.route.restore(&saved).await.unwrap();
        until("every server answers from the backend", async || {
            let answers = world.route.answered_by_crds(&kinds, &aliases).await.unwrap();
            answers.all_by_backend().then_some(()).ok_or(answers)
        })
        .await;
    }
    assert_undisturbed("five switches and back", &readers.stop().await);
}

/// Until it is done, as a controller that comes back.
async fn switch(world: &World, saved: &Value, aliases: &[Alias]) -> Answers {
    let kinds = world.kinds();
    in_time("the switch", async {
        loop {
            match world.route.switch(saved, &kinds, aliases).await.unwrap() {
                Switched::NotYet(answers) => println!("not yet: {:?}", answers.not_yet()),
                Switched::Done(answers) => break answers,
                other => panic!("{other:?}"),
            }
        }
    })
    .await
}
