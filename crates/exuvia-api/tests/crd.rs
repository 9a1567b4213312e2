//! The CRD as a real API server takes it: without a warning, and strict about what a spec may say.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

use exuvia_api::{DatastoreMigration, OPT_IN_LABEL, Phase, StorageMigration};
use exuvia_testenv::{ControlPlane, until};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::client::Body;
use kube::{Client, CustomResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// What the server answered: code, warnings, body.
#[derive(Debug)]
struct Answer {
    code: StatusCode,
    warnings: Vec<String>,
    body: Value,
}

/// Sends it as it is: the typed client would not even let most of this out, and hides warnings.
async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Answer {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from(serde_json::to_vec(body).unwrap()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let (head, body) = response.into_parts();
    let warnings = head.headers.get_all(header::WARNING).iter();
    let warnings = warnings
        .map(|warning| warning.to_str().unwrap().to_owned())
        .collect();
    let body = body.collect().await.unwrap().to_bytes();
    Answer {
        code: head.status,
        warnings,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }
}

const MIGRATIONS: &str = "/apis/exuvia.dev/v1beta1/storagemigrations";

/// A client for a server that has the CRD, and how that took it.
async fn installed() -> (Client, &'static Answer) {
    static INSTALLED: OnceCell<Answer> = OnceCell::const_new();
    let client = ControlPlane::shared().await.client().unwrap();
    let answer = INSTALLED
        .get_or_init(|| async {
            let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict";
            let answer = send(&client, "POST", crds, &json!(StorageMigration::crd())).await;
            until("StorageMigrations are served", async || {
                send(&client, "GET", MIGRATIONS, &json!(null)).await.code == StatusCode::OK
            })
            .await;
            answer
        })
        .await;
    (client, answer)
}

async fn create(client: &Client, name: &str, spec: &Value) -> Answer {
    let migration = json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "StorageMigration",
        "metadata": {"name": name}, "spec": spec,
    });
    let path = format!("{MIGRATIONS}?fieldValidation=Strict");
    send(client, "POST", &path, &migration).await
}

#[tokio::test]
async fn the_crd_is_taken_without_a_warning_and_opts_in_itself() {
    let (_, answer) = installed().await;
    assert_eq!(answer.code, StatusCode::CREATED, "{answer:?}");
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let crd: CustomResourceDefinition = serde_json::from_value(answer.body.clone()).unwrap();
    assert_eq!(crd.metadata.labels.unwrap()[OPT_IN_LABEL], "true");
    assert_eq!(crd.spec.names.short_names, Some(vec!["sm".to_owned()]));
    assert_eq!((crd.spec.scope.as_str(), crd.spec.versions.len()), ("Cluster", 1));
    // What the server would prune or default is not as we meant it.
    let sent = json!(StorageMigration::crd().spec.versions);
    assert_eq!(with_floats(&answer.body["spec"]["versions"]), with_floats(&sent));
}

/// The same with every number as a float: bounds go out as `1.0` and come back as `1`.
fn with_floats(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(with_floats).collect(),
        Value::Object(members) => {
            let members = members
                .iter()
                .map(|(key, member)| (key.clone(), with_floats(member)));
            Value::Object(members.collect())
        }
        other => other.clone(),
    }
}

