//! Versions and counts, on one shared control plane.

use std::collections::BTreeMap;

use exuvia_audit::{
    AuditOptions, Cause, Definition, Progress, ResourceReport, Verdict, audit, audit_with_progress,
};
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::{options, raw};

fn only(options: AuditOptions, resource: &str) -> AuditOptions {
    AuditOptions {
        resources: vec![resource.to_owned()],
        ..options
    }
}

async fn rewrite(widgets: &Widgets, client: &kube::Client, indexes: std::ops::Range<usize>) {
    for index in indexes {
        let (name, patch) = (format!("widget-{index:04}"), Patch::Merge(json!({})));
        let api = widgets.api(client, "v1");
        api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    }
}

/// PITFALLS A2, A3 and A26: what is stored how, at each step of the life of a version.
#[tokio::test]
async fn counts_and_offenders_are_those_of_the_stored_bytes() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("flip.audit.example.com");
    widgets.install(&client, "v1alpha1").await.unwrap();
    widgets.create(&client, "v1alpha1", 7).await.unwrap();
    widgets.flip_storage(&client, "v1").await.unwrap();
    rewrite(&widgets, &client, 0..3).await;

    let options = AuditOptions {
        offenders: 3,
        ..only(options(control_plane), "widgets.flip.audit.example.com")
    };
    let read = async || -> ResourceReport {
        let report = audit(&options).await.unwrap();
        assert_eq!(report.resources.len(), 1);
        let stored = control_plane
            .stored("flip.audit.example.com", "widgets")
            .at(report.revision);
        let expected: BTreeMap<String, u64> = stored
            .count_by_version()
            .await
            .unwrap()
            .into_iter()
            .map(|(version, count)| (version, count as u64))
            .collect();
        assert_eq!(report.resources[0].versions, expected);
        report.resources.into_iter().next().unwrap()
    };
    let behind = read().await;
    assert_eq!(behind.verdict, Verdict::Behind);
    assert_eq!((behind.objects, behind.offending), (7, 4));
    let Definition::Crd(crd) = &behind.definition else {
        panic!("{behind:?}")
    };
    assert_eq!(
        (crd.storage_version.as_str(), crd.scope.as_str()),
        ("v1", "Namespaced")
    );
    assert_eq!(crd.stored_versions, ["v1alpha1", "v1"]);
    assert!(behind.empty_versions.is_empty() && behind.unlisted_versions.is_empty());
    let keys: Vec<&str> = behind
        .offenders
        .iter()
        .map(|offender| offender.key.as_str())
        .collect();
    let key = |index| format!("/registry/flip.audit.example.com/widgets/default/widget-000{index}");
    assert_eq!(
        keys,
        [key(3), key(4), key(5)],
        "the first of them, and no more than asked for"
    );
    assert_eq!(behind.offenders[0].api_version, "flip.audit.example.com/v1alpha1");

    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let trim = async |versions: &[&str]| {
        let patch = Patch::Merge(json!({"status": {"storedVersions": versions}}));
        let name = widgets.crd_name();
        crds.patch_status(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    };
    trim(&["v1"]).await;
    assert_eq!(read().await.unlisted_versions, ["v1alpha1"], "trimmed too early");
    trim(&["v1alpha1", "v1"]).await;

    rewrite(&widgets, &client, 3..7).await;
    let current = read().await;
    assert_eq!(current.verdict, Verdict::Current);
    assert_eq!((current.offending, current.offenders.len()), (0, 0));
    assert_eq!(current.empty_versions, ["v1alpha1"], "as far as bytes go");
}

