//! What objects hold is nobody else's business: no value of theirs shows in logs, events, status, metrics or reports.

use std::process::Command;

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::webhook::{Admission, Conversion, Endpoint};
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::*;

/// Planted wherever an object can hold a value. Long enough that part of it is cut off where texts are cut.
const CANARY: &str = "canary-c0ffee-in-the-coal-mine";

/// Widgets that hold it, stored at v1alpha1 and flipped to v1.
async fn planted(client: &Client, group: &str, change: impl FnOnce(&mut Value)) -> Widgets {
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    change(&mut crd);
    widgets.install_crd(client, crd).await.unwrap();
    let api = widgets.api(client, "v1alpha1");
    for index in 0..4 {
        let mut widget = widgets.widget("v1alpha1", &format!("widget-{index}"));
        widget.data = json!({"spec": {
            "size": 1, "payload": CANARY, "tags": [format!("{CANARY}-{index}")], "parts": {"key": format!("a\n{CANARY}\"b")},
            "legacy": CANARY,
        }});
        let applied = json!({"spec": {"payload": CANARY}}).to_string();
        let annotations = [
            ("token", CANARY.to_owned()),
            ("kubectl.kubernetes.io/last-applied-configuration", applied),
        ];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value));
        widget.metadata.annotations = Some(annotations.into());
        api.create(&PostParams::default(), &widget).await.unwrap();
    }
    widgets.flip_storage(client, "v1").await.unwrap();
    widgets
}

/// Waits until a write that changes nothing is refused, with the canary in the server's words.
async fn is_quoted(client: &Client, widgets: &Widgets) {
    let api = widgets.api(client, "v1");
    until("the server quotes it", async || {
        let nothing = Patch::Merge(json!({}));
        let refused = api
            .patch("widget-0", &PatchParams::default().dry_run(), &nothing)
            .await;
        refused.err().filter(|error| error.to_string().contains(CANARY))
    })
    .await;
}

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    Api::all(client.clone())
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

/// The schema's own rules: the server quotes the value, and so does the rule's author.
async fn refused_by_a_rule(client: &Client) -> Widgets {
    let widgets = planted(client, "rule.example.com", |_| {}).await;
    let rule = json!([
        {"rule": "self != oldSelf"},
        {"rule": "self != oldSelf", "messageExpression": "'the payload ' + self + ' must change'"},
    ]);
    refuse_writes(client, &widgets, "spec/properties/payload", rule, "widget-0").await;
    is_quoted(client, &widgets).await;
    widgets
}

async fn refused_by_a_policy(client: &Client) -> Widgets {
    let widgets = planted(client, "policy.example.com", |_| {}).await;
    create::<ValidatingAdmissionPolicy>(
        client,
        json!({"metadata": {"name": "nosy"}, "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["policy.example.com"], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"],
            }]},
            "validations": [{
                "expression": "false",
                "messageExpression": "'frozen by policy: ' + object.spec.tags[0] + ' and ' + object.metadata.annotations['token']",
            }],
        }}),
    )
    .await;
    create::<ValidatingAdmissionPolicyBinding>(
        client,
        json!({"metadata": {"name": "nosy"}, "spec": {"policyName": "nosy", "validationActions": ["Deny"]}}),
    )
    .await;
    is_quoted(client, &widgets).await;
    widgets
}

