//! Crashes in migrations that do not go straight: a version that must be put back, a pass that is voided, a stall.

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::crash::{Crash, Lane, Matrix, Point, Run, RunEnd, Scenario};
use exuvia_testenv::proxy::Match;
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{OBJECTS, counted, delete_migration, old_widgets, start_operator};
use crate::harness::*;
use crate::oracle::assert_every_trim_was_right;

/// What is out of the ordinary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    /// Somebody else has trimmed `storedVersions`, and was wrong: it must be put back before anything else.
    TrimmedByOthers,
    /// The CRD's spec changes as soon as it was trimmed, before the patrol.
    Voided,
    /// An object is refused until the migration has stalled.
    Stalled,
}

#[test]
fn a_crash_in_a_troubled_migration_leaves_nothing_old_and_nothing_trimmed_wrongly() {
    std::thread::scope(|scope| {
        for disturbance in [
            Disturbance::TrimmedByOthers,
            Disturbance::Voided,
            Disturbance::Stalled,
        ] {
            scope.spawn(move || {
                let report = Matrix::new(disturbance).points(some).writes_may_vary().run();
                println!("{disturbance:?}: {report}");
                report.assert_all_ended_well();
                assert!(
                    report.writes.len() > OBJECTS,
                    "{disturbance:?}: {:?}",
                    report.writes
                );
            });
        }
    });
}

/// Every third write, killed before and after it in turn. The first write is the Lease's, which is another test's.
fn some(writes: usize) -> Vec<Point> {
    let point = |write: usize| Point {
        write,
        crash: if write.is_multiple_of(2) {
            Crash::KilledAfter
        } else {
            Crash::KilledBefore
        },
    };
    (2..=writes).step_by(3).map(point).collect()
}

impl Scenario for Disturbance {
    type World = Widgets;
    type Program = Operator;

    async fn control_plane(&self) -> ControlPlane {
        control_plane().await
    }

    fn counted(&self) -> Match {
        counted()
    }

    async fn set_up(&self, lane: &Lane, run: &Run) -> Widgets {
        let widgets = old_widgets(lane, &run.name).await;
        match self {
            Self::TrimmedByOthers => widgets.set_stored_versions(&lane.client, &["v1"]).await.unwrap(),
            Self::Voided => {}
            Self::Stalled => deny(lane, &widgets).await,
        }
        widgets
    }

    async fn start(&self, lane: &Lane, widgets: &Widgets, run: &Run) -> Operator {
        start_operator(lane, widgets, run).await
    }

    /// Does what is out of the ordinary, and waits until all is done about the CRD as it is then.
    async fn meanwhile(&self, lane: &Lane, widgets: &Widgets) {
        let (client, name) = (&lane.client, widgets.crd_name());
        match self {
            Self::TrimmedByOthers => {}
            Self::Voided => {
                until("it is trimmed", async || {
                    stored_versions(client, widgets).await == ["v1"]
                })
                .await;
                let change = json!({"spec": {"names": {"shortNames": ["wdg"]}}});
                merge_crd(client, widgets, change).await;
            }
            Self::Stalled => {
                in_phase(client, &name, Phase::Stalled).await;
                allow(lane, widgets).await;
            }
        }
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let migrations: Api<StorageMigration> = Api::all(client.clone());
        until("all is done", async || {
            let crd = crds.get(&name).await.unwrap();
            let status = migrations.get_opt(&name).await.ok()??.status?;
            let about = status.observed.as_ref()?.generation;
            let done = status.phase == Some(Phase::Migrated) && Some(about) == crd.metadata.generation;
            done.then_some(())
        })
        .await;
    }

    async fn check(&self, lane: &Lane, widgets: &Widgets, _ended: &RunEnd) {
        let stored = stored_at(&lane.control_plane, widgets).await;
        assert_eq!(stored, [("v1".to_owned(), OBJECTS)].into());
        assert_eq!(stored_versions(&lane.client, widgets).await, ["v1"]);
        if *self != Self::TrimmedByOthers {
            assert_every_trim_was_right(&lane.control_plane, widgets).await; // theirs was wrong, ours never
        }
        let crds: Api<CustomResourceDefinition> = Api::all(lane.client.clone());
        let crd = crds.get(&widgets.crd_name()).await.unwrap();
        let record = exuvia_storage::record::Record::read(&crd).expect("it is on record");
        assert!(record.patrolled, "{record:?}");
        let api: Api<DynamicObject> = widgets.api(&lane.client, "v1");
        for object in api.list(&ListParams::default()).await.unwrap() {
            let index: usize = object.name_any()["widget-".len()..].parse().unwrap();
            assert_eq!(object.data["spec"]["size"], index);
            let entries = object.metadata.managed_fields.unwrap_or_default();
            let versions = entries.iter().flat_map(|entry| &entry.api_version);
            let old: Vec<&String> = versions.filter(|version| !version.ends_with("/v1")).collect();
            assert!(old.is_empty(), "{entries:?}");
        }
    }

    async fn tear_down(&self, lane: &Lane, widgets: &Widgets) {
        delete_migration(lane, widgets).await;
    }
}

/// Refuses every write of one object, until [`allow`] is called.
async fn deny(lane: &Lane, widgets: &Widgets) {
    let name = widgets.group().replace('.', "-");
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [widgets.group()], "apiVersions": ["*"],
                "operations": ["UPDATE"], "resources": ["widgets"]}]},
            "validations": [{"expression": "object.metadata.name != 'widget-0003'"}],
        },
    });
    let binding =
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}});
    policies(lane)
        .create(&PostParams::default(), &serde_json::from_value(policy).unwrap())
        .await
        .unwrap();
    bindings(lane)
        .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    let api = widgets.api(&lane.client, "v1");
    until("the policy bites", async || {
        let touched = Patch::Merge(json!({"metadata": {"annotations": {"touched": "yes"}}}));
        let dry = PatchParams::default().dry_run();
        api.patch("widget-0003", &dry, &touched).await.is_err()
    })
    .await;
}

async fn allow(lane: &Lane, widgets: &Widgets) {
    let policy = widgets.group().replace('.', "-");
    let params = DeleteParams::default();
    bindings(lane).delete(&policy, &params).await.unwrap();
    policies(lane).delete(&policy, &params).await.unwrap();
}

fn policies(lane: &Lane) -> Api<ValidatingAdmissionPolicy> {
    Api::all(lane.client.clone())
}

fn bindings(lane: &Lane) -> Api<ValidatingAdmissionPolicyBinding> {
    Api::all(lane.client.clone())
}
