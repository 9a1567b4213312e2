//! Everything that can go wrong between us and the server: the class of each, and what the writer makes of it.

use std::time::Duration;

use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_write::{Effect, ErrorClass};
use kube::ResourceExt;
use serde_json::json;

use super::Stage;

/// What a write meets, its class, how often it is sent if that goes away, and whether it then succeeds.
struct Case {
    what: &'static str,
    fault: Fault,
    class: ErrorClass,
    /// Requests of a writer that retries: writes and reads.
    requests: (usize, usize),
    succeeds: bool,
}

fn case(what: &'static str, fault: Fault, class: ErrorClass, requests: (usize, usize)) -> Case {
    let succeeds = matches!(
        class,
        ErrorClass::Throttled(_) | ErrorClass::Transient(_) | ErrorClass::Ambiguous
    );
    Case {
        what,
        fault,
        class,
        requests,
        succeeds,
    }
}

fn text(code: u16, text: &str) -> Fault {
    Fault::refuse(Answer::status(code).text(text))
}

fn message(code: u16, message: &str) -> Fault {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
    Fault::refuse(Answer::status(code).without_retry_after().json(&status))
}

fn cases() -> Vec<Case> {
    let mut cases = answers();
    cases.extend(cuts());
    cases
}

fn answers() -> Vec<Case> {
    use ErrorClass::{
        Ambiguous, Conflict, Denied, Expired, Fatal, Gone, Invalid, Missing, Throttled, Transient,
    };
    let a_second = Some(Duration::from_secs(1));
    let conversion = "conversion webhook for x failed: connection refused";
    let invalid = "request to convert CR to an invalid group/version: x/v0";
    vec![
        case("403", Fault::refuse(403), Denied, (1, 0)),
        case("404", Fault::refuse(404), Gone, (1, 0)),
        case("404 as text", text(404, "404 page not found"), Missing, (1, 0)),
        case("409", Fault::refuse(409), Conflict, (1, 0)),
        case("410", Fault::refuse(410), Expired, (1, 0)),
        case("422", Fault::refuse(422), Invalid, (1, 0)),
        case("429", Fault::refuse(429), Throttled(a_second), (2, 0)),
        case(
            "429 as text",
            text(429, "Too many requests"),
            Throttled(a_second),
            (2, 0),
        ),
        case(
            "429 (A24)",
            message(429, "storage is (re)initializing"),
            Transient(None),
            (2, 0),
        ),
        case("500 of etcd", Fault::refuse(500), Ambiguous, (2, 1)),
        case("500 as text", text(500, "oops"), Transient(None), (2, 0)),
        case(
            "500 of a conversion webhook (A24)",
            message(500, conversion),
            Transient(None),
            (2, 0),
        ),
        case(
            "500 for a version that is gone (A7)",
            message(500, invalid),
            Fatal,
            (1, 0),
        ),
        case("503", Fault::refuse(503), Transient(None), (2, 0)),
        case("504 before", Fault::refuse(504), Ambiguous, (2, 1)),
        case("504 after commit", Fault::replace(504), Ambiguous, (1, 1)),
        case(
            "504 of a load balancer after commit",
            late_text(),
            Ambiguous,
            (1, 1),
        ),
    ]
}

fn late_text() -> Fault {
    Fault::replace(Answer::status(504).text("upstream timeout"))
}

fn cuts() -> Vec<Case> {
    let unknown = |what, fault, requests| case(what, fault, ErrorClass::Ambiguous, requests);
    vec![
        unknown("cut before", Fault::DropRequest, (2, 1)),
        unknown("cut after commit", Fault::DropAnswer, (1, 1)),
        unknown("cut within the answer", Fault::Truncate(10), (1, 1)),
        unknown("reset before", Fault::ResetRequest, (2, 1)),
        unknown("reset after commit", Fault::ResetAnswer, (1, 1)),
        unknown("stall before", Fault::StallRequest, (2, 1)),
        unknown("stall after commit", Fault::StallAnswer, (1, 1)),
    ]
}

#[tokio::test]
async fn every_fault_has_its_class_and_its_behaviour() {
    let stage = Stage::set("faults").await;
    // Short, for the stalls; a healthy answer takes milliseconds.
    let writer = stage.writer.clone().timeout(Duration::from_secs(3));
    for (index, case) in cases().into_iter().enumerate() {
        let what = case.what;
        let object = stage.widget(&format!("w{index}")).await;
        stage.proxy.forget();
        let rule = stage
            .proxy
            .inject(Rule::on(Match::writes()).nth(1).then(case.fault));
        let result = writer.patch(&stage.api(), &object, |w| w.spec.size = 2).await;
        rule.remove();
        match &result {
            Ok(written) => {
                assert!(case.succeeds, "{what}: written");
                assert_eq!(written.effect, Effect::Changed, "{what}");
                assert_eq!(written.object.spec.size, 2, "{what}");
                let version = json!(written.object.resource_version());
                assert_eq!(
                    stage.live(&object.name_any()).await["metadata"]["resourceVersion"],
                    version,
                    "{what}"
                );
            }
            Err(error) => {
                assert!(!case.succeeds, "{what}: {error}");
                assert_eq!(error.class(), case.class, "{what}: {error}");
            }
        }
        let requests = stage.proxy.requests();
        let sent = requests.iter().filter(|sent| sent.is_write()).count();
        assert_eq!((sent, requests.len() - sent), case.requests, "{what}");
        // Whatever happened on the way, it was done once or not at all.
        let size = &stage.live(&object.name_any()).await["spec"]["size"];
        assert_eq!(size, if case.succeeds { 2 } else { 1 }, "{what}");
        let generation = &stage.live(&object.name_any()).await["metadata"]["generation"];
        assert_eq!(generation, if case.succeeds { 2 } else { 1 }, "{what}");
    }
}

