//! The examples of the library crates, called as their `main` calls them.

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_api::StorageMigration;
use exuvia_audit::AuditOptions;
use exuvia_runtime::{LogFormat, start_logging};
use exuvia_storage::End;
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, CustomResourceExt, ResourceExt};
use serde_json::json;
use tokio::sync::oneshot;

use crate::rendered;

#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-lint/examples/check_manifests.rs"]
mod check_manifests;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-sweep/examples/count.rs"]
mod count;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-storage/examples/migrate_own_crds.rs"]
mod migrate_own_crds;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-usage/examples/one_sentence.rs"]
mod one_sentence;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-runtime/examples/operator.rs"]
mod operator;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-rollout/examples/rollout.rs"]
mod rollout;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-write/examples/safe_write.rs"]
mod safe_write;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-api/examples/stalled.rs"]
mod stalled;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-testenv/examples/stored_bytes.rs"]
mod stored_bytes;
#[allow(dead_code, reason = "`main` is not called here")]
#[path = "../../../exuvia-audit/examples/stored_versions.rs"]
mod stored_versions;

fn data(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    owned.collect()
}

#[tokio::test]
async fn the_safe_write_keeps_what_the_plain_one_destroys() {
    let config = ControlPlane::shared().await.admin().config().unwrap();
    let [clobbered, safe] = safe_write::run(config).await.unwrap();
    assert_eq!(clobbered, data(&[("apple", "2")]));
    assert_eq!(safe, data(&[("apple", "2"), ("pear", "3")]));
}

#[tokio::test]
async fn the_sweep_counts_every_object() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let namespace = json!({"metadata": {"name": "counted"}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(namespace).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, "counted");
    for index in 0..7 {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(format!("map-{index}"));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let kind = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let config = control_plane.admin().config().unwrap();
    let counts = count::run(config, &kind).await.unwrap();
    assert_eq!(counts["counted"], 7);
}

#[tokio::test]
async fn the_operator_marks_every_widget_and_ends_when_told() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("operator.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 5).await.unwrap();
    let config = control_plane.admin().config().unwrap();
    let log_level = start_logging(LogFormat::Text, "warn").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let all_are_marked = async {
        let api = widgets.api(&client, "v1");
        until("every widget is marked", async || {
            let list = api.list(&ListParams::default()).await.unwrap();
            let marked = list
                .iter()
                .filter(|widget| widget.annotations().contains_key(operator::MARK));
            marked.count() == 5
        })
        .await;
        stop.send(()).unwrap();
    };
    let running = operator::run(config, "127.0.0.1:0", log_level, async { drop(stopped.await) });
    let (ended, ()) = tokio::join!(running, all_are_marked);
    ended.unwrap();
}

#[tokio::test]
async fn an_operator_migrates_its_own_crds_when_it_starts() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    // An earlier release knew v1alpha1 only.
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let earlier = serde_json::from_value(migrate_own_crds::gadgets(&[("v1alpha1", true)])).unwrap();
    crds.create(&PostParams::default(), &earlier).await.unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("own.example.com", "v1alpha1", "Gadget"));
    let gadgets: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
    until("gadgets are served", async || {
        gadgets.list(&ListParams::default()).await.is_ok()
    })
    .await;
    for index in 0..4 {
        let gadget =
            DynamicObject::new(&format!("gadget-{index}"), &resource).data(json!({"spec": {"size": index}}));
        gadgets.create(&PostParams::default(), &gadget).await.unwrap();
    }
    let stored = async || {
        let bytes = control_plane.stored("own.example.com", "gadgets");
        bytes.count_by_version().await.unwrap()
    };
    let at =
        |version: &str, objects: usize| BTreeMap::from([(format!("own.example.com/{version}"), objects)]);
    assert_eq!(stored().await, at("v1alpha1", 4));

    let start = async || {
        let config = control_plane.admin().config().unwrap();
        let mut reports = migrate_own_crds::run(config, Duration::from_secs(1))
            .await
            .unwrap();
        (reports.remove(0), reports.len())
    };
    let (first, others) = start().await;
    assert_eq!(
        (&first.end, first.rewrite.rewritten, others),
        (&End::Migrated, 4, 0),
        "{first:?}"
    );
    assert_eq!(stored().await, at("v1", 4));
    assert_eq!(first.stored_after, ["v1"]);
    // The next start finds that on record, and writes nothing.
    let (second, _) = start().await;
    assert_eq!(second.end, End::Clean, "{second:?}");
}

