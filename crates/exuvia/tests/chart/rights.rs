//! `exuvia rbac` and the chart: the same rights for the same CRDs, and none for CRDs that have not opted in.

use std::process::Output;

use exuvia_testenv::{ControlPlane, Widgets, until};
use serde_json::{Value, json};

use crate::rendered::{Rendered, documents};
use crate::{NAMESPACE, exuvia, text};

/// Roles and bindings, sorted, without the labels that only the chart sets.
fn comparable(objects: Vec<Value>) -> Vec<Value> {
    let mut objects: Vec<Value> = objects
        .into_iter()
        .map(|mut object| {
            object["metadata"].as_object_mut().unwrap().remove("labels");
            object
        })
        .collect();
    objects.sort_by_key(|object| format!("{}/{}", object["kind"], object["metadata"]["name"]));
    objects
}

async fn printed(args: &[&str]) -> Vec<Value> {
    let output = exuvia(None, &[&["rbac"], args].concat()).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    documents(&text(&output.stdout))
}

#[tokio::test]
async fn the_chart_and_the_command_give_the_same_rights() {
    for (set, args) in [
        // By default only Exuvia's own CRDs are managed, by name.
        (
            "",
            vec![
                "--crds",
                "datastoremigrations.exuvia.dev,storagemigrations.exuvia.dev",
            ],
        ),
        (
            "crds={widgets.example.com}",
            vec!["--crds", "widgets.example.com"],
        ),
        (
            "crds={widgets.example.com,a.b.example.com,gadgets.example.com},rbac.statusFallback=true",
            vec![
                "--crds",
                "gadgets.example.com,widgets.example.com,a.b.example.com",
                "--status-fallback",
            ],
        ),
        (
            "crds={widgets.example.com},lookAtReferences=true",
            vec!["--crds", "widgets.example.com", "--look-at-references"],
        ),
        (
            "groups={example.com,exuvia.dev,a.example.com}",
            vec![
                "--crds",
                "x.example.com,x.a.example.com,datastoremigrations.exuvia.dev,storagemigrations.exuvia.dev",
                "--group-wildcards",
            ],
        ),
        (
            "crds={widgets.example.com},fullnameOverride=shell,serviceAccount.name=account,leaderElection.leaseName=lease",
            vec![
                "--crds",
                "widgets.example.com",
                "--name",
                "shell",
                "--service-account",
                "account",
                "--lease-name",
                "lease",
            ],
        ),
    ] {
        let chart = Rendered::exuvia(NAMESPACE, &["--set", set]).await.rbac();
        let command = printed(&[&args[..], &["--namespace", NAMESPACE]].concat()).await;
        assert_eq!(command.len(), 8, "{command:?}");
        assert_eq!(comparable(chart), comparable(command), "{set}");
    }
}

#[tokio::test]
async fn both_outputs_say_the_same_and_yaml_says_why() {
    let args = ["rbac", "--crds", "widgets.example.com"];
    let yaml = text(&exuvia(None, &args).await.stdout);
    let json = exuvia(None, &[&args[..], &["-o", "json"]].concat()).await;
    let list: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(json!(documents(&yaml)), list["items"]);
    let lines: Vec<&str> = yaml.lines().collect();
    let rules: Vec<usize> = (0..lines.len())
        .filter(|&line| {
            lines[line].starts_with("- apiGroups") || lines[line].starts_with("- nonResourceURLs")
        })
        .collect();
    assert_eq!(rules.len(), 14);
    for line in rules {
        assert!(lines[line - 1].starts_with("# "), "{}", lines[line]);
    }
}

#[tokio::test]
async fn a_wildcard_is_there_only_with_groups_and_says_why() {
    let plain = Rendered::exuvia(NAMESPACE, &[]).await;
    assert!(!json!(plain.rbac()).to_string().contains("\"*\""));
    let helm = exuvia_testenv::Helm::offline().unwrap();
    let chart = crate::rendered::charts().join("exuvia");
    let wide = helm
        .template(&chart, "exuvia", NAMESPACE, &["--set", "groups={example.com}"])
        .await
        .unwrap();
    let (before, _) = wide.split_once(r#"resources: ["*"]"#).unwrap();
    let comment: Vec<&str> = before
        .lines()
        .rev()
        .skip(1)
        .skip_while(|line| line.contains("apiGroups"))
        .collect();
    assert!(comment[0].trim().starts_with('#'), "{}", comment[0]);
    assert!(before.contains("RBAC cannot include subgroups"), "{before}");
    for (groups, expected) in [
        ("groups={*}", json!(["*"])),
        ("groups={*,example.com}", json!(["*"])),
    ] {
        let everything = Rendered::exuvia(NAMESPACE, &["--set", groups]).await;
        let rules = everything.one("ClusterRole")["rules"].as_array().unwrap();
        let wildcards: Vec<&Value> = rules
            .iter()
            .filter(|rule| rule["resources"] == json!(["*"]))
            .map(|rule| &rule["apiGroups"])
            .collect();
        assert_eq!(wildcards, [&expected]);
    }
}

#[tokio::test]
async fn extra_rules_are_added_unchanged() {
    let rule = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "patch"]});
    let set = format!("rbac.extraRules=[{rule}]");
    let rendered = Rendered::exuvia(NAMESPACE, &["--set-json", &set]).await;
    let rules = rendered.one("ClusterRole")["rules"].as_array().unwrap();
    assert_eq!(rules.last(), Some(&rule));
}

