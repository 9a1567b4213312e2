//! One operator for many tests, and more ways to look at what an operator does.

use exuvia_api::{Phase, StorageMigration, StorageMigrationSpec, StorageMigrationStatus};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{LONG_LEASE, Operator, control_plane, status_when};

/// One control plane with one operator, shared by tests that each use another group below example.com: as in
/// production, one operator serves many CRDs.
pub(crate) struct Shared {
    pub(crate) control_plane: ControlPlane,
    pub(crate) operator: Operator,
}

/// The user that the shared operator is, so that the audit log tells its requests from the tests'.
pub(crate) const SHARED_USER: &str = "exuvia";

/// The shared control plane and operator, started on first use; they end with the process.
pub(crate) async fn shared() -> &'static Shared {
    static SHARED: tokio::sync::OnceCell<Shared> = tokio::sync::OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let control_plane = control_plane().await;
            let user = control_plane.user(SHARED_USER, &["system:masters"]).unwrap();
            // Some tests slow their migration down: the others' must not wait for it. No test wants it to lose its
            // leadership.
            let flags = ["--concurrent-migrations=32", LONG_LEASE];
            let operator = Operator::start(&control_plane, &user, "shared", &flags);
            operator.ready().await;
            Shared {
                control_plane,
                operator,
            }
        })
        .await
}

/// What a user wrote to the objects of a group so far, dry-runs left out.
pub(crate) fn object_writes(
    control_plane: &ControlPlane,
    user: &str,
    group: &str,
) -> Vec<exuvia_testenv::AuditEvent> {
    let about = |event: &exuvia_testenv::AuditEvent| {
        let object = event.object_ref.as_ref();
        object.is_some_and(|object| object.api_group == group) && !event.request_uri.contains("dryRun=All")
    };
    let events = control_plane.audit().of(user).unwrap().into_iter();
    events.filter(|event| event.is_write() && about(event)).collect()
}

/// A condition of a migration: status, reason, message.
pub(crate) fn condition(status: &StorageMigrationStatus, wanted: &str) -> (String, String, String) {
    let found = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == wanted);
    let found = found
        .cloned()
        .unwrap_or_else(|| panic!("no condition {wanted}: {status:?}"));
    (found.status, found.reason, found.message)
}

/// The status of a migration, once it is stalled for this reason. It may be for another one before: a server that has just
/// been told of a new schema does not answer for a moment.
pub(crate) async fn stalled_for(client: &Client, name: &str, reason: &str) -> StorageMigrationStatus {
    status_when(client, name, &format!("stalled for {reason}"), |status| {
        let (stalled, why, _) = condition(status, "Stalled");
        status.phase == Some(Phase::Stalled) && (stalled.as_str(), why.as_str()) == ("True", reason)
    })
    .await
}

/// Changes the spec of a migration.
pub(crate) async fn change_spec(client: &Client, name: &str, spec: Value) {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": spec}));
    migrations
        .patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// The spec of a migration of these widgets, with what else is given.
pub(crate) fn spec_of(widgets: &Widgets, mut more: Value) -> StorageMigrationSpec {
    more["resource"] = widgets.crd_name().into();
    serde_json::from_value(more).unwrap()
}

/// The events about objects of this name.
pub(crate) async fn events_about(client: &Client, name: &str) -> Vec<Event> {
    let events: Api<Event> = Api::all(client.clone());
    let all = events.list(&kube::api::ListParams::default()).await.unwrap();
    let about = |event: &Event| {
        let regarding = event.regarding.as_ref();
        regarding.is_some_and(|regarding| regarding.name.as_deref() == Some(name))
    };
    all.into_iter().filter(about).collect()
}

/// The reasons of the warnings about an object of this name.
pub(crate) async fn warnings(client: &Client, name: &str) -> Vec<String> {
    let events = events_about(client, name).await.into_iter();
    let warnings = events.filter(|event| event.type_.as_deref() == Some("Warning"));
    warnings.filter_map(|event| event.reason).collect()
}

/// Every event is smaller than 1 KiB as it was sent: what the server adds to it does not count.
pub(crate) fn assert_small(events: Vec<Event>) {
    assert!(!events.is_empty());
    for mut event in events {
        event.metadata = kube::api::ObjectMeta {
            name: event.metadata.name,
            namespace: event.metadata.namespace,
            ..kube::api::ObjectMeta::default()
        };
        let sent = serde_json::to_string(&event).unwrap();
        assert!(sent.len() < 1024, "{} bytes: {sent}", sent.len());
    }
}

/// Adds a validation rule at this property of v1 and waits until it refuses a write that changes nothing.
pub(crate) async fn refuse_writes(
    client: &Client,
    widgets: &Widgets,
    property: &str,
    rules: Value,
    object: &str,
) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut crd = serde_json::to_value(crds.get(&widgets.crd_name()).await.unwrap()).unwrap();
    let root = "/spec/versions/1/schema/openAPIV3Schema/properties";
    let schema = crd.pointer_mut(&format!("{root}/{property}")).unwrap();
    schema["x-kubernetes-validations"] = rules;
    let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
    crds.replace(&widgets.crd_name(), &PostParams::default(), &crd)
        .await
        .unwrap();
    let api = widgets.api(client, "v1");
    until("the rule is in force", async || {
        let nothing = Patch::Merge(json!({}));
        api.patch(object, &PatchParams::default().dry_run(), &nothing)
            .await
            .err()
    })
    .await;
}

impl Operator {
    /// Its metrics, once they are as wanted: they follow the status, not the other way round.
    pub(crate) async fn metrics_when(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        until(&format!("metrics show {what}"), async || {
            Some(self.get("/metrics").await.1).filter(|metrics| wanted(metrics))
        })
        .await
    }

    /// How many writes to objects of this resource it has sent, by its own metrics; dry-runs do not count.
    pub(crate) async fn writes_to(&self, resource: &str) -> u64 {
        let (_, metrics) = self.get("/metrics").await;
        let about = format!(r#"resource="{resource}""#);
        let counted = metrics.lines().filter(|line| {
            line.starts_with("exuvia_write_requests_total{")
                && line.contains(&about)
                && !line.contains("_dry_run")
        });
        counted
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}
