//! Slips of the pen: what is misspelt, named twice, or does not go together is said, and nothing is done.

use std::io::Write;
use std::process::{Command, Stdio};

use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{admin, exuvia, flipped, migrate, printed, text};

#[tokio::test]
async fn a_misspelt_crd_is_offered_by_every_command_that_takes_one() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "spelling.answers.io", 1).await.crd_name();
    let etcd = control_plane.etcd().endpoint();
    let misspelt = "widgts.speling.answers.io";
    for args in [
        vec!["storage", "migrate", misspelt],
        vec!["storage", "status", misspelt],
        vec!["storage", "users", misspelt, "v1"],
        vec!["storage", "droppable", misspelt, "v1"],
        vec!["storage", "audit", misspelt, "--etcd-endpoint", etcd],
    ] {
        let output = admin(control_plane, &args).await;
        let error = text(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(
            error.contains(&format!("did you mean {crd}?")),
            "{args:?}: {error}"
        );
    }
    // By another of its names.
    let output = admin(control_plane, &["storage", "status", "Widget"]).await;
    assert!(text(&output.stderr).contains(&crd), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_version_that_nobody_has_used_has_no_users_but_a_dropped_one_may() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "users.answers.io", 1).await;
    let crd = widgets.crd_name();
    let output = admin(control_plane, &["storage", "users", &crd, "v7"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        printed(&output).trim_end(),
        format!("error: invalid version \"v7\" of {crd}: expected one of v1alpha1, v1")
    );
    let output = migrate(control_plane, &[&crd, "--managed-fields", "keep"]).await;
    assert!(output.status.success(), "{}", printed(&output));
    widgets.drop_version(&client, "v1alpha1").await.unwrap();
    let output = admin(control_plane, &["storage", "users", &crd, "v1alpha1"]).await;
    let said = printed(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("does not have the version v1alpha1") && said.contains("MANAGER"),
        "{said}"
    );
}

#[tokio::test]
async fn what_does_not_go_together_is_refused() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "together.answers.io", 1).await.crd_name();
    for (args, code, part) in [
        (
            vec![crd.as_str(), "--groups", "answers.io"],
            2,
            "cannot be used with",
        ),
        (vec![&crd, "--opt-in-label", "a=b"], 2, "cannot be used with"),
        (vec!["--all", "--opt-in-label", "a=b"], 2, "cannot be used with"),
        (vec![&crd, "--shed", "v1"], 2, "storage version"),
        (vec![&crd, "--shed", "v1alpha1", "--shed", "v1alpha1"], 2, "twice"),
        (vec![&crd, "--shed", "v9"], 2, "it has v1alpha1, v1"),
        (vec!["secrets", "--shed", "v1"], 2, "only a CRD"),
        (vec![&crd, &crd], 2, "twice"),
        (vec!["deployments", "deployments.apps"], 2, "twice"),
    ] {
        let refused = migrate(control_plane, &args).await;
        let error = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: {error}");
    }
    let etcd = control_plane.etcd().endpoint();
    let audit = ["storage", "audit", &crd, &crd, "--etcd-endpoint", etcd];
    assert!(text(&admin(control_plane, &audit).await.stderr).contains("twice"));
    let stored = control_plane
        .stored("together.answers.io", "widgets")
        .count_by_version();
    assert_eq!(
        stored.await.unwrap()["together.answers.io/v1alpha1"],
        1,
        "nothing was done"
    );
}

/// The CRD without v1alpha1.
fn next_release(widgets: &Widgets) -> Value {
    let mut next = widgets.crd("v1");
    next["spec"]["versions"].as_array_mut().unwrap().remove(0);
    next
}

