//! As it is shipped: both charts installed with the real helm, the real binary started with what the Deployment says and
//! the service account's token; no right is missing, and none is there for nothing.

use exuvia_api::{DatastoreMigration, Phase, StorageMigration};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::{Access, ControlPlane, Process, Widgets};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::*;
use crate::rendered::{Rendered, charts};

const NAMESPACE: &str = "exuvia-system";
const GROUP: &str = "packaged.example.com";

/// What a test cannot wait for, or must not share; everything else is as the chart has it.
fn values(port: u16) -> String {
    format!(
        "crds={{widgets.{GROUP}}},settle=200ms,leaderElection.leaseDuration=2s,maxBackoff=1s,listenAddress=127.0.0.1,port={port}"
    )
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// The container of a Deployment as the kubelet would start it, but for the token, which comes by a kubeconfig.
fn start(control_plane: &ControlPlane, deployment: &Deployment, account: &Access, pod: &str) -> Operator {
    let spec = deployment.spec.template.spec.as_ref().unwrap();
    let container = &spec.containers[0];
    let kubeconfig = account.kubeconfig().unwrap();
    let mut all = vec![
        "--ignore-environment".to_owned(),
        format!("KUBECONFIG={}", kubeconfig.display()),
    ];
    for variable in container.env.iter().flatten() {
        let field = variable
            .value_from
            .as_ref()
            .and_then(|from| from.field_ref.as_ref());
        let value = match field.map(|field| field.field_path.as_str()) {
            Some("metadata.name") => pod.to_owned(),
            Some("metadata.namespace") => NAMESPACE.to_owned(),
            Some(other) => panic!("{other} is not filled in here"),
            None => variable.value.clone().unwrap_or_default(),
        };
        all.push(format!("{}={value}", variable.name));
    }
    all.push(env!("CARGO_BIN_EXE_exuvia").to_owned());
    all.extend(container.args.iter().flatten().cloned());
    let log = control_plane.directory().join(format!("{pod}.log"));
    let process = Process::run("exuvia", "/usr/bin/env", all, log).unwrap();
    Operator { process }
}

/// All that an account was refused.
fn refused(control_plane: &ControlPlane, account: &Access) -> Vec<String> {
    let events = control_plane.audit().of(account.user()).unwrap();
    let refused = events.iter().filter(|event| event.code() == 403);
    refused
        .map(|event| format!("{} {}", event.verb, event.request_uri))
        .collect()
}

/// One object is written by somebody else just when its turn comes: it is read again.
fn somebody_else_writes() -> Rule {
    let rewrite = Match::method(http::Method::PATCH)
        .resource("widgets")
        .except(Match::any().query("dryRun="));
    Rule::on(rewrite).nth(1).then(Fault::refuse(409))
}

#[tokio::test]
async fn installed_with_helm_it_migrates_with_exactly_the_rights_of_the_chart() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let helm = control_plane.helm().unwrap();
    helm.install(
        charts().join("exuvia-crds"),
        "exuvia-crds",
        NAMESPACE,
        &["--create-namespace"],
    )
    .await
    .unwrap();
    let values = values(free_port());
    helm.install(charts().join("exuvia"), "exuvia", NAMESPACE, &["--set", &values])
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("exuvia").await.unwrap();
    let account = deployment.spec.template.clone().spec.unwrap();
    let account = account.service_account_name.unwrap();
    let account = control_plane.service_account(NAMESPACE, &account).await.unwrap();

    let widgets = flipped(&client, GROUP, 12, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let conflict = proxy.inject(somebody_else_writes());
    let operator = start(
        &control_plane,
        &deployment,
        &account.clone().at(proxy.url()),
        "exuvia-0",
    );
    let name = widgets.crd_name();
    in_phase(&client, &name, Phase::Migrated).await;
    assert_eq!(conflict.applied(), 1);
    assert_eq!(
        stored_at(&control_plane, &widgets).await,
        [("v1".to_owned(), 12)].into()
    );
    operator.ready().await;
    label(&client, &widgets, None).await;
    gone(&client, &name).await;
    assert_eq!(refused(&control_plane, &account), Vec::<String>::new());

    // And without each of them something is refused.
    operator.process.kill().unwrap();
    let rendered = Rendered::exuvia(NAMESPACE, &["--set", &values]).await;
    let mut tried = 0;
    let rules = rules_of(&rendered);
    for (kind, index, rule) in &rules {
        for verb in &rule.verbs {
            without(
                &control_plane,
                &widgets,
                &deployment,
                &rendered,
                (kind, *index),
                verb,
            )
            .await;
            tried += 1;
        }
    }
    let verbs: usize = rules.iter().map(|(_, _, rule)| rule.verbs.len()).sum();
    assert_eq!(tried, verbs);
    assert!(verbs >= 20, "the chart renders rules: {verbs}");
}

#[tokio::test]
async fn installed_with_helm_to_look_at_references_it_says_what_may_be_dropped_and_is_refused_nothing() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let client = control_plane.client().unwrap();
    let helm = control_plane.helm().unwrap();
    let crds = charts().join("exuvia-crds");
    helm.install(crds, "exuvia-crds", NAMESPACE, &["--create-namespace"])
        .await
        .unwrap();
    let values = format!("{},lookAtReferences=true", values(free_port()));
    helm.install(charts().join("exuvia"), "exuvia", NAMESPACE, &["--set", &values])
        .await
        .unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let deployment = deployments.get("exuvia").await.unwrap();
    let account = control_plane.service_account(NAMESPACE, "exuvia").await.unwrap();
    let widgets = flipped(&client, GROUP, 3, true).await;
    let _operator = start(&control_plane, &deployment, &account, "exuvia-0");
    let status = in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
    assert_eq!(
        status.droppable_versions,
        Some(vec!["v1alpha1".to_owned()]),
        "{status:?}"
    );
    assert_eq!(refused(&control_plane, &account), Vec::<String>::new());
    let listed = control_plane.audit().of(account.user()).unwrap();
    assert!(
        listed
            .iter()
            .any(|event| event.verb == "list" && event.resource() == "secrets"),
        "it has looked at everything"
    );
}

