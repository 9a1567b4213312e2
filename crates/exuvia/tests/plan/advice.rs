//! Following the advice gets somewhere: no command is advised twice, and what it costs is said before.

use exuvia_testenv::webhook::{Conversion, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::binary::{self, flipped, printed};
use crate::{plan_of, shown};

/// Widgets whose `color` is called `paint` at v1, and a webhook that takes no other value of it than it has: so the server
/// cannot tell who owns it there.
async fn renaming(control_plane: &ControlPlane, group: &str) -> (Widgets, WebhookServer) {
    let webhooks = control_plane.webhooks().await.unwrap();
    webhooks.on_convert(Conversion::by(|mut object, to| {
        let (from, into) = if to.ends_with("/v1") {
            ("color", "paint")
        } else {
            ("paint", "color")
        };
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            assert_eq!(value, "green");
            spec.insert(into.into(), value);
        }
        object["apiVersion"] = json!(to);
        object
    }));
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    crd["spec"]["conversion"] = webhooks.conversion();
    let new =
        &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    new["paint"] = new["color"].take();
    new.as_object_mut().unwrap().remove("color");
    let client = control_plane.client().unwrap();
    widgets.install_crd(&client, crd).await.unwrap();
    widgets.create(&client, "v1alpha1", 2).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    (widgets, webhooks)
}

/// Runs what was advised, without waiting for a minute.
async fn run_advice(control_plane: &ControlPlane, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let server = control_plane.apiserver().url();
    assert_eq!(words[..3], ["exuvia", "storage", "migrate"], "{command}");
    let args = [&words[1..], &["--settle", "300ms", "--apiserver", server]].concat();
    let output = binary::admin(control_plane, &args).await;
    assert!(output.status.success(), "{command}: {}", printed(&output));
}

#[tokio::test]
async fn following_the_advice_frees_a_version_whose_owners_cannot_be_moved() {
    let control_plane = ControlPlane::shared().await;
    let (widgets, _webhooks) = renaming(control_plane, "renamed.advice.io").await;
    let ask = format!("exuvia storage droppable {} v1alpha1", widgets.crd_name());
    let mut followed: Vec<String> = Vec::new();
    let last = loop {
        let plan = plan_of(control_plane, widgets.group(), &["--ownership"]).await;
        let next = plan[0]["next"].as_str().unwrap().to_owned();
        if next == ask {
            break plan;
        }
        assert!(
            !followed.contains(&next),
            "advised again: {next}, after {followed:#?}: {plan}"
        );
        if next.contains("--managed-fields drop") {
            let price = plan[0]["price"].as_str().unwrap();
            assert!(price.contains("next apply may conflict"), "{plan}");
            let table = shown(control_plane, widgets.group(), &["--ownership"]).await;
            assert!(
                table.contains(&format!("(price: {price})")) && table.contains("spec.color"),
                "people are told as well: {table}"
            );
        }
        run_advice(control_plane, &next).await;
        followed.push(next);
    };
    assert!(followed.len() > 1, "{followed:#?}");
    let old = format!("{}/v1alpha1", widgets.group());
    assert_eq!(last[0]["owners"].get(&old), None, "{last}");
    assert_eq!(last[0]["blockers"], json!([]), "{last}");
}

#[tokio::test]
async fn who_still_writes_at_an_old_version_is_to_be_updated_before_anything_is_shed() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "laggard.advice.io", 3).await;
    run_advice(
        control_plane,
        &format!("exuvia storage migrate {}", widgets.crd_name()),
    )
    .await;
    let params = PatchParams {
        field_manager: Some("laggard".into()),
        ..PatchParams::default()
    };
    // Entries tell seconds: one that was written in the second of the migration may be older than it.
    let mut plan = Value::Null;
    for size in 10..200 {
        let patch = Patch::Merge(json!({"spec": {"size": size}}));
        let api = widgets.api(&client, "v1alpha1");
        api.patch("widget-0002", &params, &patch).await.unwrap();
        plan = plan_of(control_plane, widgets.group(), &["--ownership"]).await;
        if plan[0].get("first").is_some() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(
        plan[0]["first"], "update laggard, which still writes at v1alpha1",
        "{plan}"
    );
    assert!(
        plan[0]["next"].as_str().unwrap().ends_with("--shed v1alpha1"),
        "{plan}"
    );
    let wide = shown(control_plane, widgets.group(), &["-o", "wide"]).await;
    assert!(
        wide.contains(
            "ownership: laggard owns fields on 1 object, such as default/widget-0002, last write 20"
        ),
        "{wide}"
    );
    assert!(wide.contains("it still writes at this version"), "{wide}");
}
