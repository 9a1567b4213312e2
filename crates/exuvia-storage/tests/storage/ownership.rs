//! Field ownership: moved with the object, so that server-side apply works after the drop (PITFALLS A7).

use std::collections::BTreeSet;

use exuvia_storage::{End, ManagedFields, Options, droppable};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::Bench;

/// Widgets written by apply, by update and through `/status`, by managers at one version and at both.
async fn written_by_many(group: &str) -> Bench {
    let bench = Bench::installed(group).await;
    bench.widgets.create(&bench.client, "v1alpha1", 3).await.unwrap();
    for name in ["widget-0000", "widget-0001", "widget-0002"] {
        apply(
            &bench,
            "v1alpha1",
            "applier",
            name,
            json!({"spec": {"tags": ["a"]}}),
        )
        .await
        .unwrap();
        update(
            &bench,
            "v1alpha1",
            "updater",
            name,
            json!({"spec": {"payload": "old"}}),
        )
        .await;
        update(
            &bench,
            "v1",
            "updater",
            name,
            json!({"spec": {"parts": {"new": "1"}}}),
        )
        .await;
        let status = json!({"status": {"phase": "Ready"}});
        let api = bench.widgets.api(&bench.client, "v1alpha1");
        let params = PatchParams {
            field_manager: Some("reporter".into()),
            ..PatchParams::default()
        };
        api.patch_status(name, &params, &Patch::Merge(status))
            .await
            .unwrap();
    }
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    bench
}

async fn apply(
    bench: &Bench,
    version: &str,
    manager: &str,
    name: &str,
    data: Value,
) -> kube::Result<DynamicObject> {
    let mut intent = DynamicObject::new(name, &bench.widgets.resource(version));
    intent.data = data;
    let api = bench.widgets.api(&bench.client, version);
    api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(&intent))
        .await
}

async fn update(bench: &Bench, version: &str, manager: &str, name: &str, data: Value) {
    let params = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let api = bench.widgets.api(&bench.client, version);
    api.patch(name, &params, &Patch::Merge(data)).await.unwrap();
}