async fn gone(client: &Client, name: &str) {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until("the migration is removed", async || {
        migrations.get_opt(name).await.ok()?.is_none().then_some(())
    })
    .await;
}

/// Every rule of every role, by the role's namespace (none for the cluster's) and the rule's place in it.
fn rules_of(rendered: &Rendered) -> Vec<(String, usize, PolicyRule)> {
    let roles = rendered.rbac().into_iter();
    let roles = roles.filter(|object| object["kind"].as_str().unwrap().ends_with("Role"));
    let rules = roles.flat_map(|role| {
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
        let place = place(&role);
        rules
            .into_iter()
            .enumerate()
            .map(move |(index, rule)| (place.clone(), index, rule))
    });
    rules.collect()
}

/// A role's kind and namespace: together they name it within the chart.
fn place(role: &Value) -> String {
    format!(
        "{} {}",
        role["kind"].as_str().unwrap(),
        role["metadata"]["namespace"].as_str().unwrap_or_default()
    )
}

/// The first resource of a rule, or its first path.
fn about(rule: &Value) -> String {
    let named = rule["resources"][0].as_str();
    named
        .unwrap_or_else(|| rule["nonResourceURLs"][0].as_str().unwrap())
        .to_owned()
}

/// Runs the operator as an account that lacks one verb of one rule, until it is refused that.
async fn without(
    control_plane: &ControlPlane,
    widgets: &Widgets,
    deployment: &Deployment,
    rendered: &Rendered,
    (role, index): (&str, usize),
    verb: &str,
) {
    let client = control_plane.client().unwrap();
    let name = format!("lacks-{}-{index}-{verb}", role.to_lowercase().replace(' ', "-"));
    let account = control_plane.service_account(NAMESPACE, &name).await.unwrap();
    let mut resource = String::new();
    let mut left = Vec::new();
    for mut object in rendered.rbac() {
        object["metadata"]["name"] =
            json!(format!("{name}-{}", object["metadata"]["name"].as_str().unwrap()));
        if object["kind"].as_str().unwrap().ends_with("Role") {
            if place(&object) == role {
                let rule = &mut object["rules"][index];
                resource = about(rule);
                let verbs = rule["verbs"].as_array_mut().unwrap();
                verbs.retain(|other| other != verb);
                if verbs.is_empty() {
                    object["rules"].as_array_mut().unwrap().remove(index);
                }
            }
            left.push(object.clone());
        } else {
            object["roleRef"]["name"] =
                json!(format!("{name}-{}", object["roleRef"]["name"].as_str().unwrap()));
            object["subjects"][0]["name"] = json!(name);
        }
        create(&client, object).await;
    }
    has_rights(&client, account.user(), &left).await;
    // The Lease of the last one would have to run out first, and one that is there needs not be created.
    let leases: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let _ = leases.delete("exuvia", &DeleteParams::default()).await;
    start_again(&client, widgets, &resource).await;
    let proxy = control_plane.proxy().await.unwrap();
    proxy.inject(somebody_else_writes());
    let operator = start(control_plane, deployment, &account.clone().at(proxy.url()), &name);
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until(&format!("{verb} of {resource} is refused"), async || {
        let found = refused(control_plane, &account);
        let migrated = migrations.get_opt(&widgets.crd_name()).await.ok().flatten();
        let migrated = migrated.and_then(|migration| migration.status?.phase) == Some(Phase::Migrated);
        if migrated {
            label(&client, widgets, None).await; // what is left to do is to remove the migration
        }
        let is_path = resource.starts_with('/');
        let plain = if is_path {
            &resource
        } else {
            resource.split('/').next().unwrap()
        };
        // Who may not patch an object may not even ask for its migration: the chart's admission policy says so first.
        let expected = |request: &String| {
            request.contains(plain) || (plain == "widgets" && request.starts_with("create /apis/exuvia.dev"))
        };
        found.iter().any(expected).then_some(())
    })
    .await;
    operator.process.kill().unwrap();
    let _ = migrations
        .delete(&widgets.crd_name(), &DeleteParams::default())
        .await;
}

