//! Writes that are lost on the way there, or committed and lost on the way back.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use exuvia_testenv::proxy::{Fault, Match, Recorded, Rule};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{Setup, code, create, setup, soon};

#[tokio::test]
async fn a_dropped_answer_leaves_the_object_though_the_client_saw_an_error() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    for (name, fault) in [
        ("answer-dropped", Fault::DropAnswer),
        ("answer-reset", Fault::ResetAnswer),
    ] {
        proxy.inject(Rule::on(Match::writes().object("default", name)).then(fault));
        let error = create(&through, name).await.unwrap_err();
        assert_eq!(code(&error), None, "{error}");
        direct.get(name).await.unwrap();
        let recorded = proxy.writes().pop().unwrap();
        assert_eq!((recorded.upstream, recorded.answer), (Some(201), None));
    }
    assert_eq!(
        proxy.writes().len(),
        2,
        "the client did not try again behind our back"
    );
}

#[tokio::test]
async fn a_dropped_request_leaves_nothing() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    for (name, fault) in [
        ("request-dropped", Fault::DropRequest),
        ("request-reset", Fault::ResetRequest),
    ] {
        proxy.inject(
            Rule::on(Match::writes().object("default", name))
                .nth(1)
                .then(fault),
        );
        let error = create(&through, name).await.unwrap_err();
        assert_eq!(code(&error), None, "{error}");
        assert!(direct.get_opt(name).await.unwrap().is_none());
        create(&through, name)
            .await
            .expect("the rule was about the first write only");
    }
    let answers: Vec<_> = proxy.writes().iter().map(|r| (r.upstream, r.answer)).collect();
    assert_eq!(
        answers,
        [
            (None, None),
            (Some(201), Some(201)),
            (None, None),
            (Some(201), Some(201))
        ]
    );
}

#[tokio::test]
async fn a_stalled_write_is_committed_only_if_its_answer_is_what_stalls() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    for (name, fault, committed) in [
        ("request-stalled", Fault::StallRequest, false),
        ("answer-stalled", Fault::StallAnswer, true),
    ] {
        proxy.inject(Rule::on(Match::writes().object("default", name)).then(fault));
        let api = through.clone();
        let client = tokio::spawn(async move { create(&api, name).await });
        let arrived = |r: &Recorded| r.json()["metadata"]["name"] == name;
        soon(proxy.wait_for(|r| arrived(r) && r.upstream.is_some() == committed)).await;
        assert_eq!(direct.get_opt(name).await.unwrap().is_some(), committed);
        assert!(!client.is_finished());
        client.abort(); // the client goes away
        let recorded = soon(proxy.wait_for(|r| arrived(r) && r.finished)).await;
        assert_eq!((recorded.upstream.is_some(), recorded.answer), (committed, None));
        assert_eq!(direct.get_opt(name).await.unwrap().is_some(), committed);
    }
}

#[tokio::test]
async fn an_error_is_answered_before_or_after_the_write_is_committed() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    let reasons = [
        (409, "AlreadyExists"),
        (410, "Expired"),
        (429, "TooManyRequests"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (504, "Timeout"),
    ];
    for (expected, reason) in reasons {
        for (when, fault) in [
            ("before", Fault::refuse(expected)),
            ("after", Fault::replace(expected)),
        ] {
            let name = format!("{expected}-{when}");
            proxy.inject(Rule::on(Match::writes().object("default", &name)).then(fault));
            let error = create(&through, &name).await.unwrap_err();
            let kube::Error::Api(status) = &error else {
                panic!("{error:?}")
            };
            assert_eq!((status.code, status.reason.as_str()), (expected, reason));
            assert_eq!(
                direct.get_opt(&name).await.unwrap().is_some(),
                when == "after",
                "{name}"
            );
            let recorded = proxy.writes().pop().unwrap();
            assert_eq!(recorded.upstream, (when == "after").then_some(201));
            assert_eq!(recorded.answer, Some(expected));
        }
    }
}

#[tokio::test]
async fn the_nth_write_is_committed_before_its_client_learns_of_it() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    create(&direct, "counted").await.unwrap();
    let (tell, told) = tokio::sync::oneshot::channel();
    let (release, released) = mpsc::channel::<()>();
    let once = Mutex::new((Some(tell), released));
    let rule = Rule::on(
        Match::writes()
            .path("/api/v1/*/configmaps/*")
            .object("default", "counted"),
    );
    let third = proxy.inject(rule.nth(3).then(Fault::replace(504)).on_commit(move |recorded| {
        let mut once = once.lock().unwrap();
        once.0.take().unwrap().send(recorded.clone()).unwrap();
        once.1.recv().unwrap();
    }));

    let writing = tokio::spawn(async move {
        let mut answers = Vec::new();
        for n in 1..=4 {
            let patch = Patch::Merge(json!({"data": {"n": n.to_string()}}));
            let answer = through.patch("counted", &PatchParams::default(), &patch).await;
            answers.push(answer.map(drop).map_err(|error| code(&error)));
        }
        answers
    });
    let committed = soon(told).await.unwrap();
    assert_eq!((committed.upstream, committed.answer), (Some(200), None));
    assert_eq!(committed.json(), json!({"data": {"n": "3"}}));
    assert_eq!(direct.get("counted").await.unwrap().data.unwrap()["n"], "3");
    assert_eq!(proxy.writes().len(), 3, "the client is still waiting");
    release.send(()).unwrap();
    assert_eq!(
        soon(writing).await.unwrap(),
        [Ok(()), Ok(()), Err(Some(504)), Ok(())]
    );
    assert_eq!((third.matched(), third.applied()), (4, 1));
}

#[tokio::test]
async fn a_delayed_write_lands_after_its_client_gave_up() {
    let Setup {
        proxy,
        direct,
        through,
    } = setup().await;
    let rule = Rule::on(Match::writes().object("default", "late"));
    proxy.inject(rule.nth(1).then(Fault::Delay(Duration::from_millis(500))));
    let writing = tokio::spawn(async move { create(&through, "late").await });
    soon(proxy.wait_for(Recorded::is_write)).await;
    writing.abort();
    soon(proxy.wait_for(|r| r.upstream == Some(201))).await;
    direct.get("late").await.unwrap();
}
