//! What is listed, and what becomes of it.

use exuvia_sweep::{Control, ResourceVersion, Sweep, Verdict};
use exuvia_testenv::ControlPlane;
use exuvia_write::Writer;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, PostParams},
};
use serde_json::json;

use crate::{Seen, names, rewrite, setup, soon};

#[tokio::test]
async fn several_continue_tokens_show_each_object_once() {
    let setup = setup("pages.example.com", 35).await;
    let (seen, newest) = (&Seen::default(), &std::sync::Mutex::new(None));
    let sweep = setup.sweep();
    let progress = sweep.progress();
    let report = sweep.run(async |object| {
        seen.note(&object);
        let mut newest = newest.lock().unwrap();
        *newest = ResourceVersion::of(&object.metadata).max(*newest);
        assert!(object.metadata.managed_fields.is_some(), "callers look at them");
        Verdict::skipped()
    });
    let report = soon(report).await.unwrap();
    seen.assert_each_once();
    assert_eq!(seen.names(), names(35));
    assert_eq!((report.tally.skipped, report.tally.done()), (35, 35));
    assert_eq!((report.pages, report.list_requests), (4, 4));
    assert_eq!((report.resumed, report.restarts), (0, 0));
    assert!(report.first_list.is_some() && report.first_list == report.smallest_list);
    assert!(report.first_list >= *newest.lock().unwrap());
    assert_eq!(
        (progress.borrow().done(), progress.borrow().total),
        (35, Some(35))
    );
    assert!(progress.has_changed().is_err(), "the channel is closed");
}

#[tokio::test]
async fn pages_are_consistent_lists_of_metadata() {
    let setup = setup("wire.example.com", 25).await;
    let sweep = Sweep::of(setup.through.clone(), &setup.widgets.resource("v1"));
    soon(sweep.run(async |_| Verdict::skipped())).await.unwrap();
    soon(setup.sweep().run(async |_| Verdict::skipped()))
        .await
        .unwrap();
    let requests = setup.proxy.requests();
    assert_eq!(requests.len(), 4);
    let metadata_only = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    for request in &requests {
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("GET", "/apis/wire.example.com/v1/widgets")
        );
        assert_eq!(request.headers["accept"], metadata_only);
        assert!(!request.query.contains("resourceVersion"), "{}", request.query);
    }
    assert!(requests[0].query.contains("limit=500"), "{}", requests[0].query);
    let tokens = requests.iter().map(|request| request.query.contains("continue="));
    assert_eq!(tokens.collect::<Vec<_>>(), [false, false, true, true]);
}

#[tokio::test]
async fn the_count_takes_one_small_request() {
    let setup = setup("count.example.com", 12).await;
    let count = soon(setup.sweep().count()).await.unwrap();
    assert_eq!(count.objects, Some(12));
    assert!(count.resource_version.is_some());
    let requests = setup.proxy.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].query.contains("limit=1") && !requests[0].query.contains("limit=10"));
    let nothing = crate::setup("nothing.example.com", 0).await;
    assert_eq!(soon(nothing.sweep().count()).await.unwrap().objects, Some(0));
}