#[tokio::test]
async fn a_spec_that_makes_no_sense_is_refused_with_the_fields_name() {
    let (client, _) = installed().await;
    let resource = "widgets.example.com";
    for (index, (spec, parts)) in [
        (json!({}), ["spec.resource", "Required value"]),
        (json!({"resource": ""}), ["spec.resource", "should match"]),
        (
            json!({"resource": "Widgets/example"}),
            ["spec.resource", "should match"],
        ),
        (
            json!({"resource": "w".repeat(254)}),
            ["spec.resource", "Too long"],
        ),
        (
            json!({"resource": resource, "settle": "25h"}),
            ["spec", "settle must not be longer than 24h"],
        ),
        (
            json!({"resource": resource, "settle": "999999999h"}),
            ["spec", "settle"],
        ),
        (
            json!({"resource": resource, "settle": "soon"}),
            ["spec.settle", "should match"],
        ),
        (
            json!({"resource": resource, "settle": "-1s"}),
            ["spec.settle", "should match"],
        ),
        (
            json!({"resource": resource, "settle": ""}),
            ["spec.settle", "should match"],
        ),
        (
            json!({"resource": resource, "settle": 60}),
            ["spec.settle", "must be of type string"],
        ),
        (
            json!({"resource": resource, "qps": 0}),
            ["spec.qps", "greater than or equal to 1"],
        ),
        (
            json!({"resource": resource, "qps": 1.5}),
            ["spec.qps", "must be of type integer"],
        ),
        (
            json!({"resource": resource, "maxConcurrency": 0}),
            ["spec.maxConcurrency", "greater than or equal to 1"],
        ),
        (
            json!({"resource": resource, "maxConcurrency": 1025}),
            ["spec.maxConcurrency", "less than or equal to 1024"],
        ),
        (
            json!({"resource": resource, "apiServers": ["http://10.0.0.1:6443"]}),
            ["spec.apiServers[0]", "should match"],
        ),
        (
            json!({"resource": resource, "apiServers": ["10.0.0.1:6443"]}),
            ["spec.apiServers[0]", "should match"],
        ),
        (
            json!({"resource": resource, "apiServers": ["https://10.0.0.1/path"]}),
            ["spec.apiServers[0]", "should match"],
        ),
        (
            json!({"resource": resource, "verify": "Sometimes"}),
            ["spec.verify", r#""Auto", "Proof", "Full""#],
        ),
        (
            json!({"resource": resource, "managedFields": "drop"}),
            ["spec.managedFields", r#""Rewrite", "Drop", "Keep""#],
        ),
        (
            json!({"resource": resource, "shed": vec!["v1"; 33]}),
            ["spec.shed", "Too many"],
        ),
        (
            json!({"resource": resource, "suspended": true}),
            ["unknown field", "spec.suspended"],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = create(&client, &format!("refused-{index}"), &spec).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(answer.code.is_client_error(), "{spec}: {answer:?}");
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{spec}: {message}"
        );
        // An error of the server in a rule does not answer the user's question.
        let overflows = spec["settle"] == "999999999h";
        assert!(
            overflows || !message.contains("evaluating rule"),
            "{spec}: {message}"
        );
    }
}

#[tokio::test]
async fn every_field_is_taken_and_kept_and_the_resource_stays_what_it_is() {
    let (client, _) = installed().await;
    let spec = json!({
        "resource": "deployments.apps", "suspend": true, "settle": "24h", "apiServers": ["https://[::1]:6443"],
        "verify": "Proof", "maxConcurrency": 1024, "qps": 1_000_000, "managedFields": "Keep", "shed": ["v1alpha1"],
        "acceptPruning": true, "statusFallback": true,
    });
    let answer = create(&client, "full", &spec).await;
    assert_eq!(
        (answer.code, answer.warnings.len()),
        (StatusCode::CREATED, 0),
        "{answer:?}"
    );
    assert_eq!(answer.body["spec"], spec);
    let migration: StorageMigration = serde_json::from_value(answer.body).unwrap();
    assert_eq!(json!(migration.spec), spec, "and it reads back");

    let path = format!("{MIGRATIONS}/full");
    let other = json!({"spec": {"resource": "secrets"}});
    let answer = send(&client, "PATCH", &path, &other).await;
    let message = answer.body["message"].as_str().unwrap_or_default();
    assert_eq!(answer.code, StatusCode::UNPROCESSABLE_ENTITY, "{message}");
    assert!(
        message.contains("spec.resource") && message.contains("create another"),
        "{message}"
    );
    let answer = send(
        &client,
        "PATCH",
        &path,
        &json!({"spec": {"suspend": false, "settle": null}}),
    )
    .await;
    assert_eq!(answer.code, StatusCode::OK, "all else may change: {answer:?}");

    // Through its own endpoint nobody writes the status by accident.
    let phase = json!({"status": {"phase": "Migrated"}});
    let answer = send(&client, "PATCH", &path, &phase).await;
    assert_eq!(
        (answer.code, &answer.body["status"]),
        (StatusCode::OK, &json!(null))
    );
    let path = format!("{path}/status");
    for phase in Phase::ALL {
        let answer = send(
            &client,
            "PATCH",
            &path,
            &json!({"status": {"phase": phase.as_str()}}),
        )
        .await;
        assert_eq!(answer.body["status"]["phase"], phase.as_str(), "{answer:?}");
    }
    let answer = send(&client, "PATCH", &path, &json!({"status": {"phase": "Done"}})).await;
    assert_eq!(answer.code, StatusCode::UNPROCESSABLE_ENTITY, "{answer:?}");
}

const DATASTORE: &str = "/apis/exuvia.dev/v1beta1/datastoremigrations";

/// As [`installed`], for the other CRD.
async fn datastore_installed() -> (Client, &'static Answer) {
    static INSTALLED: OnceCell<Answer> = OnceCell::const_new();
    let client = ControlPlane::shared().await.client().unwrap();
    let answer = INSTALLED
        .get_or_init(|| async {
            let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict";
            let answer = send(&client, "POST", crds, &json!(DatastoreMigration::crd())).await;
            until("DatastoreMigrations are served", async || {
                send(&client, "GET", DATASTORE, &json!(null)).await.code == StatusCode::OK
            })
            .await;
            answer
        })
        .await;
    (client, answer)
}

fn datastore_migration(name: &str, more: &Value) -> Value {
    let mut spec = json!({"mappings": [{
        "name": "all",
        "from": {"group": "old.example.com", "version": "v1", "kinds": ["Widget"]},
        "to": {"group": "new.example.com", "version": "v1"},
    }]});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": name}, "spec": spec,
    })
}

