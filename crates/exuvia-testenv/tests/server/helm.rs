//! The real helm on a real server, and without one.

use std::path::Path;

use exuvia_testenv::{ControlPlane, Error, Helm};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};

/// A chart with a single `ConfigMap`, which is named after the release.
fn write_chart(directory: &Path) {
    std::fs::create_dir(directory.join("templates")).unwrap();
    let write = |name: &str, content: &str| std::fs::write(directory.join(name), content).unwrap();
    write(
        "Chart.yaml",
        "apiVersion: v2\nname: greeting\nversion: 1.0.0\nicon: https://example.com/icon.png\n",
    );
    write("values.yaml", "greeting: hello\n");
    write(
        "templates/configmap.yaml",
        "apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
data:
  greeting: {{ .Values.greeting | quote }}
",
    );
}

/// The revisions of a release, with their states, as helm keeps them.
async fn history(client: kube::Client, release: &str) -> Vec<(String, String)> {
    let secrets: Api<Secret> = Api::namespaced(client, "default");
    let of_release = ListParams::default().labels(&format!("owner=helm,name={release}"));
    let mut revisions: Vec<_> = secrets
        .list(&of_release)
        .await
        .unwrap()
        .into_iter()
        .map(|secret| {
            let labels = secret.metadata.labels.unwrap();
            (labels["version"].clone(), labels["status"].clone())
        })
        .collect();
    revisions.sort();
    revisions
}

fn state(revision: &str, state: &str) -> (String, String) {
    (revision.to_owned(), state.to_owned())
}

#[tokio::test]
async fn a_chart_is_installed_upgraded_and_uninstalled() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let greeting = async || {
        let found = config_maps.get_opt("greeter").await.unwrap();
        found.map(|map| map.data.unwrap()["greeting"].clone())
    };
    let chart = tempfile::tempdir().unwrap();
    write_chart(chart.path());
    let helm = control_plane.helm().unwrap();

    helm.install(chart.path(), "greeter", "default", &[])
        .await
        .unwrap();
    assert_eq!(greeting().await.as_deref(), Some("hello"));
    assert_eq!(history(client.clone(), "greeter").await, [state("1", "deployed")]);

    helm.upgrade(
        chart.path(),
        "greeter",
        "default",
        &["--set", "greeting=good day"],
    )
    .await
    .unwrap();
    assert_eq!(greeting().await.as_deref(), Some("good day"));
    assert_eq!(
        history(client.clone(), "greeter").await,
        [state("1", "superseded"), state("2", "deployed")]
    );

    helm.uninstall("greeter", "default", &[]).await.unwrap();
    assert_eq!(greeting().await, None);
    assert_eq!(history(client, "greeter").await, []);
}

#[tokio::test]
async fn helm_has_the_rights_of_its_user_and_its_words_are_in_the_error() {
    let control_plane = ControlPlane::shared().await;
    let nobody = control_plane.user("helm-nobody", &[]).unwrap();
    let chart = tempfile::tempdir().unwrap();
    write_chart(chart.path());

    let error = control_plane
        .helm_as(&nobody)
        .unwrap()
        .install(chart.path(), "refused", "default", &[])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::ToolFailed { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("helm install refused")
            && error.contains(r#"User "helm-nobody" cannot"#)
            && error.contains("exit status: 1"),
        "{error}"
    );
    assert_eq!(history(control_plane.client().unwrap(), "refused").await, []);
}

#[tokio::test]
async fn charts_are_rendered_and_linted_without_a_cluster() {
    let chart = tempfile::tempdir().unwrap();
    write_chart(chart.path());
    let helm = Helm::offline().unwrap();

    let rendered = helm
        .template(chart.path(), "greeter", "elsewhere", &["--set", "greeting=moin"])
        .await
        .unwrap();
    for line in ["name: greeter", "namespace: elsewhere", r#"greeting: "moin""#] {
        assert!(rendered.contains(line), "no {line} in {rendered}");
    }
    helm.lint(chart.path(), &["--strict"]).await.unwrap();

    std::fs::write(
        chart.path().join("Chart.yaml"),
        "apiVersion: v2\nname: greeting\n",
    )
    .unwrap();
    let error = helm.lint(chart.path(), &[]).await.unwrap_err().to_string();
    assert!(error.contains("version is required"), "{error}");
}

#[tokio::test]
async fn helm_keeps_its_files_in_the_control_planes_directory() {
    let control_plane = ControlPlane::shared().await;
    let settings = control_plane.helm().unwrap().run(["env"]).await.unwrap();
    let inside = format!("=\"{}/helm-", control_plane.directory().display());
    for variable in [
        "HELM_CACHE_HOME",
        "HELM_CONFIG_HOME",
        "HELM_DATA_HOME",
        "HELM_PLUGINS",
    ] {
        assert!(settings.contains(&format!("{variable}{inside}")), "{settings}");
    }
}
