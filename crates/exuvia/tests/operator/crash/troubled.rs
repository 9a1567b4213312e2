//! Crashes in migrations that do not go straight: a version that must be put back, a pass that is voided, a stall.

use std::time::Duration;

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::Widgets;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Lane, Mishap, OBJECTS, Point, counted};
use crate::harness::*;
use crate::oracle::assert_every_trim_was_right;

/// What is out of the ordinary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
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
        for trouble in [Trouble::TrimmedByOthers, Trouble::Voided, Trouble::Stalled] {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(work(trouble));
            });
        }
    });
}

async fn work(trouble: Trouble) {
    let lane = Lane::start().await;
    let writes = lane.survive(trouble, None).await;
    assert!(writes > OBJECTS, "{trouble:?}: {writes} writes");
    // Which write is the n-th depends on the moment here. Every third point, in turns before and after it; the first write is
    // the Lease's, which is another test's.
    for nth in (2..=writes).step_by(3) {
        let mishap = if nth % 2 == 0 {
            Mishap::KilledAfter
        } else {
            Mishap::KilledBefore
        };
        lane.survive(trouble, Some(Point { mishap, nth })).await;
    }
    println!("{trouble:?}: killed at every third of {writes} writes");
}

impl Lane {
    /// A migration in trouble from its first write to its end, killed at one of its writes or not at all. Returns how many
    /// writes there were.
    async fn survive(&self, trouble: Trouble, point: Option<Point>) -> usize {
        let name = match point {
            None => format!("{trouble:?}").to_lowercase(),
            Some(point) => format!("{trouble:?}-{:?}-{}", point.mishap, point.nth).to_lowercase(),
        };
        let widgets = self.prepare(&name).await;
        self.trouble(trouble, &widgets).await;
        self.proxy.clear();
        self.proxy.forget();
        let (say, mut hear) = mpsc::unbounded_channel();
        if let Some(point) = point {
            self.proxy.inject(point.rule(say));
        }
        let mut operator = self.operator("first", &widgets, point);
        let end = self.end_of(trouble, &widgets);
        tokio::pin!(end);
        // It may end without ever coming to that write.
        tokio::select! {
            () = &mut end => {}
            struck = hear.recv(), if point.is_some() => {
                assert!(struck.is_some());
                operator.process.kill().unwrap();
                self.free_lease(&widgets, point.unwrap()).await;
                operator = self.operator("second", &widgets, point);
                end.await;
            }
        }
        operator.process.stop(Duration::from_secs(60)).unwrap();
        let writes = self
            .proxy
            .writes()
            .iter()
            .filter(|write| counted().holds(write))
            .count();
        self.check(trouble, &widgets).await;
        let migrations: Api<StorageMigration> = Api::all(self.client.clone());
        let deleted = migrations
            .delete(&widgets.crd_name(), &DeleteParams::default())
            .await;
        deleted.unwrap();
        writes
    }

    /// What is out of the ordinary before the operator starts.
    async fn trouble(&self, trouble: Trouble, widgets: &Widgets) {
        match trouble {
            Trouble::TrimmedByOthers => {
                let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
                let trimmed = Patch::Merge(json!({"status": {"storedVersions": ["v1"]}}));
                crds.patch_status(&widgets.crd_name(), &PatchParams::default(), &trimmed)
                    .await
                    .unwrap();
            }
            Trouble::Voided => {}
            Trouble::Stalled => self.deny(widgets).await,
        }
    }

    /// Refuses every write of one object, until the policy is deleted.
    async fn deny(&self, widgets: &Widgets) {
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
        self.policies()
            .create(&PostParams::default(), &serde_json::from_value(policy).unwrap())
            .await
            .unwrap();
        self.bindings()
            .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
            .await
            .unwrap();
        let api = widgets.api(&self.client, "v1");
        until("the policy bites", async || {
            let touched = Patch::Merge(json!({"metadata": {"annotations": {"touched": "yes"}}}));
            let dry = PatchParams {
                dry_run: true,
                ..PatchParams::default()
            };
            api.patch("widget-0003", &dry, &touched)
                .await
                .is_err()
                .then_some(())
        })
        .await;
    }

    fn policies(&self) -> Api<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy> {
        Api::all(self.client.clone())
    }

    fn bindings(&self) -> Api<k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding> {
        Api::all(self.client.clone())
    }

    /// Does what is out of the ordinary meanwhile, and waits until all is done about the CRD as it is then.
    async fn end_of(&self, trouble: Trouble, widgets: &Widgets) {
        let name = widgets.crd_name();
        match trouble {
            Trouble::TrimmedByOthers => {}
            Trouble::Voided => {
                until("it is trimmed", async || {
                    (stored_versions(&self.client, widgets).await == ["v1"]).then_some(())
                })
                .await;
                merge_crd(
                    &self.client,
                    widgets,
                    json!({"spec": {"names": {"shortNames": ["wdg"]}}}),
                )
                .await;
            }
            Trouble::Stalled => {
                in_phase(&self.client, &name, Phase::Stalled).await;
                let policy = widgets.group().replace('.', "-");
                let params = DeleteParams::default();
                self.bindings().delete(&policy, &params).await.unwrap();
                self.policies().delete(&policy, &params).await.unwrap();
            }
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        until("all is done", async || {
            let crd = crds.get(&name).await.unwrap();
            let migrations: Api<StorageMigration> = Api::all(self.client.clone());
            let status = migrations.get_opt(&name).await.ok()??.status?;
            let about = status.observed.as_ref()?.generation;
            let done = status.phase == Some(Phase::Migrated) && Some(about) == crd.metadata.generation;
            done.then_some(())
        })
        .await;
    }

    async fn check(&self, trouble: Trouble, widgets: &Widgets) {
        let stored = stored_at(&self.control_plane, widgets).await;
        assert_eq!(stored, [("v1".to_owned(), OBJECTS)].into(), "{trouble:?}");
        assert_eq!(
            stored_versions(&self.client, widgets).await,
            ["v1"],
            "{trouble:?}"
        );
        if trouble != Trouble::TrimmedByOthers {
            assert_every_trim_was_right(&self.control_plane, widgets).await; // theirs was wrong, ours never
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let crd = crds.get(&widgets.crd_name()).await.unwrap();
        let record = exuvia_storage::record::Record::read(&crd).expect("it is on record");
        assert!(record.patrolled, "{trouble:?}: {record:?}");
        let api: Api<DynamicObject> = widgets.api(&self.client, "v1");
        for object in api.list(&ListParams::default()).await.unwrap() {
            let index: usize = object.name_any()["widget-".len()..].parse().unwrap();
            assert_eq!(object.data["spec"]["size"], index, "{trouble:?}");
            let at_v1 = |entry: &_| {
                let entry: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry = entry;
                entry
                    .api_version
                    .as_deref()
                    .is_some_and(|version| version.ends_with("/v1"))
            };
            let entries = object.metadata.managed_fields.unwrap_or_default();
            assert!(entries.iter().all(at_v1), "{trouble:?}: {entries:?}");
        }
    }
}
