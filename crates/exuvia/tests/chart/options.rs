//! What each value changes in the rendered chart.

use std::collections::BTreeSet;

use clap::Parser;
use serde_json::{Value, json};

use crate::rendered::{Rendered, workspace};
use crate::{NAMESPACE, exuvia, text};

fn kinds(rendered: &Rendered) -> BTreeSet<&str> {
    rendered
        .objects
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn each_switch_adds_exactly_its_own_objects() {
    let base = Rendered::exuvia(NAMESPACE, &[]).await;
    let base = kinds(&base);
    let expected = [
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    assert_eq!(base, BTreeSet::from(expected));
    for (set, added, removed) in [
        ("networkPolicy.enabled=true", vec!["NetworkPolicy"], vec![]),
        ("serviceMonitor.enabled=true", vec!["ServiceMonitor"], vec![]),
        ("prometheusRule.enabled=true", vec!["PrometheusRule"], vec![]),
        ("grafanaDashboard.enabled=true", vec!["ConfigMap"], vec![]),
        (
            "flowControl.enabled=true",
            vec!["FlowSchema", "PriorityLevelConfiguration"],
            vec![],
        ),
        (
            "podDisruptionBudget.enabled=false",
            vec![],
            vec!["PodDisruptionBudget"],
        ),
        (
            "admissionPolicy.enabled=false",
            vec![],
            vec!["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
        ),
        (
            "rbac.create=false",
            vec![],
            vec!["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"],
        ),
        (
            "serviceAccount.create=false,serviceAccount.name=mine",
            vec![],
            vec!["ServiceAccount"],
        ),
    ] {
        let rendered = Rendered::exuvia(NAMESPACE, &["--set", set]).await;
        let kinds = kinds(&rendered);
        let difference = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| -> BTreeSet<String> {
            a.difference(b).map(ToString::to_string).collect()
        };
        let named = |kinds: &[&str]| kinds.iter().map(ToString::to_string).collect();
        assert_eq!(difference(&kinds, &base), named(&added), "{set}");
        assert_eq!(difference(&base, &kinds), named(&removed), "{set}");
    }
}

#[tokio::test]
async fn values_reach_the_operator_as_flags() {
    let values = json!({
        "enableStorageMigration": false,
        "enableDatastoreMigration": false,
        "groups": ["example.com", "a.example.com"],
        "optInLabel": "example.com/migrate=yes",
        "settle": "5s",
        "apiServers": ["https://10.0.0.1:6443", "https://10.0.0.2:6443"],
        "lookAtReferences": true,
        "maxConcurrency": 7,
        "qps": 50,
        "pageSize": 100,
        "concurrentMigrations": 3,
        "maxBackoff": "1m",
        "lookAgain": "2h",
        "leaderElection": {"leaseName": "mine", "leaseDuration": "5s"},
        "listenAddress": "0.0.0.0",
        "port": 9090,
        "log": {"level": "info,exuvia_storage=debug", "format": "json"},
        "shutdownGrace": "20s",
        "extraArgs": ["--verbose"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
    });
    let rendered = with_values(&values).await;
    let container = rendered.container("exuvia-0");
    assert_eq!(
        container.args,
        [
            "operator",
            "--enable-storage-migration=false",
            "--enable-datastore-migration=false",
            "--groups=example.com,a.example.com",
            "--opt-in-label=example.com/migrate=yes",
            "--settle=5s",
            "--apiserver=https://10.0.0.1:6443",
            "--apiserver=https://10.0.0.2:6443",
            "--look-at-references=true",
            "--look-again=2h",
            "--max-concurrency=7",
            "--qps=50",
            "--page-size=100",
            "--concurrent-migrations=3",
            "--max-backoff=1m",
            "--leader-elect=true",
            "--lease-name=mine",
            "--lease-duration=5s",
            "--listen=0.0.0.0:9090",
            "--log-format=json",
            "--log-level=info,exuvia_storage=debug",
            "--shutdown-grace=20s",
            "--verbose",
        ]
    );
    assert_known(&container.args);
    let env: Vec<(&str, &str)> = container
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(
        env,
        [
            ("POD_NAME", "exuvia-0"),
            ("POD_NAMESPACE", NAMESPACE),
            ("TZ", "UTC")
        ]
    );
    assert!(
        rendered.of_kind("ClusterRole").is_empty(),
        "nothing to migrate needs no right in the cluster"
    );
    assert_eq!(rendered.of_kind("Role").len(), 1, "only the Role for the Lease");

    let alone = json!({"replicas": 1, "leaderElection": {"enabled": false}});
    let alone = with_values(&alone).await;
    let args = alone.container("exuvia-0").args;
    assert!(args.contains(&"--leader-elect=false".to_owned()), "{args:?}");
    assert!(!args.iter().any(|arg| arg.starts_with("--lease")), "{args:?}");
    assert_eq!(
        alone.of_kind("Role").len(),
        2,
        "only the Roles for API servers and events"
    );
}

/// A flag that the binary does not know would otherwise show only when a pod crashes.
fn assert_known(args: &[String]) {
    let line = std::iter::once("exuvia".to_owned()).chain(args.iter().cloned());
    if let Err(error) = exuvia::cli::Cli::try_parse_from(line) {
        panic!("{error}");
    }
}

#[tokio::test]
async fn the_binary_knows_every_flag_that_the_chart_gives() {
    for flags in [vec![], vec!["--set", "crds={widgets.example.com}"]] {
        assert_known(
            &Rendered::exuvia(NAMESPACE, &flags)
                .await
                .container("exuvia-0")
                .args,
        );
    }
}

#[tokio::test]
async fn a_pod_takes_what_pods_take() {
    let values = json!({
        "image": {"repository": "registry.example.com/exuvia", "digest": format!("sha256:{}", "0".repeat(64))},
        "imagePullSecrets": [{"name": "pull"}],
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"note": "yes"},
        "resources": {"requests": {"cpu": "1"}},
        "topologySpread": {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"},
        "fullnameOverride": "shell",
    });
    let rendered = with_values(&values).await;
    let template = &rendered.one("Deployment")["spec"]["template"];
    let pod = &template["spec"];
    for (found, expected) in [
        (
            &pod["containers"][0]["image"],
            json!(format!("registry.example.com/exuvia@sha256:{}", "0".repeat(64))),
        ),
        (&pod["imagePullSecrets"], values["imagePullSecrets"].clone()),
        (&pod["priorityClassName"], json!("system-cluster-critical")),
        (&pod["nodeSelector"], values["nodeSelector"].clone()),
        (&pod["tolerations"], values["tolerations"].clone()),
        (&pod["affinity"], values["affinity"].clone()),
        (&pod["serviceAccountName"], json!("shell")),
        (&template["metadata"]["labels"]["team"], json!("platform")),
        (&template["metadata"]["annotations"]["note"], json!("yes")),
        (&pod["containers"][0]["resources"]["requests"]["cpu"], json!("1")),
        (
            &pod["topologySpreadConstraints"][0]["topologyKey"],
            json!("topology.kubernetes.io/zone"),
        ),
    ] {
        assert_eq!(*found, expected);
    }
    // The pod is not killed before the operator's shutdownGrace is over.
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
}

#[tokio::test]
async fn toolhives_crds_are_managed_by_their_own_label() {
    let file = workspace().join("examples/toolhive-values.yaml");
    let rendered = Rendered::exuvia(NAMESPACE, &["--values", file.to_str().unwrap()]).await;
    let args = rendered.container("exuvia-0").args;
    let label = "--opt-in-label=toolhive.stacklok.dev/auto-migrate-storage-version=true";
    assert!(args.iter().any(|arg| arg == label), "{args:?}");
    assert!(
        args.iter().any(|arg| arg == "--groups=toolhive.stacklok.dev"),
        "{args:?}"
    );
    let rules = rendered.one("ClusterRole")["rules"].as_array().unwrap();
    assert!(
        rules
            .iter()
            .any(|rule| rule["apiGroups"] == json!(["toolhive.stacklok.dev"])),
        "{rules:?}"
    );
}

#[tokio::test]
async fn our_own_crd_passes_our_own_lint_and_outlives_its_chart() {
    for path in ["charts/exuvia-crds/templates", "deploy/crds.yaml"] {
        let path = workspace().join(path);
        let output = exuvia(None, &["storage", "lint", path.to_str().unwrap()]).await;
        assert!(output.status.success(), "{}", text(&output.stdout));
    }
    let crds = std::fs::read_to_string(workspace().join("deploy/crds.yaml")).unwrap();
    for crd in crate::rendered::documents(&crds) {
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
}

/// The two numbers must agree: if the image has another user than the pod, it cannot read its own files.
#[tokio::test]
async fn the_image_and_the_pod_name_one_user() {
    let dockerfile = std::fs::read_to_string(workspace().join("Dockerfile")).unwrap();
    let user = dockerfile
        .lines()
        .find_map(|line| line.strip_prefix("USER "))
        .unwrap();
    let rendered = Rendered::exuvia(NAMESPACE, &[]).await;
    let context = &rendered.one("Deployment")["spec"]["template"]["spec"]["securityContext"];
    assert_eq!(
        user,
        format!("{}:{}", context["runAsUser"], context["runAsGroup"])
    );
    for from in dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")) {
        let image = from.split_whitespace().next().unwrap();
        assert!(
            image == "scratch"
                || image
                    .split_once(':')
                    .is_some_and(|(_, tag)| tag.matches('.').count() >= 2),
            "{image} is not pinned"
        );
    }
}

/// The chart with values from a file: JSON is also YAML.
async fn with_values(values: &Value) -> Rendered {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), values.to_string()).unwrap();
    Rendered::exuvia(NAMESPACE, &["--values", file.path().to_str().unwrap()]).await
}
