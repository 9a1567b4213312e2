//! The chart: the same rights and CRDs as the code, and accepted by a real server.

use std::path::{Path, PathBuf};

use exuvia_testenv::Helm;
use mcp_operator::{api, rights};
use serde_json::{Value, json};

use crate::harness::control_plane;

const NAMESPACE: &str = "mcp-system";

fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/mcp-operator")
}

async fn rendered(flags: &[&str]) -> Vec<Value> {
    let helm = Helm::offline().unwrap();
    let text = helm.template(chart(), "mcp-operator", NAMESPACE, flags).await;
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[tokio::test]
async fn the_chart_gives_the_rights_that_the_code_states() {
    let objects = rendered(&[]).await;
    let given: Vec<&Value> = ["ClusterRole", "Role"]
        .iter()
        .flat_map(|kind| of_kind(&objects, kind))
        .flat_map(|role| role["rules"].as_array().unwrap())
        .collect();
    let stated: Vec<Value> = rights::all(Some("mcp-operator"))
        .into_iter()
        .map(|rule| json!(rule.rule))
        .collect();
    assert_eq!(given, stated.iter().collect::<Vec<_>>());
    for kind in ["ClusterRoleBinding", "RoleBinding"] {
        let subject = &of_kind(&objects, kind)[0]["subjects"][0];
        assert_eq!(
            (&subject["name"], &subject["namespace"]),
            (&json!("mcp-operator"), &json!(NAMESPACE))
        );
    }
}

#[tokio::test]
async fn the_chart_has_the_crds_of_the_code_unless_they_are_switched_off() {
    let objects = rendered(&[]).await;
    let crds: Vec<Value> = of_kind(&objects, "CustomResourceDefinition")
        .into_iter()
        .cloned()
        .collect();
    assert_eq!(json!(crds), json!(api::crds()));
    let without = rendered(&["--set", "installCrds=false"]).await;
    assert!(of_kind(&without, "CustomResourceDefinition").is_empty());
}

#[tokio::test]
async fn the_operator_is_started_with_flags_that_it_knows() {
    use clap::Parser;
    let objects = rendered(&["--set", "watchNamespace=shop,runnerImage=example.com/r:1"]).await;
    let deployment = of_kind(&objects, "Deployment")[0];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|arg| arg.as_str().unwrap());
    let args = std::iter::once("mcp-operator").chain(args);
    let args = mcp_operator::cli::OperatorArgs::try_parse_from(args).unwrap();
    assert_eq!(args.watch_namespace.as_deref(), Some("shop"));
    assert_eq!(args.runner_image, "example.com/r:1");
}

#[tokio::test]
async fn a_real_server_takes_all_of_it() {
    let control_plane = control_plane().await;
    let helm = control_plane.helm().unwrap();
    let flags = ["--create-namespace", "--set", "installCrds=false"];
    helm.install(chart(), "mcp-operator", NAMESPACE, &flags)
        .await
        .unwrap();
}

#[tokio::test]
async fn values_that_the_operator_would_refuse_are_refused_when_the_chart_is_rendered() {
    let helm = Helm::offline().unwrap();
    for (value, field) in [
        ("watchNamespace=Bad_NS", "/watchNamespace"),
        ("log.level=loud", "/log/level"),
        ("runnerImage=a b", "/runnerImage"),
        ("resync=soon", "/resync"),
    ] {
        let flags = ["--set", value];
        let rendered = helm.template(chart(), "mcp-operator", NAMESPACE, &flags);
        let error = rendered.await.expect_err(value).to_string();
        assert!(error.contains(field), "{error}");
    }
    let level = r"log.level=info\,mcp_operator=debug";
    rendered(&["--set", "watchNamespace=mcp-servers", "--set", level]).await;
}
