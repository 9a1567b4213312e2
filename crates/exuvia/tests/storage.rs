//! `exuvia plan` and `exuvia storage …` as a user runs them, against a real control plane.
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]
#![allow(clippy::unwrap_used)] // a test may panic

mod binary;

use std::path::PathBuf;
use std::process::{Command, Output};

use exuvia_testenv::{ControlPlane, Widgets};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::binary::{exuvia, json_of, text};

async fn admin(args: &[&str]) -> Output {
    binary::admin(ControlPlane::shared().await, args).await
}

async fn migrate(args: &[&str]) -> Output {
    binary::migrate(ControlPlane::shared().await, args).await
}

async fn flipped(group: &str, count: usize) -> Widgets {
    let client = ControlPlane::shared().await.client().unwrap();
    binary::flipped(&client, group, count).await
}

#[tokio::test]
async fn plan_migrate_droppable_tell_one_story() {
    let control_plane = ControlPlane::shared().await;
    let widgets = flipped("story.example.com", 30).await;
    let crd = widgets.crd_name();

    let plan = json_of(&admin(&["plan", "--groups", "story.example.com", "-o", "json"]).await);
    assert_eq!(plan[0]["storedVersions"], json!(["v1alpha1", "v1"]));
    assert_eq!(
        (&plan[0]["objects"], &plan[0]["optedIn"]),
        (&json!(30), &json!(false))
    );
    let shown = text(&admin(&["plan", "--groups", "story.example.com"]).await.stdout);
    assert!(
        shown.starts_with("CRD ") && shown.contains(&format!("exuvia storage migrate {crd}")),
        "{shown}"
    );

    let no = admin(&["storage", "droppable", &crd, "v1alpha1"]).await;
    assert_eq!(no.status.code(), Some(1));
    assert!(text(&no.stdout).contains("bytes:"), "{}", text(&no.stdout));

    let would = text(&admin(&["storage", "migrate", &crd, "--dry-run"]).await.stdout);
    assert!(would.contains("remove v1alpha1 from storedVersions"), "{would}");
    let counts = control_plane
        .stored("story.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(
        counts["story.example.com/v1alpha1"], 30,
        "a dry run changes nothing"
    );

    let done = migrate(&[&crd]).await;
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(
        said.contains("30 rewritten") && said.contains(&format!("exuvia storage droppable {crd} v1alpha1")),
        "{said}"
    );

    for flags in [&[][..], &["--ownership"]] {
        let plan = [&["plan", "--groups", "story.example.com", "-o", "json"], flags].concat();
        let plan = json_of(&admin(&plan).await);
        assert_eq!(plan[0]["storedVersions"], json!(["v1"]), "{flags:?}");
        assert_ne!(plan[0]["next"], "-", "{flags:?}");
    }
    let again = text(
        &admin(&["storage", "migrate", &crd, "--settle", "300ms"])
            .await
            .stdout,
    );
    assert!(
        again.contains("as a sweep has proven; nothing was written"),
        "{again}"
    );
}

#[tokio::test]
async fn a_writer_at_the_old_version_is_shown_and_keeps_the_answer_at_no() {
    let client = ControlPlane::shared().await.client().unwrap();
    let widgets = flipped("users.example.com", 3).await;
    let crd = widgets.crd_name();
    assert!(migrate(&[&crd]).await.status.success());
    let params = PatchParams {
        field_manager: Some("laggard".into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({"spec": {"size": 5}}));
    widgets
        .api(&client, "v1alpha1")
        .patch("widget-0002", &params, &patch)
        .await
        .unwrap();

    let users = json_of(&admin(&["storage", "users", &crd, "v1alpha1", "-o", "json"]).await);
    assert_eq!(users["writers"][0]["manager"], "laggard");
    assert_eq!(users["writers"][0]["objects"], 1);
    assert!(
        users["servers"][0]["requests"]["PATCH"].as_u64().unwrap() >= 1,
        "{users}"
    );
    let no = admin(&["storage", "droppable", &crd, "v1alpha1"]).await;
    assert_eq!(no.status.code(), Some(1));
    assert!(
        text(&no.stdout).contains("ownership: laggard"),
        "{}",
        text(&no.stdout)
    );

    // The same question, asked about the manifests of the next release.
    let mut next = widgets.crd("v1");
    next["spec"]["versions"].as_array_mut().unwrap().remove(0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), next.to_string()).unwrap();
    let no = admin(&["storage", "droppable", "-f", file.path().to_str().unwrap()]).await;
    assert_eq!(
        no.status.code(),
        Some(1),
        "{}{}",
        text(&no.stdout),
        text(&no.stderr)
    );
}