const LABEL: &str = "example.com/rights-test=yes";

/// A user who may only read CRDs.
async fn reader(name: &str) -> exuvia_testenv::Access {
    let rules = json!([{
        "apiGroups": ["apiextensions.k8s.io"],
        "resources": ["customresourcedefinitions"],
        "verbs": ["list"],
    }]);
    let control_plane = ControlPlane::shared().await;
    let user = control_plane.user_with_rules(name, &rules).await.unwrap();
    let client = user.client().unwrap();
    until("the reader may read", async || {
        let crds: kube::Api<kube::api::DynamicObject> = kube::Api::all_with(
            client.clone(),
            &kube::api::ApiResource {
                group: "apiextensions.k8s.io".into(),
                version: "v1".into(),
                api_version: "apiextensions.k8s.io/v1".into(),
                kind: "CustomResourceDefinition".into(),
                plural: "customresourcedefinitions".into(),
            },
        );
        crds.list_metadata(&kube::api::ListParams::default())
            .await
            .is_ok()
    })
    .await;
    user
}

async fn as_user(user: &exuvia_testenv::Access, args: &[&str]) -> Output {
    let always = ["rbac", "-o", "json", "--opt-in-label", LABEL];
    exuvia(Some(user.kubeconfig().unwrap()), &[&always, args].concat()).await
}

#[tokio::test]
async fn rules_are_for_the_crds_that_have_opted_in_and_only_crds_are_read() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let user = reader("rights-reader").await;
    for (group, label, annotation) in [
        ("in.rights.example.com", Some("yes"), None),
        ("out.rights.example.com", None, None),
        ("other.rights.example.com", Some("no"), None),
        ("excluded.rights.example.com", Some("yes"), Some("kept as it is")),
    ] {
        let widgets = Widgets::in_group(group);
        let mut crd = widgets.crd("v1");
        crd["metadata"]["labels"] = json!({"example.com/rights-test": label.unwrap_or("never")});
        if let Some(reason) = annotation {
            crd["metadata"]["annotations"] = json!({"exuvia.dev/exclude-storage-version-migration": reason});
        }
        widgets.install_crd(&client, crd).await.unwrap();
    }
    let output = as_user(&user, &["--groups", "rights.example.com"]).await;
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = printed(&["--crds", "widgets.in.rights.example.com"]).await;
    assert_eq!(list["items"], json!(expected));
    assert_eq!(text(&output.stderr), "");

    // The requested group and its subgroup each have a rule.
    let output = as_user(&user, &["--groups", "rights.example.com", "--group-wildcards"]).await;
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules = list["items"][0]["rules"].as_array().unwrap();
    let wildcards: Vec<&Value> = rules
        .iter()
        .filter(|rule| rule["resources"] == json!(["*"]))
        .map(|rule| &rule["apiGroups"][0])
        .collect();
    assert_eq!(wildcards, ["in.rights.example.com", "rights.example.com"]);

    let asked = control_plane.audit().of("rights-reader").unwrap();
    let resources = asked.iter().filter(|event| event.object_ref.is_some());
    assert!(
        resources
            .clone()
            .all(|event| event.verb == "list" && event.resource() == "customresourcedefinitions"),
        "{:?}",
        resources.collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn without_a_crd_it_says_what_to_do_and_prints_the_base_rules() {
    let user = reader("rights-nobody").await;
    let output = as_user(&user, &["--groups", "nobody.example.com"]).await;
    assert!(output.status.success());
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 2, "{said}");
    for part in [
        "--groups nobody.example.com matches no CRD",
        &format!("kubectl label crd NAME {LABEL}"),
        "--crds",
    ] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules = list["items"][0]["rules"].to_string();
    assert!(
        rules.contains("storagemigrations") && !rules.contains("customresourcedefinitions/status"),
        "{rules}"
    );
}