/// Everything below the prefix is counted, and counted once.
#[tokio::test]
async fn built_in_types_tell_their_version_and_nothing_is_left_out() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let named = |spec: serde_json::Value| json!({"metadata": {"name": "audited"}, "spec": spec});
    let pod =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment: Deployment = serde_json::from_value(named(
        json!({"selector": {"matchLabels": {"a": "b"}}, "template": pod}),
    ))
    .unwrap();
    let service: Service = serde_json::from_value(named(json!({"ports": [{"port": 80}]}))).unwrap();
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "audited"}, "stringData": {"k": "hush-hush"}}))
            .unwrap();
    let post = PostParams::default();
    Api::default_namespaced(client.clone())
        .create(&post, &deployment)
        .await
        .unwrap();
    Api::default_namespaced(client.clone())
        .create(&post, &service)
        .await
        .unwrap();
    Api::default_namespaced(client.clone())
        .create(&post, &secret)
        .await
        .unwrap();
    // A cluster has only one way to be empty: a CRD without objects is reported, too.
    let empty = Widgets::in_group("empty.audit.example.com");
    empty.install(&client, "v1").await.unwrap();

    let report = audit(&options(control_plane)).await.unwrap();
    let everything = control_plane
        .etcd()
        .stored_under("/registry/")
        .at(report.revision)
        .all()
        .await
        .unwrap();
    assert_eq!(report.objects, everything.len() as u64);
    for resource in &report.resources {
        let keys = everything
            .iter()
            .filter(|stored| stored.key.starts_with(&resource.key_prefix))
            .count();
        assert_eq!(resource.objects, keys as u64, "{}", resource.name);
    }
    for (name, api_version) in [
        ("deployments", "apps/v1"),
        ("services", "v1"),
        ("secrets", "v1"),
        ("namespaces", "v1"),
        ("clusterroles", "rbac.authorization.k8s.io/v1"),
        (
            "customresourcedefinitions.apiextensions.k8s.io",
            "apiextensions.k8s.io/v1beta1", // so kube-apiserver 1.37 still writes them
        ),
        ("apiservices.apiregistration.k8s.io", "apiregistration.k8s.io/v1"),
    ] {
        let resource = report.resource(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(
            resource.versions.keys().collect::<Vec<_>>(),
            [api_version],
            "{name}"
        );
        assert_eq!(resource.verdict, Verdict::NotJudged);
        assert!(
            resource.unreadable.is_empty(),
            "{name}: {:?}",
            resource.unreadable
        );
    }
    let empty = report.resource("widgets.empty.audit.example.com").unwrap();
    assert_eq!((empty.verdict, empty.objects), (Verdict::Current, 0));
    let text = serde_json::to_string(&report).unwrap();
    assert!(
        !text.contains("hush-hush") && !text.contains(r#""k":"#),
        "keys and versions, never values"
    );
}

/// All pages are of one revision, whatever is written meanwhile: after every page the audit waits for a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_of_one_revision_while_somebody_writes() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("busy.audit.example.com");
    widgets.install(&client, "v1").await.unwrap();
    widgets.create(&client, "v1", 40).await.unwrap();
    let api = widgets.api(&client, "v1");
    let (wrote, written) = std::sync::mpsc::channel();
    let writer = tokio::spawn({
        let (api, widgets) = (api.clone(), widgets.clone());
        async move {
            for round in 0_usize.. {
                // One object always comes before it goes, so that their number shows a mixture of revisions.
                let new = widgets.widget("v1", &format!("widget-{}-new", round % 40));
                api.create(&PostParams::default(), &new).await.unwrap();
                wrote.send(()).unwrap();
                let patch = Patch::Merge(json!({"spec": {"size": round}}));
                let name = format!("widget-{:04}", round % 40);
                api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
                wrote.send(()).unwrap();
                let name = format!("widget-{}-new", round % 40);
                api.delete(&name, &DeleteParams::default()).await.unwrap();
                wrote.send(()).unwrap();
            }
        }
    });
    // The writer has threads of its own: this one may stand still until it has had two turns. One may have been committed
    // before we began to wait, with only its answer on the way; the second was not.
    let mut let_it_write = move |_: &Progress<'_>| {
        while written.try_recv().is_ok() {}
        for _ in 0..2 {
            let answer = written.recv_timeout(exuvia_testenv::DEADLINE);
            answer.expect("the writer goes on");
        }
    };
    let options = AuditOptions {
        page_size: 3,
        ..only(options(control_plane), "busy.audit.example.com/widgets")
    };
    let mut before = 0;
    for _ in 0..5 {
        let report = audit_with_progress(&options, &mut let_it_write).await.unwrap();
        let stored = control_plane
            .stored("busy.audit.example.com", "widgets")
            .at(report.revision);
        assert_eq!(report.objects, stored.all().await.unwrap().len() as u64);
        assert!(matches!(report.objects, 40 | 41), "{}", report.objects);
        assert!(report.pages >= 14, "{} pages of three", report.pages);
        let now = control_plane.etcd().revision().await.unwrap();
        assert!(before < report.revision, "each audit is of its own time");
        assert!(report.revision < now, "somebody wrote between its pages");
        before = report.revision;
    }
    assert!(!writer.is_finished());
    writer.abort();
}

