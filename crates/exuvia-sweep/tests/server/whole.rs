//! Whole objects, selectors and other versions: what the pager can be asked for.

use std::{cell::RefCell, collections::BTreeMap};

use exuvia_sweep::{Item, Page, Pages, Verdict};
use exuvia_testenv::{
    ControlPlane, Widgets,
    proxy::{Answer, Fault, Match, Rule},
};
use k8s_openapi::{api::core::v1::Namespace, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{Setup, names, setup, soon};

async fn resize(setup: &Setup, name: &str, size: u32) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"sized": "yes"}}, "spec": {"size": size}}));
    let api = setup.widgets.api(&setup.direct, "v1");
    api.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

fn names_of(page: &Page) -> Vec<String> {
    page.items.iter().map(|item| item.identity().name).collect()
}

#[tokio::test]
async fn whole_objects_come_to_the_worker_with_their_content() {
    let setup = setup("whole.example.com", 25).await;
    for (nth, name) in names(25).iter().enumerate() {
        resize(&setup, name, 100 + u32::try_from(nth).unwrap()).await;
    }
    let sizes = &RefCell::new(BTreeMap::new());
    let sweep = setup.sweep().run_whole(async |widget: DynamicObject| {
        let size = widget.data["spec"]["size"].as_u64().unwrap();
        assert!(widget.metadata.managed_fields.is_some() && widget.types.is_some());
        sizes.borrow_mut().insert(widget.metadata.name.unwrap(), size);
        Verdict::unchanged()
    });
    let report = soon(sweep).await.unwrap();
    assert_eq!((report.pages, report.tally.unchanged), (3, 25));
    let expected: BTreeMap<_, _> = names(25).into_iter().zip(100..).collect();
    assert_eq!(*sizes.borrow(), expected);
    for request in setup.proxy.requests() {
        let accept = request
            .headers
            .get("accept")
            .map(|accept| accept.to_str().unwrap());
        assert!(
            !accept.is_some_and(|accept| accept.contains("Partial")),
            "{accept:?}"
        );
        assert!(!request.query.contains("resourceVersion"), "{}", request.query);
    }
}

#[tokio::test]
async fn selectors_hold_on_every_page() {
    let setup = setup("selected.example.com", 7).await;
    for name in ["widget-0001", "widget-0003", "widget-0004"] {
        resize(&setup, name, 5).await;
    }
    let which = ListParams::default().labels("sized=yes");
    let mut pages = Pages::of(&setup.api()).select(&which).page_size(2).metadata();
    let mut seen = Vec::new();
    while let Some(page) = soon(pages.next()).await.unwrap() {
        assert_eq!(page.is_first, seen.is_empty());
        seen.extend(names_of(&page));
    }
    assert_eq!(seen, ["widget-0001", "widget-0003", "widget-0004"]);
    let elsewhere: Api<DynamicObject> = Api::namespaced_with(
        setup.through.clone(),
        "kube-system",
        &setup.widgets.resource("v1"),
    );
    let page = soon(Pages::of(&elsewhere).next()).await.unwrap().unwrap();
    assert!(page.items.is_empty() && page.is_first);
}

#[tokio::test]
async fn another_version_shows_the_same_page_of_the_same_moment() {
    let setup = setup("beside.example.com", 5).await;
    let old: Api<DynamicObject> = Api::all_with(setup.through.clone(), &setup.widgets.resource("v1alpha1"));
    let mut pages = Pages::of(&setup.api()).page_size(2);
    let mut nth = 0;
    while let Some(page) = soon(pages.next()).await.unwrap() {
        // What is written between the two lists does not show in the second.
        for item in &page.items {
            let name = item.identity().name;
            let api = setup.widgets.api(&setup.direct, "v1");
            api.delete(&name, &DeleteParams::default()).await.unwrap();
        }
        let beside = soon(pages.beside(&old, &page).next()).await.unwrap().unwrap();
        assert_eq!(names_of(&beside), names_of(&page));
        assert_eq!(beside.resource_version, page.resource_version);
        let at = |item: &Item| item.read::<DynamicObject>().unwrap().types.unwrap().api_version;
        assert!(page.items.iter().all(|item| at(item).ends_with("/v1")));
        assert!(beside.items.iter().all(|item| at(item).ends_with("/v1alpha1")));
        nth += 1;
    }
    assert_eq!(nth, 3);
}

/// A caller that reports each failure asks again, and the pager goes on where it was.
#[tokio::test]
async fn a_pager_that_gave_up_goes_on_when_it_is_asked_again() {
    let setup = setup("onward.example.com", 5).await;
    let second = Match::any().query("continue=");
    setup
        .proxy
        .inject(Rule::on(second).nth(1).then(Fault::refuse(403)));
    let mut pages = Pages::of(&setup.api()).page_size(3);
    let first = soon(pages.next()).await.unwrap().unwrap();
    let refused = soon(pages.next()).await.unwrap_err();
    assert_eq!(refused.class.as_str(), "denied");
    let second = soon(pages.next()).await.unwrap().unwrap();
    assert_eq!((first.is_first, second.is_first), (true, false));
    assert_eq!([names_of(&first), names_of(&second)].concat(), names(5));
    assert!(soon(pages.next()).await.unwrap().is_none());
}

/// A CRD chooses the kind of its lists, and the server writes that kind. Built-in resources and empty lists are lists too.
#[tokio::test]
async fn whatever_a_server_lists_is_a_list() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("herd.example.com");
    let mut crd = widgets.crd("v1");
    crd["spec"]["names"]["listKind"] = json!("Herd");
    widgets.install_crd(&client, crd).await.unwrap();
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &widgets.resource("v1"));
    for count in [0, 3] {
        widgets.create(&client, "v1", count).await.unwrap();
        for pages in [Pages::of(&api), Pages::of(&api).metadata()] {
            let page = soon(pages.page_size(5).next()).await.unwrap().unwrap();
            assert_eq!(names_of(&page), names(count));
        }
    }
    let listed = api.list(&ListParams::default()).await.unwrap();
    assert_eq!(listed.types.kind, "Herd");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let services: Api<APIService> = Api::all(client);
    for mut pages in [
        Pages::of(&namespaces),
        Pages::of(&namespaces).metadata(),
        Pages::of(&services),
    ] {
        assert!(!soon(pages.next()).await.unwrap().unwrap().items.is_empty());
    }
}

#[tokio::test]
async fn a_list_that_starts_over_is_collected_once() {
    let setup = setup("collected.example.com", 25).await;
    // No other token comes with it, so that the list can only start over.
    let expired = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "metadata": {}});
    let expired = Answer::status(410).json(&expired);
    let second_page = Rule::on(Match::any().query("continue=")).nth(1);
    let rule = setup.proxy.inject(second_page.then(Fault::refuse(expired)));
    let pages = Pages::of(&setup.api()).page_size(10);
    let all: Vec<DynamicObject> = soon(pages.collect()).await.unwrap();
    assert_eq!(rule.applied(), 1);
    let found: Vec<String> = all
        .into_iter()
        .filter_map(|widget| widget.metadata.name)
        .collect();
    assert_eq!(found, names(25));
}