#[tokio::test]
async fn droppable_reads_manifests_from_everywhere_that_lint_does() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "manifests.answers.io", 1).await;
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let next = next_release(&widgets);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [{"kind": "ConfigMap", "apiVersion": "v1"}, next]});
    let in_list = write("list/list.json", &list.to_string());
    write(
        "tree/deep/crd.yaml",
        &format!("# a comment\n---\n{next}\n---\nkind: Secret\n"),
    );
    write("tree/README.md", "not a manifest");
    let tree = directory.path().join("tree").to_str().unwrap().to_owned();
    for path in [&in_list, &tree] {
        let no = admin(control_plane, &["storage", "droppable", "-f", path]).await;
        let said = printed(&no);
        assert_eq!(no.status.code(), Some(1), "{path}: {said}");
        assert!(
            said.starts_with("no: v1alpha1 of widgets.manifests.answers.io"),
            "{said}"
        );
    }
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let piped = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
        command
            .args(["storage", "droppable", "-f", "-"])
            .env("KUBECONFIG", kubeconfig);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(list.to_string().as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    });
    let piped = piped.await.unwrap();
    assert_eq!(piped.status.code(), Some(1), "{}", printed(&piped));

    // What cannot be read is not "drops all", and is not repeated.
    let mut five = next_release(&widgets);
    five["spec"]["versions"] = json!(5);
    let five = write("five.json", &five.to_string());
    let broken = "kind: CustomResourceDefinition\nspec: {token: \"canary-c0ffee\n";
    let broken = write("broken.yaml", broken);
    for (path, part) in [
        (
            five.as_str(),
            "spec.versions of widgets.manifests.answers.io is not a list",
        ),
        (&broken, "not valid YAML"),
        ("/nonexistent", "does not exist"),
    ] {
        let refused = admin(control_plane, &["-vv", "storage", "droppable", "-f", path]).await;
        let said = printed(&refused);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(part) && !said.contains("canary"), "{said}");
    }
}

#[tokio::test]
async fn who_may_not_list_is_told_so_in_a_sentence() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "unlisted.answers.io", 1).await.crd_name();
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get"]},
    ]);
    let user = control_plane.user_with_rules("unlisting", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    until("the user may list CRDs", async || {
        let output = exuvia(kubeconfig.clone(), &["plan"]).await;
        output.status.success()
    })
    .await;
    let nobody = control_plane
        .user("nothing-allowed", &[])
        .unwrap()
        .kubeconfig()
        .unwrap();
    for kubeconfig in [kubeconfig, nobody] {
        for args in [
            vec!["storage", "droppable", &crd, "v1alpha1"],
            vec!["storage", "droppable", &crd, "v1alpha1", "-o", "json"],
            vec![
                "storage",
                "droppable",
                &crd,
                "v1alpha1",
                "--prove",
                "--settle",
                "300ms",
            ],
            vec!["storage", "users", &crd, "v1alpha1"],
            vec!["storage", "status", &crd],
            vec!["plan", "--ownership"],
            vec!["storage", "migrate", &crd],
        ] {
            let said = printed(&exuvia(kubeconfig.clone(), &args).await);
            assert!(
                said.contains("forbidden") || said.contains("not allowed"),
                "{args:?}: {said}"
            );
            // Neither a 403 alone, nor a right without its resource.
            assert!(
                said.contains("apiGroups") || said.contains("allow `list` on"),
                "{args:?}: {said}"
            );
            for dump in [
                "ApiError",
                "Some(",
                "Status {",
                "ErrorResponse",
                "metadata:",
                "Box(",
            ] {
                assert!(!said.contains(dump), "{args:?}: {said}");
            }
        }
    }
}

/// Anybody can write `storedVersions`, and leave the storage version out of it.
#[tokio::test]
async fn stored_versions_without_the_storage_version_are_not_trimmed_to_nothing() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "arrow.answers.io", 2).await;
    let crd = widgets.crd_name();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let wrong = Patch::Merge(json!({"status": {"storedVersions": ["v1alpha1"]}}));
    crds.patch_status(&crd, &PatchParams::default(), &wrong)
        .await
        .unwrap();
    let done = migrate(control_plane, &[&crd]).await;
    let said = printed(&done);
    assert_eq!(done.status.code(), Some(0), "{said}");
    assert!(said.contains("storedVersions: v1alpha1 -> v1\n"), "{said}");
    let stored = crds.get(&crd).await.unwrap().status.unwrap().stored_versions;
    assert_eq!(stored.unwrap(), ["v1"]);
}
