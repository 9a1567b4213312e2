//! The scenarios that every storage migrator should pass.

use exuvia_runtime::machine::Machine;
use exuvia_storage::protocol::StepKind;
use exuvia_storage::{Activity, End, Options, Verified};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use http::Method;
use kube::api::PostParams;

use crate::Bench;

#[tokio::test]
async fn a_clean_crd_gets_no_write() {
    let bench = Bench::installed("clean").await;
    bench.widgets.create(&bench.client, "v1alpha1", 3).await.unwrap();
    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert_eq!(report.end, End::Clean);
    assert!(proxy.writes().is_empty(), "{:?}", proxy.writes());
}

/// PITFALLS A1: resourceVersion moved, bytes at the new version, generation and content unchanged.
#[tokio::test]
async fn objects_at_the_prior_version_are_rewritten_and_nothing_else_changes() {
    let bench = Bench::flipped("happy", 25).await;
    let before = bench
        .control_plane
        .stored(bench.widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    let report = bench.migrate().await;
    assert_eq!(report.end, End::Migrated);
    assert_eq!((report.rewrite.rewritten, report.rewrite.failed), (25, 0));
    assert_eq!(
        report.verified,
        Some(Verified::Proof),
        "the only server was asked itself"
    );
    assert_eq!(bench.stored_versions().await, ["v1"]);
    bench.assert_trimmed_rightly("v1alpha1").await;

    let after = bench
        .control_plane
        .stored(bench.widgets.group(), "widgets")
        .all()
        .await
        .unwrap();
    assert_eq!(before.len(), after.len());
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.key, new.key);
        assert!(new.mod_revision > old.mod_revision);
        let (mut was, mut is) = (old.json().unwrap(), new.json().unwrap());
        assert_eq!(is["apiVersion"], format!("{}/v1", bench.widgets.group()));
        assert_eq!(
            is["metadata"]["managedFields"][0]["apiVersion"], is["apiVersion"],
            "ownership has moved"
        );
        for object in [&mut was, &mut is] {
            object["apiVersion"].take();
            object["metadata"]["managedFields"].take();
        }
        assert_eq!(was, is, "generation and content are unchanged");
    }
}

#[tokio::test]
async fn a_current_object_is_not_written_and_an_old_one_gets_a_rewrite_and_at_most_one_check() {
    let bench = Bench::flipped("onewrite", 6).await;
    for name in ["new-1", "new-2"] {
        let widget = bench.widgets.widget("v1", name);
        bench
            .widgets
            .api(&bench.client, "v1")
            .create(&PostParams::default(), &widget)
            .await
            .unwrap();
    }
    let revision = async |name: &str| {
        let stored = bench
            .control_plane
            .stored(bench.widgets.group(), "widgets")
            .all()
            .await
            .unwrap();
        stored
            .into_iter()
            .find(|stored| stored.name() == name)
            .unwrap()
            .mod_revision
    };
    let current = revision("new-1").await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let report = bench.engine_through(&proxy, bench.options()).run().await.unwrap();
    assert_eq!((report.rewrite.rewritten, report.rewrite.current), (6, 2));
    assert_eq!(
        revision("new-1").await,
        current,
        "a current object is not written"
    );
    for index in 0..6 {
        let name = format!("widget-{index:04}");
        let is_it = |path: &str| path.ends_with(&name);
        let writes = proxy.writes();
        let real = writes
            .iter()
            .filter(|w| is_it(&w.path) && !w.query.contains("dryRun"));
        // One that rewrites; up to one more that verifies it as part of the sample, and finds it unchanged.
        assert!(real.count() <= 2, "{name}");
    }
}

#[tokio::test]
async fn a_resource_of_several_pages_is_migrated_whole() {
    let bench = Bench::flipped("pages", 35).await;
    let identities = bench.identities().await;
    let options = Options {
        page_size: 10,
        ..bench.options()
    };
    let report = bench.engine(options).run().await.unwrap();
    assert_eq!((report.end, report.rewrite.rewritten), (End::Migrated, 35));
    assert_eq!(bench.stored_at("v1alpha1").await, 0);
    assert_eq!(
        bench.identities().await,
        identities,
        "no object was lost or created again"
    );
}

