//! A continue token that expires on a real server in the middle of a sweep.

use exuvia_sweep::{Sweep, Verdict};
use exuvia_testenv::{ControlPlane, Widgets};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};

use crate::{Seen, names, soon};

/// Waits until a token of now has expired: then those of before have as well.
async fn until_tokens_expire(api: &Api<DynamicObject>, widgets: &Widgets) {
    let page = ListParams::default().limit(10);
    let token = api.list(&page).await.unwrap().metadata.continue_.unwrap();
    let page = page.continue_token(&token);
    loop {
        // Compaction needs revisions to throw away.
        let widget = widgets.widget("v1", "widget-9999");
        api.create(&PostParams::default(), &widget).await.unwrap();
        api.delete("widget-9999", &DeleteParams::default()).await.unwrap();
        match api.list(&page).await {
            Err(kube::Error::Api(status)) if status.code == 410 => return,
            answer => drop(answer.unwrap()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await; // compaction has no other sign
    }
}

/// PITFALLS A8.
#[tokio::test]
async fn a_token_that_expires_costs_no_object_and_shows_none_twice() {
    let control_plane = ControlPlane::builder()
        .apiserver_flag("--etcd-compaction-interval=2s")
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("expired.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 45).await.unwrap();
    let proxy = control_plane.proxy().await.unwrap();
    let (api, widgets, seen) = (&widgets.api(&client, "v1"), &widgets, &Seen::default());
    let sweep = Sweep::of(proxy.client().unwrap(), &widgets.resource("v1")).page_size(10);
    let report = sweep.max_concurrency(1).run(async |object| {
        let nth = seen.note(&object);
        if nth == 1 {
            // The second page has come with another token, which is used when the first page is done.
            soon(proxy.wait_for(|request| request.query.contains("continue=") && request.finished)).await;
            soon(until_tokens_expire(api, widgets)).await;
        }
        Verdict::skipped()
    });
    let report = soon(report).await.unwrap();
    seen.assert_each_once();
    assert_eq!(seen.names(), names(45));
    assert!(report.resumed >= 1 && report.restarts == 0, "{report:?}");
    assert_eq!(report.list_requests, report.pages + u64::from(report.resumed));
    assert_eq!(report.smallest_list, report.first_list, "the others are newer");
    let answers: Vec<_> = proxy
        .requests()
        .iter()
        .filter_map(|request| request.answer)
        .collect();
    assert_eq!(
        answers.iter().filter(|code| **code == 410).count(),
        report.resumed as usize
    );
}
