//! What counts as proof: a signal is not a fact, and every trim is judged by etcd's bytes.

mod servers;
mod writers;

use exuvia_storage::{End, MigrationReport, Options, Verified, Verify};
use exuvia_testenv::force_finalize_namespace;
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_testenv::webhook::{Endpoint, WebhookServer};
use http::Method;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::fmt::rfc2822::DateTimePrinter;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::Bench;

/// The sentence of a stalled migration.
fn stalled(report: &MigrationReport, wanted: &str) -> String {
    match &report.end {
        End::Stalled { reason, message } if *reason == wanted => message.to_string(),
        end => panic!("not stalled for {wanted}: {end:?}; {report:?}"),
    }
}

/// Three widgets in namespace default and one, `inside`, in a namespace that was finalized by force; then the flip.
async fn bereft(group: &str) -> Bench {
    let bench = Bench::installed(group).await;
    bench.widgets.create(&bench.client, "v1alpha1", 3).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(bench.client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": group}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let inside = Api::namespaced_with(bench.client.clone(), group, &bench.widgets.resource("v1alpha1"));
    let mut widget = bench.widgets.widget("v1alpha1", "inside");
    widget.metadata.namespace = Some(group.to_owned());
    inside.create(&PostParams::default(), &widget).await.unwrap();
    bench.widgets.flip_storage(&bench.client, "v1").await.unwrap();
    force_finalize_namespace(&bench.client, group).await.unwrap();
    bench
}

/// A healthy webhook that is asked about updates in selected namespaces.
async fn webhook_with_namespace_selector(bench: &Bench) -> WebhookServer {
    let webhooks = bench.control_plane.webhooks().await.unwrap();
    let configuration = webhooks.validating_in_selected_namespaces(bench.widgets.group());
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(configuration).unwrap();
    Api::all(bench.client.clone())
        .create(&PostParams::default(), &configuration)
        .await
        .unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    let dry_run = PatchParams::default().dry_run();
    exuvia_testenv::until("the webhook is asked", async || {
        let nothing = Patch::Merge(json!({}));
        api.patch("widget-0000", &dry_run, &nothing).await.unwrap();
        webhooks.calls(Endpoint::Validate) > 0
    })
    .await;
    webhooks
}

/// PITFALLS A33: the answer is 404, and the object is there.
#[tokio::test]
async fn a_404_about_the_namespace_is_not_gone() {
    let bench = bereft("orphaned").await;
    let _webhooks = webhook_with_namespace_selector(&bench).await;
    let report = bench.migrate().await;
    let old = bench.stored_at("v1alpha1").await;
    assert_eq!(
        bench.stored_versions().await,
        ["v1alpha1", "v1"],
        "trimmed, and etcd holds {old} at v1alpha1: {report:?}"
    );
    stalled(&report, "Failures");
    assert_eq!((report.rewrite.gone, report.rewrite.failed), (0, 1), "{report:?}");
    let failure = &report.failures.first[0];
    assert_eq!(failure.object(), "orphaned/inside");
    assert!(
        failure.message.contains("namespace"),
        "the missing namespace is the cause: {failure:?}"
    );
    assert_eq!(
        (old, bench.stored_at("v1").await),
        (1, 3),
        "the others are migrated"
    );
}

/// Without a webhook nobody looks at the namespace.
#[tokio::test]
async fn an_object_without_its_namespace_is_rewritten_like_any_other() {
    let bench = bereft("homeless").await;
    let report = bench.migrate().await;
    assert_eq!(
        (report.end, report.rewrite.rewritten),
        (End::Migrated, 4),
        "{:?}",
        report.failures
    );
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (0, 4)
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// An object that goes between the list and the patch is gone, and that is not a failure.
#[tokio::test]
async fn a_404_about_the_object_is_gone() {
    use exuvia_testenv::proxy::{Match, Rule};
    let bench = Bench::flipped("goes", 5).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let api = bench.widgets.api(&bench.client, "v1");
    let runtime = tokio::runtime::Handle::current();
    // The first write that is meant: the object is deleted before it reaches the server.
    let meant = Match::writes()
        .object("default", "widget-0003")
        .except(Match::any().query("dryRun=All"));
    proxy.inject(Rule::on(meant).nth(1).on_request(move |_| {
        let (api, (done, deleted)) = (api.clone(), std::sync::mpsc::channel());
        runtime.spawn(async move {
            let gone = api
                .delete("widget-0003", &kube::api::DeleteParams::default())
                .await;
            done.send(gone.map(drop)).unwrap();
        });
        deleted.recv().unwrap().unwrap();
    }));
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert_eq!(
        (report.end, report.rewrite.rewritten, report.rewrite.gone),
        (End::Migrated, 4, 1),
        "{:?}",
        report.failures
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS A39: storedVersions says what somebody wrote there, not what is stored.
#[tokio::test]
async fn stored_versions_that_somebody_else_trimmed_are_not_believed() {
    let bench = Bench::flipped("believed", 20).await;
    bench
        .widgets
        .set_stored_versions(&bench.client, &["v1"])
        .await
        .unwrap();
    assert_eq!(bench.stored_at("v1alpha1").await, 20, "trimmed by another tool");
    let options = Options {
        verify: Verify::Full,
        always: true,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!(
        (bench.stored_at("v1alpha1").await, bench.stored_at("v1").await),
        (0, 20),
        "{report:?}"
    );
    assert_eq!(
        (report.end, report.verified),
        (End::Migrated, Some(Verified::Full))
    );
    assert_eq!(bench.stored_versions().await, ["v1"]);
}

/// A CRD that really is clean is swept anyway, and nothing is written.
#[tokio::test]
async fn a_sweep_that_was_asked_for_finds_a_clean_crd_clean() {
    let bench = Bench::installed("asked").await;
    bench.widgets.create(&bench.client, "v1alpha1", 5).await.unwrap();
    let revisions = async || {
        let stored = bench.control_plane.stored(bench.widgets.group(), "widgets");
        let all = stored.all().await.unwrap();
        all.iter().map(|object| object.mod_revision).collect::<Vec<_>>()
    };
    let before = revisions().await;
    let options = Options {
        verify: Verify::Full,
        always: true,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert!(matches!(report.end, End::Clean | End::Migrated), "{report:?}");
    assert_eq!(report.verified, Some(Verified::Full), "{report:?}");
    assert_eq!(report.verify.current, 5, "each was patched");
    assert_eq!(revisions().await, before);
}

/// What the server stamped is compared with the server's own clock, or a laptop that is an hour late waits for an hour.
#[tokio::test]
async fn a_local_clock_that_is_an_hour_late_does_not_make_it_wait_for_an_hour() {
    let bench = Bench::flipped("lateclock", 3).await;
    let hour = SignedDuration::from_hours(1);
    let crds: Api<CustomResourceDefinition> = Api::all(bench.client.clone());
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    for entry in crd.metadata.managed_fields.iter_mut().flatten() {
        entry.time.as_mut().unwrap().0 += hour;
    }
    let stamped = json!({"metadata": {
        "resourceVersion": crd.metadata.resource_version, "managedFields": crd.metadata.managed_fields,
    }});
    crds.patch(
        &bench.widgets.crd_name(),
        &PatchParams::default(),
        &Patch::Merge(stamped),
    )
    .await
    .unwrap();
    let proxy = bench.control_plane.proxy().await.unwrap();
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&(Timestamp::now() + hour));
    let answer = Answer::status(200)
        .json(&json!({"major": "1", "minor": "37"}))
        .dated(date.unwrap().parse().unwrap());
    let version = Match::method(Method::GET).path("/version");
    let asked = proxy.inject(Rule::on(version).then(Fault::replace(answer)));
    let mut engine = bench.engine_through(&proxy, bench.options());
    let run = tokio::time::timeout(exuvia_testenv::DEADLINE, engine.run());
    assert_eq!(run.await.expect("it waits").unwrap().end, End::Migrated);
    assert!(asked.applied() > 0);
}
