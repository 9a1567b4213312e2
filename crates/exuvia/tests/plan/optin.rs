//! CRDs that look as if they had opted in, and have not.

use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::binary;
use crate::{plan_of, remarked, shown};

const LABEL: &str = "exuvia.dev/auto-migrate-storage-version";

async fn installed(group: &str, metadata: Value) -> Widgets {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = Widgets::in_group(group);
    widgets.install(&client, "v1").await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let patch = Patch::Merge(json!({"metadata": metadata}));
    crds.patch(&widgets.crd_name(), &PatchParams::default(), &patch)
        .await
        .unwrap();
    widgets
}

#[tokio::test]
async fn a_label_with_another_value_is_told_of() {
    let control_plane = ControlPlane::shared().await;
    installed("yes.optin.io", json!({"labels": {LABEL: "yes"}})).await;
    let said = remarked(control_plane, "yes.optin.io", &[]).await;
    let note = format!("the label {LABEL}=yes does not opt in: its value must be \"true\"");
    assert!(
        said.contains(&format!("note: widgets.yes.optin.io: {note}")),
        "{said}"
    );
    let plan = plan_of(control_plane, "yes.optin.io", &[]).await;
    assert_eq!(
        (&plan[0]["note"], &plan[0]["optedIn"]),
        (&json!(note), &json!(false))
    );
}

#[tokio::test]
async fn labelled_crds_outside_of_the_groups_are_told_of() {
    let control_plane = ControlPlane::shared().await;
    installed("inside.optin.org", json!({"labels": {LABEL: "true"}})).await;
    installed("outside.optin.net", json!({"labels": {LABEL: "true"}})).await;
    for flags in [&[][..], &["-o", "json"]] {
        let said = remarked(control_plane, "inside.optin.org", flags).await;
        assert!(
            said.contains("outside of --groups inside.optin.org")
                && said.contains("widgets.outside.optin.net"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn nothing_is_advised_against_an_exclusion() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let exclude = "exuvia.dev/exclude-storage-version-migration";
    let widgets = binary::flipped(&client, "no.optin.io", 1).await;
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {exclude: "not\u{1b}[31m ours"}}}));
    crds.patch(&widgets.crd_name(), &PatchParams::default(), &patch)
        .await
        .unwrap();
    let plan = plan_of(control_plane, "no.optin.io", &[]).await;
    assert_eq!(plan[0]["next"], "-");
    let said = shown(control_plane, "no.optin.io", &[]).await;
    assert!(said.contains("excluded") && said.contains("ours"), "{said}");
    assert!(
        !said.contains('\u{1b}'),
        "no colour of others in a pipe: {said:?}"
    );

    installed(
        "mute.optin.io",
        json!({"labels": {LABEL: "true"}, "annotations": {exclude: ""}}),
    )
    .await;
    let said = shown(control_plane, "mute.optin.io", &[]).await;
    assert!(said.contains("no reason is given"), "{said}");
    let said = remarked(control_plane, "mute.optin.io", &[]).await;
    let note =
        format!("note: widgets.mute.optin.io: the annotation {exclude} excludes it, but gives no reason");
    assert!(said.contains(&note), "{said}");
}

#[tokio::test]
async fn a_group_that_matches_no_crd_is_told_of_to_machines_as_well() {
    let control_plane = ControlPlane::shared().await;
    installed("misspelt.optin.io", json!({})).await;
    let args = [
        "plan",
        "--groups",
        "misspelt.optin.io,mispelt.optin.io",
        "-o",
        "json",
    ];
    let output = binary::admin(control_plane, &args).await;
    let said = binary::text(&output.stderr);
    assert!(
        said.contains("note: --groups mispelt.optin.io matches no CRD; did you mean misspelt.optin.io?"),
        "{said}"
    );
}
