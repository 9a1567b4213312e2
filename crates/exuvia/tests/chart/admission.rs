//! Tenancy: a user who creates a migration needs the right that the operator will use for it.

use exuvia_testenv::{Access, ControlPlane, until};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::{Value, json};

use crate::{NAMESPACE, installed, migrations};

fn migration(name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "StorageMigration",
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

/// Tries to create a migration, with a dry run.
async fn tried(user: &Access, spec: &Value) -> Result<(), Box<Status>> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match migrations(user.client().unwrap())
        .create(&params, &migration("tried", spec))
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

/// A user who may do anything with migrations, and also has these rules.
async fn user(control_plane: &ControlPlane, name: &str, rules: &[Value]) -> Access {
    let mut all =
        vec![json!({"apiGroups": ["exuvia.dev"], "resources": ["storagemigrations"], "verbs": ["*"]})];
    all.extend(rules.iter().cloned());
    let user = control_plane.user_with_rules(name, &json!(all)).await.unwrap();
    // RBAC and the policy both take effect a moment after they are created (PITFALLS A15): no answer counts before the
    // policy refuses, or has nothing to refuse.
    until("the policy denies what nobody may", async || {
        let nobodys = json!({"resource": "nobodys.example.org"});
        matches!(tried(&user, &nobodys).await, Err(status) if status.message.contains("ValidatingAdmissionPolicy"))
    })
    .await;
    user
}

fn patch(group: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": ["patch"]})
}

async fn until_allowed(user: &Access, spec: &Value) {
    until(&format!("{} may: {spec}", user.user()), async || {
        tried(user, spec).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_migration_is_refused_with_the_missing_right_if_the_user_may_not_patch_the_resource() {
    let control_plane = installed().await;
    let mallory = user(control_plane, "mallory", &[patch("example.com", "gadgets")]).await;
    let refused = tried(&mallory, &json!({"resource": "widgets.example.com"}))
        .await
        .unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (403, "Forbidden"));
    for part in [
        "mallory may not patch",
        "all objects of widgets.example.com",
        r#""patch" on resource "widgets" in API group "example.com""#,
        "ClusterRole",
    ] {
        assert!(
            refused.message.contains(part),
            "{part} is not in: {}",
            refused.message
        );
    }
    // The core group has no name.
    let secrets = tried(&mallory, &json!({"resource": "secrets"}))
        .await
        .unwrap_err();
    assert!(
        secrets.message.contains(r#"resource "secrets" in API group """#),
        "{}",
        secrets.message
    );
    until_allowed(&mallory, &json!({"resource": "gadgets.example.com"})).await;
}

#[tokio::test]
async fn a_user_who_may_patch_the_resource_may_create_its_migration() {
    let control_plane = installed().await;
    let rules = [
        patch("a.b.example.com", "widgets"),
        patch("", "secrets"),
        patch("apps", "deployments"),
    ];
    let alice = user(control_plane, "admission-alice", &rules).await;
    for resource in ["widgets.a.b.example.com", "secrets", "deployments.apps"] {
        until_allowed(&alice, &json!({"resource": resource})).await;
    }
    // The same plural in another group is another resource.
    for resource in ["widgets.example.com", "deployments.example.com", "widgets"] {
        tried(&alice, &json!({"resource": resource})).await.unwrap_err();
    }
}

/// The operator sends its token to every address that it asks.
#[tokio::test]
async fn naming_api_servers_needs_a_separate_right() {
    let control_plane = installed().await;
    let widgets = patch("example.com", "widgets");
    let spec = json!({"resource": "widgets.example.com", "apiServers": ["https://evil.example.com:443"]});
    let eve = user(control_plane, "admission-eve", std::slice::from_ref(&widgets)).await;
    until_allowed(&eve, &json!({"resource": "widgets.example.com"})).await;
    let refused = tried(&eve, &spec).await.unwrap_err();
    assert!(
        refused.message.contains("storagemigrations/apiservers"),
        "{}",
        refused.message
    );
    let right = json!({
        "apiGroups": ["exuvia.dev"], "resources": ["storagemigrations/apiservers"], "verbs": ["update"],
    });
    let adam = user(control_plane, "admission-adam", &[widgets, right]).await;
    until_allowed(&adam, &spec).await;
}

#[tokio::test]
async fn the_right_in_one_namespace_is_not_enough() {
    let control_plane = installed().await;
    let name = "admission-tenant";
    let tenant = user(control_plane, name, &[]).await;
    let client = control_plane.client().unwrap();
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": name}, "rules": [patch("example.com", "widgets"), {
            "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"],
        }],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }))
    .unwrap();
    let params = PostParams::default();
    Api::namespaced(client.clone(), "default")
        .create(&params, &role)
        .await
        .unwrap();
    Api::namespaced(client, "default")
        .create(&params, &binding)
        .await
        .unwrap();
    let config_maps: Api<k8s_openapi::api::core::v1::ConfigMap> =
        Api::namespaced(tenant.client().unwrap(), "default");
    until("the role is known", async || {
        config_maps.list(&kube::api::ListParams::default()).await.is_ok()
    })
    .await;
    let refused = tried(&tenant, &json!({"resource": "widgets.example.com"}))
        .await
        .unwrap_err();
    assert!(
        refused.message.contains("in all namespaces"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn the_status_fallback_needs_the_right_to_patch_status() {
    let control_plane = installed().await;
    let without = user(
        control_plane,
        "fallback-without",
        &[patch("example.com", "widgets")],
    )
    .await;
    until_allowed(&without, &json!({"resource": "widgets.example.com"})).await;
    until_allowed(
        &without,
        &json!({"resource": "widgets.example.com", "statusFallback": false}),
    )
    .await;
    let fallback = json!({"resource": "widgets.example.com", "statusFallback": true});
    let refused = tried(&without, &fallback).await.unwrap_err();
    assert!(
        refused
            .message
            .contains(r#"resource "widgets/status" in API group "example.com""#),
        "{}",
        refused.message
    );
    let rules = [
        patch("example.com", "widgets"),
        patch("example.com", "widgets/status"),
    ];
    let with = user(control_plane, "fallback-with", &rules).await;
    until_allowed(&with, &fallback).await;
}

#[tokio::test]
async fn a_user_who_may_not_patch_the_resource_may_label_a_migration_but_not_change_its_spec() {
    let control_plane = installed().await;
    let clerk = user(control_plane, "clerk", &[]).await;
    let admin = migrations(control_plane.client().unwrap());
    let name = "widgets.clerk.example.com";
    admin
        .create(
            &PostParams::default(),
            &migration(name, &json!({"resource": name, "suspend": true})),
        )
        .await
        .unwrap();
    let migrations = migrations(clerk.client().unwrap());
    let merge = async |body: Value| {
        migrations
            .patch(name, &PatchParams::default(), &Patch::Merge(body))
            .await
    };
    merge(json!({"metadata": {"labels": {"team": "clerks"}}}))
        .await
        .unwrap();
    let refused = merge(json!({"spec": {"suspend": false}})).await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 403 && status.message.contains("may not patch")),
        "{refused}"
    );
}

/// If the operator lacks a right, it says so in the migration, so it must be able to create one.
#[tokio::test]
async fn the_operator_may_create_migrations_for_resources_that_it_may_not_patch() {
    let control_plane = installed().await;
    let operator = control_plane.service_account(NAMESPACE, "exuvia").await.unwrap();
    until_allowed(&operator, &json!({"resource": "gadgets.forbidden.example.com"})).await;
    // This does not apply to another account.
    let other = control_plane.service_account("default", "exuvia").await.unwrap();
    tried(&other, &json!({"resource": "gadgets.forbidden.example.com"}))
        .await
        .unwrap_err();
}
