//! The shapes in which a rewrite loses something, each held before any write, and each real: accepted, it goes.

use exuvia_storage::{End, Obstacle};
use exuvia_testenv::until;
use serde_json::{Value, json};

use crate::{Bench, paths};

const FREE: &str = "x-kubernetes-preserve-unknown-fields";

#[allow(clippy::needless_pass_by_value)] // reads better at the place of use
fn object(properties: Value) -> Value {
    json!({"type": "object", "properties": properties})
}

/// A field that the rewrite erases: held with its name, and erased if that is accepted.
async fn erases(group: &str, schemas: (Value, Value), spec: Value, path: &str, after: Value) {
    let bench = Bench::installed(group, schemas.0, schemas.1).await;
    bench.create("v1alpha1", "plain", json!({})).await;
    bench.create("v1alpha1", "rich", spec.clone()).await;
    bench.flip().await;

    let report = bench.held().await;
    let Some(Obstacle::Pruning(losses)) = &report.obstacle else {
        panic!("{report:?}")
    };
    assert_eq!(paths(&losses.erased), [(path, 1, "default/rich")], "{losses:?}");
    assert_eq!((losses.looked_at, losses.objects), (2, 1));
    assert!(
        losses.changed.is_empty() && losses.unseen.is_empty(),
        "{losses:?}"
    );
    let End::Stalled { message, .. } = &report.end else {
        panic!("{report:?}")
    };
    for part in [path, "default/rich", "--accept-pruning"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(bench.stored_spec("rich").await, ("v1alpha1".to_owned(), spec));

    let report = bench.accepted().await;
    assert_eq!(paths(&report.losses.unwrap().erased), [(path, 1, "default/rich")]);
    assert_eq!(bench.stored_spec("rich").await, ("v1".to_owned(), after));
}

#[tokio::test]
async fn a_free_form_field_that_becomes_typed_loses_what_the_type_lacks_two_levels_down() {
    let free = json!({"type": "object", FREE: true});
    let typed = object(json!({"template": object(json!({"image": {"type": "string"}}))}));
    let spec = json!({"template": {"image": "a", "command": "precious"}});
    let after = json!({"template": {"image": "a"}});
    erases("typed", (free, typed), spec, "spec.template.command", after).await;
}

#[tokio::test]
async fn a_free_form_item_that_becomes_typed_loses_what_the_type_lacks() {
    let list = |items: Value| object(json!({"items": {"type": "array", "items": items}}));
    let free = list(json!({"type": "object", FREE: true}));
    let typed = list(object(json!({"name": {"type": "string"}})));
    let spec = json!({"items": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]});
    let after = json!({"items": [{"name": "a"}, {"name": "b"}]});
    erases("items", (free, typed), spec, "spec.items[].port", after).await;
}

#[tokio::test]
async fn a_schema_that_preserves_unknown_fields_still_prunes_below_what_it_specifies() {
    let free = json!({"type": "object", FREE: true});
    let name = object(json!({"name": {"type": "string"}}));
    let half = json!({"type": "object", FREE: true, "properties": {"parent": name}});
    let spec = json!({"parent": {"name": "a", "child": "precious"}, "unknown": {"stays": 1}});
    let after = json!({"parent": {"name": "a"}, "unknown": {"stays": 1}});
    erases("below", (free, half), spec, "spec.parent.child", after).await;
}

/// `additionalProperties: true` lets every key pass, and nothing below it.
#[tokio::test]
async fn a_map_of_anything_prunes_what_is_inside_its_values() {
    let free = object(json!({"map": {"type": "object", FREE: true}}));
    let any = object(json!({"map": {"type": "object", "additionalProperties": true}}));
    let (spec, after) = (
        json!({"map": {"key": {"inside": 1}}}),
        json!({"map": {"key": {}}}),
    );
    erases("anything", (free, any), spec, "spec.map.key.inside", after).await;
}

#[tokio::test]
async fn a_null_that_becomes_a_default_is_a_change() {
    let list = |items: Value| object(json!({"list": {"type": "array", "items": items}}));
    let old = list(json!({"type": "integer", "nullable": true}));
    let new = list(json!({"type": "integer", "default": 7}));
    let bench = Bench::installed("replaced", old, new).await;
    let spec = json!({"list": [null, 1]});
    bench.create("v1alpha1", "rich", spec.clone()).await;
    bench.flip().await;
    let losses = bench.held().await.losses.unwrap();
    assert_eq!(
        paths(&losses.changed),
        [("spec.list[]", 1, "default/rich")],
        "{losses:?}"
    );
    assert_eq!(bench.stored_spec("rich").await, ("v1alpha1".to_owned(), spec));
    bench.accepted().await;
    let after = json!({"list": [7, 1]});
    assert_eq!(bench.stored_spec("rich").await, ("v1".to_owned(), after));
}

