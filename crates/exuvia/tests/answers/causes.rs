//! Why an object was not done: who refused it, which field it is about and by which rule, without what the object holds.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use exuvia_testenv::webhook::{Admission, Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets, until};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::{Value, json};

use super::{exuvia, migrate, printed, text};

const CANARY: &str = "canary-c0ffee";

/// Widgets that hold the canary, and words that causes have as well; rules in both versions; flipped.
async fn planted(client: &Client, group: &str, rules: Value) -> Widgets {
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1alpha1");
    for version in crd["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"];
        spec["x-kubernetes-validations"] = rules.clone();
    }
    widgets.install_crd(client, crd).await.unwrap();
    let mut widget = widgets.widget("v1alpha1", "one");
    widget.data = json!({"spec": {
        "size": 1, "payload": CANARY, "color": "must grow", "tags": ["nosy.example.com", "spec.payload", "Invalid value"],
    }});
    let api = widgets.api(client, "v1alpha1");
    api.create(&PostParams::default(), &widget).await.unwrap();
    widgets.flip_storage(client, "v1").await.unwrap();
    widgets
}

/// Waits until a write that changes nothing is refused, and returns what the server says, which quotes the object.
async fn refused(client: &Client, widgets: &Widgets) -> String {
    let api = widgets.api(client, "v1");
    let nothing = Patch::Merge(json!({}));
    let params = PatchParams::default().dry_run();
    let said = until("it is refused", async || {
        match api.patch("one", &params, &nothing).await {
            Err(kube::Error::Api(status)) => Ok(status.message.clone()),
            other => Err(other),
        }
    })
    .await;
    assert!(said.contains(CANARY), "{said}");
    said
}

/// What the server said, and what we print: every part is in both, the canary never in ours.
async fn assert_told(widgets: &Widgets, said: &str, parts: &[&str]) {
    let control_plane = ControlPlane::shared().await;
    let crd = widgets.crd_name();
    for flags in [&[][..], &["-o", "json"], &["-vv"]] {
        let ours = printed(&migrate(control_plane, &[&[crd.as_str()], flags].concat()).await);
        assert!(!ours.contains(CANARY), "{flags:?}: {ours}");
        for part in parts {
            let in_json = part.replace('"', "\\\"");
            assert!(
                said.replace(&format!("\"{CANARY}\""), "…")
                    .replace(CANARY, "…")
                    .contains(part),
                "{part} in {said}"
            );
            assert!(
                ours.contains(part) || ours.contains(&in_json),
                "{flags:?}: {part:?} is not in {ours}\nsaid: {said}"
            );
        }
    }
}

#[tokio::test]
async fn a_rules_message_is_told_with_its_field() {
    let client = ControlPlane::shared().await.client().unwrap();
    let rules = json!([
        {"rule": "self.size > oldSelf.size", "message": "must grow"},
        {"rule": "self.payload != oldSelf.payload", "fieldPath": ".payload"},
        {"rule": "self != oldSelf", "messageExpression": "'this one holds ' + self.payload + ' still'"},
    ]);
    let widgets = planted(&client, "rules.causes.io", rules).await;
    let said = refused(&client, &widgets).await;
    let parts = [
        "spec: Invalid value: must grow",
        "spec.payload: Invalid value: failed rule: self.payload != oldSelf.payload",
        "spec: Invalid value: this one holds … still",
    ];
    assert_told(&widgets, &said, &parts).await;
}

/// A webhook that answers each update of planted widgets like this; and what the server says then.
async fn refused_by_webhook(
    group: &str,
    name: &str,
    answer: impl Fn(&Value) -> Admission + Send + Sync + 'static,
) -> (WebhookServer, Widgets, String) {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = planted(&client, group, json!([])).await;
    let webhooks = control_plane.webhooks().await.unwrap();
    webhooks.on_validate(Admission::by(move |request| {
        answer(&request["oldObject"]["spec"]["payload"])
    }));
    let configuration = json!({"metadata": {"name": name}, "webhooks": [{
        "name": name, "clientConfig": webhooks.client_config(Endpoint::Validate),
        "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"]}],
        "sideEffects": "None", "admissionReviewVersions": ["v1"],
    }]});
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    let api = Api::all(client.clone());
    api.create(&PostParams::default(), &configuration).await.unwrap();
    let said = refused(&client, &widgets).await;
    (webhooks, widgets, said)
}

/// The API server repeats the body of an answer that is not 200.
#[tokio::test]
async fn a_webhook_that_is_out_of_order_is_named_and_may_not_quote_objects() {
    let fail = |payload: &Value| Admission::Fail(format!("cannot cope with {payload}"));
    let (_webhooks, widgets, said) = refused_by_webhook("broken.causes.io", "broken.example.com", fail).await;
    let parts = [
        r#"failed calling webhook "broken.example.com""#,
        "cannot cope with",
    ];
    assert_told(&widgets, &said, &parts).await;
}