/// Waits until the account has all of these: roles take effect a moment after they are made.
async fn has_rights(client: &Client, user: &str, roles: &[Value]) {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    for role in roles {
        let rules: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone()).unwrap();
        for rule in rules {
            let asked = if let Some(resources) = rule.resources {
                let (resource, subresource) = resources[0].split_once('/').unwrap_or((&resources[0], ""));
                json!({"user": user, "resourceAttributes": {
                    "namespace": role["metadata"]["namespace"], "verb": rule.verbs[0],
                    "group": rule.api_groups.unwrap_or_default()[0], "resource": resource, "subresource": subresource,
                    "name": rule.resource_names.and_then(|names| names.first().cloned()),
                }})
            } else {
                let path = &rule.non_resource_urls.unwrap_or_default()[0];
                json!({"user": user, "nonResourceAttributes": {"path": path, "verb": rule.verbs[0]}})
            };
            let review: SubjectAccessReview = serde_json::from_value(json!({"spec": asked})).unwrap();
            until(&format!("{user} may {review:?}"), async || {
                let answer = reviews.create(&PostParams::default(), &review).await.ok()?;
                answer.status?.allowed.then_some(())
            })
            .await;
        }
    }
}

/// A datastore migration that is to begin again: the operator reads it, reports, and takes the annotation off.
async fn failed_datastore_migration(client: &Client) {
    let migrations: Api<DatastoreMigration> = Api::all(client.clone());
    let _ = migrations.delete("failed", &DeleteParams::default()).await;
    let migration = serde_json::from_value(json!({
        "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
        "metadata": {"name": "failed", "annotations": {"exuvia.dev/retry": ""}},
        "spec": {"mappings": [{
            "name": "all",
            "from": {"group": "old.example.org", "version": "v1", "kinds": ["Widget"]},
            "to": {"group": "new.example.org", "version": "v1"},
        }]},
    }))
    .unwrap();
    migrations
        .create(&PostParams::default(), &migration)
        .await
        .unwrap();
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    migrations
        .patch_status("failed", &PatchParams::default(), &failed)
        .await
        .unwrap();
}

/// The CRD is labelled and lists its old version again; where objects matter, they are stored at it.
async fn start_again(client: &Client, widgets: &Widgets, resource: &str) {
    label(client, widgets, Some("true")).await;
    if resource.starts_with("datastoremigrations") {
        failed_datastore_migration(client).await;
    }
    if resource == "widgets" {
        let v1alpha1 = widgets.api(client, "v1alpha1");
        widgets.flip_storage(client, "v1alpha1").await.unwrap();
        // Entries at the old version: moving them is what needs a read.
        for n in 0..2 {
            let touch = Patch::Merge(json!({"spec": {"color": format!("c{}", std::process::id() + n)}}));
            let list = until("objects can be listed after the flip", async || {
                v1alpha1.list(&kube::api::ListParams::default()).await.ok()
            })
            .await;
            let object = list.items[n as usize].metadata.name.clone().unwrap();
            v1alpha1
                .patch(&object, &PatchParams::default(), &touch)
                .await
                .unwrap();
        }
        widgets.flip_storage(client, "v1").await.unwrap();
    }
    let crds: Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = Api::all(client.clone());
    let both = Patch::Merge(json!({"status": {"storedVersions": ["v1alpha1", "v1"]}}));
    crds.patch_status(&widgets.crd_name(), &PatchParams::default(), &both)
        .await
        .unwrap();
}

async fn create(client: &Client, object: Value) {
    async fn made<K>(api: Api<K>, object: Value)
    where
        K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
    {
        let object: K = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let client = client.clone();
    match object["kind"].as_str().unwrap() {
        "ClusterRole" => made::<ClusterRole>(Api::all(client), object).await,
        "ClusterRoleBinding" => made::<ClusterRoleBinding>(Api::all(client), object).await,
        "Role" => made::<Role>(Api::namespaced(client, &namespace), object).await,
        "RoleBinding" => made::<RoleBinding>(Api::namespaced(client, &namespace), object).await,
        other => panic!("{other} is neither a role nor a binding"),
    }
}
