//! Whether every API server denies, asked itself.

use exuvia_datastore::freeze::{Form, FrozenKind};
use exuvia_testenv::{ControlPlane, Widgets, until};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{Stage, install_migrations};

#[tokio::test]
async fn a_server_that_stood_still_over_the_freeze_is_seen_until_it_denies() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    install_migrations(&control_plane.client().unwrap()).await;
    let mut stage = Stage::on(&control_plane, "still").await;
    stage.servers.push(second.url().parse().unwrap());
    let widgets = stage.source.api(&second.client().unwrap(), "v1");
    stage.widget("w", json!({})).await;
    until("the second server serves the kind", async || {
        widgets.get("w").await
    })
    .await;
    let freeze = stage.freeze();
    assert!(
        !freeze.probe(Form::Frozen).await.unwrap().all_asked_deny(),
        "nothing is set"
    );

    second.process().pause().unwrap();
    freeze.set(Form::Frozen, false).await.unwrap();
    let name = second.url().trim_start_matches("https://");
    until(
        "the first server denies, the second does not answer",
        async || {
            let probed = freeze.probe(Form::Frozen).await.unwrap();
            let not_yet: Vec<(String, String)> = probed
                .not_yet()
                .map(|(server, why)| (server.to_owned(), why[0].to_string()))
                .collect();
            match not_yet.as_slice() {
                [(server, why)] if server == name && why.contains("did not answer") => Ok(()),
                _ => Err(not_yet),
            }
        },
    )
    .await;
    second.process().resume().unwrap();
    let probed = until("both deny", async || {
        let probed = freeze.probe(Form::Frozen).await.unwrap();
        if probed.all_asked_deny() {
            Ok(probed)
        } else {
            Err(probed)
        }
    })
    .await;
    assert_eq!(probed.servers.len(), 2);
    assert_eq!(probed.why_not_all, None);

    // Through each server, what the probe promises holds.
    for server in [control_plane.apiserver().admin(), second.admin()] {
        let widgets = stage.source.api(&server.client().unwrap(), "v1");
        let patch = Patch::Merge(json!({"spec": {"color": "late"}}));
        let refused = widgets.patch("w", &PatchParams::default(), &patch).await;
        assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    }
    freeze.remove().await.unwrap();
}

#[tokio::test]
async fn a_kind_without_objects_whose_schema_refuses_a_stub_is_shown_by_the_canary() {
    let stage = Stage::set("strict").await;
    let strict = Widgets::in_group("strict.old.example.com");
    let mut crd = strict.crd("v1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        version["schema"]["openAPIV3Schema"]["required"] = json!(["spec"]);
    }
    strict.install_crd(&stage.admin, crd).await.unwrap();
    let mut scope = stage.scope.clone();
    scope.source.push(FrozenKind {
        group: strict.group().to_owned(),
        ..scope.source[0].clone()
    });
    let freeze = stage.freeze_of(scope);
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    let answer = crate::requests::create(strict.group(), "w", json!({}));
    let answer = answer.send(&stage.other, strict.group(), "kubectl").await;
    assert!(answer.is_refused("until it has converged"), "{answer:?}");
    // The schema speaks first: such a refusal would have proven nothing.
    let mut bad = crate::requests::create(strict.group(), "w", json!({}));
    bad.body.as_object_mut().unwrap().remove("spec");
    let answer = bad.send(&stage.other, strict.group(), "kubectl").await;
    assert_eq!(answer.code, 422, "{answer:?}");
}

#[tokio::test]
async fn a_kind_that_somebody_took_out_of_the_policy_is_named() {
    use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
    let stage = Stage::set("leak").await;
    stage.widget("w", json!({})).await;
    let freeze = stage.freeze();
    stage.set_and_wait(&freeze, Form::Frozen, false).await;
    // Only the canary's rule is left: whatever the policy says about itself, writes pass.
    let policies: kube::Api<ValidatingAdmissionPolicy> = kube::Api::all(stage.admin.clone());
    let name = format!("exuvia-{}-source", stage.scope.uid);
    let mut policy = policies.get(&name).await.unwrap();
    let constraints = policy.spec.as_mut().unwrap().match_constraints.as_mut().unwrap();
    constraints.resource_rules.as_mut().unwrap().remove(0);
    policies
        .replace(&name, &PostParams::default(), &policy)
        .await
        .unwrap();
    let why = until("the leak shows", async || {
        let probed = freeze.probe(Form::Frozen).await.unwrap();
        probed.not_yet().next().map(|(_, why)| why[0].to_string())
    })
    .await;
    let group = stage.source.group();
    assert_eq!(why, format!("still lets writes to widgets.{group} pass"));
    assert!(!freeze.observe(Form::Frozen, false).await.unwrap().is_as_wanted());
}
