//! How objects are copied, compared and waited for.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::{Ended, Machine};
use exuvia_testenv::until;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::{Stage, owned_by, up_to};

/// Both kinds, the new one changed by `change`.
pub(crate) async fn stage_with(name: &str, change: impl FnOnce(&mut Value)) -> Stage {
    let stage = Stage::bare(name).await;
    stage.old.install(&stage.client, "v1").await.unwrap();
    let mut crd = stage.new.crd("v1");
    change(&mut crd);
    stage.new.install_crd(&stage.client, crd).await.unwrap();
    stage
}

pub(crate) fn schema(crd: &mut Value) -> &mut Value {
    &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]
}

#[tokio::test]
async fn defaults_of_the_target_are_not_a_conflict_after_a_restart() {
    let stage = stage_with("defaults", |crd| {
        let spec = &mut schema(crd)["spec"]["properties"];
        spec["flavor"] = json!({"type": "string", "default": "vanilla"});
        spec["color"]["default"] = json!("white");
    })
    .await;
    stage.create_old("one", json!({"size": 1})).await;
    // Somebody has applied the same manifest to the new group.
    stage.create(&stage.new, "two", json!({"size": 2})).await;
    stage.create_old("two", json!({"size": 2})).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    drop(engine);
    let mut another = stage.engine(&migration);
    assert_eq!(stage.drive(&mut another).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!(
        (progress.migrated, progress.skipped, progress.conflicts),
        (1, 1, 0)
    );
    let target = stage.api(&stage.new).get("one").await.unwrap();
    assert_eq!(
        target.data["spec"],
        json!({"size": 1, "color": "white", "flavor": "vanilla"})
    );
}

#[tokio::test]
async fn labels_and_annotations_are_compared_and_what_tools_put_there_is_not() {
    let stage = Stage::new("compared", 3).await;
    for (name, metadata) in [
        ("w0", json!({"labels": {"team": "a"}})),
        ("w1", json!({"annotations": {"note": "a"}})),
        (
            "w2",
            json!({"annotations": {
                "meta.helm.sh/release-name": "x", "argocd.argoproj.io/tracking-id": "y",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            }}),
        ),
    ] {
        let source = stage.api(&stage.old).get(name).await.unwrap();
        stage.create(&stage.new, name, source.data["spec"].clone()).await;
        stage.merge(&stage.new, name, json!({"metadata": metadata})).await;
    }
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    let mut fields: Vec<_> = engine
        .found()
        .conflicts
        .iter()
        .map(|conflict| (conflict.name.clone(), conflict.field.clone()))
        .collect();
    fields.sort();
    let expected = [
        ("w0", "metadata.labels.team"),
        ("w1", "metadata.annotations.note"),
    ];
    assert_eq!(
        fields,
        expected.map(|(name, field)| (name.to_owned(), field.to_owned()))
    );
}

#[tokio::test]
async fn a_kind_without_spec_is_copied_and_compared_whole() {
    let stage = Stage::bare("specless").await;
    let rules = json!({"type": "array", "items": {"type": "string"}});
    for widgets in [&stage.old, &stage.new] {
        let mut crd = widgets.crd("v1");
        let properties = schema(&mut crd);
        *properties = json!({"rules": rules, "enabled": {"type": "boolean"}});
        widgets.install_crd(&stage.client, crd).await.unwrap();
    }
    let make = async |widgets: &exuvia_testenv::Widgets, name: &str, data: Value| {
        let mut object = widgets.widget("v1", name);
        object.metadata.namespace = Some(stage.name.clone());
        object.data = data;
        stage
            .api(widgets)
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    };
    make(&stage.old, "a", json!({"rules": ["x", "y"], "enabled": true})).await;
    make(&stage.old, "b", json!({"rules": ["x"]})).await;
    make(&stage.new, "b", json!({"rules": ["z"]})).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Conflicts));
    assert_eq!(engine.found().conflicts[0].field, "rules[0]");
    stage.merge(&stage.new, "b", json!({"rules": ["x"]})).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Conflicts).await, Ended::Done);
    let target = stage.api(&stage.new).get("a").await.unwrap();
    assert_eq!(
        (&target.data["rules"], &target.data["enabled"]),
        (&json!(["x", "y"]), &json!(true))
    );
}

fn with_observed_generation(crd: &mut Value) {
    schema(crd)["status"]["properties"]["observedGeneration"] = json!({"type": "integer"});
}

