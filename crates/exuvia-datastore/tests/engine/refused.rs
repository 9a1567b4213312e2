//! What the API server makes of creates that passed a dry run, and servers that lack what a migration needs.

use exuvia_api::{DatastorePhase, datastore_reason as reason};
use exuvia_datastore::protocol::{Hold, Step, Undo};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::{ControlPlane, until};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::copied::{schema, stage_with};
use crate::{Stage, install_migrations, up_to};

/// A quota of the namespace for the targets that leaves room for so many.
async fn leave_room(stage: &Stage, room: u32) {
    leave_room_besides(stage, room, 0).await;
}

/// As [`leave_room`], besides what is used. No controller runs here that would count.
async fn leave_room_besides(stage: &Stage, room: u32, used: u32) {
    let counted = format!("count/widgets.{}", stage.new.group());
    let quotas: Api<ResourceQuota> = Api::namespaced(stage.client.clone(), &stage.name);
    let room = (room + used).to_string();
    let spec = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
        "spec": {"hard": {&counted: room}},
    });
    let force = PatchParams::apply("test").force();
    quotas.patch("few", &force, &Patch::Apply(&spec)).await.unwrap();
    let status = json!({"status": {"hard": {&counted: room}, "used": {&counted: used.to_string()}}});
    let params = PatchParams::default();
    quotas
        .patch_status("few", &params, &Patch::Merge(&status))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_quota_without_room_for_all_objects_is_named_before_anything_is_frozen() {
    let stage = Stage::new("room", 3).await;
    leave_room(&stage, 2).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert_eq!(
        (blocker.reason.as_str(), blocker.namespace.as_str()),
        (reason::QUOTA, stage.name.as_str())
    );
    assert!(blocker.message.contains("has room for 2"), "{}", blocker.message);
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    leave_room(&stage, 3).await;
    assert_eq!(
        stage.goes_on(&mut engine, Hold::Blocked).await,
        Ended::Done,
        "it goes on by itself"
    );
    assert_eq!(stage.all(&stage.new).await.len(), 3);
}

/// One mapping makes a target of each source and another one a second, all of one kind: a dry run sees each of them alone. The API
/// server writes the thousand that is used as `1k`.
#[tokio::test]
async fn a_quota_counts_what_all_mappings_make_besides_a_thousand_that_are_there() {
    let stage = Stage::new("thousand", 3).await;
    let mut spec = stage.spec();
    let mut second = spec["mappings"][0].clone();
    second["name"] = json!("seconds");
    second["extra"] = json!(true);
    second["metadata"] = json!({"name": "object.metadata.name + '-second'"});
    spec["mappings"].as_array_mut().unwrap().push(second);
    leave_room_besides(&stage, 5, 1000).await;
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert_eq!(
        (blocker.reason.as_str(), blocker.kind.as_str()),
        (reason::QUOTA, format!("Widget.{}", stage.new.group()).as_str())
    );
    let expected = format!(
        "6 objects of widgets.{} are to be created, and the quota few has room for 5",
        stage.new.group()
    );
    assert!(blocker.message.starts_with(&expected), "{}", blocker.message);
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    leave_room_besides(&stage, 6, 1000).await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await.len(), 6);
}

/// It was lowered after everything had been tried. What is made before the object that does not fit is taken back.
#[tokio::test]
async fn a_quota_that_is_met_under_the_freeze_undoes_everything_and_says_so() {
    let stage = Stage::new("quota", 3).await;
    leave_room(&stage, 3).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Copy).await;
    leave_room(&stage, 0).await;
    let mut probe = stage.new.widget("v1", "probe");
    probe.metadata.namespace = Some(stage.name.clone());
    // The freeze lets this manager pass.
    let writer = exuvia_write::Writer::named("exuvia-datastore");
    until("the quota is in force", async || {
        let refused = writer.dry_run().create(&stage.api(&stage.new), &probe).await;
        refused.is_err_and(|error| error.to_string().contains("exceeded quota"))
    })
    .await;
    leave_room(&stage, 2).await;
    until("there is room for one", async || {
        writer
            .dry_run()
            .create(&stage.api(&stage.new), &probe)
            .await
            .is_ok()
    })
    .await;
    up_to(&mut engine, Step::Undo(Undo::Refused)).await;
    let ended = until("everything is undone", async || {
        let ended = exuvia_runtime::machine::drive(&mut engine, &mut exuvia_runtime::machine::Silent).await;
        ended.map_err(|error| error.to_string())
    })
    .await;
    assert!(
        matches!(ended, Ended::Waits(_) | Ended::Held(Hold::Blocked | Hold::Failed)),
        "{ended:?}"
    );
    let status = stage.read().await.status.unwrap();
    assert!(
        matches!(
            status.phase,
            Some(DatastorePhase::Pending | DatastorePhase::Failed)
        ),
        "{status:?}"
    );
    let blocker = &status.blockers[0];
    assert_eq!(blocker.reason, reason::REFUSED);
    assert!(blocker.message.contains("quota"), "{}", blocker.message);
    assert!(stage.all(&stage.new).await.is_empty(), "no half of it is left");
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    stage.thawed().await;
}

