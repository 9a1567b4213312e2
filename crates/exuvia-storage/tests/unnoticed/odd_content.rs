//! What others put into our writes: webhooks that change owned fields, and defaults inside of what somebody owns.

use exuvia_storage::End;
use exuvia_testenv::webhook::Admission;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::odd::{Answer, differences};
use crate::odd_webhook::{renaming_phase, text};
use crate::{Bench, spec_of};

/// It corrects a field that somebody owns, in our write.
#[tokio::test]
async fn a_webhook_that_corrects_an_owned_field_in_our_write_takes_it_from_nobody() {
    let bench = Bench::installed("corrected", |_| {}).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let hooks = bench.control_plane.webhooks().await.unwrap();
    hooks.on_mutate(Admission::by(|request| {
        let is_new = request["kind"]["version"] == "v1";
        if is_new && request["object"]["spec"]["size"] == 1 {
            Admission::Mutate(json!([{"op": "replace", "path": "/spec/size", "value": 5}]))
        } else {
            Admission::Allow
        }
    }));
    crate::defaults::mutated_by(&hooks, &bench).await;
    bench.flip().await;
    let tries = [
        ("v1", "intruder", json!({"spec": {"size": 9}})),
        ("v1", "flux", json!({"spec": {"size": 2}})),
        ("v1", "flux", json!({"spec": {"color": "x"}})),
    ];
    let wrong = differences(&bench, &tries).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The default of the new version changes a value that two own as a whole: each of them now differs from it.
#[tokio::test]
async fn two_who_share_an_atomic_list_conflict_with_each_other_after_a_default_came_into_its_items() {
    let list = |default: bool| {
        let mut list = json!({"type": "array", "items": {"type": "object", "properties": {"port": {"type": "integer"}, "protocol": text()}}});
        if default {
            list["items"]["properties"]["protocol"]["default"] = json!("TCP");
        }
        list
    };
    let bench = Bench::installed("insideatomic", |crd| {
        for version in [0, 1] {
            spec_of(crd, version)["properties"]["ports"] = list(version == 1);
        }
    })
    .await;
    let ports = json!({"spec": {"ports": [{"port": 80}]}});
    bench.apply("v1alpha1", "alice", "a", ports.clone()).await;
    bench.apply("v1alpha1", "bob", "a", ports.clone()).await;
    bench.flip().await;
    let answers = async || {
        let tries = [
            ("v1", "bob", ports.clone()),
            ("v1alpha1", "bob", ports.clone()),
            ("v1", "intruder", json!({"spec": {"ports": [{"port": 81}]}})),
        ];
        bench.tried_all(&tries).await
    };
    let conflict = |with: &[&str]| {
        let with = with.iter().map(|name| format!("conflict with {name:?}"));
        Answer::Conflict(with.collect())
    };
    let [_, taken, both] = answers().await.try_into().unwrap();
    assert!(matches!(taken, Answer::Taken(_)), "{taken:?}");
    assert_eq!(both, conflict(&["alice", "bob"]));
    assert_eq!(bench.migrate().await.end, End::Migrated);
    let with_alice = conflict(&["alice"]);
    assert_eq!(answers().await, [with_alice.clone(), with_alice, both]);
}

/// Defaults in an owned empty map, in a map's values, in items by key, and a whole object.
#[tokio::test]
async fn defaults_below_what_somebody_owns_change_no_answer() {
    let number = |default: bool| {
        if default {
            json!({"type": "integer", "default": 7})
        } else {
            json!({"type": "integer"})
        }
    };
    let object =
        |default: bool| json!({"type": "object", "properties": {"n": number(default), "name": text()}});
    let bench = Bench::installed("belowowned", |crd| {
        for (version, default) in [(0, false), (1, true)] {
            let properties = &mut spec_of(crd, version)["properties"];
            properties["empty"] = object(default);
            properties["values"] = json!({"type": "object", "additionalProperties": object(default)});
            properties["items"] = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"n": number(default), "name": text()}}});
            properties["whole"] = object(default);
            if default {
                properties["whole"]["default"] = json!({"name": "d"});
            }
        }
    })
    .await;
    let mine = json!({"spec": {"size": 1, "empty": {}, "values": {"k": {}}, "items": [{"name": "i"}]}});
    bench.apply("v1alpha1", "flux", "a", mine.clone()).await;
    bench.flip().await;
    let mut tries = Vec::new();
    for manager in ["flux", "intruder"] {
        for spec in [
            json!({"size": 1, "empty": {}, "values": {"k": {}}, "items": [{"name": "i"}]}),
            json!({"size": 1, "empty": {"n": 8}}),
            json!({"size": 1, "values": {"k": {"n": 8}}}),
            json!({"size": 1, "items": [{"name": "i", "n": 8}]}),
            json!({"size": 1, "whole": {"n": 8, "name": "x"}}),
        ] {
            tries.push(("v1", manager, json!({"spec": spec})));
        }
    }
    let generation = bench.live("a").await.metadata.generation;
    let wrong = differences(&bench, &tries).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(bench.live("a").await.metadata.generation, generation);
}

