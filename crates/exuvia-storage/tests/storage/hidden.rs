//! An `APIService` with a backend in front of the CRD: what that server shows says nothing about what the CRD stores.

use exuvia_runtime::machine::Machine;
use exuvia_storage::droppable::{Holds, Look, Question, look};
use exuvia_storage::protocol::{Hold, Next, NextStep, Step};
use exuvia_storage::{End, Engine, Options};
use exuvia_testenv::aggregated::Aggregated;
use exuvia_testenv::{Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::json;

use crate::Bench;

/// A server that answers for one version of the bench's group with the objects of another CRD, of which there are none.
async fn backend(bench: &Bench, version: &str) -> Aggregated {
    let elsewhere = Widgets::in_group(format!("elsewhere.{}", bench.widgets.group()));
    elsewhere.install(&bench.client, "v1").await.unwrap();
    let shown = (bench.widgets.group(), version);
    let stored = (elsewhere.group(), "v1");
    Aggregated::start(bench.control_plane, shown, stored, &["widgets"])
        .await
        .unwrap()
}

/// Puts the backend in front, and waits until it answers.
async fn hide(bench: &Bench, backend: &Aggregated) {
    backend.install(&bench.client).await.unwrap();
    until("the backend answers", async || {
        backend.answers(&bench.client).await.unwrap()
    })
    .await;
}

/// Takes the backend away, and waits until the CRD answers.
async fn show(bench: &Bench, backend: &Aggregated) {
    let api_services: Api<APIService> = Api::all(bench.client.clone());
    let name = backend.api_service_name();
    api_services
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    until("the CRD answers", async || {
        let is_local = api_services.get_opt(&name).await.unwrap();
        let is_local = is_local.is_some_and(|found| found.spec.unwrap().service.is_none());
        is_local && !backend.answers(&bench.client).await.unwrap_or(true)
    })
    .await;
}

/// Does one step after the other, up to this one.
async fn up_to(engine: &mut Engine, is_it: impl Fn(&Next) -> bool) -> Next {
    loop {
        let next = engine.next().await.unwrap();
        if is_it(&next) {
            return next;
        }
        match next {
            NextStep::Do(step) => assert_eq!(engine.carry_out(step).await.unwrap(), None),
            NextStep::Wait(time) => tokio::time::sleep(time).await,
            other => panic!("it does not go on: {other:?}"),
        }
    }
}

/// A backend without the CRD's objects looks like a CRD without objects.
#[tokio::test]
async fn behind_a_backend_of_the_storage_version_nothing_is_trimmed_and_no_server_is_accused() {
    let bench = Bench::flipped("hidden", 3).await;
    let backend = backend(&bench, "v1").await;
    hide(&bench, &backend).await;
    let report = bench.migrate().await;
    assert_eq!(
        bench.stored_versions().await,
        ["v1alpha1", "v1"],
        "trimmed, and etcd holds {} at v1alpha1: {report:?}",
        bench.stored_at("v1alpha1").await
    );
    let End::Stalled { reason, message } = &report.end else {
        panic!("{report:?}")
    };
    assert_eq!(*reason, "Preflight", "{message}");
    for part in [
        "APIService v1.hidden.example.com",
        "default/hidden-example-com",
        "served: false",
    ] {
        assert!(message.contains(part), "{message}");
    }

    show(&bench, &backend).await;
    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated, "{report:?}");
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// The sweeps may have seen the other server's objects: they are made again.
#[tokio::test]
async fn a_backend_that_comes_before_the_trim_voids_what_was_swept() {
    let bench = Bench::flipped("hiding", 3).await;
    let backend = backend(&bench, "v1").await;
    let mut engine = bench.engine(bench.options());
    let trim = up_to(&mut engine, |next| matches!(next, NextStep::Do(Step::Trim(_)))).await;
    let NextStep::Do(trim) = trim else {
        unreachable!("that was waited for")
    };
    hide(&bench, &backend).await;
    let held = engine.carry_out(trim).await.unwrap();
    assert!(matches!(held, Some(Hold::Blocked(_))), "{held:?}");
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);
    let pass = engine.pass().unwrap();
    assert_eq!(
        (pass.r0, pass.rewrite, pass.verify),
        (None, None, None),
        "{pass:?}"
    );

    // Its discovery has no hash: that is not an API server that is behind.
    engine.retry(&held.unwrap());
    let end = engine.run().await.unwrap().end;
    assert!(
        matches!(
            end,
            End::Stalled {
                reason: "Preflight",
                ..
            }
        ),
        "nobody is accused: {end:?}"
    );

    show(&bench, &backend).await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// A patrol through another server would find nothing, too.
#[tokio::test]
async fn behind_a_backend_no_patrol_is_done() {
    let bench = Bench::flipped("unpatrolled", 3).await;
    let backend = backend(&bench, "v1").await;
    let options = Options {
        patrol: true,
        ..bench.options()
    };
    let mut engine = bench.engine(options.clone());
    up_to(&mut engine, |next| *next == NextStep::Do(Step::Patrol)).await;
    hide(&bench, &backend).await;
    let held = engine.carry_out(Step::Patrol).await.unwrap();
    assert!(matches!(held, Some(Hold::Blocked(_))), "{held:?}");
    assert!(!engine.pass().unwrap().patrolled);

    show(&bench, &backend).await;
    engine.retry(&held.unwrap());
    up_to(&mut engine, |next| *next == NextStep::Done).await;
    assert!(engine.pass().unwrap().patrolled);
}

/// What was proven before says nothing about what is asked through another server now.
#[tokio::test]
async fn behind_a_backend_it_is_not_known_whether_a_version_may_be_dropped() {
    let bench = Bench::flipped("undropped", 1).await;
    let backend = backend(&bench, "v1").await;
    let options = Options {
        patrol: true,
        ..bench.options()
    };
    assert_eq!(bench.engine(options).run().await.unwrap().end, End::Migrated);
    let unknown = async || {
        let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
        let crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
        let question = Question::new(crd, vec!["v1alpha1".into()]);
        let verdict = look(&bench.client, &[question], &Look::default(), &|_| {})
            .await
            .remove(0);
        let of_bytes = verdict
            .unknown
            .into_iter()
            .find(|unknown| unknown.what == Holds::Bytes);
        of_bytes.map(|unknown| unknown.to_string())
    };
    assert_eq!(unknown().await, None);
    hide(&bench, &backend).await;
    let said = unknown().await.unwrap();
    assert!(said.contains("APIService v1.undropped.example.com"), "{said}");
}

/// It may not be told whether there is a backend: that is said, with the rule.
#[tokio::test]
async fn without_the_right_to_read_api_services_nothing_is_written() {
    use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
    let bench = Bench::flipped("unread-services", 2).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let said = r#"apiservices.apiregistration.k8s.io "v1" is forbidden: User "u" cannot get resource "apiservices" in API group "apiregistration.k8s.io" at the cluster scope"#;
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": said});
    let about = Match::any().resource("apiservices");
    proxy.inject(
        Rule::on(about)
            .always()
            .then(Fault::refuse(Answer::status(403).json(&status))),
    );
    let mut engine = bench.engine_through(&proxy, bench.options());
    let report = engine.run().await.unwrap();
    let End::Stalled { reason, message } = &report.end else {
        panic!("{report:?}")
    };
    assert_eq!(*reason, "Forbidden", "{message}");
    assert!(
        message.contains(r#"resources: ["apiservices"], verbs: ["get"]"#),
        "{message}"
    );
    assert_eq!(bench.stored_at("v1alpha1").await, 2);
}
