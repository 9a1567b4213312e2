//! What is looked at beside the objects' resourceVersions: etcd itself before the trim, and owners after a rewrite.

#[path = "../../../exuvia-audit/tests/etcd/raw.rs"]
#[allow(dead_code, reason = "the audit's tests use the rest")]
mod raw;

use exuvia_audit::AuditOptions;
use exuvia_runtime::machine::Machine;
use exuvia_storage::protocol::{Hold, NextStep, Step};
use exuvia_storage::{End, Options};
use exuvia_testenv::webhook::{Admission, Endpoint};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Bench;

impl Bench {
    fn gated(&self, prefix: &str) -> Options {
        Options {
            etcd: Some(AuditOptions {
                endpoints: vec![self.control_plane.etcd().endpoint().to_owned()],
                prefix: prefix.to_owned(),
                ..AuditOptions::default()
            }),
            ..self.options()
        }
    }

    /// Writes the bytes of one object as they were before the rewrite, past every API server.
    async fn store_at(&self, name: &str, version: &str) {
        let all = self.control_plane.stored(self.widgets.group(), "widgets").all();
        let all = all.await.unwrap();
        let stored = all.iter().find(|stored| stored.name() == name).unwrap();
        let mut object = stored.json().unwrap();
        object["apiVersion"] = json!(format!("{}/{version}", self.widgets.group()));
        raw::put(
            self.control_plane.etcd().endpoint(),
            &stored.key,
            object.to_string(),
        );
    }
}

#[tokio::test]
async fn what_etcd_holds_is_the_last_gate_before_the_trim() {
    let bench = Bench::flipped("gate", 4).await;
    let mut engine = bench.engine(bench.gated(bench.control_plane.etcd().prefix()));
    let trim = loop {
        match engine.next().await.unwrap() {
            NextStep::Do(step @ Step::Trim(_)) => break step,
            NextStep::Do(step) => assert_eq!(engine.carry_out(step).await.unwrap(), None),
            NextStep::Wait(time) => tokio::time::sleep(time).await,
            other => panic!("never comes to the trim: {other:?}"),
        }
    };
    bench.store_at("widget-0002", "v1alpha1").await;
    let held = engine.carry_out(trim).await.unwrap();
    assert_eq!(held, Some(Hold::NotProven));
    let sentence = engine.sentence(&Hold::NotProven);
    assert!(
        sentence.contains("not proven") && sentence.contains("widget-0002"),
        "{sentence}"
    );
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);

    engine.retry(&Hold::NotProven);
    let report = engine.run().await.unwrap();
    assert_eq!(report.end, End::Migrated, "{report:?}");
    assert!(report.audit.is_some_and(|audit| audit.is_current()));
    bench.assert_trimmed_rightly("v1alpha1").await;
}

#[tokio::test]
async fn an_etcd_without_any_of_the_objects_is_not_taken_for_a_clean_one() {
    let bench = Bench::flipped("elsewhere", 3).await;
    let error = bench.engine(bench.gated("/elsewhere")).run().await.unwrap_err();
    assert!(error.to_string().contains("--etcd-prefix"), "{error}");
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);
}

/// PITFALLS A6, A21: here a webhook takes them away.
#[tokio::test]
async fn owners_that_are_lost_in_the_rewrite_are_counted() {
    let bench = Bench::flipped("disowned", 3).await;
    let webhooks = bench.control_plane.webhooks().await.unwrap();
    webhooks.on_mutate(Admission::by(|_| {
        Admission::Mutate(json!([{"op": "replace", "path": "/metadata/managedFields", "value": []}]))
    }));
    let configuration = serde_json::from_value(json!({
        "metadata": {"name": "disowned"},
        "webhooks": [{
            "name": "disowned.example.com",
            "clientConfig": webhooks.client_config(Endpoint::Mutate),
            "rules": [{"apiGroups": ["disowned.example.com"], "apiVersions": ["*"], "resources": ["widgets"],
                       "operations": ["UPDATE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    }))
    .unwrap();
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(bench.client.clone());
    configurations
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    exuvia_testenv::until("the webhook is called", async || {
        let _ = api.patch("widget-0000", &dry_run, &Patch::Merge(json!({}))).await;
        webhooks.calls(Endpoint::Mutate) > 0
    })
    .await;
    let keep = Options {
        managed_fields: exuvia_storage::ManagedFields::Keep,
        ..bench.options()
    };
    let report = bench.engine(keep).run().await.unwrap();
    configurations
        .delete("disowned", &DeleteParams::default())
        .await
        .unwrap();
    assert_eq!(report.lost_owners, 3, "{report:?}");
    assert!(report.lost_owners_example.is_some());
}