#[tokio::test]
async fn a_writer_that_never_tries_again_gives_every_fault_back() {
    let stage = Stage::set("faults-once").await;
    let writer = stage.writer.clone().timeout(Duration::from_secs(3)).once();
    for (index, case) in cases().into_iter().enumerate() {
        let what = case.what;
        let object = stage.widget(&format!("w{index}")).await;
        stage.proxy.forget();
        let rule = stage
            .proxy
            .inject(Rule::on(Match::writes()).nth(1).then(case.fault));
        let result = writer.patch(&stage.api(), &object, |w| w.spec.size = 2).await;
        rule.remove();
        // Sent once only; a write that the following read finds to be done is still a success.
        let done = case.succeeds && case.requests.0 == 1;
        assert_eq!(result.is_ok(), done, "{what}: {result:?}");
        if let Err(error) = result {
            assert_eq!(error.class(), case.class, "{what}: {error}");
        }
        assert_eq!(stage.proxy.writes().len(), 1, "{what}");
    }
}

#[tokio::test]
async fn an_unlocked_write_whose_answer_is_lost_is_not_sent_twice() {
    let stage = Stage::set("faults-status").await;
    let object = stage.widget("w").await;
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let written = stage
        .writer
        .patch_status(&stage.api(), &object, |w| w.status_mut().ready = Some(1))
        .await
        .unwrap();
    assert_eq!(written.object.status.unwrap().ready, Some(1));
    stage.only_write();
}

#[tokio::test]
async fn somebody_elses_write_after_ours_was_lost_is_seen_as_a_conflict() {
    let stage = Stage::set("faults-other").await;
    let object = stage.widget("w").await;
    let newer = stage
        .writer
        .patch(&stage.api(), &object, |w| w.spec.size = 9)
        .await
        .unwrap()
        .object;
    stage.proxy.forget();
    // Ours never arrives; it is sent again with its old lock, and that is what the server says.
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetRequest));
    let error = stage
        .writer
        .patch(&stage.api(), &object, |w| w.spec.size = 2)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert_eq!(
        stage.live("w").await["metadata"]["resourceVersion"],
        json!(newer.resource_version())
    );
}

#[tokio::test]
async fn every_read_has_a_timeout_too() {
    let stage = Stage::set("faults-read").await;
    let object = stage.widget("w").await;
    stage
        .proxy
        .inject(Rule::on(Match::method(http::Method::GET)).then(Fault::StallRequest));
    stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let writer = stage.writer.clone().timeout(Duration::from_millis(500)).once();
    let error = writer
        .patch(&stage.api(), &object, |w| w.spec.size = 2)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Ambiguous);
}

#[tokio::test]
async fn what_the_server_does_not_serve_is_told_from_what_it_does_not_have() {
    let stage = Stage::set("faults-unserved").await;
    let object = stage.widget("w").await;
    stage
        .raw()
        .delete("w", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let gone = stage
        .writer
        .patch(&stage.api(), &object, |w| w.spec.size = 2)
        .await
        .unwrap_err();
    assert_eq!(
        (gone.class(), gone.is_unserved()),
        (ErrorClass::Gone, false),
        "{gone}"
    );

    let other: kube::Api<super::Widget> = kube::Api::namespaced_with(
        stage.proxied.clone(),
        "default",
        &exuvia_testenv::Widgets::in_group("nowhere.example.com").resource("v1"),
    );
    let unserved = stage
        .writer
        .patch(&other, &object, |w| w.spec.size = 2)
        .await
        .unwrap_err();
    assert_eq!(
        (unserved.class(), unserved.is_unserved()),
        (ErrorClass::Missing, true),
        "{unserved}"
    );
}

#[tokio::test]
async fn the_servers_own_refusals_have_their_class() {
    let stage = Stage::set("faults-real").await;
    let object = stage.widget("w").await;
    // 422 by the schema.
    let untyped = stage.widgets.api(&stage.proxied, "v1");
    let live = untyped.get("w").await.unwrap();
    let invalid = stage
        .writer
        .patch(&untyped, &live, |object| {
            object.data["spec"]["size"] = json!("big");
        })
        .await
        .unwrap_err();
    assert_eq!(invalid.class(), ErrorClass::Invalid, "{invalid}");
    // 403 by RBAC.
    let control_plane = exuvia_testenv::ControlPlane::shared().await;
    let nobody = control_plane.user("nobody", &[]).unwrap().client().unwrap();
    let theirs: kube::Api<super::Widget> =
        kube::Api::namespaced_with(nobody, "default", &stage.widgets.resource("v1"));
    let denied = stage
        .writer
        .patch(&theirs, &object, |w| w.spec.size = 2)
        .await
        .unwrap_err();
    assert_eq!(denied.class(), ErrorClass::Denied, "{denied}");
}
