//! What is built from a spec, without a server.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::api::MCPServer;
use crate::controller::dereference::Found;
use crate::controller::validate::validate;

fn server(spec: Value) -> MCPServer {
    serde_json::from_value(json!({
        "apiVersion": "mcp.exuvia.dev/v1beta1",
        "kind": "MCPServer",
        "metadata": {"name": "a", "namespace": "ns", "uid": "u", "generation": 3},
        "spec": spec,
    }))
    .unwrap()
}

fn found(server: MCPServer) -> Found {
    Found {
        server,
        neighbour: None,
        tool_config: None,
        children: BTreeMap::new(),
        deployment: None,
        backend: None,
        headless: None,
        configs: Vec::new(),
        replica_sets: Vec::new(),
        proxies: Vec::new(),
    }
}

fn prepared(found: Found) -> Prepared {
    let accepted = validate(found, Timestamp::now())
        .map_err(|(_, rejection)| rejection)
        .unwrap();
    build(accepted, "runner:1").unwrap()
}

fn deployment(prepared: &Prepared) -> &Value {
    let child = prepared
        .children
        .iter()
        .find(|child| child.kind == ChildKind::Deployment);
    child.unwrap().intent.body()
}

#[test]
fn the_epoch_grows_with_the_template_and_only_with_it() {
    let first = prepared(found(server(json!({"image": "i:1"}))));
    assert_eq!(first.token.to_string(), "u/1");
    let live = |prepared: &Prepared| serde_json::from_value(deployment(prepared).clone()).unwrap();

    let mut same = found(server(json!({"image": "i:1"})));
    same.deployment = Some(live(&first));
    assert_eq!(prepared(same).token.epoch, 1);

    let mut bumped = found(server(json!({"image": "i:2"})));
    bumped.deployment = Some(live(&first));
    assert_eq!(prepared(bumped).token.epoch, 2);

    // A restart that was asked for, and an override of the template, are changes as well.
    let mut restarted = server(json!({"image": "i:1"}));
    let annotations = json!({crate::api::RESTART: "2026-01-01T00:00:00Z"});
    restarted.metadata.annotations = serde_json::from_value(annotations).unwrap();
    let mut restarted = found(restarted);
    restarted.deployment = Some(live(&first));
    assert_eq!(prepared(restarted).token.epoch, 2);
}

#[test]
fn epochs_go_on_after_everything_else_is_gone() {
    let mut known = server(json!({"image": "i:1"}));
    known.status = Some(serde_json::from_value(json!({"epoch": 7})).unwrap());
    assert_eq!(prepared(found(known)).token.epoch, 8);
}

#[test]
fn the_note_counts_more_than_what_runners_can_write_and_absurd_epochs_do_not_count() {
    let noting = |note: &str, epoch: i64| {
        let mut noting = server(json!({"image": "i:1"}));
        noting.annotations_mut().insert(EPOCH.to_owned(), note.to_owned());
        noting.status = Some(serde_json::from_value(json!({"epoch": epoch})).unwrap());
        prepared(found(noting))
    };
    assert_eq!(noting("u/3 another", 7).token.epoch, 4);
    // The same template again, after a crash: what was noted is what is rolled out.
    let crashed = noting("u/3 another", 7).noted;
    assert!(crashed.starts_with("u/4 "), "{crashed}");
    assert_eq!(noting(&crashed, 3).token.epoch, 4);
    // It was rolled out, and the Deployment is gone.
    assert_eq!(noting(&crashed, 4).token.epoch, 5);
    // A note about another server, one that cannot be read, and one that nobody issued: the rest is asked.
    for note in ["other/3 hash", "u/3", "hello", "u/999999999999999999 hash"] {
        assert_eq!(noting(note, 7).token.epoch, 8, "{note}");
        assert_eq!(noting(note, 999_999_999_999_999_999).token.epoch, 1, "{note}");
    }
}

#[test]
fn replicas_are_in_the_intent_only_if_the_spec_says_them() {
    let silent = prepared(found(server(json!({"image": "i"}))));
    assert!(deployment(&silent)["spec"].get("replicas").is_none());
    let three = prepared(found(server(json!({"image": "i", "replicas": 3}))));
    assert_eq!(deployment(&three)["spec"]["replicas"], 3);
}

#[test]
fn every_field_reference_has_its_api_version() {
    let prepared = prepared(found(server(json!({"image": "i"}))));
    let env = &deployment(&prepared)["spec"]["template"]["spec"]["containers"][0]["env"];
    for variable in env.as_array().unwrap() {
        assert_eq!(
            variable["valueFrom"]["fieldRef"]["apiVersion"], "v1",
            "{variable}"
        );
    }
}

#[test]
fn a_policy_is_there_unless_the_spec_switches_it_off() {
    let has = |spec: Value| {
        let prepared = prepared(found(server(spec)));
        prepared
            .children
            .iter()
            .any(|child| child.kind == ChildKind::NetworkPolicy)
    };
    assert!(has(json!({"image": "i"})));
    assert!(!has(json!({"image": "i", "networkPolicy": false})));
}

#[test]
fn what_cannot_be_run_is_rejected_with_a_reason() {
    let reason = |change: &dyn Fn(&mut MCPServer)| {
        let mut server = server(json!({"image": "i"}));
        change(&mut server);
        validate(found(server), Timestamp::now())
            .map(|_| ())
            .unwrap_err()
            .1
            .reason
    };
    assert_eq!(
        reason(&|server| server.metadata.name = Some("a.b".to_owned())),
        "InvalidName"
    );
    assert_eq!(
        reason(&|server| server.metadata.name = Some("1a".to_owned())),
        "InvalidName"
    );
    assert_eq!(
        reason(&|server| server.metadata.name = Some("a".repeat(45))),
        "InvalidName"
    );
    assert_eq!(reason(&|server| server.spec.proxy_port = 8081), "InvalidPort");
    let foo = || vec!["foo".to_owned()];
    assert_eq!(
        reason(&|server| server.spec.allowed_origins = foo()),
        "InvalidOrigin"
    );
    assert_eq!(
        reason(&|server| server.spec.transport = crate::api::Transport::Stdio),
        "NoCommand"
    );
}

#[test]
fn a_tool_config_that_names_no_tools_is_not_accepted() {
    let spec = json!({"image": "i:1", "toolConfigRef": {"name": "few"}});
    let config = |spec: Value| {
        serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPToolConfig", "metadata": {"name": "few"}, "spec": spec,
        }))
        .unwrap()
    };
    // As it may be stored by somebody who did not know that names are needed.
    for (stored, reason) in [
        (None, "ToolConfigNotFound"),
        (Some(config(json!({}))), "NoTools"),
        (Some(config(json!({"toolsFilter": []}))), "NoTools"),
    ] {
        let mut found = found(server(spec.clone()));
        found.tool_config = stored;
        let (_, rejection) = validate(found, Timestamp::now()).unwrap_err();
        assert_eq!(rejection.reason, reason, "{}", rejection.message);
    }
    let mut found = found(server(spec));
    found.tool_config = Some(config(json!({"toolsFilter": ["a"]})));
    assert_eq!(prepared(found).accepted.tools, ["a"]);
}
