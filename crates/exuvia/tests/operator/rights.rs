//! An operator that lacks a right says which, and goes on by itself when it gets it.

use exuvia_api::Phase;
use exuvia_testenv::{Widgets, until};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::*;

/// What it needs whatever it migrates.
fn needed_anyway() -> Vec<Value> {
    vec![
        json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list", "watch"]}),
        json!({"apiGroups": ["exuvia.dev"], "resources": ["storagemigrations"], "verbs": ["get", "list", "watch", "create", "delete"]}),
        json!({"apiGroups": ["exuvia.dev"], "resources": ["storagemigrations/status"], "verbs": ["patch"]}),
        json!({"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get"]}),
        json!({"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}),
        json!({"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}),
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "patch"]}),
    ]
}

fn objects_of(widgets: &Widgets, verbs: &[&str]) -> Value {
    json!({"apiGroups": [widgets.group()], "resources": ["widgets"], "verbs": verbs})
}

/// From now on these are the rules.
async fn grant(client: &Client, rules: &[Value]) {
    let api: Api<ClusterRole> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"rules": rules}));
    api.patch("limited", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

fn trim_of(widgets: &[&Widgets]) -> Value {
    let names: Vec<String> = widgets.iter().map(|widgets| widgets.crd_name()).collect();
    json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions/status"],
           "verbs": ["patch"], "resourceNames": names})
}

#[tokio::test]
async fn a_missing_right_is_named_and_its_coming_is_enough() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let unlisted = flipped(&client, "unlisted.example.com", 3, true).await;
    let unpatched = flipped(&client, "unpatched.example.com", 3, true).await;
    let untrimmed = flipped(&client, "untrimmed.example.com", 3, true).await;

    let mut rules = needed_anyway();
    rules.push(objects_of(&unlisted, &["get", "patch"]));
    rules.push(objects_of(&unpatched, &["get", "list"]));
    rules.push(objects_of(&untrimmed, &["get", "list", "patch"]));
    rules.push(trim_of(&[&unlisted, &unpatched]));
    let user = control_plane
        .user_with_rules("limited", &json!(rules))
        .await
        .unwrap();
    let operator = Operator::start(&control_plane, &user, "limited", &[]);
    let crd_status = r#"{apiGroups: ["apiextensions.k8s.io"], resources: ["customresourcedefinitions/status"], verbs: ["patch"]}"#;
    let missing = [
        (&unlisted, objects_rule(&unlisted, "list")),
        (&unpatched, objects_rule(&unpatched, "patch")),
        (&untrimmed, crd_status.to_owned()),
    ];
    for (widgets, rule) in &missing {
        let status = stalled_for(&client, &widgets.crd_name(), "Forbidden").await;
        let (_, _, message) = condition(&status, "Stalled");
        assert!(message.contains(rule), "{message}");
        assert_eq!(condition(&status, "Ready").1, "Forbidden");
        let events = events_about(&client, &widgets.crd_name()).await;
        assert!(
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some("Forbidden")
                    && event.note.as_ref().is_some_and(|note| note.contains(rule))),
            "{events:?}"
        );
        let stored = stored_at(&control_plane, widgets).await;
        assert_eq!(
            stored,
            [("v1alpha1".to_owned(), 3)].into(),
            "found out before the first write"
        );
    }
    let gauge = r#"exuvia_storage_stalled{resource="widgets.unlisted.example.com",reason="Forbidden"} 1"#;
    let shown = |metrics: &str| metrics.contains(gauge);
    operator.metrics_when("that it is forbidden", shown).await;

    rules.push(objects_of(&unlisted, &["list"]));
    rules.push(objects_of(&unpatched, &["patch"]));
    rules.push(trim_of(&[&untrimmed]));
    grant(&client, &rules).await;
    for (widgets, _) in &missing {
        let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
        assert_eq!(condition(&status, "Stalled").1, "NotStalled");
        assert_eq!(stored_versions(&client, widgets).await, ["v1"]);
    }
}