#[tokio::test]
async fn a_status_is_copied_and_says_what_its_controller_has_seen() {
    for (name, has_subresource) in [("status", true), ("nosub", false)] {
        let stage = Stage::bare(name).await;
        let mut old = stage.old.crd("v1");
        with_observed_generation(&mut old);
        stage.old.install_crd(&stage.client, old).await.unwrap();
        let mut new = stage.new.crd("v1");
        with_observed_generation(&mut new);
        if !has_subresource {
            new["spec"]["versions"][1]
                .as_object_mut()
                .unwrap()
                .remove("subresources");
        }
        stage.new.install_crd(&stage.client, new).await.unwrap();
        for object in ["seen", "behind"] {
            stage.create_old(object, json!({"size": 1})).await;
            let written = stage
                .merge(&stage.old, object, json!({"spec": {"size": 2}}))
                .await;
            assert_eq!(written.metadata.generation, Some(2));
            let observed = if object == "seen" { 2 } else { 1 };
            let status = json!({"status": {
                "phase": "On", "observedGeneration": observed,
                "conditions": [{"type": "Ready", "status": "True", "observedGeneration": observed}],
            }});
            stage.merge_status(&stage.old, object, status).await;
        }
        let mut spec = stage.spec();
        spec["mappings"][0]["status"] = json!("Copy");
        let migration = stage.migration(spec).await;
        // A restart after the copy writes nothing a second time.
        let mut engine = stage.engine(&migration);
        up_to(&mut engine, Step::Verify).await;
        let before = stage.api(&stage.new).get("seen").await.unwrap();
        let mut engine = stage.engine(&migration);
        up_to(&mut engine, Step::Commit).await;
        let after = stage.api(&stage.new).get("seen").await.unwrap();
        assert_eq!(before.resource_version(), after.resource_version(), "{name}");
        assert_eq!(stage.drive(&mut engine).await, Ended::Done);
        for (object, expected) in [("seen", 1), ("behind", 0)] {
            let target = stage.api(&stage.new).get(object).await.unwrap();
            let status = &target.data["status"];
            assert_eq!(target.metadata.generation, Some(1), "{name} {object}");
            assert_eq!(status["phase"], "On", "{name} {object}");
            assert_eq!(status["observedGeneration"], expected, "{name} {object}");
            assert_eq!(
                status["conditions"][0]["observedGeneration"], expected,
                "{name} {object}"
            );
        }
    }
}

#[tokio::test]
async fn a_field_that_the_target_would_drop_blocks_in_content_and_in_status() {
    let stage = stage_with("pruned", |crd| {
        schema(crd)["spec"]["properties"]
            .as_object_mut()
            .unwrap()
            .remove("payload");
        schema(crd)["status"]["properties"]
            .as_object_mut()
            .unwrap()
            .remove("notes");
    })
    .await;
    stage
        .create_old("content", json!({"size": 1, "payload": "kept"}))
        .await;
    stage.create_old("state", json!({"size": 1})).await;
    stage
        .merge_status(&stage.old, "state", json!({"status": {"notes": {"a": "b"}}}))
        .await;
    let mut spec = stage.spec();
    spec["mappings"][0]["status"] = json!("Copy");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let mut blocked: Vec<_> = engine
        .blockers()
        .iter()
        .map(|blocker| (blocker.name.as_str(), blocker.reason.as_str()))
        .collect();
    blocked.sort_unstable();
    assert_eq!(
        blocked,
        [("content", reason::REFUSED), ("state", reason::REFUSED)]
    );
    assert_eq!(stage.policies(migration.uid().as_deref().unwrap()).await, 0);
}

/// A policy on the new group that refuses this object, but not its dry run.
async fn refuse_for_real(stage: &Stage, object: &str) {
    let name = format!("refuse-{}", stage.name);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [stage.new.group()], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["widgets"],
            }]},
            "validations": [{
                "expression": format!(
                    "!object.metadata.name.startsWith('{object}') || (request.dryRun && !object.metadata.name.endsWith('-probe'))"
                ),
                "message": "not here",
            }],
        },
    }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    }))
    .unwrap();
    Api::all(stage.client.clone())
        .create(&PostParams::default(), &policy)
        .await
        .unwrap();
    Api::all(stage.client.clone())
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    let mut probe = stage.new.widget("v1", &format!("{object}-probe"));
    probe.metadata.namespace = Some(stage.name.clone());
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the policy refuses", async || {
        stage.api(&stage.new).create(&dry, &probe).await.is_err()
    })
    .await;
}

/// What a dry run does not see is found under the freeze: everything is undone, and writers are not frozen again and again.
#[tokio::test]
async fn an_owner_that_is_refused_under_the_freeze_undoes_everything_and_names_it() {
    let stage = Stage::new("reallyno", 1).await;
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    let mut dependent = stage.old.widget("v1", "a-dependent");
    dependent.metadata.namespace = Some(stage.name.clone());
    dependent.metadata.owner_references = Some(vec![owned_by(&owner)]);
    stage
        .api(&stage.old)
        .create(&PostParams::default(), &dependent)
        .await
        .unwrap();
    stage.create_old("other", json!({"size": 1})).await;
    refuse_for_real(&stage, "w0").await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Undo(exuvia_datastore::protocol::Undo::Refused)).await;
    let ended = until("everything is undone", async || {
        let ended = exuvia_runtime::machine::drive(&mut engine, &mut exuvia_runtime::machine::Silent).await;
        ended.map_err(|error| error.to_string())
    })
    .await;
    assert!(matches!(ended, Ended::Waits(_)), "{ended:?}");
    let status = stage.read().await.status.unwrap();
    assert_eq!(status.phase, Some(DatastorePhase::Pending));
    assert_eq!(status.blockers.len(), 1, "{:?}", status.blockers);
    assert_eq!(
        (
            status.blockers[0].name.as_str(),
            status.blockers[0].reason.as_str()
        ),
        ("w0", reason::REFUSED)
    );
    assert_eq!(stage.policies(migration.uid().as_deref().unwrap()).await, 0);
    assert!(stage.all(&stage.new).await.is_empty());
    stage.thawed().await;
    // Allowed, it goes on by itself.
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.client.clone());
    bindings
        .delete(&format!("refuse-{}", stage.name), &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 4);
}