/// PITFALLS B3, B5.
#[tokio::test]
async fn one_bad_object_is_named_the_rest_is_migrated_and_nothing_is_trimmed() {
    let bench = Bench::flipped("partial", 12).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    proxy.inject(
        Rule::on(Match::writes().object("default", "widget-0007"))
            .always()
            .then(Fault::refuse(403)),
    );
    let mut engine = bench.engine_through(&proxy, bench.options());
    let report = engine.run().await.unwrap();
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Failures",
                ..
            }
        ),
        "{:?}",
        report.end
    );
    assert_eq!((report.rewrite.rewritten, report.rewrite.failed), (11, 1));
    let failure = &report.failures.first[0];
    assert_eq!((failure.name.as_str(), failure.class), ("widget-0007", "denied"));
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"], "not trimmed");
    assert_eq!(bench.stored_at("v1alpha1").await, 1);

    // Once it is allowed, the next pass goes on from its R0: what is done gets no second request.
    proxy.clear();
    proxy.forget();
    engine.retry(&exuvia_storage::protocol::Hold::Failures(1));
    let report = engine.run().await.unwrap();
    assert_eq!(
        (report.end, report.rewrite.rewritten, report.rewrite.skipped),
        (End::Migrated, 1, 11)
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS B2: a conflict says that somebody wrote, not at which version.
#[tokio::test]
async fn a_conflict_that_outlives_its_retries_is_not_done() {
    let bench = Bench::flipped("conflict", 5).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    proxy.inject(
        Rule::on(Match::writes().object("default", "widget-0002"))
            .always()
            .then(Fault::refuse(409)),
    );
    let mut engine = bench.engine_through(&proxy, bench.options());
    let report = engine.run().await.unwrap();
    assert!(
        matches!(
            report.end,
            End::Stalled {
                reason: "Failures",
                ..
            }
        ),
        "{:?}",
        report.end
    );
    assert_eq!(report.rewrite.conflict, 1);
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);
    proxy.clear();
    engine.retry(&exuvia_storage::protocol::Hold::Failures(1));
    assert_eq!(engine.run().await.unwrap().end, End::Migrated);
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS B7: only the trim is tried again, and no object gets a second request.
#[tokio::test]
async fn a_label_added_during_the_trim_costs_nothing_but_the_trim() {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    let bench = Bench::flipped("label", 5).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    // The answer is a 409, as a label in that very moment would make it; the label itself is set for good measure.
    let trim = Match::writes().path("*/customresourcedefinitions/*/status");
    // The first such patch is the preflight's dry-run.
    let refused = proxy.inject(Rule::on(trim).nth(2).then(Fault::refuse(409)));
    let crds: kube::Api<CustomResourceDefinition> = kube::Api::all(bench.client.clone());
    let label = kube::api::Patch::Merge(serde_json::json!({"metadata": {"labels": {"a": "b"}}}));
    let mut engine = bench.engine_through(&proxy, bench.options());
    let running = engine.run();
    let labelling = async {
        proxy
            .wait_for(|r| r.path.ends_with("/status") && r.answer == Some(409))
            .await;
        crds.patch(
            &bench.widgets.crd_name(),
            &kube::api::PatchParams::default(),
            &label,
        )
        .await
        .unwrap();
    };
    let (report, ()) = tokio::join!(running, labelling);
    assert_eq!(report.unwrap().end, End::Migrated);
    assert_eq!(refused.applied(), 1);
    let mut writes = proxy.writes();
    writes.retain(|write| !write.query.contains("dryRun=All"));
    // The label may come between the next read and the next trim: then there is a third, and still nothing but trims.
    let mut after_first_trim = writes.iter().skip_while(|write| !write.path.ends_with("/status"));
    assert!(
        after_first_trim.all(|write| write.path.ends_with("/status")),
        "no object is written again: {writes:?}"
    );
    bench.assert_trimmed_rightly("v1alpha1").await;
}

/// PITFALLS B1.
#[tokio::test]
async fn a_second_flip_within_the_hour_is_migrated_again() {
    let bench = Bench::flipped("second", 4).await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    bench
        .widgets
        .flip_storage(&bench.client, "v1alpha1")
        .await
        .unwrap();
    assert_eq!(bench.stored_at("v1").await, 4);
    let report = bench.migrate().await;
    assert_eq!((report.end, report.rewrite.rewritten), (End::Migrated, 4));
    assert_eq!(bench.stored_versions().await, ["v1alpha1"]);
    bench.assert_trimmed_rightly("v1").await;
}

#[tokio::test]
async fn a_429_that_the_writer_waits_out_by_itself_slows_the_sweep_down_at_once() {
    let bench = Bench::flipped("braked", 60).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let rewrites = Match::method(Method::PATCH)
        .resource("widgets")
        .except(Match::any().query("dryRun=All"));
    let enough = Fault::refuse(Answer::status(429).retry_after(1));
    let rule = proxy.inject(Rule::on(rewrites).nth(10).then(enough));
    let options = Options {
        max_concurrency: 4,
        ..bench.options()
    };
    let (halved, mut was_halved) = tokio::sync::watch::channel(false);
    let watcher = move |activity: Activity| {
        let halved = halved.clone();
        let Some(mut progress) = activity.progress.filter(|_| activity.step == StepKind::Rewrite) else {
            return;
        };
        tokio::spawn(async move {
            if progress.wait_for(|now| now.concurrency == 2).await.is_ok() {
                halved.send_replace(true);
            }
        });
    };
    let mut engine = bench.engine_through(&proxy, options).watched_by(watcher);
    let report = engine.run().await.unwrap();
    assert_eq!((report.end, rule.applied()), (End::Migrated, 1));
    assert_eq!(report.rewrite.rewritten, 60, "the writer tried again");
    drop(engine);
    let is_halved = was_halved.wait_for(|halved| *halved).await;
    assert!(is_halved.is_ok(), "nobody told the sweep");
}
