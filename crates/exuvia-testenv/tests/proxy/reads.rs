//! Lists and watches that are cut or expire.

use exuvia_testenv::proxy::{Fault, Match, Rule};
use futures::StreamExt;
use http::Method;
use kube::ResourceExt;
use kube::api::{PostParams, WatchEvent, WatchParams};

use crate::{Setup, code, config_map, labelled, setup, soon};

#[tokio::test]
async fn a_list_is_cut_in_the_middle_of_its_body() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    for n in 0..5 {
        direct
            .create(
                &PostParams::default(),
                &config_map("listed", &format!("listed-{n}")),
            )
            .await
            .unwrap();
    }
    let lists = Match::method(Method::GET)
        .resource("configmaps")
        .query("labelSelector=test%3Dlisted");
    let cut = proxy.inject(Rule::on(lists).then(Fault::Truncate(300)));
    let error = soon(through.list(&labelled("listed"))).await.unwrap_err();
    assert_eq!(code(&error), None, "{error}");
    let recorded = soon(proxy.wait_for(|r| r.finished)).await;
    assert_eq!(
        (recorded.upstream, recorded.answer, recorded.bytes_out),
        (Some(200), Some(200), 300)
    );
    cut.remove();
    assert_eq!(
        soon(through.list(&labelled("listed"))).await.unwrap().items.len(),
        5
    );
}

#[tokio::test]
async fn a_continued_list_expires_where_a_first_page_does_not() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    for n in 0..3 {
        direct
            .create(
                &PostParams::default(),
                &config_map("paged", &format!("paged-{n}")),
            )
            .await
            .unwrap();
    }
    proxy.inject(
        Rule::on(Match::any().query("continue="))
            .times(1)
            .then(Fault::refuse(410)),
    );
    let pages = labelled("paged").limit(2);
    let first = soon(through.list(&pages)).await.unwrap();
    let next = pages.clone().continue_token(&first.metadata.continue_.unwrap());
    assert_eq!(code(&soon(through.list(&next)).await.unwrap_err()), Some(410));
    assert_eq!(soon(through.list(&next)).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_watch_streams_through_until_it_is_cut() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    let watch = || WatchParams::default().labels("test=watched");
    proxy.inject(
        Rule::on(Match::any().query("watch=true"))
            .nth(1)
            .then(Fault::refuse(410)),
    );
    let from = direct
        .list(&labelled("watched"))
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    assert_eq!(
        code(&through.watch(&watch(), &from).await.err().unwrap()),
        Some(410)
    );

    let mut events = through.watch(&watch(), &from).await.unwrap().boxed();
    for name in ["watched-one", "watched-two"] {
        direct
            .create(&PostParams::default(), &config_map("watched", name))
            .await
            .unwrap();
        let event = soon(events.next()).await.unwrap().unwrap();
        assert!(
            matches!(&event, WatchEvent::Added(added) if added.name_any() == name),
            "{event:?}"
        );
    }
    assert!(!proxy.requests().last().unwrap().finished);
    drop(events);
    soon(proxy.wait_for(|r| r.answer == Some(200) && r.finished)).await;

    // The first event passes whole, the second not.
    let event_size = usize::try_from(proxy.requests().last().unwrap().bytes_out / 2).unwrap();
    proxy.inject(
        Rule::on(Match::any().query("watch=true")).then(Fault::Truncate(event_size + event_size / 2)),
    );
    let mut events = through.watch(&watch(), &from).await.unwrap().boxed();
    assert!(matches!(
        soon(events.next()).await,
        Some(Ok(WatchEvent::Added(_)))
    ));
    assert!(!matches!(soon(events.next()).await, Some(Ok(_))));
}
