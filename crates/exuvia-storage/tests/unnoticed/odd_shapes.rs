//! Values that two versions take apart otherwise: embedded resources, odd keys, fewer keys, and several old versions.

use exuvia_storage::End;
use kube::api::Patch;
use serde_json::{Value, json};

use crate::odd::{assert_named_before, differences};
use crate::odd_defaults::{by, with_beta, with_interval};
use crate::odd_webhook::text;
use crate::{Bench, managers, pairs, spec_of};

/// The metadata of an embedded resource has the schema of `ObjectMeta`, whatever the CRD says.
#[tokio::test]
async fn an_embedded_resource_that_is_taken_apart_keeps_the_owner_of_its_references() {
    let embedded = |atomic: bool| {
        let mut schema = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
        if atomic {
            schema["x-kubernetes-map-type"] = json!("atomic");
        }
        schema
    };
    let bench = Bench::installed("embedded", |crd| {
        spec_of(crd, 0)["properties"]["template"] = embedded(true);
        spec_of(crd, 1)["properties"]["template"] = embedded(false);
    })
    .await;
    let template = |controller: bool, label: &str| {
        json!({"spec": {"template": {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"}, "metadata": {
            "name": "x", "labels": {"example.com/a.b": label}, "finalizers": ["example.com/one"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": controller}],
        }}}})
    };
    bench.apply("v1alpha1", "flux", "a", template(true, "b")).await;
    bench.flip().await;
    let wrong = differences(
        &bench,
        &[
            ("v1", "intruder", template(false, "b")),
            ("v1", "intruder", template(true, "c")),
        ],
    )
    .await;
    // What stands in the way has another name; that somebody does is the point.
    let wrong: Vec<_> = wrong
        .into_iter()
        .filter(|wrong| !wrong.contains("is  Conflict"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn list(keys: &[&str]) -> Value {
    let properties = json!({"port": {"type": "integer"}, "tls": {"type": "boolean", "default": false}, "name": text(),
                            "ref": {"type": "object", "nullable": true, "properties": {"name": text(), "kind": text()}}});
    let mut list =
        json!({"type": "array", "items": {"type": "object", "required": ["port"], "properties": properties}});
    if !keys.is_empty() {
        list["x-kubernetes-list-type"] = json!("map");
        list["x-kubernetes-list-map-keys"] = json!(keys);
    }
    list
}

/// Keys that are numbers, booleans and defaults; nulls; keys with dots, slashes, quotes and other scripts; empty values.
#[tokio::test]
async fn odd_keys_and_empty_values_keep_their_owners_and_can_be_taken_out() {
    let odd = [
        "a.b/c",
        "\"quoted\"",
        "ключ",
        "<&>",
        "k:{}",
        "v:1",
        ".",
        "f:x",
        "back\\slash",
        "e\u{301}",
    ];
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut atomic = free.clone();
    atomic["x-kubernetes-map-type"] = json!("atomic");
    let numbers = json!({"type": "array", "items": {"type": "integer"}});
    let mut set = numbers.clone();
    set["x-kubernetes-list-type"] = json!("set");
    let fields = [
        ("ports", list(&[]), list(&["port", "tls"])),
        ("rekeyed", list(&["port"]), list(&["port", "tls"])),
        ("joined", list(&["port", "tls"]), list(&[])),
        ("map", atomic.clone(), free.clone()),
        ("whole", free.clone(), atomic),
        ("numbers", numbers.clone(), set.clone()),
        ("unset", set, numbers),
    ];
    let bench = Bench::installed("oddkeys", |crd| {
        for (name, from, to) in &fields {
            spec_of(crd, 0)["properties"][*name] = from.clone();
            spec_of(crd, 1)["properties"][*name] = to.clone();
        }
    })
    .await;
    let map: serde_json::Map<String, Value> = odd.iter().map(|key| ((*key).to_owned(), json!("v"))).collect();
    let mut nested = map.clone();
    nested.insert("null".into(), Value::Null);
    nested.insert("empty".into(), json!({}));
    nested.insert("none".into(), json!([]));
    nested.insert("deep".into(), json!({"a": {"b": [1, {"c": null}]}}));
    let ports = json!([{"port": 80, "ref": {"name": "n"}}, {"port": 443, "tls": true, "ref": null}, {"port": 0, "name": ""}]);
    // Who owns the whole of it owns what a default has put there, too.
    let mut complete = ports.clone();
    for at in [0, 2] {
        complete[at]["tls"] = json!(false);
    }
    let all = json!({"ports": complete, "rekeyed": ports, "joined": ports, "map": nested, "whole": nested,
                     "numbers": [1, -2, 0], "unset": [1, -2, 0]});
    bench.apply("v1alpha1", "flux", "a", json!({"spec": all})).await;
    bench.create("v1alpha1", "carol", "b", json!({"spec": all})).await;
    bench.flip().await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    // What the server itself writes down for those who do the same at v1.
    bench.apply("v1", "flux", "native-a", json!({"spec": all})).await;
    bench
        .create("v1", "carol", "native-b", json!({"spec": all}))
        .await;
    for name in ["a", "b"] {
        let owned = |object: kube::api::DynamicObject| {
            object.metadata.managed_fields.unwrap()[0]
                .fields_v1
                .clone()
                .unwrap()
                .0
        };
        let (moved, native) = (
            bench.live(name).await,
            bench.live(&format!("native-{name}")).await,
        );
        assert_eq!(moved.data, native.data);
        let (moved, native) = (owned(moved), owned(native));
        for (field, _, _) in &fields {
            let field = format!("f:{field}");
            // Of an update the server also writes down each map and list itself, which nobody can take by an apply.
            let paths = |of: &Value| -> std::collections::BTreeSet<Vec<String>> {
                let fields = k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldsV1(of.clone());
                let all = exuvia_write::field_paths(&fields);
                let all: Vec<Vec<String>> = all
                    .into_iter()
                    .map(|path| path.into_iter().map(str::to_owned).collect())
                    .collect();
                let is_leaf = |path: &&Vec<String>| {
                    !all.iter()
                        .any(|other| other.len() > path.len() && other.starts_with(path))
                };
                all.iter().filter(is_leaf).cloned().collect()
            };
            let (moved, native) = (&moved["f:spec"][&field], &native["f:spec"][&field]);
            assert_eq!(paths(moved), paths(native), "{name} {field}");
            assert!(name == "b" || moved == native, "{name} {field}: {moved} {native}");
        }
    }
}

/// One updater at two old versions which take the map otherwise, and everything becomes one entry.
#[tokio::test]
async fn entries_of_one_updater_at_two_old_versions_of_different_shape_are_united() {
    let map = |atomic: bool| {
        let mut map = json!({"type": "object", "properties": {"a": text(), "b": text()}});
        if atomic {
            map["x-kubernetes-map-type"] = json!("atomic");
        }
        map
    };
    let bench = Bench::installed("twoshapes", |crd| {
        with_beta(crd);
        for (version, atomic) in [(0, true), (1, false), (2, false)] {
            spec_of(crd, version)["properties"]["whole"] = map(atomic);
            spec_of(crd, version)["properties"]["parts2"] = map(!atomic);
        }
    })
    .await;
    bench
        .create(
            "v1alpha1",
            "carol",
            "a",
            json!({"spec": {"whole": {"a": "1"}, "parts2": {"a": "1"}}}),
        )
        .await;
    bench
        .widgets
        .flip_storage(&bench.client, "v1beta1")
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1beta1");
    api.patch(
        "a",
        &by("carol"),
        &Patch::Merge(json!({"spec": {"size": 3, "color": "x"}})),
    )
    .await
    .unwrap();
    bench.flip().await;
    let wrong = differences(
        &bench,
        &[
            ("v1", "intruder", json!({"spec": {"whole": {"a": "2"}}})),
            ("v1", "intruder", json!({"spec": {"parts2": {"a": "2"}}})),
            ("v1", "intruder", json!({"spec": {"size": 4}})),
            ("v1alpha1", "intruder", json!({"spec": {"size": 4}})),
        ],
    )
    .await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(managers(&bench.live("a").await), pairs(&[("carol", "v1")]));
}

/// Two items that the old version told apart by a key which the new one does not count.
#[tokio::test]
async fn items_that_fall_together_by_fewer_keys_are_named_before_anything_is_written() {
    let bench = Bench::installed("fewerkeys", |crd| {
        spec_of(crd, 0)["properties"]["ports"] = list(&["port", "tls"]);
        spec_of(crd, 1)["properties"]["ports"] = list(&["port"]);
    })
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"ports": [{"port": 80, "tls": false, "name": "x"}]}}),
        )
        .await;
    bench
        .apply(
            "v1alpha1",
            "bob",
            "a",
            json!({"spec": {"ports": [{"port": 80, "tls": true, "ref": {"name": "y"}}], "size": 1}}),
        )
        .await;
    bench.flip().await;
    assert_named_before(&bench, "spec.ports (type array with a key twice").await;
}

