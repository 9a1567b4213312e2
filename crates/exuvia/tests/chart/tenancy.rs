//! Tenancy of datastore migration: a user needs the rights that the operator will use for it, to create, change or delete one.

use exuvia_testenv::{Access, ControlPlane, until};
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use serde_json::{Value, json};

use crate::installed;

fn resource() -> ApiResource {
    ApiResource {
        group: "exuvia.dev".into(),
        version: "v1beta1".into(),
        api_version: "exuvia.dev/v1beta1".into(),
        kind: "DatastoreMigration".into(),
        plural: "datastoremigrations".into(),
    }
}

fn migrations(user: &Access) -> Api<DynamicObject> {
    Api::all_with(user.client().unwrap(), &resource())
}

/// A move between two groups that looks for no dependents, with more of a spec on top.
fn migration(name: &str, more: &Value) -> DynamicObject {
    let mut spec = json!({
        "mappings": [{
            "name": "all",
            "from": {"group": "old.example.com", "version": "v1", "kinds": ["Widget"]},
            "to": {"group": "new.example.com", "version": "v1"},
        }],
        "references": {"dependents": "None"},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": name}, "spec": spec,
    }))
    .unwrap()
}

fn said(result: kube::Result<impl Sized>) -> Result<(), Box<Status>> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => Err(status),
        Err(other) => panic!("{other}"),
    }
}

async fn tried(user: &Access, more: &Value) -> Result<(), Box<Status>> {
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    said(migrations(user).create(&params, &migration("tried", more)).await)
}

/// A user who may do anything with migrations, and also has these rules.
async fn user(control_plane: &ControlPlane, name: &str, rules: &[Value]) -> Access {
    let own = "datastoremigrations";
    let mut all = vec![
        json!({"apiGroups": ["exuvia.dev"], "resources": [own, format!("{own}/status")], "verbs": ["*"]}),
    ];
    all.extend(rules.iter().cloned());
    let user = control_plane.user_with_rules(name, &json!(all)).await.unwrap();
    // RBAC and the policy both take effect a moment after they are created (PITFALLS A15).
    until("the policy denies what nobody may", async || {
        let nobodys = json!({"cutover": {"apiService": "v1.nobodys.example.com"}});
        matches!(tried(&user, &nobodys).await, Err(status) if status.message.contains("ValidatingAdmissionPolicy"))
    })
    .await;
    user
}

