//! A conversion webhook that renames fields: their owners come along, because the server is asked what they own.

use exuvia_storage::End;
use exuvia_testenv::webhook::{Conversion, WebhookServer};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{Bench, managers, pairs, spec_of};

/// As cert-manager and cluster-api do: a field moves one level down, another gets a new name, and the status has its own.
fn convert(mut object: Value, to: &str) -> Value {
    let to_new = to.ends_with("/v1");
    let spec = object["spec"].as_object_mut();
    if let Some(spec) = spec {
        if to_new {
            if let Some(color) = spec.remove("color") {
                spec.insert("paint".into(), json!({ "color": color }));
            }
            if let Some(interval) = spec.remove("interval") {
                spec.insert("every".into(), interval);
            }
        } else {
            if let Some(paint) = spec.remove("paint") {
                spec.insert("color".into(), paint["color"].clone());
            }
            if let Some(every) = spec.remove("every") {
                spec.insert("interval".into(), every);
            }
        }
    }
    if let Some(status) = object["status"].as_object_mut() {
        let (from, into) = if to_new {
            ("phase", "state")
        } else {
            ("state", "phase")
        };
        if let Some(value) = status.remove(from) {
            status.insert(into.into(), value);
        }
    }
    object["apiVersion"] = json!(to);
    object
}

/// It refuses what it cannot read, as real ones do.
fn convert_strictly(object: Value, to: &str) -> Value {
    let interval = object["spec"]["interval"]
        .as_str()
        .or(object["spec"]["every"].as_str());
    assert!(
        interval.is_none_or(|text| text
            .strip_suffix('m')
            .is_some_and(|minutes| minutes.parse::<u32>().is_ok())),
        "{interval:?} is not a number of minutes"
    );
    convert(object, to)
}

async fn installed(group: &str, hooks: &WebhookServer) -> Bench {
    let conversion = hooks.conversion();
    Bench::installed(group, |crd| {
        crd["spec"]["conversion"] = conversion;
        spec_of(crd, 0)["properties"]["interval"] = json!({"type": "string"});
        let new = spec_of(crd, 1)["properties"].as_object_mut().unwrap();
        new.remove("color");
        new.insert(
            "paint".into(),
            json!({"type": "object", "properties": {"color": {"type": "string"}}}),
        );
        new.insert("every".into(), json!({"type": "string"}));
        let status = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["status"];
        let status = status["properties"].as_object_mut().unwrap();
        let phase = status.remove("phase").unwrap();
        status.insert("state".into(), phase);
    })
    .await
}

/// Somebody applies, somebody else applies another field, a third one updates, and a fourth one reports.
async fn written_by_many(bench: &Bench) {
    let spec = |spec: Value| json!({ "spec": spec });
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            spec(json!({"color": "green", "size": 1})),
        )
        .await;
    bench
        .apply("v1alpha1", "clock", "a", spec(json!({"interval": "5m"})))
        .await;
    let by = |manager: &str| PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let tags = spec(json!({"tags": ["x"], "payload": "p"}));
    api.patch("a", &by("kubectl"), &Patch::Merge(tags)).await.unwrap();
    let status = json!({"status": {"phase": "Ready", "conditions": [{"type": "Up", "status": "True"}]}});
    api.patch_status("a", &by("reporter"), &Patch::Merge(status))
        .await
        .unwrap();
    bench.flip().await;
}

/// Everything that somebody could apply at v1, and with whom it is a conflict.
async fn all_conflicts(bench: &Bench) -> Vec<(Value, Vec<String>)> {
    let mut found = Vec::new();
    for spec in [
        json!({"paint": {"color": "red"}}),
        json!({"every": "7m"}),
        json!({"size": 9}),
        json!({"tags": ["y"]}),
        json!({"payload": "q"}),
        json!({"parts": {"new": "1"}}),
    ] {
        let conflicts = bench
            .conflicts("v1", "intruder", "a", json!({ "spec": spec }))
            .await;
        found.push((spec, conflicts.into_iter().collect()));
    }
    found
}