#[tokio::test]
async fn an_explicit_null_that_vanishes_is_a_loss() {
    let nullable = object(json!({"a": {"type": "string", "nullable": true}}));
    let plain = object(json!({"a": {"type": "string"}}));
    erases("null", (nullable, plain), json!({"a": null}), "spec.a", json!({})).await;
}

/// The rewrite goes through an endpoint that lacks fields of the storage version: objects that are current lose them.
#[tokio::test]
async fn an_unserved_storage_version_is_held_for_the_fields_that_only_it_knows() {
    let size = json!({"type": "integer"});
    let old = object(json!({"size": size}));
    let new = object(json!({"size": size, "fresh": {"type": "string"}}));
    let bench = Bench::installed("endpoint", old, new).await;
    bench.create("v1alpha1", "old", json!({"size": 1})).await;
    bench.flip().await;
    let spec = json!({"size": 2, "fresh": "precious"});
    bench.create("v1", "current", spec.clone()).await;
    let serve = async |is_served: bool| {
        bench
            .change_versions(|version| {
                version["served"] = json!(is_served || version["name"] == "v1alpha1");
            })
            .await;
        let api = bench.widgets.api(&bench.client, "v1");
        until("v1 is served as wanted", async || {
            api.get("current").await.is_ok() == is_served
        })
        .await;
    };

    serve(false).await;
    let report = bench.held().await;
    let losses = report.losses.unwrap();
    assert_eq!(losses.unseen.len(), 1, "{losses:?}");
    assert_eq!(losses.unseen[0].version, "v1");
    let End::Stalled { message, .. } = &report.end else {
        panic!("{:?}", report.end)
    };
    assert!(
        message.contains("v1 is not served: serve it while migrating"),
        "{message}"
    );
    assert_eq!(
        bench.stored_spec("current").await,
        ("v1".to_owned(), spec.clone())
    );

    // The way out that loses nothing.
    serve(true).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine(&proxy, false).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert_eq!(bench.stored_spec("current").await, ("v1".to_owned(), spec));
}

/// The same, accepted: the loss is real.
#[tokio::test]
async fn what_an_unserved_storage_version_holds_is_erased_if_that_is_accepted() {
    let new = object(json!({"fresh": {"type": "string"}}));
    let bench = Bench::installed("accepted", object(json!({})), new).await;
    bench.create("v1alpha1", "old", json!({})).await;
    bench.flip().await;
    bench.create("v1", "current", json!({"fresh": "precious"})).await;
    bench
        .change_versions(|version| version["served"] = json!(version["name"] == "v1alpha1"))
        .await;
    let api = bench.widgets.api(&bench.client, "v1");
    until("v1 is not served", async || api.get("current").await.is_err()).await;
    let report = bench.accepted().await;
    assert_eq!(report.losses.unwrap().unseen.len(), 1);
    assert_eq!(bench.stored_spec("current").await, ("v1".to_owned(), json!({})));
}

#[tokio::test]
async fn an_old_version_that_is_not_served_is_held_whether_it_is_listed_or_not() {
    let bench = Bench::installed(
        "listed",
        object(json!({"legacy": {"type": "string"}})),
        object(json!({})),
    )
    .await;
    let spec = json!({"legacy": "precious"});
    bench.create("v1alpha1", "rich", spec.clone()).await;
    bench.flip().await;
    bench
        .change_versions(|version| version["served"] = json!(version["name"] == "v1"))
        .await;
    let report = bench.held().await;
    let unseen = &report.losses.unwrap().unseen;
    assert_eq!(unseen[0].version, "v1alpha1");
    assert!(unseen[0].why.contains("v1alpha1 is not served"), "{unseen:?}");
    assert_eq!(bench.stored_spec("rich").await, ("v1alpha1".to_owned(), spec));

    // Anybody can trim the list (PITFALLS A39); the bytes are the same.
    let mut definition = bench.definition().await;
    definition.crd.stored = vec!["v1".to_owned()];
    let looked = exuvia_storage::loss::look(&bench.client, &definition, &exuvia_sweep::Control::new()).await;
    assert_eq!(looked.unwrap().unwrap().unseen, *unseen);
}