fn objects_rule(widgets: &Widgets, verb: &str) -> String {
    format!(
        r#"{{apiGroups: ["{}"], resources: ["widgets"], verbs: ["{verb}"]}}"#,
        widgets.group()
    )
}

/// Without these it can do nothing at all, and a log is not enough to see that.
#[tokio::test]
async fn without_the_right_to_see_crds_or_to_use_its_lease_it_is_not_ready_and_says_why() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let is_needed_to_begin = |rule: &Value| {
        let resource = rule["resources"][0].as_str();
        resource == Some("customresourcedefinitions") || resource == Some("leases")
    };
    let others: Vec<Value> = needed_anyway()
        .into_iter()
        .filter(|rule| !is_needed_to_begin(rule))
        .collect();
    let user = control_plane
        .user_with_rules("limited", &json!(others))
        .await
        .unwrap();
    let operator = Operator::start(&control_plane, &user, "limited", &[]);
    until("it says what it may not do", async || {
        let (code, said) = operator.get("/readyz").await;
        let is_said = |word: &str| {
            let mut checks = said.lines().filter(|line| line.starts_with("[-]"));
            checks.any(|check| check.contains("forbidden") && check.contains(word))
        };
        (code == 503 && is_said("customresourcedefinitions") && is_said("leases"))
            .then_some(())
            .ok_or((code, said))
    })
    .await;
    let datastore = json!({"apiGroups": ["exuvia.dev"], "resources": ["datastoremigrations"], "verbs": ["get", "list", "watch"]});
    grant(&client, &[needed_anyway(), vec![datastore]].concat()).await;
    operator.ready().await;
}

/// The same for a resource that no CRD defines.
#[tokio::test]
async fn a_built_in_resource_that_may_not_be_patched_is_forbidden_as_well() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let mut rules = needed_anyway();
    rules.push(json!({"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list"]}));
    let user = control_plane
        .user_with_rules("limited", &json!(rules))
        .await
        .unwrap();
    let _operator = Operator::start(&control_plane, &user, "limited", &[]);
    let spec = serde_json::from_value(json!({"resource": "services"})).unwrap();
    by_hand(&client, "services", spec).await;
    let status = stalled_for(&client, "services", "Forbidden").await;
    let (_, _, message) = condition(&status, "Stalled");
    let rule = r#"{apiGroups: [""], resources: ["services"], verbs: ["patch"]}"#;
    assert!(message.contains(rule), "{message}");

    rules.push(json!({"apiGroups": [""], "resources": ["services"], "verbs": ["patch"]}));
    grant(&client, &rules).await;
    in_phase(&client, "services", Phase::Migrated).await;
}

/// Rights that only tell about API servers: without them nothing is stalled, more is asked and less is known.
#[tokio::test]
async fn an_operator_that_may_not_look_at_api_servers_verifies_in_full_and_says_what_is_not_known() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "blind.example.com", 3, true).await;
    let mut rules = needed_anyway();
    rules.push(objects_of(&widgets, &["get", "list", "patch"]));
    rules.push(trim_of(&[&widgets]));
    let user = control_plane
        .user_with_rules("blind", &json!(rules))
        .await
        .unwrap();
    let _operator = Operator::start(&control_plane, &user, "blind", &["--look-at-references"]);
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert!(status.pass.as_ref().unwrap().verified_in_full, "{status:?}");
    assert_eq!(stored_versions(&client, &widgets).await, ["v1"]);
    assert_eq!(status.droppable_versions, Some(vec![]));
    let said = |holds: &str, words: [&str; 2]| {
        let about = |blocker: &&exuvia_api::VersionBlocker| blocker.holds == holds;
        let found = status.blockers.iter().find(about);
        let message = found.map_or("", |blocker| blocker.message.as_str());
        message.starts_with("not known: ") && words.iter().all(|word| message.contains(word))
    };
    assert!(
        said(
            "Usage",
            ["/metrics", "to find out: allow `get` on the path /metrics"]
        ),
        "{status:?}"
    );
    assert!(
        said("References", ["(forbidden)", "to find out: allow `list` on"]),
        "{status:?}"
    );
}