fn allow(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// What a plain move needs.
fn plain() -> Vec<Value> {
    vec![
        allow("old.example.com", "*", &["patch", "delete"]),
        allow("new.example.com", "*", &["patch", "delete"]),
        allow(
            "admissionregistration.k8s.io",
            "validatingadmissionpolicies",
            &["create"],
        ),
    ]
}

async fn until_allowed(user: &Access, more: &Value) {
    until(&format!("{} may: {more}", user.user()), async || {
        tried(user, more).await
    })
    .await;
}

#[tokio::test]
async fn each_right_that_is_missing_is_named_and_all_of_them_are_enough() {
    let control_plane = installed().await;
    let crds = allow("apiextensions.k8s.io", "customresourcedefinitions", &["delete"]);
    let services = allow("apiregistration.k8s.io", "apiservices", &["delete"]);
    let scan = json!({"references": {}});
    let cases = [
        ("source", json!({}), Some(0), r#"API group "old.example.com""#),
        ("target", json!({}), Some(1), r#"API group "new.example.com""#),
        (
            "policies",
            json!({}),
            Some(2),
            r#""create" on resource "validatingadmissionpolicies""#,
        ),
        (
            "crds",
            json!({"cleanup": {"source": "DeleteCRDs"}}),
            None,
            r#""delete" on resource "customresourcedefinitions""#,
        ),
        (
            "dependents",
            scan,
            None,
            r#"verb "patch" on resource "*" in API group "*""#,
        ),
        (
            "waits",
            json!({"cutover": {"waitFor": [{"version": "v1", "kind": "Secret"}]}}),
            None,
            r#"verb "list" on resource "*" in API group "*""#,
        ),
    ];
    for (name, more, without, expected) in cases {
        let mut rules = plain();
        if let Some(index) = without {
            rules.remove(index);
        }
        let user = user(control_plane, &format!("tenant-{name}"), &rules).await;
        let refused = until(&format!("{name} is refused for this"), async || {
            let status = tried(&user, &more).await.unwrap_err();
            status
                .message
                .contains(expected)
                .then_some(status.clone())
                .ok_or(status)
        })
        .await;
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (403, "Forbidden"),
            "{name}"
        );
    }
    let all = [plain(), vec![crds, services, allow("*", "*", &["patch", "list"])]].concat();
    let admin = user_with_everything(control_plane, &all).await;
    let everything = json!({
        "references": {}, "cleanup": {"source": "DeleteCRDs"},
        "cutover": {"apiService": "v1.new.example.com", "waitFor": [{"version": "v1", "kind": "Secret"}]},
    });
    until_allowed(&admin, &everything).await;
}

async fn user_with_everything(control_plane: &ControlPlane, rules: &[Value]) -> Access {
    let own = json!({"apiGroups": ["exuvia.dev"], "resources": ["datastoremigrations"], "verbs": ["*"]});
    let all = [vec![own], rules.to_vec()].concat();
    control_plane
        .user_with_rules("tenant-all", &json!(all))
        .await
        .unwrap()
}

#[tokio::test]
async fn many_groups_are_all_asked_about() {
    let control_plane = installed().await;
    let mapping = |index: usize| {
        json!({
            "name": format!("m{index}"),
            "from": {"group": format!("g{index}.example.com"), "version": "v1", "kinds": ["Widget"]},
            "to": {"group": format!("g{}.example.com", index + 1), "version": "v1"},
        })
    };
    let five = json!({"mappings": [mapping(0), mapping(1), mapping(2), mapping(3), mapping(4)]});
    let mut rules = vec![plain()[2].clone()];
    rules.extend((0..5).map(|index| allow(&format!("g{index}.example.com"), "*", &["patch", "delete"])));
    let user = user(control_plane, "tenant-many", &rules).await;
    let refused = until("the last of six is missing", async || {
        let status = tried(&user, &five).await.unwrap_err();
        status
            .message
            .contains("g5.example.com")
            .then_some(status.clone())
            .ok_or(status)
    })
    .await;
    assert_eq!(refused.code, 403);
    let four = json!({"mappings": [mapping(0), mapping(1), mapping(2), mapping(3)]});
    until_allowed(&user, &four).await;
    let seven = json!({"mappings": [mapping(0), mapping(2), mapping(4), mapping(6)]});
    let refused = tried(&user, &seven).await.unwrap_err();
    assert_eq!(refused.code, 403, "{}", refused.message);
}

#[tokio::test]
async fn a_migration_is_changed_and_deleted_only_by_those_who_may_do_what_it_does() {
    let control_plane = installed().await;
    let clerk = user(control_plane, "tenant-clerk", &[]).await;
    let admin: Api<DynamicObject> = Api::all_with(control_plane.client().unwrap(), &resource());
    let name = "of-the-admin";
    let mut mine = migration(
        name,
        &json!({"suspend": true, "cleanup": {"source": "DeleteCRDs"}}),
    );
    mine.metadata.finalizers = Some(vec!["exuvia.dev/datastore-migration".to_owned()]);
    admin.create(&PostParams::default(), &mine).await.unwrap();
    let clerks = migrations(&clerk);
    let params = PatchParams::default();
    let merge = async |body: Value| said(clerks.patch(name, &params, &Patch::Merge(body)).await);
    merge(json!({"metadata": {"labels": {"team": "clerks"}}}))
        .await
        .unwrap();
    for body in [
        json!({"spec": {"suspend": false}}),
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"annotations": {"exuvia.dev/retry": ""}}}),
    ] {
        let refused = merge(body.clone()).await.unwrap_err();
        assert_eq!(refused.code, 403, "{body}: {}", refused.message);
    }
    let status = json!({"status": {"phase": "Complete"}});
    let refused = said(clerks.patch_status(name, &params, &Patch::Merge(status)).await).unwrap_err();
    assert!(
        refused.message.contains("ValidatingAdmissionPolicy"),
        "{}",
        refused.message
    );
    let refused = said(clerks.delete(name, &DeleteParams::default()).await).unwrap_err();
    assert!(refused.message.contains("may not"), "{}", refused.message);
    let kept = admin.get(name).await.unwrap();
    assert_eq!(kept.metadata.deletion_timestamp, None);
}