/// As Flux's `gitImplementation`: the default came later, so that it is in no object's bytes.
#[tokio::test]
async fn a_value_that_only_a_default_of_the_old_version_shows_is_reported_and_not_held() {
    let field = |default: Value| {
        let mut field = json!({"type": "string"});
        if !default.is_null() {
            field["default"] = default;
        }
        object(json!({"url": {"type": "string"}, "gitImplementation": field}))
    };
    let url = object(json!({"url": {"type": "string"}}));
    let bench = Bench::installed("default", field(Value::Null), url).await;
    bench.create("v1alpha1", "plain", json!({"url": "a"})).await;
    bench
        .change_versions(|version| {
            if version["name"] == "v1alpha1" {
                version["schema"]["openAPIV3Schema"]["properties"]["spec"] = field(json!("go-git"));
            }
        })
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    until("the default is set", async || {
        api.get("plain").await.unwrap().data["spec"]["gitImplementation"] == "go-git"
    })
    .await;
    bench.flip().await;
    let spec = json!({"url": "a"});
    assert_eq!(
        bench.stored_spec("plain").await,
        ("v1alpha1".to_owned(), spec.clone())
    );
    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine(&proxy, false).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let losses = report.losses.unwrap();
    let path = "spec.gitImplementation";
    assert_eq!(paths(&losses.defaults_not_kept), [(path, 1, "default/plain")]);
    assert!(!losses.holds());
    assert_eq!(bench.stored_spec("plain").await, ("v1".to_owned(), spec));
}

/// PITFALLS A35: a read does not show it, a write sets it.
#[tokio::test]
async fn a_default_of_the_storage_version_is_said_before_it_is_set() {
    let field = |field: Value| object(json!({"url": {"type": "string"}, "interval": field}));
    let (old, new) = (
        json!({"type": "string"}),
        json!({"type": "string", "default": "10m"}),
    );
    let bench = Bench::installed("added", field(old), field(new)).await;
    bench.create("v1alpha1", "plain", json!({"url": "a"})).await;
    bench
        .create("v1alpha1", "chosen", json!({"url": "b", "interval": "1m"}))
        .await;
    bench.flip().await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let rehearsed = bench.engine(&proxy, false).rehearse().await.unwrap();
    assert_eq!(rehearsed.end, End::WouldMigrate, "{rehearsed:?}");
    let losses = rehearsed.losses.unwrap();
    assert_eq!(paths(&losses.added), [("spec.interval", 1, "default/plain")]);
    assert!(!losses.holds());
    let report = bench.engine(&proxy, false).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let after = json!({"url": "a", "interval": "10m"});
    assert_eq!(bench.stored_spec("plain").await, ("v1".to_owned(), after));
}

/// A write to the object itself takes the status over as it was, so that the first rewrite does not set a default there.
/// The object is stored at v1 then, its default shows in every read, and **the second `{}` writes again**.
#[tokio::test]
async fn a_default_in_the_status_is_announced_and_set_by_the_second_write() {
    let bench = Bench::installed("status", object(json!({})), object(json!({}))).await;
    bench.create("v1alpha1", "plain", json!({})).await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let ready = kube::api::Patch::Merge(json!({"status": {"ready": 1}}));
    let params = kube::api::PatchParams::default();
    api.patch_status("plain", &params, &ready).await.unwrap();
    bench
        .change_versions(|version| {
            if version["name"] == "v1" {
                let status = &mut version["schema"]["openAPIV3Schema"]["properties"]["status"];
                status["properties"]["phase"]["default"] = json!("Unknown");
            }
        })
        .await;
    bench.flip().await;
    let losses = bench.look(&bench.client).await;
    assert_eq!(paths(&losses.added), [("status.phase", 1, "default/plain")]);
    assert!(!losses.holds());
    let rewritten = async || {
        bench.rewrite("plain").await.unwrap();
        let (object, revision) = bench.stored().await.remove("plain").unwrap();
        (object["status"].clone(), revision)
    };
    let (first, revision) = rewritten().await;
    assert_eq!(first, json!({"ready": 1}));
    let (second, moved) = rewritten().await;
    assert_eq!(second, json!({"ready": 1, "phase": "Unknown"}));
    assert!(moved > revision);
    assert_eq!(rewritten().await, (second, moved), "and then it stays");
}

#[tokio::test]
async fn what_the_schemas_alone_clear_costs_no_list_of_whole_objects() {
    let size = json!({"type": "integer"});
    let old = object(json!({"size": size}));
    let new = object(json!({"size": {"type": "integer", "minimum": 0}, "color": {"type": "string"}}));
    let bench = Bench::installed("cleared", old, new).await;
    bench.create("v1alpha1", "plain", json!({"size": 1})).await;
    bench.flip().await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine(&proxy, false).run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let losses = report.losses.unwrap();
    assert!(losses.is_empty() && losses.looked_at == 0, "{losses:?}");
    assert!(
        proxy
            .requests()
            .iter()
            .all(|request| !request.query.contains("resourceVersionMatch"))
    );
}
