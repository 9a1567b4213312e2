//! CRDs that somebody has excluded by annotation, with a reason.

use exuvia_testenv::{ControlPlane, Widgets};
use kube::Client;
use serde_json::json;

use super::{admin, flipped, json_of, merge_crd, migrate, printed, text};

async fn excluded(client: &Client, group: &str, reason: &str) -> Widgets {
    let widgets = flipped(client, group, 2).await;
    let annotations = json!({"exuvia.dev/exclude-storage-version-migration": reason});
    let labels = json!({"exuvia.dev/auto-migrate-storage-version": "true"});
    merge_crd(
        client,
        &widgets,
        json!({"metadata": {"annotations": annotations, "labels": labels}}),
    )
    .await;
    widgets
}

async fn stored_old(widgets: &Widgets) -> usize {
    let stored = ControlPlane::shared().await.stored(widgets.group(), "widgets");
    let counts = stored.count_by_version().await.unwrap();
    let old = format!("{}/v1alpha1", widgets.group());
    counts.get(&old).copied().unwrap_or_default()
}

#[tokio::test]
async fn an_excluded_crd_is_left_alone_unless_it_is_asked_for_twice() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let no = excluded(&client, "no.excluded.io", "the vendor migrates it").await;
    let silent = excluded(&client, "silent.excluded.io", "").await;
    let fine = flipped(&client, "fine.excluded.io", 2).await;

    let plan = admin(control_plane, &["plan", "--groups", "excluded.io", "-o", "json"]).await;
    for line in json_of(&plan).as_array().unwrap() {
        let recommends = line["next"].as_str().unwrap().contains("migrate");
        assert_eq!(recommends, line["crd"] == fine.crd_name(), "{line}");
    }

    let named = migrate(control_plane, &[&no.crd_name()]).await;
    let error = text(&named.stderr);
    assert_eq!(named.status.code(), Some(2), "{error}");
    assert!(
        error.contains("the vendor migrates it") && error.contains("--include-excluded"),
        "{error}"
    );
    let proving = ["storage", "droppable", &no.crd_name(), "v1alpha1", "--prove"];
    let proving = admin(control_plane, &proving).await;
    assert_eq!(proving.status.code(), Some(2));
    assert!(
        text(&proving.stderr).contains("the vendor migrates it"),
        "{}",
        text(&proving.stderr)
    );

    let all = migrate(control_plane, &["--all", "--groups", "excluded.io"]).await;
    assert_eq!(all.status.code(), Some(0), "{}", printed(&all));
    let error = text(&all.stderr);
    for left_out in [
        "widgets.no.excluded.io (the vendor migrates it)",
        "widgets.silent.excluded.io (no reason is given)",
    ] {
        assert!(error.contains(left_out), "{error}");
    }
    assert!(
        !text(&all.stdout).contains(&no.crd_name()),
        "{}",
        text(&all.stdout)
    );
    for (widgets, old) in [(&no, 2), (&silent, 2), (&fine, 0)] {
        assert_eq!(stored_old(widgets).await, old, "{}", widgets.group());
    }

    let labelled = migrate(control_plane, &["--labelled", "--groups", "no.excluded.io"]).await;
    let error = text(&labelled.stderr);
    assert_eq!(labelled.status.code(), Some(2), "{error}");
    assert!(
        error.contains("excluded by annotation: widgets.no.excluded.io"),
        "{error}"
    );
    assert!(!error.contains("carries the label"), "it does: {error}");
    let nobody = migrate(control_plane, &["--labelled", "--groups", "fine.excluded.io"]).await;
    assert!(
        text(&nobody.stderr).contains("carries the label"),
        "{}",
        text(&nobody.stderr)
    );

    let insisted = migrate(control_plane, &[&no.crd_name(), "--include-excluded"]).await;
    assert_eq!(insisted.status.code(), Some(0), "{}", printed(&insisted));
    let rest = migrate(
        control_plane,
        &["--all", "--groups", "excluded.io", "--include-excluded"],
    )
    .await;
    assert_eq!(rest.status.code(), Some(0), "{}", printed(&rest));
    assert_eq!(stored_old(&silent).await, 0);
}