#[tokio::test]
async fn objects_of_a_megabyte_come_a_few_at_a_time() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("large.audit.example.com");
    widgets.install(&client, "v1").await.unwrap();
    for index in 0..20 {
        let mut widget = widgets.widget("v1", &format!("large-{index:02}"));
        widget.data["spec"]["payload"] = json!("x".repeat(1 << 20));
        widgets
            .api(&client, "v1")
            .create(&PostParams::default(), &widget)
            .await
            .unwrap();
    }
    let all = only(options(control_plane), "widgets.large.audit.example.com");
    let mut pages = Vec::new();
    let report = audit_with_progress(&all, &mut |progress| {
        if progress.resource == "widgets.large.audit.example.com" {
            pages.push(progress.objects);
        }
    })
    .await
    .unwrap();
    assert_eq!(report.resources[0].versions["large.audit.example.com/v1"], 20);
    let sizes: Vec<u64> = pages.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        sizes.iter().all(|size| *size <= 3),
        "16 at first, then what 4 MiB hold: {sizes:?}"
    );
    assert_eq!(sizes.iter().sum::<u64>(), 4);
}

#[tokio::test]
async fn objects_without_a_crd_and_bytes_that_are_not_an_object_are_named() {
    let control_plane = ControlPlane::shared().await;
    let endpoint = control_plane.etcd().endpoint();
    let prefix = "/registry/orphans.audit.example.com/things/default";
    raw::put(
        endpoint,
        &format!("{prefix}/a"),
        r#"{"apiVersion":"orphans.audit.example.com/v1","kind":"Thing"}"#,
    );
    raw::put(endpoint, &format!("{prefix}/b"), [0xd9, 0xd9, 0xf7, 0xa0]);
    raw::put(endpoint, &format!("{prefix}/c"), "what is this");
    let report = audit(&options(control_plane)).await.unwrap();
    let orphans = report.resource("things.orphans.audit.example.com").unwrap();
    assert_eq!(
        (orphans.verdict, &orphans.definition),
        (Verdict::Orphaned, &Definition::Missing)
    );
    assert_eq!((orphans.objects, orphans.offending), (3, 1));
    assert_eq!(orphans.offenders[0].key, format!("{prefix}/a"));
    let causes: Vec<_> = orphans
        .unreadable
        .iter()
        .map(|unreadable| (&unreadable.cause, &*unreadable.keys[0]))
        .collect();
    assert_eq!(
        causes,
        [
            (&Cause::Cbor, &*format!("{prefix}/b")),
            (&Cause::Unknown, &*format!("{prefix}/c"))
        ]
    );
    assert!(!report.is_current());
}

#[tokio::test]
async fn a_resource_can_be_named_in_several_ways_and_is_read_once() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = Widgets::in_group("names.audit.example.com");
    widgets.install(&client, "v1").await.unwrap();
    let config: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "named"}})).unwrap();
    Api::default_namespaced(client)
        .create(&PostParams::default(), &config)
        .await
        .unwrap();
    let names = [
        "names.audit.example.com/widgets",
        "widgets.names.audit.example.com",
        "configmaps",
        "nodes",
        "services",
    ];
    let read = async |names: &[&str]| {
        let options = AuditOptions {
            resources: names.iter().map(|name| (*name).to_owned()).collect(),
            ..options(control_plane)
        };
        audit(&options).await
    };
    let report = read(&names[..3]).await.unwrap();
    let found: Vec<_> = report
        .resources
        .iter()
        .map(|resource| resource.name.as_str())
        .collect();
    assert_eq!(found, ["configmaps", "widgets.names.audit.example.com"]);
    let error = read(&["nodes"]).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("invalid resource \"nodes\": etcd has no objects of it"),
        "{error}"
    );
    let plural = read(&["widgets"]).await.unwrap();
    assert!(
        plural.resource("widgets.names.audit.example.com").is_some(),
        "a plural alone means all of that name"
    );
    let crds = read(&["customresourcedefinitions.apiextensions.k8s.io"])
        .await
        .unwrap();
    assert!(crds.resources[0].objects > 0);
}