#[tokio::test]
async fn an_object_under_deletion_blocks_until_it_is_gone() {
    let stage = Stage::new("leaving", 2).await;
    stage
        .merge(
            &stage.old,
            "w0",
            json!({"metadata": {"finalizers": ["example.com/held"]}}),
        )
        .await;
    stage
        .api(&stage.old)
        .delete("w0", &DeleteParams::default())
        .await
        .unwrap();
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert_eq!(
        (blocker.reason.as_str(), blocker.name.as_str()),
        (reason::TERMINATING, "w0")
    );
    stage
        .merge(&stage.old, "w0", json!({"metadata": {"finalizers": null}}))
        .await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    let moved: Vec<_> = stage
        .all(&stage.new)
        .await
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(moved, ["w1"]);
}

#[tokio::test]
async fn objects_that_name_moved_ones_are_rewritten() {
    let stage = Stage::new("named", 1).await;
    for (name, labels, group) in [
        ("chosen", json!({"uses": "widgets"}), stage.old.group()),
        ("other", json!({}), stage.old.group()),
    ] {
        let object =
            json!({"metadata": {"name": name, "labels": labels}, "data": {"group": group, "kept": "yes"}});
        let object = serde_json::from_value(object).unwrap();
        stage
            .config_maps()
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    }
    let mut spec = stage.spec();
    spec["references"] = json!({"rewrite": [{
        "in": {"group": "", "version": "v1", "kind": "ConfigMap", "selector": {"matchLabels": {"uses": "widgets"}}},
        "convert": [{"path": "data.group", "value": format!("'{}'", stage.new.group())}],
    }]});
    assert_eq!(stage.run(spec).await, Ended::Done);
    for (name, expected) in [("chosen", stage.new.group()), ("other", stage.old.group())] {
        let data = stage.config_maps().get(name).await.unwrap().data.unwrap();
        assert_eq!((data["group"].as_str(), data["kept"].as_str()), (expected, "yes"));
    }
}

#[tokio::test]
async fn a_roll_out_is_waited_for_after_the_commit() {
    let stage = Stage::new("rollout", 1).await;
    let deployments: Api<Deployment> = Api::namespaced(stage.client.clone(), &stage.name);
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": "controller"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [{"name": "c", "image": "x", "env": [{"name": "GROUP", "value": "old"}]}]},
            },
        },
    }))
    .unwrap();
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    let mut spec = stage.spec();
    spec["cutover"] = json!({"waitFor": [{
        "group": "apps", "version": "v1", "kind": "Deployment", "namespace": stage.name, "name": "controller",
        "rollout": true, "env": {"GROUP": "new"},
    }]});
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    let params = PatchParams::default();
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::WaitingFor));
    assert_eq!(stage.phase().await, DatastorePhase::Converged);
    let message = engine.message().unwrap().to_string();
    assert!(
        message.contains("controller") && message.contains("newest spec"),
        "{message}"
    );
    // The targets can be written meanwhile, as soon as the API server has let go of them.
    let color = json!({"spec": {"color": "new"}});
    let targets = stage.api(&stage.new);
    exuvia_testenv::until("the target can be written", async || {
        targets.patch("w0", &params, &Patch::Merge(&color)).await.is_ok()
    })
    .await;
    let env = json!([{"name": "c", "image": "x", "env": [{"name": "GROUP", "value": "new"}]}]);
    let patch = json!({"spec": {"template": {"spec": {"containers": env}}}});
    let patched = deployments
        .patch("controller", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    let status = |available: i64| {
        json!({"status": {
            "observedGeneration": patched.metadata.generation, "replicas": 2, "updatedReplicas": 2,
            "readyReplicas": available, "availableReplicas": available,
        }})
    };
    deployments
        .patch_status("controller", &params, &Patch::Merge(&status(1)))
        .await
        .unwrap();
    engine.retry(&Hold::WaitingFor);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::WaitingFor));
    assert!(engine.message().unwrap().to_string().contains("available"));
    deployments
        .patch_status("controller", &params, &Patch::Merge(&status(2)))
        .await
        .unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::WaitingFor).await, Ended::Done);
    let target = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(
        target.data["spec"]["color"], "new",
        "what was written after the commit stays"
    );
}
