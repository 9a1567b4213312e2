//! New defaults where versions were never stored or are gone, where a webhook converts, and without a namespace.

use exuvia_storage::{End, ManagedFields};
use exuvia_testenv::until;
use exuvia_testenv::webhook::WebhookServer;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::odd::{Answer, differences};
use crate::odd_webhook::{converted, rename_between, text};
use crate::{Bench, managers, pairs, spec_of};

pub(crate) fn with_interval(crd: &mut Value) {
    spec_of(crd, 1)["properties"]["interval"] = json!({"type": "string", "default": "10m"});
}

/// A third version, v1beta1, like v1alpha1.
pub(crate) fn with_beta(crd: &mut Value) {
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    let mut beta = versions[0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    versions.push(beta);
}

pub(crate) fn by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    }
}

const TRIES: [(&str, &str); 4] = [
    ("v1", "intruder"),
    ("v1alpha1", "intruder"),
    ("v1", "flux"),
    ("v1alpha1", "flux"),
];

#[allow(clippy::needless_pass_by_value)] // reads better at the place of use
fn tries(spec: Value) -> Vec<(&'static str, &'static str, Value)> {
    TRIES
        .map(|(version, manager)| (version, manager, json!({"spec": spec})))
        .to_vec()
}

/// An apply that compares at a version which does not have the new field answers 500.
#[tokio::test]
async fn an_entry_at_a_version_that_was_never_stored_does_not_break_apply_where_a_default_is_new() {
    let bench = Bench::installed("neverstored", |crd| {
        with_interval(crd);
        with_beta(crd);
    })
    .await;
    bench
        .apply("v1beta1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench.flip().await;
    let wrong = differences(&bench, &tries(json!({"color": "red", "size": 1}))).await;
    let wrong: Vec<_> = wrong
        .into_iter()
        .filter(|wrong| wrong.contains("is  Failed"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An entry that would make every apply answer 500 is moved although entries are to be kept.
#[tokio::test]
async fn to_keep_entries_does_not_break_apply_where_a_default_is_new() {
    let bench = Bench::installed("keptentries", with_interval).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench.flip().await;
    let tries = tries(json!({"color": "red", "size": 1}));
    let before = bench.tried_all(&tries).await;
    let report = bench
        .engine(|options| options.managed_fields = ManagedFields::Keep)
        .run()
        .await
        .unwrap();
    assert_eq!(report.end, End::Migrated);
    let after = bench.tried_all(&tries).await;
    assert!(
        !after.iter().any(|answer| matches!(answer, Answer::Failed(..))),
        "was {before:?}\nis  {after:?}"
    );
    assert_eq!(managers(&bench.live("a").await), pairs(&[("flux", "v1")]));
}

#[tokio::test]
async fn to_keep_entries_leaves_them_where_no_default_is_new() {
    let bench = Bench::installed("keptold", |_| {}).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench.flip().await;
    let mut keeping = bench.engine(|options| options.managed_fields = ManagedFields::Keep);
    assert_eq!(keeping.run().await.unwrap().end, End::Migrated);
    assert_eq!(managers(&bench.live("a").await), pairs(&[("flux", "v1alpha1")]));
}

/// An apply of nothing answers 500 there, so the default is set by the write that moves the entries.
async fn gone_with_default(group: &str, updaters: usize) -> Bench {
    let bench = Bench::installed(group, |crd| {
        with_interval(crd);
        with_beta(crd);
        crd["spec"]["versions"][0]["storage"] = json!(false);
        crd["spec"]["versions"][2]["storage"] = json!(true);
    })
    .await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let api = bench.widgets.api(&bench.client, "v1beta1");
    for number in 0..updaters {
        let part = json!({"spec": {"parts": {format!("p{number}"): "x"}}});
        api.patch("a", &by(&format!("updater-{number}")), &Patch::Merge(part))
            .await
            .unwrap();
    }
    bench
        .widgets
        .drop_version(&bench.client, "v1alpha1")
        .await
        .unwrap();
    bench.flip().await;
    bench.until_apply_fails(&json!({"spec": {"color": "x"}})).await;
    bench
}

#[tokio::test]
async fn a_new_default_next_to_an_entry_at_a_gone_version_moves_the_generation_by_one() {
    let bench = gone_with_default("gonedefault", 1).await;
    let before = bench.live("a").await.metadata.generation.unwrap();
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.owned), (&End::Migrated, 0));
    let live = bench.live("a").await;
    assert_eq!(
        managers(&live),
        pairs(&[("flux", "v1"), ("updater-0", "v1")]),
        "{report:?}"
    );
    assert_eq!(live.metadata.generation, Some(before + 1));
}

/// The server keeps ten entries of updates and merges the oldest into `ancient-changes`: for a moment, ours is one too many.
#[tokio::test]
async fn ten_updaters_stay_ten_where_our_write_sets_a_default() {
    let bench = gone_with_default("goneten", 10).await;
    let names = |of: std::collections::BTreeSet<(String, String)>| {
        of.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let before = names(managers(&bench.live("a").await));
    assert_eq!(before.len(), 11);
    let report = bench.migrate().await;
    let live = bench.live("a").await;
    assert_eq!(names(managers(&live)), before, "{report:?}");
    assert!(managers(&live).iter().all(|(_, version)| version == "v1"));
    let told = (report.lost_owners, report.owned, report.unmoved);
    assert_eq!(told, (0, 0, 0), "{report:?}");
    assert_eq!(live.data["spec"]["interval"], "10m");
}

/// A finalizer holds it.
#[tokio::test]
async fn an_object_that_is_being_deleted_keeps_its_owners_and_gets_the_default() {
    let bench = Bench::installed("deleting", with_interval).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    api.patch(
        "a",
        &by("holder"),
        &Patch::Merge(json!({"metadata": {"finalizers": ["example.com/hold"]}})),
    )
    .await
    .unwrap();
    api.delete("a", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    bench.flip().await;
    let generation = bench.live("a").await.metadata.generation;
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.owned), (&End::Migrated, 0), "{report:?}");
    let live = bench.live("a").await;
    assert_eq!(managers(&live), pairs(&[("flux", "v1"), ("holder", "v1")]));
    assert_eq!(live.metadata.generation, generation);
    api.patch(
        "a",
        &by("holder"),
        &Patch::Merge(json!({"metadata": {"finalizers": null}})),
    )
    .await
    .unwrap();
}

/// A field gets another name, together with a new default; the webhook `drops` what the old version does not have, as typed ones do.
async fn renaming_with_default(group: &str, drops: bool) -> (Bench, WebhookServer) {
    let new = json!({"after": text(), "interval": {"type": "string", "default": "10m"}});
    converted(group, [json!({"before": text()}), new], move |spec, to_new| {
        rename_between(["before", "after"], spec, to_new);
        if drops && !to_new {
            spec.remove("interval");
        }
    })
    .await
}

/// Such a webhook hands on what it does not know. The server is asked after the default shows, and answers 500 only.
#[tokio::test]
async fn a_new_default_that_the_webhook_hands_on_does_not_keep_the_server_from_answering() {
    let (bench, _hooks) = renaming_with_default("handson", false).await;
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            json!({"spec": {"before": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        ("v1", "intruder", json!({"spec": {"color": "red"}})),
        ("v1", "intruder", json!({"spec": {"after": "y"}})),
        ("v1alpha1", "intruder", json!({"spec": {"color": "red"}})),
    ];
    let wrong = differences(&bench, &tries).await;
    let wrong: Vec<_> = wrong
        .into_iter()
        .filter(|wrong| wrong.contains("is  Failed"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Makes the bench's CRD again without namespaces, applies an object, and flips.
async fn without_namespace(
    bench: &Bench,
    data: Value,
) -> impl Fn(&str) -> kube::Api<kube::api::DynamicObject> {
    let crds = bench.crds();
    let mut crd = crds.get(&bench.widgets.crd_name()).await.unwrap();
    crds.delete(&bench.widgets.crd_name(), &kube::api::DeleteParams::default())
        .await
        .unwrap();
    until("the CRD is gone", async || {
        crds.get_opt(&bench.widgets.crd_name()).await.unwrap().is_none()
    })
    .await;
    crd.metadata = kube::api::ObjectMeta {
        name: crd.metadata.name,
        ..kube::api::ObjectMeta::default()
    };
    crd.spec.scope = "Cluster".into();
    crd.status = None;
    crds.create(&kube::api::PostParams::default(), &crd)
        .await
        .unwrap();
    let (client, widgets) = (bench.client.clone(), bench.widgets.clone());
    let api = move |version: &str| {
        kube::Api::<kube::api::DynamicObject>::all_with(client.clone(), &widgets.resource(version))
    };
    let intent = bench.intent("v1alpha1", "a", data);
    let apply = Patch::Apply(&intent);
    until("v1alpha1 is served", async || {
        let by_flux = PatchParams::apply("flux");
        api("v1alpha1").patch("a", &by_flux, &apply).await
    })
    .await;
    until("v1 is served", async || api("v1").get("a").await).await;
    bench.flip().await;
    api
}

#[tokio::test]
async fn a_new_default_of_an_object_without_a_namespace_leaves_the_generation() {
    let bench = Bench::installed("clusterdefault", with_interval).await;
    let api = without_namespace(&bench, json!({"spec": {"size": 1}})).await;
    let before = api("v1").get("a").await.unwrap();
    let mut nothing = bench.intent("v1", "a", json!({}));
    nothing.metadata.uid = before.metadata.uid.clone();
    let mut nothing = json!(nothing);
    let dry = PatchParams::apply("x").dry_run();
    let applied = api("v1").patch("a", &dry, &Patch::Apply(&nothing)).await.unwrap();
    assert_eq!(
        applied.metadata.generation, before.metadata.generation,
        "an apply of nothing"
    );
    nothing["metadata"]["namespace"] = Value::Null;
    let applied = api("v1").patch("a", &dry, &Patch::Apply(&nothing)).await.unwrap();
    eprintln!(
        "with `namespace: null` the generation is {:?}",
        applied.metadata.generation
    );
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.owned), (&End::Migrated, 0), "{report:?}");
    let after = api("v1").get("a").await.unwrap();
    assert_eq!(managers(&after), pairs(&[("flux", "v1")]));
    assert_eq!(after.metadata.generation, before.metadata.generation);
}

/// Objects without a namespace, a webhook that renames, and a new default.
#[tokio::test]
async fn objects_without_a_namespace_keep_their_owners() {
    let (bench, _hooks) = renaming_with_default("clusterscoped", true).await;
    let api = without_namespace(&bench, json!({"spec": {"before": "x"}})).await;
    let generation = api("v1").get("a").await.unwrap().metadata.generation;
    let report = bench.migrate().await;
    assert_eq!(
        (&report.end, report.unmoved, report.owned, report.lost_owners),
        (&End::Migrated, 0, 0, 0),
        "{report:?}"
    );
    let live = api("v1").get("a").await.unwrap();
    assert_eq!(
        json!(live.metadata.managed_fields.unwrap()[0].fields_v1),
        json!({"f:spec": {"f:after": {}}})
    );
    assert_eq!(live.metadata.generation, generation);
}

#[tokio::test]
async fn a_new_default_behind_a_conversion_webhook_leaves_the_generation() {
    let (bench, _hooks) = renaming_with_default("behindwebhook", true).await;
    bench
        .apply(
            "v1alpha1",
            "flux",
            "a",
            json!({"spec": {"before": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    let before = bench.live("a").await;
    let report = bench.migrate().await;
    assert_eq!(
        (&report.end, report.unmoved, report.owned),
        (&End::Migrated, 0, 0),
        "{report:?}"
    );
    let after = bench.live("a").await;
    assert_eq!(managers(&after), pairs(&[("flux", "v1")]));
    assert_eq!(
        after.metadata.generation, before.metadata.generation,
        "{:?} {:?}",
        before.data, after.data
    );
}

/// A kill between the apply of nothing and the write that moves the entries.
#[tokio::test]
async fn after_a_kill_between_the_two_writes_apply_answers_500_until_the_next_run() {
    let bench = Bench::installed("killed", with_interval).await;
    bench
        .apply("v1alpha1", "flux", "a", json!({"spec": {"size": 1}}))
        .await;
    bench.flip().await;
    let tries = tries(json!({"color": "red", "size": 1}));
    let before = bench.tried_all(&tries).await;
    let mut nothing = bench.intent("v1", "a", json!({}));
    nothing.metadata.uid = bench.live("a").await.metadata.uid;
    let api = bench.widgets.api(&bench.client, "v1");
    api.patch(
        "a",
        &PatchParams::apply("exuvia-rewrites"),
        &Patch::Apply(&nothing),
    )
    .await
    .unwrap();
    assert_eq!(bench.stored().await, [format!("{}/v1", bench.widgets.group())]);
    let between = bench.tried_all(&tries).await;
    assert_eq!(bench.migrate().await.end, End::Migrated);
    let after = bench.tried_all(&tries).await;
    let fails = |answers: &[Answer]| answers.iter().any(|answer| matches!(answer, Answer::Failed(..)));
    assert!(!fails(&before) && !fails(&after), "{before:?} {after:?}");
    assert!(fails(&between), "{between:?}");
}