/// Every (manager, operation, subresource, field path), whatever the version: what must survive the move.
fn owned(object: &DynamicObject) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value.as_object().filter(|map| !map.is_empty()) {
            Some(map) => map
                .iter()
                .for_each(|(key, inner)| walk(inner, &format!("{path}.{key}"), found)),
            None => {
                found.insert(path.to_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    for entry in object.metadata.managed_fields.iter().flatten() {
        let ManagedFieldsEntry {
            manager,
            operation,
            subresource,
            fields_v1,
            ..
        } = entry;
        walk(
            &json!(fields_v1),
            &format!("{manager:?} {operation:?} {subresource:?}"),
            &mut found,
        );
    }
    found
}

async fn drop_v1alpha1(bench: &Bench) {
    bench
        .widgets
        .drop_version(&bench.client, "v1alpha1")
        .await
        .unwrap();
    let old = bench.widgets.api(&bench.client, "v1alpha1");
    exuvia_testenv::until("the server has dropped v1alpha1", async || {
        old.get("widget-0000").await.is_err()
    })
    .await;
}

#[tokio::test]
async fn after_migrate_and_drop_apply_works_and_every_field_has_its_owner() {
    let bench = written_by_many("owners").await;
    let api = bench.widgets.api(&bench.client, "v1");
    let before = owned(&api.get("widget-0000").await.unwrap());
    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated, "{report:?}");
    let object = api.get("widget-0000").await.unwrap();
    assert_eq!(owned(&object), before, "no field lost or changed its owner");
    let versions: BTreeSet<_> = object
        .metadata
        .managed_fields
        .iter()
        .flatten()
        .map(|e| &e.api_version)
        .collect();
    assert_eq!(versions.len(), 1, "{versions:?}");

    drop_v1alpha1(&bench).await;
    apply(
        &bench,
        "v1",
        "applier",
        "widget-0000",
        json!({"spec": {"tags": ["b"]}}),
    )
    .await
    .unwrap();
    apply(
        &bench,
        "v1",
        "another",
        "widget-0001",
        json!({"spec": {"size": 9}}),
    )
    .await
    .unwrap();
}

/// The control: what predecessors leave behind.
#[tokio::test]
async fn with_ownership_kept_apply_answers_500_after_the_drop_and_migrate_cures_it() {
    let bench = written_by_many("mines").await;
    let keep = Options {
        managed_fields: ManagedFields::Keep,
        ..bench.options()
    };
    assert_eq!(bench.engine(keep).run().await.unwrap().end, End::Migrated);
    drop_v1alpha1(&bench).await;
    // The server that took the drop may need a moment to act on it.
    exuvia_testenv::until("apply answers 500", async || {
        let tags = json!({"spec": {"tags": ["b"]}});
        let applied = apply(&bench, "v1", "applier", "widget-0000", tags).await;
        matches!(applied, Err(kube::Error::Api(status)) if status.code == 500)
    })
    .await;

    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert_eq!(report.rewrite.rewritten, 3);
    for name in ["widget-0000", "widget-0001", "widget-0002"] {
        apply(&bench, "v1", "applier", name, json!({"spec": {"tags": ["b"]}}))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_writer_still_at_the_old_version_is_named_and_holds_it() {
    let bench = Bench::flipped("holder", 3).await;
    let report = bench.migrate().await;
    let definition = async || {
        let crds = kube::Api::all(bench.client.clone());
        exuvia_storage::definition::Definition::read(&crds.get(&bench.widgets.crd_name()).await.unwrap())
    };
    assert_eq!(
        droppable::droppable(&definition().await, &report.owners),
        ["v1alpha1"]
    );

    update(
        &bench,
        "v1alpha1",
        "laggard",
        "widget-0001",
        json!({"spec": {"size": 7}}),
    )
    .await;
    let sweep = exuvia_sweep::Sweep::of(bench.client.clone(), &bench.widgets.resource("v1"));
    let survey = exuvia_storage::Survey::of(sweep).await.unwrap();
    let blockers = droppable::blockers(&definition().await, "v1alpha1", &survey.owners);
    assert_eq!(blockers.len(), 1);
    let text = blockers[0].to_string();
    assert!(
        text.contains("laggard")
            && text.contains("1 object (such as")
            && text.contains("default/widget-0001"),
        "{text}"
    );
}

/// After the trim v1alpha1 is not a stored version any more, but an entry that came since holds it until it is shed.
#[tokio::test]
async fn what_a_writer_left_behind_after_the_trim_is_shed_on_request() {
    let bench = Bench::flipped("shed", 3).await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    update(
        &bench,
        "v1alpha1",
        "laggard",
        "widget-0001",
        json!({"spec": {"size": 7}}),
    )
    .await;
    assert_eq!(
        bench.migrate().await.end,
        End::Clean,
        "a served version may be written at"
    );
    let shed = Options {
        shed: vec!["v1alpha1".into()],
        ..bench.options()
    };
    let report = bench.engine(shed).run().await.unwrap();
    assert_eq!((report.end, report.rewrite.rewritten), (End::Migrated, 1));
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert_eq!(report.owners.objects_at(&old), 0);
    drop_v1alpha1(&bench).await;
    apply(
        &bench,
        "v1",
        "laggard",
        "widget-0001",
        json!({"spec": {"size": 8}}),
    )
    .await
    .unwrap();
}

#[tokio::test]
async fn dropped_entries_leave_no_trace_of_the_old_version() {
    let bench = written_by_many("dropped").await;
    let options = Options {
        managed_fields: ManagedFields::Drop,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!(report.end, End::Migrated);
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert_eq!(report.owners.objects_at(&old), 0);
    drop_v1alpha1(&bench).await;
    apply(
        &bench,
        "v1",
        "applier",
        "widget-0000",
        json!({"spec": {"tags": ["b"]}}),
    )
    .await
    .unwrap();
}