/// Keys that JSON writes in more than one way.
#[tokio::test]
async fn items_by_numbers_that_are_not_whole_keep_the_owner_of_their_reference() {
    let list = |atomic: bool| {
        let mut inner = json!({"type": "object", "properties": {"name": text()}});
        if atomic {
            inner["x-kubernetes-map-type"] = json!("atomic");
        }
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["weight"],
               "items": {"type": "object", "required": ["weight"], "properties": {"weight": {"type": "number"}, "ref": inner}}})
    };
    let bench = Bench::installed("fractions", |crd| {
        spec_of(crd, 0)["properties"]["links"] = list(true);
        spec_of(crd, 1)["properties"]["links"] = list(false);
    })
    .await;
    let weights = [json!(0.5), json!(2.0), json!(1e21), json!(1e-7), json!(-3)];
    let links: Vec<Value> = weights
        .iter()
        .map(|weight| json!({"weight": weight, "ref": {"name": "mine"}}))
        .collect();
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"links": links}}))
        .await;
    bench.flip().await;
    let other = |weight: &Value| json!({"spec": {"links": [{"weight": weight, "ref": {"name": "other"}}]}});
    let tries: Vec<_> = weights
        .iter()
        .map(|weight| ("v1", "intruder", other(weight)))
        .collect();
    let wrong = differences(&bench, &tries).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Through a webhook the server is asked at `/status` whose the status is, which takes the right to patch it.
#[tokio::test]
async fn without_the_right_to_patch_the_status_its_owner_stays_and_the_right_is_named() {
    let (bench, _hooks) = renaming_phase("documentedrights", |_| {}).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let by = PatchParams {
        field_manager: Some("reporter".into()),
        ..PatchParams::default()
    };
    api.patch_status("a", &by, &Patch::Merge(json!({"status": {"phase": "Ready"}})))
        .await
        .unwrap();
    bench.flip().await;
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions/status"], "verbs": ["patch"]},
        {"apiGroups": [bench.widgets.group()], "resources": ["widgets"], "verbs": ["get", "list", "patch"]},
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ]);
    let user = bench
        .control_plane
        .user_with_rules("documented", &rules)
        .await
        .unwrap();
    let config = user.config().unwrap();
    let writer = exuvia_write::Writer::named("exuvia");
    let client = writer.connect(config.clone()).unwrap();
    let options = exuvia_storage::Options {
        settle: std::time::Duration::from_millis(300),
        api_servers: vec![bench.control_plane.apiserver().url().parse().unwrap()],
        ..exuvia_storage::Options::default()
    };
    let mut engine = exuvia_storage::Engine::new(&config, client, writer, bench.widgets.crd_name(), options);
    let report = engine.run().await.unwrap();
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 1), "{report:?}");
    let why = report.unmoved_example.unwrap();
    assert!(why.contains("widgets/status") && why.contains("patch"), "{why}");

    // With the right it can be asked for.
    let mut shedding = bench.engine(|options| options.shed = vec!["v1alpha1".to_owned()]);
    let report = shedding.run().await.unwrap();
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 0), "{report:?}");
}