#[tokio::test]
async fn one_namespace_can_be_swept_alone_and_what_has_none_as_well() {
    let setup = setup("spaces.example.com", 3).await;
    let namespaces: Api<Namespace> = Api::all(setup.direct.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "elsewhere"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let resource = setup.widgets.resource("v1");
    let elsewhere: Api<DynamicObject> = Api::namespaced_with(setup.direct.clone(), "elsewhere", &resource);
    let widget = DynamicObject::new("widget-far", &resource).data(json!({"spec": {}}));
    elsewhere.create(&PostParams::default(), &widget).await.unwrap();

    let (here, everywhere, spaces) = (&Seen::default(), &Seen::default(), &Seen::default());
    let note = |seen: &Seen, object| {
        seen.note(&object);
        std::future::ready(Verdict::unchanged())
    };
    soon(
        setup
            .sweep()
            .namespace("elsewhere")
            .run(|object| note(here, object)),
    )
    .await
    .unwrap();
    assert_eq!(here.names(), ["widget-far"]);
    soon(setup.sweep().run(|object| note(everywhere, object)))
        .await
        .unwrap();
    assert_eq!(everywhere.names().len(), 4);
    let resource = ApiResource::erase::<Namespace>(&());
    soon(Sweep::of(setup.through.clone(), &resource).run(|object| note(spaces, object)))
        .await
        .unwrap();
    assert!(spaces.names().contains(&"elsewhere".to_owned()));
}

#[tokio::test]
async fn objects_that_come_and_go_meanwhile_do_not_disturb() {
    let setup = setup("busy.example.com", 35).await;
    let direct = setup.widgets.api(&setup.direct, "v1");
    setup.widgets.flip_storage(&setup.direct, "v1").await.unwrap();
    let (writer, api, seen) = (
        &Writer::named("exuvia-sweep-test"),
        &setup.api(),
        &Seen::default(),
    );
    let (direct, widgets) = (&direct, &setup.widgets);
    let report = setup.sweep().max_concurrency(1).run(async |object| {
        if seen.note(&object) == 1 {
            for name in ["widget-0005", "widget-0033"] {
                direct.delete(name, &DeleteParams::default()).await.unwrap();
            }
            for name in ["widget-0000a", "widget-0020a", "widget-9999"] {
                let widget = widgets.widget("v1", name);
                direct.create(&PostParams::default(), &widget).await.unwrap();
            }
        }
        rewrite(writer, api, &object.metadata).await
    });
    let report = soon(report).await.unwrap();
    seen.assert_each_once();
    assert_eq!(seen.names(), names(35), "the list is as of its first page");
    assert_eq!((report.tally.changed, report.tally.gone), (33, 2));
    assert!(report.tally.is_clean());

    // The second sweep has no memory of the first, and finds all in order.
    let r0 = report.first_list.unwrap();
    let verify = setup.sweep().run(async |object| {
        if r0.precedes(&object.metadata) {
            return Verdict::skipped();
        }
        rewrite(writer, api, &object.metadata).await
    });
    let report = soon(verify).await.unwrap();
    assert_eq!(
        (report.tally.skipped, report.tally.done()),
        (36, 36),
        "all were written after the first list"
    );
    let full = setup
        .sweep()
        .run(async |object| rewrite(writer, api, &object.metadata).await);
    assert_eq!(soon(full).await.unwrap().tally.unchanged, 36);
    let stored = ControlPlane::shared()
        .await
        .stored("busy.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(stored.get("busy.example.com/v1alpha1"), None);
}

#[tokio::test]
async fn cancel_at_the_nth_object_stops_there() {
    let setup = setup("cancel.example.com", 50).await;
    let (seen, control) = (&Seen::default(), &Control::new());
    let (writer, api) = (&Writer::named("exuvia-sweep-test"), &setup.api());
    let sweep = setup
        .sweep()
        .max_concurrency(2)
        .controlled_by(control)
        .run(async |object| {
            if seen.note(&object) >= 23 {
                control.cancel();
            }
            rewrite(writer, api, &object.metadata).await
        });
    let error = soon(sweep).await.unwrap_err();
    assert!(error.is_cancelled());
    let done = error.report().tally.done();
    assert!(
        (23..=24).contains(&done),
        "one more may have been in work: {done}"
    );
    assert_eq!(done, seen.names().len() as u64, "what was started was finished");
    assert_eq!(error.report().tally.unchanged, done);
}

#[tokio::test]
async fn a_paused_sweep_asks_nothing_until_it_is_resumed() {
    let setup = setup("paused.example.com", 50).await;
    let (seen, control) = (&Seen::default(), &Control::new());
    let (writer, api) = (&Writer::named("exuvia-sweep-test"), &setup.api());
    let sweep = setup.sweep().controlled_by(control);
    let mut progress = sweep.progress();
    let work = sweep.run(async |object| {
        if seen.note(&object) == 23 {
            control.pause();
        }
        rewrite(writer, api, &object.metadata).await
    });
    let outside = async {
        progress
            .wait_for(|now| now.paused && now.in_flight == 0)
            .await
            .unwrap();
        // A page may have been on its way; then nothing more comes, however long others work.
        let direct = setup.widgets.api(&setup.direct, "v1");
        let settled = async {
            while setup.proxy.requests().iter().any(|request| !request.finished) {
                direct.get("widget-0000").await.unwrap();
            }
        };
        soon(settled).await;
        let before = (setup.proxy.requests().len(), seen.names().len());
        for _ in 0..50 {
            direct.get("widget-0000").await.unwrap();
        }
        assert_eq!((setup.proxy.requests().len(), seen.names().len()), before);
        control.resume();
    };
    let (report, ()) = soon(Box::pin(async { tokio::join!(work, outside) })).await;
    seen.assert_each_once();
    assert_eq!(report.unwrap().tally.unchanged, 50);
}

#[tokio::test]
async fn at_most_two_pages_are_in_memory_beside_the_objects_in_work() {
    let setup = setup("memory.example.com", 100).await;
    let (setup, finished) = (&setup, &std::sync::atomic::AtomicUsize::new(0));
    let (writer, api) = (&Writer::named("exuvia-sweep-test"), &setup.api());
    let report = setup.sweep().max_concurrency(4).run(async |object| {
        // The next page is on its way before the first object is done, or there would be two pages only in name.
        soon(
            setup
                .proxy
                .wait_for(|request| request.query.contains("continue=")),
        )
        .await;
        let verdict = rewrite(writer, api, &object.metadata).await;
        let finished = finished.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let listed = 10 * setup.lists();
        assert!(
            listed - finished <= 20 + 4,
            "{listed} listed, {finished} finished"
        );
        verdict
    });
    let report = soon(report).await.unwrap();
    assert_eq!(
        (report.tally.unchanged, report.tally.failed),
        (100, 0),
        "{:?}",
        report.failures
    );
}