/// The storage version is not served: everything goes through the old endpoint.
#[tokio::test]
async fn owners_are_kept_where_the_storage_version_is_not_served() {
    let map = |atomic: bool| {
        let mut map = json!({"type": "object", "properties": {"a": text(), "b": text()}});
        if atomic {
            map["x-kubernetes-map-type"] = json!("atomic");
        }
        map
    };
    let bench = Bench::installed("unserved", |crd| {
        with_interval(crd);
        for version in [0, 1] {
            spec_of(crd, version)["properties"]["whole"] = map(version == 0);
            spec_of(crd, version)["properties"]["apart"] = map(version == 1);
        }
    })
    .await;
    let both = json!({"a": "1", "b": "2"});
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            json!({"spec": {"size": 1, "whole": both, "apart": both}}),
        )
        .await;
    bench.flip().await;
    let crds: kube::Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = kube::Api::all(bench.client.clone());
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    crd.spec.versions[1].served = false;
    crds.replace(&bench.widgets.crd_name(), &kube::api::PostParams::default(), &crd)
        .await
        .unwrap();
    while bench.widgets.api(&bench.client, "v1").get("a").await.is_ok() {}
    let tries = [
        (
            "v1alpha1",
            "intruder",
            json!({"spec": {"whole": {"a": "x", "b": "2"}}}),
        ),
        (
            "v1alpha1",
            "intruder",
            json!({"spec": {"apart": {"a": "x", "b": "2"}}}),
        ),
        ("v1alpha1", "intruder", json!({"spec": {"size": 2}})),
        ("v1alpha1", "intruder", json!({"spec": {"color": "red"}})),
        ("v1alpha1", "flux", json!({"spec": {"whole": {"a": "1"}}})),
    ];
    let before = bench.tried_all(&tries).await;
    let report = bench
        .engine(|options| options.accept_pruning = true)
        .run()
        .await
        .unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let after = bench.tried_all(&tries).await;
    let live = bench
        .widgets
        .api(&bench.client, "v1alpha1")
        .get("a")
        .await
        .unwrap();
    assert_eq!(after, before, "{:?}", live.metadata.managed_fields);
}