#[tokio::test]
async fn labelled_takes_opted_in_crds_of_the_groups_and_leaves_others_alone() {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crds: kube::Api<CustomResourceDefinition> = kube::Api::all(client);
    let mut all = Vec::new();
    for group in [
        "in.labelled.io",
        "plain.labelled.io",
        "excluded.labelled.io",
        "in.badlabelled.io",
    ] {
        all.push(flipped(group, 2).await);
    }
    let label = json!({"metadata": {"labels": {"vendor.io/migrate": "yes"}}});
    let mut excluded = label.clone();
    excluded["metadata"]["annotations"] = json!({"exuvia.dev/exclude-storage-version-migration": "not ours"});
    for (widgets, patch) in [(&all[0], &label), (&all[2], &excluded), (&all[3], &label)] {
        crds.patch(&widgets.crd_name(), &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }
    let of_vendor = [
        "--labelled",
        "--groups=labelled.io",
        "--opt-in-label=vendor.io/migrate=yes",
        "--output=json",
    ];
    let summary = json_of(&migrate(&of_vendor).await);
    let names: Vec<&str> = summary
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["resource"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["widgets.in.labelled.io"]);
    for (widgets, at_old) in all.iter().zip([0, 2, 2, 2]) {
        let counts = control_plane
            .stored(widgets.group(), "widgets")
            .count_by_version()
            .await
            .unwrap();
        let old = counts
            .get(&format!("{}/v1alpha1", widgets.group()))
            .copied()
            .unwrap_or_default();
        assert_eq!(old, at_old, "{}", widgets.group());
    }
}

#[tokio::test]
async fn audit_counts_what_etcd_holds_and_names_offenders() {
    let control_plane = ControlPlane::shared().await;
    let widgets = flipped("audited.example.com", 4).await;
    let endpoint = control_plane.etcd().endpoint();
    let crd = widgets.crd_name();
    let behind = admin(&["storage", "audit", &crd, "--etcd-endpoint", endpoint]).await;
    let said = text(&behind.stdout);
    assert_eq!(behind.status.code(), Some(1), "{said}{}", text(&behind.stderr));
    assert!(
        said.contains("audited.example.com/v1alpha1: 4") && said.contains("default/widget-0000"),
        "{said}"
    );
    assert!(migrate(&[&crd]).await.status.success());
    let current = admin(&["storage", "audit", &crd, "--etcd-endpoint", endpoint]).await;
    assert!(current.status.success(), "{}", text(&current.stdout));
}

#[tokio::test]
async fn bad_input_is_one_sentence_and_a_code() {
    let nobody = ControlPlane::shared()
        .await
        .user("nobody", &[])
        .unwrap()
        .kubeconfig()
        .unwrap();
    let admin = ControlPlane::shared().await.admin().kubeconfig().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let nothing = empty.path().to_str().unwrap();
    for (kubeconfig, args, code, part) in [
        (
            &admin,
            vec!["storage", "migrate", "nonsense.example.com"],
            2,
            "resource \"nonsense.example.com\" not found: the cluster has no CRD of that name",
        ),
        (
            &admin,
            vec!["storage", "droppable", "nonsense.example.com", "v1"],
            2,
            "CRD \"nonsense.example.com\" not found",
        ),
        (
            &admin,
            vec!["storage", "status", "nonsense"],
            2,
            "CRD \"nonsense\" not found",
        ),
        (&nobody, vec!["plan"], 2, "forbidden"),
        (
            &PathBuf::from("/nonexistent"),
            vec!["plan"],
            2,
            "invalid KUBECONFIG \"/nonexistent\": expected a kubeconfig file",
        ),
        (
            &admin,
            vec!["storage", "audit", "--etcd-endpoint", "http://127.0.0.1:1"],
            2,
            "127.0.0.1:1",
        ),
        (
            &admin,
            vec!["storage", "lint", "/nonexistent"],
            2,
            "\"/nonexistent\": it does not exist",
        ),
    ] {
        let output = exuvia(kubeconfig.clone(), &args).await;
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {error}");
        assert!(
            error.starts_with("error: ") && error.lines().count() == 1,
            "{args:?}: {error}"
        );
        assert!(error.contains(part), "{args:?}: {error}");
    }
    let lint = exuvia(admin, &["storage", "lint", nothing]).await;
    assert_eq!(lint.status.code(), Some(2));
    assert!(text(&lint.stdout).contains("is the path right?"));
}

#[tokio::test]
async fn a_version_that_the_crd_does_not_have_is_not_shed() {
    let crd = flipped("shed.example.com", 1).await.crd_name();
    let refused = migrate(&[&crd, "--shed", "v1alpha1", "--shed", "v9"]).await;
    let error = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    let wanted = format!("{crd} has no version v9 to shed: it has v1alpha1, v1");
    assert!(error.contains(&wanted), "{error}");
}

/// The plural alone would go past every safeguard that a CRD needs.
#[tokio::test]
async fn a_crd_goes_by_its_full_name() {
    let control_plane = ControlPlane::shared().await;
    let widgets = flipped("fullname.example.com", 2).await;
    let refused = admin(&["storage", "migrate", "widgets"]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains(&widgets.crd_name()),
        "{}",
        text(&refused.stderr)
    );
    let counts = control_plane
        .stored("fullname.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(counts["fullname.example.com/v1alpha1"], 2);
}

#[tokio::test]
async fn one_that_stalls_hides_nothing_of_the_others_and_a_dry_run_foretells_it() {
    let control_plane = ControlPlane::shared().await;
    let fine = flipped("fine.example.com", 2).await.crd_name();
    let held = flipped("held.example.com", 2).await.crd_name();
    // May do everything but trim the second CRD.
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions/status"], "verbs": ["patch"],
         "resourceNames": [fine]},
        {"apiGroups": ["fine.example.com", "held.example.com"], "resources": ["widgets"], "verbs": ["list", "patch"]},
    ]);
    let user = control_plane.user_with_rules("migrator", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let server = control_plane.apiserver().url();
    let args = [
        "storage",
        "migrate",
        &held,
        &fine,
        "--settle",
        "300ms",
        "--apiserver",
        server,
        "-o",
        "json",
    ];
    let mut rehearsal = args.to_vec();
    rehearsal.push("--dry-run");
    // The binding takes effect when the authoriser has seen it.
    let foretold = loop {
        let foretold = exuvia(kubeconfig.clone(), &rehearsal).await;
        if !foretold.stdout.is_empty() {
            break json_of(&foretold);
        }
    };
    assert_eq!(foretold[0]["end"]["reason"], "Forbidden", "{foretold}");
    assert_eq!(foretold[1]["end"]["state"], "wouldMigrate", "it would go on");
    let done = exuvia(kubeconfig, &args).await;
    assert_eq!(done.status.code(), Some(1));
    let summaries = json_of(&done);
    assert_eq!(summaries[0]["end"]["reason"], "Forbidden");
    assert_eq!(summaries[1]["end"]["state"], "migrated");
    let counts = control_plane
        .stored("held.example.com", "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(
        counts["held.example.com/v1alpha1"], 2,
        "found before any object was written"
    );
}

#[tokio::test]
async fn a_reader_that_goes_away_is_not_an_error() {
    let kubeconfig = ControlPlane::shared().await.admin().kubeconfig().unwrap();
    let command = format!(
        "{} plan | true; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_exuvia")
    );
    let output = tokio::task::spawn_blocking(move || {
        Command::new("bash")
            .args(["-c", &command])
            .env("KUBECONFIG", kubeconfig)
            .output()
            .unwrap()
    })
    .await
    .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        text(&output.stderr)
    );
}
