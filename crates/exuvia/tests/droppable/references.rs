//! ownerReferences anywhere in the cluster, with the real garbage collector.

use exuvia_testenv::{ControlPlane, until};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::{admin, droppable, exuvia, json_of, migrate, proven, said};

/// A config map that some widget owns, at v1alpha1, and an innocent one as a second owner.
async fn dependent(client: &Client, group: &str, name: &str, widget: &DynamicObject) -> ConfigMap {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let innocent = json!({"metadata": {"name": format!("{name}-innocent")}});
    let innocent = api
        .create(&PostParams::default(), &serde_json::from_value(innocent).unwrap())
        .await
        .unwrap();
    let object = json!({"metadata": {
        "name": name,
        "finalizers": ["example.com/hold"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": innocent.metadata.name, "uid": innocent.metadata.uid},
            {"apiVersion": format!("{group}/v1alpha1"), "kind": "Widget", "name": widget.metadata.name,
             "uid": widget.metadata.uid, "controller": true, "blockOwnerDeletion": true},
        ],
    }, "data": {"a": "b"}});
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap()
}

/// PITFALLS A38.
#[tokio::test]
async fn a_dependent_that_names_the_old_version_holds_it_until_its_reference_is_moved() {
    let control_plane = ControlPlane::builder()
        .controllers(["garbage-collector-controller"])
        .start()
        .await
        .unwrap();
    let client = control_plane.client().unwrap();
    let group = "owners.example.com";
    let widgets = proven(&control_plane, group, 2).await;
    let crd = widgets.crd_name();
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let new = widgets.api(&client, "v1");
    let owner = new.get("widget-0000").await.unwrap();
    let before = dependent(&client, group, "dependent", &owner).await;
    // One that is being deleted is as stuck as any other.
    dependent(&client, group, "deleted", &new.get("widget-0001").await.unwrap()).await;
    config_maps
        .delete("deleted", &DeleteParams::default())
        .await
        .unwrap();

    let (code, text) = droppable(&control_plane, &widgets, &[]).await;
    assert_eq!(code, 1, "{text}");
    let words = "references: ownerReferences of 2 objects in configmaps name it, such as default/deleted, default/dependent";
    assert!(
        text.contains(words) && text.contains("--owner-references"),
        "{text}"
    );
    let (code, text) = droppable(&control_plane, &widgets, &["--no-references"]).await;
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("references: not known, not looked at (--no-references)"),
        "{text}"
    );

    let would = migrate(&control_plane, &[&crd, "--owner-references", "--dry-run"]).await;
    let (code, text) = said(&would);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 dependents would be moved"), "{text}");
    let unmoved = config_maps.get("dependent").await.unwrap();
    assert_eq!(
        unmoved.metadata.resource_version,
        before.metadata.resource_version
    );

    let (code, text) = said(&migrate(&control_plane, &[&crd, "--owner-references"]).await);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("2 dependents moved, 0 gone, 0 failed"), "{text}");
    let moved = config_maps.get("dependent").await.unwrap();
    let mut wanted: Vec<OwnerReference> = before.metadata.owner_references.clone().unwrap();
    wanted[1].api_version = format!("{group}/v1");
    assert_eq!(
        moved.metadata.owner_references,
        Some(wanted),
        "all else is as it was"
    );
    assert_eq!(moved.data, before.data);
    let (code, text) = droppable(&control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "{text}");

    // The proof of it: without the version the collector still finds the owner.
    widgets.drop_version(&client, "v1alpha1").await.unwrap();
    for owner in ["dependent-innocent", "deleted-innocent"] {
        config_maps.delete(owner, &DeleteParams::default()).await.unwrap();
    }
    for name in ["widget-0000", "widget-0001"] {
        new.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until("the dependent is collected", async || {
        let dependent = config_maps.get("dependent").await.unwrap();
        dependent.metadata.deletion_timestamp.is_some()
    })
    .await;
    let let_go = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for name in ["dependent", "deleted"] {
        config_maps
            .patch(name, &PatchParams::default(), &let_go)
            .await
            .unwrap();
        until("it is gone", async || {
            config_maps.get_opt(name).await.unwrap().is_none()
        })
        .await;
    }
}