async fn refused_by_a_webhook(control_plane: &ControlPlane, client: &Client) -> (Widgets, impl Drop) {
    let widgets = planted(client, "webhook.example.com", |_| {}).await;
    let webhooks = control_plane.webhooks().await.unwrap();
    // It quotes the whole object, so that its message is cut somewhere.
    webhooks.on_validate(Admission::by(|request| {
        let object = &request["oldObject"];
        Admission::deny(format!(
            "frozen by webhook: {} {}",
            object["spec"]["payload"], object["spec"]
        ))
    }));
    create::<ValidatingWebhookConfiguration>(
        client,
        json!({"metadata": {"name": "nosy"}, "webhooks": [{
            "name": "nosy.example.com", "clientConfig": webhooks.client_config(Endpoint::Validate),
            "rules": [{"apiGroups": ["webhook.example.com"], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"]}],
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }]}),
    )
    .await;
    is_quoted(client, &widgets).await;
    (widgets, Kept(webhooks))
}

async fn unconvertible(control_plane: &ControlPlane, client: &Client) -> (Widgets, impl Drop) {
    let webhooks = control_plane.webhooks().await.unwrap();
    let conversion = webhooks.conversion();
    let widgets = planted(client, "convert.example.com", |crd| {
        crd["spec"]["conversion"] = conversion;
    })
    .await;
    webhooks.on_convert(Conversion::fail(format!("cannot convert {CANARY}")));
    is_quoted(client, &widgets).await;
    (widgets, Kept(webhooks))
}

/// Something that must live as long as the test.
struct Kept<T>(#[allow(dead_code)] T);

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {}
}

#[tokio::test]
#[allow(clippy::too_many_lines)] // one story, told once
async fn a_canary_in_every_object_shows_nowhere() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let fine = planted(&client, "fine.example.com", |_| {}).await;
    let by_rule = refused_by_a_rule(&client).await;
    let by_policy = refused_by_a_policy(&client).await;
    let (by_webhook, _webhooks) = refused_by_a_webhook(&control_plane, &client).await;
    let (unconvertible, _conversion) = unconvertible(&control_plane, &client).await;
    let pruned = planted(&client, "pruned.example.com", |crd| {
        let old = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        old["properties"]["legacy"] = json!({"type": "string"});
    })
    .await;
    let all = [&fine, &by_rule, &by_policy, &by_webhook, &unconvertible, &pruned];
    for widgets in all {
        label(&client, widgets, Some("true")).await;
    }
    let operator = Operator::start(
        &control_plane,
        control_plane.admin(),
        "traced",
        &["--log-level=trace", "--lease-duration=30s"],
    );
    in_phase(&client, &fine.crd_name(), Phase::Migrated).await;
    // People are told what it is about anyway.
    for (widgets, reason, parts) in [
        (
            &by_rule,
            "Failures",
            [
                "default/widget-0",
                "spec.payload: Invalid value: …: failed rule: self != oldSelf",
            ],
        ),
        (&by_rule, "Failures", ["the payload …", "must change"]),
        (
            &by_policy,
            "Failures",
            ["ValidatingAdmissionPolicy 'nosy'", "frozen by policy"],
        ),
        (
            &by_webhook,
            "Failures",
            [
                "default/widget-0",
                r#"admission webhook "nosy.example.com" denied the request: frozen by webhook"#,
            ],
        ),
        (
            &unconvertible,
            "Preflight",
            ["default/widget-0", "conversion webhook for"],
        ),
        (&pruned, "Pruning", ["default/widget-0", "spec.legacy"]),
    ] {
        let status = stalled_for(&client, &widgets.crd_name(), reason).await;
        let (_, _, message) = condition(&status, "Stalled");
        for part in parts {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let migrations = migrations.list(&ListParams::default()).await.unwrap();
    let mut shown = vec![
        ("the log".to_owned(), operator.log()),
        ("/metrics".to_owned(), operator.get("/metrics").await.1),
        ("a status".to_owned(), serde_json::to_string(&migrations).unwrap()),
    ];
    for widgets in all {
        let events = events_about(&client, &widgets.crd_name()).await;
        shown.push(("an event".to_owned(), serde_json::to_string(&events).unwrap()));
        assert_small(events);
    }
    let names = all.map(Widgets::crd_name);
    let etcd = control_plane.etcd().endpoint();
    let mut commands: Vec<Vec<&str>> = Vec::new();
    for name in names.iter().filter(|name| **name != unconvertible.crd_name()) {
        let migrate = vec!["migrate", name, "--settle=200ms"];
        commands.extend([[&migrate[..], &["-o", "table"]].concat(), migrate]);
    }
    let name = &names[3];
    commands.extend([
        vec!["migrate", name, "--settle=200ms", "--dry-run"],
        vec!["status", name],
        vec!["users", name, "v1alpha1"],
        vec!["droppable", name, "v1alpha1"],
        vec!["audit", name, "--etcd-endpoint", etcd],
    ]);
    // What cannot be converted may not even be listed, and that is tried for half a minute: meanwhile the others.
    let patiently = ["migrate", "status", "users"].map(|command| {
        let version = (command == "users").then_some("v1alpha1");
        let args: Vec<&str> = [command, &names[4]].into_iter().chain(version).collect();
        let control_plane = &control_plane;
        async move { (format!("{args:?}"), reported(control_plane, &args).await) }
    });
    let others = async {
        let mut printed = Vec::new();
        for command in commands {
            let text = reported(&control_plane, &command).await;
            printed.push((format!("{command:?}"), text));
        }
        printed
    };
    let (patiently, others) = futures::join!(futures::future::join_all(patiently), others);
    shown.extend(patiently.into_iter().chain(others));
    for (what, text) in shown {
        assert!(!text.is_empty(), "{what} is empty");
        // Part of it is as bad as all of it.
        for part in [CANARY, &CANARY[..8]] {
            let at = text
                .find(part)
                .map(|at| text[..at].len().saturating_sub(300)..(at + 100).min(text.len()));
            assert!(
                at.is_none(),
                "{what} shows it: {}",
                text.get(at.unwrap_or_default()).unwrap_or_default()
            );
        }
    }
    let log = operator.log();
    assert!(
        log.contains("DEBUG") && log.contains("widget-0"),
        "this log could have shown it"
    );
}

/// What `exuvia storage …` prints to either stream, as JSON unless told otherwise, with all that can be logged.
async fn reported(control_plane: &ControlPlane, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
    command.arg("-vv").arg("storage").args(args);
    if !args.contains(&"-o") {
        command.args(["-o", "json"]);
    }
    command.env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
