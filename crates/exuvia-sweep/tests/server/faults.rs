//! Lists and objects that fail.

use exuvia_sweep::{Error, Outcome, Verdict};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_write::{ErrorClass, RetryPolicy, Writer};
use serde_json::json;

use crate::{Seen, names, rewrite, setup, soon};

#[tokio::test]
async fn a_list_that_fails_once_is_asked_for_again() {
    let setup = setup("retry.example.com", 25).await;
    let overloaded = Answer::status(429)
        .retry_after(0)
        .text("Too many requests, please try again later.");
    let faults = [
        Fault::refuse(Answer::status(429).without_retry_after()),
        Fault::refuse(overloaded),
        Fault::refuse(500),
        Fault::refuse(503),
        Fault::replace(504),
        Fault::ResetRequest,
        Fault::DropAnswer,
        Fault::Truncate(300),
    ];
    for fault in faults {
        for nth in 1..=3 {
            setup.proxy.clear();
            let rule = setup
                .proxy
                .inject(Rule::on(Match::any()).nth(nth).then(fault.clone()));
            let seen = &Seen::default();
            let report = setup.sweep().run(async |object| {
                seen.note(&object);
                Verdict::skipped()
            });
            let report = soon(report).await.unwrap();
            assert_eq!(rule.applied(), 1);
            seen.assert_each_once();
            assert_eq!(seen.names(), names(25), "{fault:?}");
            assert_eq!((report.pages, report.list_requests), (3, 4), "{fault:?}");
        }
    }
}

#[tokio::test]
async fn a_token_that_expires_without_another_makes_the_sweep_start_over() {
    let setup = setup("over.example.com", 25).await;
    let third = Match::any().query("continue=");
    setup
        .proxy
        .inject(Rule::on(third.clone()).nth(2).then(Fault::refuse(410)));
    let seen = &Seen::default();
    let work = async |object| {
        seen.note(&object);
        Verdict::skipped()
    };
    let report = soon(setup.sweep().run(work)).await.unwrap();
    assert_eq!(seen.names(), names(25));
    assert_eq!(
        (report.restarts, report.tally.done()),
        (1, 45),
        "two pages were seen twice"
    );

    setup.proxy.inject(Rule::on(third).then(Fault::refuse(410)));
    let error = soon(setup.sweep().run(work)).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::List {
                class: ErrorClass::Expired,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(error.report().restarts, 3);
}

#[tokio::test]
async fn a_list_that_is_denied_is_not_asked_for_again() {
    let setup = setup("denied.example.com", 1).await;
    setup
        .proxy
        .inject(Rule::on(Match::any()).then(Fault::refuse(403)));
    let error = soon(setup.sweep().run(async |_| Verdict::unchanged()))
        .await
        .unwrap_err();
    assert_eq!((error.reason(), error.report().list_requests), ("Denied", 1));
    assert!(
        error
            .to_string()
            .starts_with("cannot list widgets.denied.example.com: "),
        "{error}"
    );
    assert!(soon(setup.sweep().count()).await.is_err());
    assert_eq!(setup.lists(), 2);
}

#[tokio::test]
async fn an_object_that_fails_is_named_and_the_others_are_done() {
    let setup = setup("failing.example.com", 25).await;
    setup.widgets.flip_storage(&setup.direct, "v1").await.unwrap();
    let refused = Match::writes().object("default", "widget-0007");
    setup.proxy.inject(Rule::on(refused).then(Fault::refuse(403)));
    let conflicting = Match::writes().object("default", "widget-0012");
    setup.proxy.inject(Rule::on(conflicting).then(Fault::refuse(409)));
    let (writer, api) = (&Writer::named("exuvia-sweep-test"), &setup.api());
    let report = setup
        .sweep()
        .run(async |object| rewrite(writer, api, &object.metadata).await);
    let report = soon(report).await.unwrap();
    assert_eq!((report.tally.changed, report.tally.failed), (23, 2));
    assert_eq!(
        report.failures.by_class.keys().copied().collect::<Vec<_>>(),
        ["conflict", "denied"]
    );
    let mut failed: Vec<_> = report
        .failures
        .first
        .iter()
        .map(|f| (f.name.as_str(), f.class, f.outcome))
        .collect();
    failed.sort_unstable();
    let expected = [
        ("widget-0007", "denied", Outcome::Failed),
        ("widget-0012", "conflict", Outcome::Failed),
    ];
    assert_eq!(failed, expected);
    assert_eq!(report.failures.first[0].namespace.as_deref(), Some("default"));
}

/// A gateway in front of the API server may answer for it.
#[tokio::test]
async fn an_answer_that_is_not_a_list_is_not_the_end_of_the_list() {
    let setup = setup("gateway.example.com", 25).await;
    let expired = Answer::status(200).json(&json!({"error": "session expired"}));
    for nth in 1..=3 {
        setup.proxy.clear();
        let fault = Fault::refuse(expired.clone());
        let rule = setup.proxy.inject(Rule::on(Match::any()).nth(nth).then(fault));
        let seen = &Seen::default();
        let work = async |object| {
            seen.note(&object);
            Verdict::skipped()
        };
        let report = soon(setup.sweep().run(work)).await.unwrap();
        assert_eq!((rule.applied(), report.list_requests), (1, 4));
        assert_eq!(seen.names(), names(25));
    }

    setup.proxy.clear();
    let next_pages = Match::any().query("continue=");
    setup
        .proxy
        .inject(Rule::on(next_pages).always().then(Fault::refuse(expired)));
    let twice = RetryPolicy {
        attempts: 2,
        ..RetryPolicy::default()
    };
    let sweep = setup.sweep().retry(twice);
    let error = soon(sweep.run(async |_| Verdict::skipped())).await.unwrap_err();
    assert!(error.to_string().contains("the answer is not a list"), "{error}");
    assert_eq!(
        (error.report().tally.done(), error.report().list_requests),
        (10, 3)
    );
}