/// As webhooks that are built with Kubernetes' own libraries say it.
#[tokio::test]
async fn a_webhook_is_named_and_so_is_what_it_wants() {
    let deny = |payload: &Value| {
        Admission::deny(format!(
            "Widget.webhook.causes.io \"one\" is invalid: [spec.issuerRef: Required value: must be specified, spec.payload: \
             Invalid value: {payload}: must be lower case, spec.tags: Too many: 3: must have at most 2 items]"
        ))
    };
    let (_webhooks, widgets, said) = refused_by_webhook("webhook.causes.io", "nosy.example.com", deny).await;
    let parts = [
        r#"admission webhook "nosy.example.com" denied the request"#,
        "spec.issuerRef: Required value: must be specified",
        "spec.payload: Invalid value: …: must be lower case",
        "spec.tags: Too many: 3: must have at most 2 items",
    ];
    assert_told(&widgets, &said, &parts).await;
}

#[tokio::test]
async fn a_policys_message_is_told_and_what_cannot_be_told_apart_is_left_out() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = planted(&client, "policy.causes.io", json!([])).await;
    let policy = json!({"metadata": {"name": "causes"}, "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": ["policy.causes.io"], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"],
        }]},
        "validations": [{"expression": "false", "messageExpression": "'frozen until Monday: ' + object.spec.payload"}],
    }});
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(policy).unwrap();
    let binding = json!({"metadata": {"name": "causes"}, "spec": {"policyName": "causes", "validationActions": ["Deny"]}});
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(binding).unwrap();
    let params = PostParams::default();
    Api::all(client.clone()).create(&params, &policy).await.unwrap();
    Api::all(client.clone()).create(&params, &binding).await.unwrap();
    let said = refused(&client, &widgets).await;
    let who = "ValidatingAdmissionPolicy 'causes' with binding 'causes' denied request";
    assert_told(&widgets, &said, &[who, "frozen until Monday: …"]).await;

    // Who may not read objects cannot compare; the cause is told anyway.
    let rules = json!([
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["get", "list"]},
        {"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["get"]},
        {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions/status"], "verbs": ["patch"]},
        {"apiGroups": ["policy.causes.io"], "resources": ["widgets"], "verbs": ["list", "patch"]},
    ]);
    let user = control_plane.user_with_rules("unseeing", &rules).await.unwrap();
    let kubeconfig = user.kubeconfig().unwrap();
    let (crd, server) = (widgets.crd_name(), control_plane.apiserver().url());
    let args = [
        "storage",
        "migrate",
        &crd,
        "--settle",
        "300ms",
        "--apiserver",
        server,
    ];
    let mut ours = String::new();
    // The binding takes effect when the authoriser has seen it.
    while !ours.contains("not done") {
        ours = printed(&exuvia(kubeconfig.clone(), &args).await);
        assert!(!ours.contains(CANARY) && !ours.contains("Monday"), "{ours}");
    }
    assert!(ours.contains(who) && ours.contains("could not be read"), "{ours}");
}

/// What it prints to a terminal, and how it exits.
fn at_a_terminal(mut command: Command) -> (Option<i32>, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options()
        .read(true)
        .write(true)
        .open(name.to_str().unwrap())
        .unwrap();
    command.stdin(Stdio::null());
    command.stdout(terminal.try_clone().unwrap()).stderr(terminal);
    let mut child = command.spawn().unwrap();
    drop(command); // and with it our hold on the terminal
    let mut shown = Vec::new();
    let mut master = File::from(master);
    let mut piece = [0; 4096];
    // A terminal that everybody has left answers with an error.
    while let Ok(read @ 1..) = master.read(&mut piece) {
        shown.extend_from_slice(&piece[..read]);
    }
    (child.wait().unwrap().code(), text(&shown))
}

#[tokio::test]
async fn values_are_shown_to_a_person_at_a_terminal_who_asks_and_to_nobody_else() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let rules = json!([{"rule": "self != oldSelf", "messageExpression": "'it holds ' + self.payload"}]);
    let widgets = planted(&client, "shown.causes.io", rules).await;
    refused(&client, &widgets).await;
    let crd = widgets.crd_name();
    let piped = migrate(control_plane, &[&crd, "--show-values"]).await;
    let error = text(&piped.stderr);
    assert_eq!(piped.status.code(), Some(2), "{error}");
    assert!(
        error.contains("works only at a terminal") && !error.contains(CANARY),
        "{error}"
    );

    for (flags, shows) in [
        (&["--show-values"][..], true),
        (&["--show-values", "-vv"], true),
        (&[], false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_exuvia"));
        let server = control_plane.apiserver().url();
        command.args([
            "storage",
            "migrate",
            &crd,
            "--settle",
            "300ms",
            "--apiserver",
            server,
        ]);
        command.args(flags);
        command.env("KUBECONFIG", control_plane.admin().kubeconfig().unwrap());
        let shown = tokio::task::spawn_blocking(move || at_a_terminal(command));
        let (code, shown) = shown.await.unwrap();
        assert_eq!(code, Some(1), "{shown}");
        assert_eq!(shown.contains(&format!("it holds {CANARY}")), shows, "{shown}");
    }
}