#[tokio::test]
async fn stored_bytes_show_what_a_flip_leaves_behind() {
    let counts = stored_bytes::run(ControlPlane::shared().await).await.unwrap();
    let expected = [("bytes.example.com/v1", 1), ("bytes.example.com/v1alpha1", 3)];
    assert_eq!(
        counts,
        expected
            .map(|(version, objects)| (version.to_owned(), objects))
            .into()
    );
}

#[tokio::test]
async fn the_audit_counts_each_stored_version() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("audited.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 3).await.unwrap();
    let etcd = control_plane.etcd();
    let file = |name: &str| etcd.identity().map(|_| control_plane.directory().join(name));
    let options = AuditOptions {
        endpoints: vec![etcd.endpoint().to_owned()],
        cacert: file("ca.crt"),
        cert: file("etcd-client.crt"),
        key: file("etcd-client.key"),
        prefix: etcd.prefix().to_owned(),
        ..AuditOptions::default()
    };
    let resources = stored_versions::run(&options).await.unwrap();
    let expected = BTreeMap::from([("audited.example.com/v1alpha1".to_owned(), 3)]);
    assert_eq!(resources["widgets.audited.example.com"], expected);
    assert!(
        !resources.contains_key("configmaps"),
        "a built-in resource: {resources:?}"
    );
}

#[test]
fn the_manifests_of_our_own_crds_are_clean() {
    let crds = rendered::charts().join("exuvia-crds").display().to_string();
    let report = check_manifests::run(&[crds]).unwrap();
    assert!(report.checked > 0 && report.findings.is_empty(), "{report:?}");
}

#[test]
fn a_wrong_option_is_one_sentence_that_names_the_right_one() {
    let read = |option: &str| one_sentence::read(&[option.to_owned(), "7".to_owned()]);
    assert_eq!(
        read("--concurent").unwrap_err(),
        "invalid option \"--concurent\" of `copy`: did you mean --concurrent?"
    );
    assert_eq!(read("--concurrent").unwrap().concurrent, 7);
}

#[tokio::test]
async fn a_stalled_migration_is_told_from_one_at_work_without_a_client() {
    let client = ControlPlane::shared().await.client().unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &StorageMigration::crd())
        .await
        .unwrap();
    let migrations: Api<StorageMigration> = Api::all(client);
    until("StorageMigrations are served", async || {
        migrations.list(&ListParams::default()).await
    })
    .await;
    for name in ["apples.example.com", "pears.example.com"] {
        let migration = json!({"metadata": {"name": name}, "spec": {"resource": name}});
        let migration = serde_json::from_value(migration).unwrap();
        migrations
            .create(&PostParams::default(), &migration)
            .await
            .unwrap();
    }
    let stalled = json!({"status": {"conditions": [{
        "type": "Stalled", "status": "True", "reason": "Failures", "message": "2 objects failed",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    let patch = Patch::Merge(&stalled);
    migrations
        .patch_status("pears.example.com", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let list = migrations.list(&ListParams::default()).await.unwrap();
    let states = stalled::run(&serde_json::to_string(&list).unwrap()).unwrap();
    let expected = [
        ("apples.example.com", "at work"),
        ("pears.example.com", "stalled: Failures: 2 objects failed"),
    ];
    assert_eq!(
        states,
        expected.map(|(resource, state)| (resource.to_owned(), state.to_owned()))
    );
}

#[tokio::test]
async fn a_restarted_old_pod_does_no_harm_in_the_middle_of_a_roll_out() {
    let config = ControlPlane::shared().await.admin().config().unwrap();
    let lines = rollout::run(config).await.unwrap();
    let readme = include_str!("../../../exuvia-rollout/README.md");
    for line in &lines {
        assert!(readme.contains(line), "the README does not have: {line}");
    }
    assert_eq!(lines.len(), 4);
    let client = ControlPlane::shared().await.client().unwrap();
    let sets: Api<k8s_openapi::api::apps::v1::StatefulSet> = Api::namespaced(client, "rollout-example");
    let set = sets.get("till-backend").await.unwrap();
    let pod = set.spec.template.spec.unwrap();
    assert_eq!(pod.containers[0].image.as_deref(), Some("till:2"));
}
