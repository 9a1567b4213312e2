//! A value of a type that the storage version does not take (PITFALLS A55): found before anything is written.

use exuvia_storage::End;
use serde_json::{Value, json};

use crate::{Bench, spec_of};

fn from_text_to_number(crd: &mut Value) {
    for (version, kind) in [(0, "string"), (1, "integer")] {
        spec_of(crd, version)["properties"]["amount"] = json!({ "type": kind });
    }
}

#[tokio::test]
async fn a_value_that_the_storage_version_does_not_take_is_named_before_the_first_write() {
    let bench = Bench::installed("types", from_text_to_number).await;
    bench
        .apply("v1alpha1", "flux", "fits", json!({"spec": {"size": 1}}))
        .await;
    bench
        .apply("v1alpha1", "flux", "unfit", json!({"spec": {"amount": "3"}}))
        .await;
    bench.flip().await;
    let report = bench.migrate().await;
    let End::Stalled { reason, message } = &report.end else {
        panic!("{report:?}");
    };
    assert_eq!(*reason, "Pruning");
    let named = "spec.amount (type string, must be integer) (1 object: default/unfit)";
    assert!(
        message.contains(named) && message.contains("applies would answer 500"),
        "{message}"
    );
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert_eq!(bench.stored().await, [old.clone(), old], "nothing was written");
}

/// Who accepts it gets the bytes; the owners stay where they are, and hold the old version.
#[tokio::test]
async fn accepted_it_is_rewritten_and_its_owner_holds_the_old_version() {
    let bench = Bench::installed("typesaccepted", from_text_to_number).await;
    bench
        .apply("v1alpha1", "flux", "unfit", json!({"spec": {"amount": "3"}}))
        .await;
    bench.flip().await;
    let report = bench
        .engine(|options| options.accept_pruning = true)
        .run()
        .await
        .unwrap();
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 1), "{report:?}");
    assert_eq!(bench.stored().await, [format!("{}/v1", bench.widgets.group())]);
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert_eq!(report.owners.objects_at(&old), 1);
    assert_eq!(bench.live("unfit").await.data["spec"]["amount"], "3");
}
