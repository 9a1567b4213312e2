//! Without rights: which are missing, all at once, and the rules that would help.

use exuvia_testenv::{ControlPlane, Widgets};
use serde_json::json;

use crate::binary::{exuvia, printed, text};
use crate::until_it_says;

async fn installed(group: &str) -> Widgets {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = Widgets::in_group(group);
    widgets.install(&client, "v1").await.unwrap();
    widgets
}

const LIST_CRDS: &str =
    r#"{apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions"], verbs: ["list"]}"#;

#[tokio::test]
async fn without_any_right_every_rule_that_is_missing_is_named_at_once() {
    let control_plane = ControlPlane::shared().await;
    installed("a.rights.io").await;
    installed("b.rights.io").await;
    let nobody = control_plane.user("plan-nobody", &[]).unwrap();
    let kubeconfig = nobody.kubeconfig().unwrap();
    let [list_a, list_b] = ["a", "b"].map(|group| {
        format!(r#"{{apiGroups: ["{group}.rights.io"], resources: ["widgets"], verbs: ["list"]}}"#)
    });
    for (args, named, not_named) in [
        (
            &["plan", "--groups", "rights.io"][..],
            vec![LIST_CRDS, &list_a, &list_b],
            None,
        ),
        (
            &["storage", "status", "widgets.a.rights.io"],
            vec![LIST_CRDS, &list_a],
            Some(&list_b),
        ),
    ] {
        let said = exuvia(kubeconfig.clone(), args).await;
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{error}");
        assert!(
            error.starts_with("error: ") && error.lines().count() == 1,
            "{error}"
        );
        assert!(error.contains("plan-nobody"), "who it was: {error}");
        for rule in named {
            assert!(error.contains(rule), "{args:?}: {error}");
        }
        assert!(not_named.is_none_or(|rule| !error.contains(rule)), "{error}");
    }
    // Following the advice is enough.
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list"]},
        {"apiGroups": ["a.rights.io"], "resources": ["widgets"], "verbs": ["list"]},
        {"apiGroups": ["b.rights.io"], "resources": ["widgets"], "verbs": ["list"]},
    ]);
    let reader = control_plane
        .user_with_rules("plan-reader", &rules)
        .await
        .unwrap();
    let args = ["plan", "--groups", "rights.io"];
    until_it_says(&reader, &args, |output| {
        output.status.success() && !printed(output).contains("not allowed")
    })
    .await;
}

#[tokio::test]
async fn what_may_not_be_listed_is_named_for_all_crds_in_one_note() {
    let control_plane = ControlPlane::shared().await;
    installed("a.blind.io").await;
    installed("b.blind.io").await;
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list"]},
    ]);
    let blind = control_plane.user_with_rules("plan-blind", &rules).await.unwrap();
    for flags in [&[][..], &["--ownership"]] {
        let args = [&["plan", "--groups", "blind.io"], flags].concat();
        let said = until_it_says(&blind, &args, |output| output.status.success()).await;
        let said = printed(&said);
        assert!(
            said.contains(
                r#"note: not allowed to list the objects of 2 CRDs; add to the role: {apiGroups: ["a.blind.io"], resources: ["widgets"], verbs: ["list"]}, {apiGroups: ["b.blind.io"], resources: ["widgets"], verbs: ["list"]}"#
            ),
            "{said}"
        );
        assert!(
            said.contains("it has") || said.contains("storedVersions is clean"),
            "what is known stays: {said}"
        );
    }
}

/// A right in one namespace does not help: all of them are listed.
#[tokio::test]
async fn a_right_in_one_namespace_is_not_taken_for_one_in_all() {
    use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
    use kube::Api;
    use kube::api::PostParams;
    let control_plane = ControlPlane::shared().await;
    installed("one.namespace.io").await;
    let client = control_plane.client().unwrap();
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": "plan-local"},
        "rules": [{"apiGroups": ["one.namespace.io"], "resources": ["widgets"], "verbs": ["list"]}],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "plan-local"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "plan-local"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "plan-local"}],
    }))
    .unwrap();
    let roles: Api<Role> = Api::namespaced(client.clone(), "default");
    roles.create(&PostParams::default(), &role).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(client, "default");
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    let local = control_plane.user("plan-local", &[]).unwrap();
    let said = exuvia(
        local.kubeconfig().unwrap(),
        &["plan", "--groups", "one.namespace.io"],
    )
    .await;
    let error = text(&said.stderr);
    assert!(error.contains(r#"apiGroups: ["one.namespace.io"]"#), "{error}");
}