/// A create drops the status before it looks at it, so a dry run at the target itself would not tell.
#[tokio::test]
async fn a_status_that_the_target_refuses_is_named_before_anything_is_frozen() {
    let stage = stage_with("badstatus", |crd| {
        schema(crd)["status"]["properties"]["ready"]["maximum"] = json!(5);
    })
    .await;
    for (name, ready) in [("good", 5), ("bad", 6)] {
        stage.create_old(name, json!({"size": 1})).await;
        stage
            .merge_status(&stage.old, name, json!({"status": {"ready": ready}}))
            .await;
    }
    let mut spec = stage.spec();
    spec["mappings"][0]["status"] = json!("Copy");
    let migration = stage.migration(spec).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let [blocker] = engine.blockers() else {
        panic!("{:?}", engine.blockers());
    };
    assert_eq!(
        (blocker.name.as_str(), blocker.reason.as_str()),
        ("bad", reason::REFUSED)
    );
    let said = &blocker.message;
    assert!(
        said.contains("status.ready") && !said.contains("preflight"),
        "{said}"
    );
    assert_eq!(stage.policies(&migration.uid().unwrap()).await, 0);
    assert!(stage.all(&stage.new).await.is_empty());
    stage
        .merge_status(&stage.old, "bad", json!({"status": {"ready": 4}}))
        .await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    let moved = stage.api(&stage.new).get("bad").await.unwrap();
    assert_eq!(moved.data["status"]["ready"], 4);
}

#[tokio::test]
async fn a_server_without_the_policy_api_is_told_of_in_one_sentence_and_nothing_is_written() {
    let control_plane = ControlPlane::builder()
        // Without the kind, what enforces it would wait for it for ever.
        .apiserver_flag("--runtime-config=admissionregistration.k8s.io/v1/validatingadmissionpolicies=false")
        .apiserver_flag(
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,ValidatingAdmissionPolicy",
        )
        .start()
        .await
        .unwrap();
    install_migrations(&control_plane).await;
    let stage = Stage::on(&control_plane, "nopolicies", 1).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    let audit = control_plane.audit();
    let writes = || {
        let events = audit.events().unwrap();
        // A review is a question in the form of a create.
        let is_ours = |resource: &str| !resource.contains("review");
        let written = events.into_iter().filter(|event| {
            event.is_write() && is_ours(event.resource()) && event.request_uri.contains("exuvia-datastore")
        });
        written.count()
    };
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blockers = engine.blockers();
    let [blocker] = blockers else {
        panic!("{blockers:?}");
    };
    assert_eq!(blocker.reason, reason::NO_POLICY_API);
    assert!(
        blocker.message.contains("ValidatingAdmissionPolicy") && blocker.message.contains("flags"),
        "{}",
        blocker.message
    );
    assert_eq!(writes(), 0);
    assert!(stage.read().await.finalizers().is_empty());
}

/// What others do to objects as they are created is not a difference, now or after a restart.
#[tokio::test]
async fn what_a_mutating_policy_adds_to_a_target_is_not_a_conflict_after_a_restart() {
    let stage = Stage::new("mutated", 2).await;
    let kind = |kind: &str, plural: &str| {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    };
    let policy = kind("MutatingAdmissionPolicy", "mutatingadmissionpolicies");
    let binding = kind(
        "MutatingAdmissionPolicyBinding",
        "mutatingadmissionpolicybindings",
    );
    let policies: Api<DynamicObject> = Api::all_with(stage.client.clone(), &policy);
    let bindings: Api<DynamicObject> = Api::all_with(stage.client.clone(), &binding);
    let name = "mutated-labels";
    let rules = DynamicObject::new(name, &policy).data(json!({"spec": {
        "failurePolicy": "Fail", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [stage.new.group()], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["widgets"],
        }]},
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression":
            "Object{metadata: Object.metadata{labels: {\"billed-to\": \"shop\"}}}",
        }}],
    }}));
    policies.create(&PostParams::default(), &rules).await.unwrap();
    let bound = DynamicObject::new(name, &binding).data(json!({"spec": {"policyName": name}}));
    bindings.create(&PostParams::default(), &bound).await.unwrap();
    let mut probe = stage.new.widget("v1", "probe");
    probe.metadata.namespace = Some(stage.name.clone());
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the policy adds its label", async || {
        let made = stage.api(&stage.new).create(&dry_run, &probe).await;
        made.is_ok_and(|made| made.labels().contains_key("billed-to"))
    })
    .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::Verify).await;
    drop(engine);
    assert_eq!(stage.drive(&mut stage.engine(&migration)).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.migrated, progress.conflicts), (2, 0));
    for target in stage.all(&stage.new).await {
        assert_eq!(target.labels()["billed-to"], "shop");
    }
}
