//! Retry or not, read again or not, and what is on the wire.

use std::time::Duration;

use exuvia_write::{Adopted, Apply, Delete, Deleted, Effect, Error, ErrorClass, Finalizer};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PartialObjectMeta},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Answer, Script, TIMEOUT, map, not_found, read, set_apple, status, writer};

const CLEANUP: Finalizer = Finalizer::new("example.dev/cleanup");

fn apple(version: &str, price: &str) -> Answer {
    Answer::Json(200, map(version, &json!({"apple": price})))
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_even_in_the_header_of_a_plain_text_answer() {
    let script = Script::of([Answer::Text(429, "Too many requests", Some(7)), apple("2", "3")]);
    let began = Instant::now();
    writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    assert!(began.elapsed() >= Duration::from_secs(7));
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn retries_are_bounded() {
    let script = Script::of((0..4).map(|_| status(503, "ServiceUnavailable")));
    let error = writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient(None));
    assert_eq!(error.status().unwrap().code, 503);
    assert_eq!(script.sent().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_followed_by_a_read_that_finds_the_write() {
    let script = Script::of([Answer::Silence, apple("2", "3")]);
    let began = Instant::now();
    let written = writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    assert_eq!(written.effect, Effect::Changed);
    assert_eq!(began.elapsed(), TIMEOUT);
    let methods: Vec<String> = script.sent().into_iter().map(|sent| sent.method).collect();
    assert_eq!(methods, ["PATCH", "GET"]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_whose_write_is_not_found_is_repeated_under_the_same_lock() {
    let script = Script::of([
        Answer::Silence,
        Answer::Json(200, map("1", &json!({}))),
        apple("2", "3"),
    ]);
    writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    let sent = script.sent();
    let methods: Vec<&str> = sent.iter().map(|sent| sent.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "GET", "PATCH"]);
    assert_eq!(sent[0].body, sent[2].body);
    assert_eq!(sent[2].body["metadata"]["resourceVersion"], "1");
}

#[tokio::test(start_paused = true)]
async fn a_409_after_doubt_is_ours_if_the_write_shows() {
    let script = Script::of([
        status(503, "ServiceUnavailable"),
        status(409, "Conflict"),
        apple("2", "3"),
    ]);
    let written = writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap();
    assert_eq!(written.object.metadata.resource_version.as_deref(), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn a_409_after_doubt_is_a_409_if_the_write_does_not_show() {
    let script = Script::of([
        status(503, "ServiceUnavailable"),
        status(409, "Conflict"),
        apple("2", "4"),
    ]);
    let error = writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.class(), error.status().unwrap().code),
        (ErrorClass::Conflict, 409)
    );
}

#[tokio::test]
async fn a_plain_409_is_a_409_even_if_somebody_else_wrote_the_same() {
    let script = Script::of([status(409, "Conflict")]);
    let error = writer()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    assert_eq!(script.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn conflicts_are_bounded_and_each_starts_from_a_fresh_read() {
    let answers = (2..=5).flat_map(|version| {
        [
            status(409, "Conflict"),
            Answer::Json(200, map(&version.to_string(), &json!({"apple": "1"}))),
        ]
    });
    let script = Script::of(answers.chain([status(409, "Conflict")]));
    let error = writer()
        .patch_with_retry(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    let locks: Vec<Value> = script
        .sent()
        .into_iter()
        .filter(|sent| sent.method == "PATCH")
        .map(|sent| sent.body["metadata"]["resourceVersion"].clone())
        .collect();
    assert_eq!(locks, ["1", "2", "3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_made_again_under_the_name_is_not_taken_for_the_same() {
    let mut other = map("9", &json!({}));
    other["metadata"]["uid"] = json!("u2");
    let script = Script::of([status(409, "Conflict"), Answer::Json(200, other.clone())]);
    let object = read("1", &json!({}));
    let error = writer()
        .patch_with_retry(&script.api(), &object, set_apple("3"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Recreated { .. }));
    assert_eq!(error.class(), ErrorClass::Gone);

    let mut held = object.clone();
    held.metadata.finalizers = Some(vec![CLEANUP.as_str().to_owned()]);
    let script = Script::of([status(409, "Conflict"), Answer::Json(200, other)]);
    assert_eq!(
        writer()
            .remove_finalizer(&script.api(), &held, CLEANUP)
            .await
            .unwrap(),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_create_under_a_name_of_the_servers_choice_is_never_repeated_in_doubt() {
    let script = Script::of([Answer::Silence]);
    let object: ConfigMap =
        serde_json::from_value(json!({"metadata": {"generateName": "p-", "namespace": "shop"}})).unwrap();
    let error = writer().create(&script.api(), &object).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Ambiguous);
    assert_eq!(script.sent().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_in_doubt_is_ours_if_it_bears_our_name() {
    let wanted = read("", &json!({"apple": "3"}));
    let mut wanted = wanted;
    wanted.metadata = ObjectMeta {
        name: Some("prices".to_owned()),
        namespace: Some("shop".to_owned()),
        ..Default::default()
    };
    for (manager, ours) in [("till", true), ("somebody", false)] {
        let mut live = map("2", &json!({"apple": "3"}));
        live["metadata"]["managedFields"] = json!([{"manager": manager}]);
        let script = Script::of([
            Answer::Silence,
            Answer::Json(200, live.clone()),
            status(409, "AlreadyExists"),
            Answer::Json(200, live),
        ]);
        let created = writer().create(&script.api(), &wanted).await;
        assert_eq!(created.is_ok(), ours);
        assert!(ours || created.unwrap_err().is_already_exists());
    }
}

#[tokio::test]
async fn an_object_that_exists_is_adopted_only_with_the_callers_consent() {
    let wanted = read("", &json!({}));
    let exists = || Script::of([status(409, "AlreadyExists"), apple("2", "3")]);
    let adopted = writer()
        .create_or_adopt(&exists().api(), &wanted, |_| true)
        .await
        .unwrap();
    assert!(
        matches!(&adopted, Adopted::Existing(map) if map.metadata.resource_version.as_deref() == Some("2"))
    );
    let error = writer()
        .create_or_adopt(&exists().api(), &wanted, |_| false)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }));
    assert_eq!(error.class(), ErrorClass::Conflict);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_in_doubt_is_done_when_nothing_of_that_uid_is_left() {
    let object = read("1", &json!({}));
    let script = Script::of([Answer::Silence, not_found()]);
    assert_eq!(
        writer()
            .delete(&script.api(), &object, &Delete::default())
            .await
            .unwrap(),
        Deleted::Gone
    );

    let mut other = map("9", &json!({}));
    other["metadata"]["uid"] = json!("u2");
    let script = Script::of([Answer::Silence, status(409, "Conflict"), Answer::Json(200, other)]);
    assert_eq!(
        writer()
            .delete(&script.api(), &object, &Delete::default())
            .await
            .unwrap(),
        Deleted::Gone
    );
    assert_eq!(script.sent()[0].body["preconditions"], json!({"uid": "u1"}));
}

#[tokio::test]
async fn a_deletion_that_finds_the_object_changed_is_a_409() {
    let script = Script::of([status(409, "Conflict"), apple("2", "3")]);
    let how = Delete::default().only_unchanged();
    let error = writer()
        .delete(&script.api(), &read("1", &json!({})), &how)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
    let preconditions = json!({"uid": "u1", "resourceVersion": "1"});
    assert_eq!(script.sent()[0].body["preconditions"], preconditions);
}

#[tokio::test(start_paused = true)]
async fn a_locked_apply_in_doubt_asks_the_server_whether_it_would_change_anything() {
    let intent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices"}, "data": {"apple": "3"}});
    let how = Apply::default().force().only_at("u1", "1");
    // Ours: the rehearsal leaves the live object as it is.
    let script = Script::of([status(504, "Timeout"), apple("2", "3"), apple("2", "3")]);
    writer().apply(&script.api(), &intent, &how).await.unwrap();
    let sent = script.sent();
    let lock = |sent: &Value| {
        (
            sent["metadata"]["uid"].clone(),
            sent["metadata"]["resourceVersion"].clone(),
        )
    };
    assert_eq!(lock(&sent[0].body), (json!("u1"), json!("1")));
    assert!(sent[2].uri.contains("dryRun=All"));
    assert_eq!(lock(&sent[2].body), (json!("u1"), Value::Null));
    // Not ours: the values are there, but an apply would still change the ownership.
    let mut owned = map("2", &json!({"apple": "3"}));
    owned["metadata"]["managedFields"] = json!([{"manager": "till", "operation": "Apply"}]);
    let script = Script::of([
        status(504, "Timeout"),
        apple("2", "3"),
        Answer::Json(200, owned.clone()),
        status(409, "Conflict"),
        apple("2", "3"),
        Answer::Json(200, owned),
    ]);
    let error = writer().apply(&script.api(), &intent, &how).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Conflict);
}

#[tokio::test]
async fn an_apply_never_locks_by_accident() {
    let script = Script::of([apple("2", "3")]);
    let mut read_before = map("1", &json!({"apple": "3"}));
    read_before["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    read_before["metadata"]["uid"] = json!("u1");
    writer()
        .apply(&script.api(), &read_before, &Apply::default())
        .await
        .unwrap();
    let sent = &script.sent()[0];
    assert_eq!(sent.content_type, "application/apply-patch+yaml");
    assert!(sent.uri.contains("fieldManager=till") && !sent.uri.contains("force"));
    for member in ["resourceVersion", "managedFields", "uid"] {
        assert!(sent.body["metadata"].get(member).is_none(), "{member}");
    }
}

#[tokio::test]
async fn a_change_of_status_that_the_server_ignored_is_an_error() {
    use k8s_openapi::api::apps::v1::Deployment;
    let live = |replicas| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "resourceVersion": "1"},
               "status": {"replicas": replicas}})
    };
    let object: Deployment = serde_json::from_value(live(1)).unwrap();
    for (answer, ignored) in [(live(1), true), (live(2), false)] {
        let script = Script::of([Answer::Json(200, answer)]);
        let api: Api<Deployment> = Api::namespaced(script.client(), "shop");
        let result = writer()
            .patch(&api, &object, |d| {
                d.status.get_or_insert_default().replicas = Some(2);
            })
            .await;
        assert_eq!(matches!(result, Err(Error::StatusIgnored { .. })), ignored);
    }
}

#[tokio::test]
async fn a_metadata_api_asks_for_metadata_only() {
    let script = Script::of([apple("2", "3")]);
    let api: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(script.client(), "shop");
    let object: PartialObjectMeta<ConfigMap> = serde_json::from_value(map("1", &json!({}))).unwrap();
    writer()
        .patch(&api, &object, |object| {
            object.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        })
        .await
        .unwrap();
    let sent = &script.sent()[0];
    assert!(sent.accept.contains("as=PartialObjectMetadata"));
    assert_eq!(
        sent.body,
        json!({"metadata": {"labels": {"a": "b"}, "resourceVersion": "1"}})
    );
}

#[tokio::test]
async fn a_dry_run_is_one_on_the_wire_whatever_the_write() {
    let answers = (0..6).map(|_| Answer::Json(200, map("1", &json!({}))));
    let script = Script::of(answers);
    let (api, writer) = (script.api(), writer().dry_run());
    let object = read("1", &json!({}));
    let held = {
        let mut held = object.clone();
        held.metadata.finalizers = Some(vec![CLEANUP.as_str().to_owned()]);
        held
    };
    writer.patch(&api, &object, set_apple("3")).await.unwrap();
    writer.create(&api, &object).await.unwrap();
    writer.rewrite(&api, &object.metadata).await.unwrap();
    writer.remove_finalizer(&api, &held, CLEANUP).await.unwrap();
    let intent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "prices"}});
    writer.apply(&api, &intent, &Apply::default()).await.unwrap();
    writer.delete(&api, &object, &Delete::default()).await.unwrap();
    let sent = script.sent();
    assert_eq!(sent[5].body["dryRun"], json!(["All"]));
    assert!(
        sent[..5].iter().all(|sent| sent.uri.contains("dryRun=All")),
        "{sent:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_reached_was_not_written() {
    // Nobody listens there: the port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let config = kube::Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
    let writer = writer().once();
    let api: Api<ConfigMap> = Api::namespaced(writer.connect(config).unwrap(), "shop");
    let error = writer
        .patch(&api, &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient(None), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_agent_that_no_header_can_hold_is_refused() {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let refused = writer().user_agent("a\nb").connect(config);
    assert!(matches!(refused, Err(Error::Connect { .. })));
}