#[tokio::test]
async fn the_crd_of_datastore_migrations_is_taken_without_a_warning() {
    let (_, answer) = datastore_installed().await;
    assert_eq!(answer.code, StatusCode::CREATED, "{answer:?}");
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let crd: CustomResourceDefinition = serde_json::from_value(answer.body.clone()).unwrap();
    assert_eq!(crd.metadata.labels.unwrap()[OPT_IN_LABEL], "true");
    assert_eq!(crd.spec.names.short_names, Some(vec!["dm".to_owned()]));
    assert_eq!((crd.spec.scope.as_str(), crd.spec.versions.len()), ("Cluster", 1));
    let sent = json!(DatastoreMigration::crd().spec.versions);
    assert_eq!(with_floats(&answer.body["spec"]["versions"]), with_floats(&sent));
}

#[tokio::test]
async fn a_datastore_migration_that_makes_no_sense_is_refused_with_the_fields_name() {
    let (client, _) = datastore_installed().await;
    let path = format!("{DATASTORE}?fieldValidation=Strict&dryRun=All");
    for (more, part) in [
        (json!({"mappings": []}), "spec.mappings"),
        (json!({"concurrency": 65}), "spec.concurrency"),
        (json!({"freeze": {"drain": "soon"}}), "spec.freeze.drain"),
        (
            json!({"freeze": {"maxDuration": "1 h"}}),
            "spec.freeze.maxDuration",
        ),
        (
            json!({"conflicts": {"policy": "PreferSource"}}),
            "spec.conflicts.policy",
        ),
        (json!({"cleanup": {"source": "Delete"}}), "spec.cleanup.source"),
        (json!({"cutOver": {}}), "cutOver"),
    ] {
        let answer = send(&client, "POST", &path, &datastore_migration("refused", &more)).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(
            answer.code.is_client_error() && message.contains(part),
            "{more}: {answer:?}"
        );
    }
}

/// What locks and copies were made by cannot be changed while they exist.
#[tokio::test]
async fn what_a_running_migration_is_about_cannot_be_changed_and_the_rest_can() {
    let (client, _) = datastore_installed().await;
    let created = send(
        &client,
        "POST",
        DATASTORE,
        &datastore_migration("running", &json!({})),
    )
    .await;
    assert_eq!(created.code, StatusCode::CREATED, "{created:?}");
    let path = format!("{DATASTORE}/running");
    let change = async |body: Value| send(&client, "PATCH", &path, &body).await;
    let started = async |at: Value| {
        let body = json!({"status": {"phase": "Migrating", "startedAt": at}});
        let answer = send(&client, "PATCH", &format!("{path}/status"), &body).await;
        assert_eq!(answer.code, StatusCode::OK, "{answer:?}");
    };
    let mut other = datastore_migration("running", &json!({}))["spec"]["mappings"].clone();
    other[0]["wave"] = json!(7);
    let locked = [
        (json!({"spec": {"mappings": other}}), "mappings cannot be changed"),
        (
            json!({"spec": {"freeze": {"maxDuration": "1h"}}}),
            "freeze cannot be changed",
        ),
        (
            json!({"spec": {"cutover": {"apiService": "v1.new.example.com"}}}),
            "cutover.apiService cannot be changed",
        ),
    ];
    started(json!("2026-01-01T00:00:00Z")).await;
    for (body, why) in &locked {
        let answer = change(body.clone()).await;
        let message = answer.body["message"].as_str().unwrap_or_default();
        assert!(
            answer.code.is_client_error() && message.contains(why),
            "{body}: {answer:?}"
        );
    }
    for body in [
        json!({"spec": {"suspend": true}}),
        json!({"spec": {"cutover": {"hold": true}}}),
        json!({"spec": {"cleanup": {"source": "Thaw"}}}),
    ] {
        let answer = change(body.clone()).await;
        assert_eq!(answer.code, StatusCode::OK, "{body}: {answer:?}");
    }
    // A complete undo takes the time off again.
    started(json!(null)).await;
    for (body, _) in &locked {
        let answer = change(body.clone()).await;
        assert_eq!(answer.code, StatusCode::OK, "{body}: {answer:?}");
    }
}
