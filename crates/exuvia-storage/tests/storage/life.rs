//! The life of an API version, t1 to t4, with its negative: without migration, removal must fail.

use exuvia_storage::End;
use exuvia_testenv::Error;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::Bench;

#[tokio::test]
async fn a_version_is_added_becomes_storage_and_the_old_one_goes_only_after_migration() {
    // t1: only v1alpha1 is stored.
    let bench = Bench::installed("life").await;
    bench.widgets.create(&bench.client, "v1alpha1", 8).await.unwrap();
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (8, 0)
    );
    let identities = bench.identities().await;

    // t2: v1 becomes the storage version; nothing is rewritten by that.
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (8, 0)
    );
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);

    // The negative.
    let refused = bench
        .widgets
        .drop_version(&bench.client, "v1alpha1")
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused}");

    // t3: migrated.
    assert_eq!(bench.migrate().await.end, End::Migrated);
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (0, 8)
    );
    bench.assert_trimmed_rightly("v1alpha1").await;

    // t4: v1alpha1 is gone, and every object can be read, applied to and deleted.
    bench
        .widgets
        .drop_version(&bench.client, "v1alpha1")
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    exuvia_testenv::until("the server has dropped it", async || {
        bench
            .widgets
            .api(&bench.client, "v1alpha1")
            .get("widget-0000")
            .await
            .is_err()
    })
    .await;
    assert_eq!(bench.identities().await, identities);
    let mut intent = bench.widgets.widget("v1", "widget-0000");
    intent.data = json!({"spec": {"size": 2}});
    let apply = PatchParams::apply("somebody").force();
    let applied = api
        .patch("widget-0000", &apply, &Patch::Apply(&intent))
        .await
        .unwrap();
    assert_eq!(applied.data["spec"], json!({"size": 2, "color": "green"}));
    api.delete("widget-0001", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn writers_that_never_stop_lose_nothing() {
    let bench = Bench::flipped("busy", 30).await;
    let api = bench.widgets.api(&bench.client, "v1");
    let old_api = bench.widgets.api(&bench.client, "v1alpha1");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    // However busy the machine is: both have written before the migration begins.
    let begun = tokio::sync::Barrier::new(3);
    // Each writer counts up another field, with the lock, on a few objects: a lost update would show as a gap.
    let writing = async |writer: u64| {
        let mut written = 0_u64;
        while !*stopped.borrow() {
            let name = format!("widget-{:04}", (written * 7 + writer) % 30);
            let Ok(object) = api.get(&name).await else {
                continue;
            };
            let key = format!("writer-{writer}");
            let next = object.data["spec"]["parts"][&key]
                .as_str()
                .map_or(0, |n| n.parse::<u64>().unwrap())
                + 1;
            let patch = json!({
                "metadata": {"resourceVersion": object.metadata.resource_version},
                "spec": {"parts": {key: next.to_string()}},
            });
            // At the old version, so that there is always another entry for the migration to move.
            let params = PatchParams {
                field_manager: Some(format!("writer-{writer}")),
                ..PatchParams::default()
            };
            if old_api.patch(&name, &params, &Patch::Merge(patch)).await.is_ok() {
                written += 1;
                if written == 1 {
                    begun.wait().await;
                }
            }
        }
        written
    };
    let migrating = async {
        begun.wait().await;
        let report = bench.migrate().await;
        stop.send(true).unwrap();
        report
    };
    let (report, first, second) = tokio::join!(migrating, writing(1), writing(2));
    assert_eq!(report.end, End::Migrated, "{report:?}");
    bench.assert_trimmed_rightly("v1alpha1").await;
    for (writer, written) in [(1, first), (2, second)] {
        let mut found = 0;
        for object in api.list(&kube::api::ListParams::default()).await.unwrap() {
            let count = object.data["spec"]["parts"][format!("writer-{writer}")].as_str();
            let owns = format!("writer-{writer}");
            let mut owners = object.metadata.managed_fields.iter().flatten();
            let owned = owners.any(|entry| entry.manager.as_ref() == Some(&owns));
            assert_eq!(count.is_some(), owned, "who wrote a field still owns one");
            found += count.map_or(0, |count| count.parse::<u64>().unwrap());
        }
        assert!(written > 0);
        assert_eq!(
            found, written,
            "every acknowledged update of writer {writer} is there"
        );
    }
}