#[tokio::test]
async fn owners_of_renamed_fields_come_along() {
    let hooks = exuvia_testenv::ControlPlane::shared()
        .await
        .webhooks()
        .await
        .unwrap();
    hooks.on_convert(Conversion::by(convert));
    let bench = installed("comealong", &hooks).await;
    written_by_many(&bench).await;
    let before = all_conflicts(&bench).await;
    assert!(before.iter().any(|(_, with)| with == &["flux"]), "{before:?}");
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 0), "{report:?}");
    let live = bench.live("a").await;
    assert_eq!(
        managers(&live),
        pairs(&[
            ("flux", "v1"),
            ("clock", "v1"),
            ("kubectl", "v1"),
            ("reporter", "v1")
        ])
    );
    assert_eq!(all_conflicts(&bench).await, before);
    let entries = json!(live.metadata.managed_fields);
    let of = |manager: &str| {
        let entries = entries.as_array().unwrap();
        entries.iter().find(|entry| entry["manager"] == manager).unwrap()["fieldsV1"].clone()
    };
    assert_eq!(
        of("flux"),
        json!({"f:spec": {"f:paint": {"f:color": {}}, "f:size": {}}})
    );
    assert_eq!(of("clock"), json!({"f:spec": {"f:every": {}}}));
    assert_eq!(of("reporter")["f:status"]["f:state"], json!({}));
    assert_eq!(
        of("reporter")["f:status"]["f:conditions"]["k:{\"type\":\"Up\"}"]["f:status"],
        json!({})
    );
    // The old version can go, and everybody can apply.
    bench
        .widgets
        .drop_version(&bench.client, "v1alpha1")
        .await
        .unwrap();
    let mine = json!({"spec": {"paint": {"color": "blue"}, "size": 2}});
    assert!(bench.conflicts("v1", "flux", "a", mine).await.is_empty());
}

/// A value that the webhook cannot read tells nothing; the next one may.
#[tokio::test]
async fn a_webhook_that_is_strict_about_values_is_asked_with_values_that_it_can_read() {
    let hooks = exuvia_testenv::ControlPlane::shared()
        .await
        .webhooks()
        .await
        .unwrap();
    hooks.on_convert(Conversion::by(convert_strictly));
    let bench = installed("strictly", &hooks).await;
    written_by_many(&bench).await;
    let before = all_conflicts(&bench).await;
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 0), "{report:?}");
    assert_eq!(all_conflicts(&bench).await, before);
}

/// No dry-run of ours may leave a trace: the object is written once.
#[tokio::test]
async fn asking_writes_nothing() {
    let hooks = exuvia_testenv::ControlPlane::shared()
        .await
        .webhooks()
        .await
        .unwrap();
    hooks.on_convert(Conversion::by(convert));
    let bench = installed("asking", &hooks).await;
    written_by_many(&bench).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let config = bench
        .control_plane
        .admin()
        .clone()
        .at(proxy.url())
        .config()
        .unwrap();
    let writer = exuvia_write::Writer::named("exuvia");
    let client = writer.connect(config.clone()).unwrap();
    let options = exuvia_storage::Options {
        settle: std::time::Duration::from_millis(300),
        api_servers: vec![proxy.url().parse().unwrap()],
        ..exuvia_storage::Options::default()
    };
    let mut engine = exuvia_storage::Engine::new(&config, client, writer, bench.widgets.crd_name(), options);
    assert_eq!(engine.run().await.unwrap().end, End::Migrated);
    let is_real = |request: &&exuvia_testenv::proxy::Recorded| {
        request.path.contains("/widgets/") && !request.query.contains("dryRun=All")
    };
    let sent = proxy.writes();
    let real: Vec<_> = sent.iter().filter(is_real).collect();
    let with_entries = |request: &&&exuvia_testenv::proxy::Recorded| {
        String::from_utf8_lossy(&request.body).contains("managedFields")
    };
    assert_eq!(real.iter().filter(with_entries).count(), 1, "{real:?}");
    assert!(real.len() <= 3, "the move, and a check of the sample: {real:?}");
}

/// What cannot be found out is left as it is, and said.
#[tokio::test]
async fn an_entry_whose_fields_cannot_be_found_out_is_left_and_named() {
    let hooks = exuvia_testenv::ControlPlane::shared()
        .await
        .webhooks()
        .await
        .unwrap();
    // It takes the object as it is, and no other.
    hooks.on_convert(Conversion::by(|object: Value, to: &str| {
        let color = object["spec"]["color"]
            .as_str()
            .or(object["spec"]["paint"]["color"].as_str());
        assert!(
            color.is_none_or(|color| color == "green"),
            "{color:?} is not a colour"
        );
        convert(object, to)
    }));
    let bench = installed("undecided", &hooks).await;
    written_by_many(&bench).await;
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 1), "{report:?}");
    assert!(
        report
            .unmoved_example
            .as_ref()
            .unwrap()
            .starts_with("default/a: "),
        "{report:?}"
    );
    let old = format!("{}/v1alpha1", bench.widgets.group());
    assert!(report.owners.at(&old).any(|(manager, _)| manager == "flux"));
}