/// Our rights, and somebody else's server.
#[tokio::test]
async fn what_could_not_be_listed_is_named_and_leaves_no_yes() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let widgets = proven(&control_plane, "unlisted.example.com", 1).await;
    let crd = widgets.crd_name();
    let (code, text) = droppable(&control_plane, &widgets, &[]).await;
    assert_eq!(code, 0, "everything can be listed: {text}");

    // Everything but secrets.
    let served = client.list_core_api_resources("v1").await.unwrap().resources;
    let but_secrets: Vec<&str> = served
        .iter()
        .map(|resource| resource.name.as_str())
        .filter(|name| *name != "secrets")
        .collect();
    let groups = client.list_api_groups().await.unwrap().groups;
    let groups: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let rules = json!([
        {"apiGroups": [""], "resources": but_secrets, "verbs": ["list"]},
        {"apiGroups": groups, "resources": ["*"], "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]},
    ]);
    let user = control_plane.user_with_rules("secretless", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let question = ["storage", "droppable", &crd, "v1alpha1"];
    let ask = async || said(&exuvia(kubeconfig.clone(), &question).await);
    until("the binding is in force", async || ask().await.0 == 3).await;
    let (_, text) = ask().await;
    assert!(
        text.contains("references: not known, could not be listed: secrets (forbidden)\n")
            && text.contains("to find out: allow `list` on secrets"),
        "{text}"
    );
    let (code, text) = said(&migrate(&control_plane, &[&crd, "--owner-references"]).await);
    assert_eq!(code, 0, "the administrator sees all: {text}");

    // An aggregated API whose server is not there.
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.down.example.com"},
        "spec": {"group": "down.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
                 "insecureSkipTLSVerify": true, "service": {"name": "nobody", "namespace": "default"}},
    });
    let services = kube::api::ApiResource::erase::<
        k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService,
    >(&());
    let services: Api<DynamicObject> = Api::all_with(client.clone(), &services);
    services
        .create(&PostParams::default(), &serde_json::from_value(service).unwrap())
        .await
        .unwrap();
    until("it is in discovery", async || {
        let groups = client.list_api_groups().await.unwrap().groups;
        groups.iter().any(|group| group.name == "down.example.com")
    })
    .await;
    let (code, text) = droppable(&control_plane, &widgets, &[]).await;
    assert_eq!(code, 3, "{text}");
    assert!(
        text.contains("down.example.com/v1 (") && text.contains("repair down.example.com/v1"),
        "{text}"
    );
    let (code, text) = said(&migrate(&control_plane, &[&crd, "--owner-references"]).await);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("not looked at: down.example.com/v1"), "{text}");
}

/// Two groups serve the same events.
#[tokio::test]
async fn an_object_that_two_groups_serve_is_counted_once() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let group = "twice.example.com";
    let widgets = proven(control_plane, group, 1).await;
    let owner = widgets.api(&client, "v1").get("widget-0000").await.unwrap();
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": format!("{group}/v1alpha1"), "kind": "Widget", "name": "widget-0000", "uid": owner.metadata.uid}]},
        "involvedObject": {"namespace": "default"},
    }))
    .unwrap();
    let events: Api<Event> = Api::namespaced(client, "default");
    events.create(&PostParams::default(), &event).await.unwrap();
    let crd = widgets.crd_name();
    let verdict = admin(
        control_plane,
        &["storage", "droppable", &crd, "v1alpha1", "-o", "json"],
    )
    .await;
    let holders = &json_of(&verdict)[0]["holders"];
    assert_eq!(holders.as_array().unwrap().len(), 1, "{holders}");
    assert_eq!(holders[0]["holds"], "references");
    assert_eq!(holders[0]["objects"], 1);
    assert_eq!(holders[0]["examples"], json!(["default/owned"]));
}

#[tokio::test]
async fn a_dependent_that_may_not_be_written_is_named_and_the_others_are_moved() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let group = "refused.example.com";
    let widgets = proven(control_plane, group, 1).await;
    let crd = widgets.crd_name();
    let owner = widgets.api(&client, "v1").get("widget-0000").await.unwrap();
    dependent(&client, group, "refused", &owner).await;
    let secret = json!({"metadata": {"name": "taken", "ownerReferences": [{
        "apiVersion": format!("{group}/v1alpha1"), "kind": "Widget", "name": "widget-0000", "uid": owner.metadata.uid}]}});
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    secrets
        .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
        .await
        .unwrap();
    let rules = json!([
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["patch"]},
        {"apiGroups": [group], "resources": ["widgets"], "verbs": ["patch"]},
    ]);
    let user = control_plane.user_with_rules("mover", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let args = [
        "storage",
        "migrate",
        &crd,
        "--owner-references",
        "--settle",
        "300ms",
    ];
    until("the binding is in force", async || {
        let (_, text) = said(&exuvia(kubeconfig.clone(), &[&args[..], &["--dry-run"]].concat()).await);
        text.contains("2 dependents would be moved")
    })
    .await;
    let (code, text) = said(&exuvia(kubeconfig, &args).await);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("1 dependent moved, 0 gone, 1 failed")
            && text.contains("not moved: patch configmaps default/refused: "),
        "{text}"
    );
    let taken = secrets.get("taken").await.unwrap();
    assert_eq!(
        taken.metadata.owner_references.unwrap()[0].api_version,
        format!("{group}/v1")
    );
}

#[tokio::test]
async fn an_updated_applier_meets_no_conflict_and_an_old_one_does() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let group = "applied.example.com";
    let widgets = proven(control_plane, group, 1).await;
    let owner = widgets.api(&client, "v1").get("widget-0000").await.unwrap();
    let config_maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let apply = async |version: &str| {
        let intent = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "applied", "ownerReferences": [{
                "apiVersion": format!("{group}/{version}"), "kind": "Widget", "name": "widget-0000",
                "uid": owner.metadata.uid}]},
        });
        let params = PatchParams::apply("controller");
        config_maps.patch("applied", &params, &Patch::Apply(intent)).await
    };
    apply("v1alpha1").await.unwrap();
    let (code, text) = said(&migrate(control_plane, &[&widgets.crd_name(), "--owner-references"]).await);
    assert_eq!(code, 0, "{text}");
    let refused = apply("v1alpha1").await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 409),
        "it would put the old version back: {refused}"
    );
    apply("v1").await.unwrap();
}
