//! Who takes part: label, groups, names, the exclusion, and whose `StorageMigration` is whose.

use exuvia_api::{
    EXCLUDE_ANNOTATION, MADE_BY_LABEL, OPERATOR_ANNOTATION, OPT_IN_LABEL, Phase, StorageMigration,
};
use exuvia_testenv::proxy::Match;
use exuvia_testenv::{ControlPlane, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DeleteParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::harness::*;
use crate::oracle::Stop;

async fn migration_of(client: &Client, widgets: &Widgets) -> Option<StorageMigration> {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    migrations.get_opt(&widgets.crd_name()).await.unwrap()
}

/// No migration, nothing written to its objects or its status, and its objects were not even looked at.
async fn assert_untouched(control_plane: &ControlPlane, client: &Client, user: &str, widgets: &Widgets) {
    let names = migration_names(client).await;
    assert!(!names.contains(&widgets.crd_name()), "{names:?}");
    let asked: Vec<_> = control_plane.audit().of(user).unwrap();
    let asked: Vec<_> = asked
        .iter()
        .filter(|event| event.request_uri.contains(widgets.group()))
        .collect();
    assert!(asked.is_empty(), "{asked:?}");
    assert_eq!(stored_versions(client, widgets).await, ["v1alpha1", "v1"]);
    let stored = stored_at(control_plane, widgets).await;
    assert!(!stored.contains_key("v1"), "{stored:?}");
}

#[tokio::test]
async fn label_and_group_decide_together() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let unlabelled = flipped(&client, "unlabelled.example.com", 2, false).await;
    let otherwise = flipped(&client, "otherwise.example.com", 2, false).await;
    label(&client, &otherwise, Some("false")).await;
    let outside = flipped(&client, "badexample.com", 2, true).await;
    let above = flipped(&client, "example.com.bad.dev", 2, true).await;
    // Labelled last: when it is done, the others have been seen.
    let inside = flipped(&client, "a.example.com", 2, true).await;
    in_phase(&client, &inside.crd_name(), Phase::Migrated).await;
    let itself = flipped(&client, "example.com", 2, true).await;
    in_phase(&client, &itself.crd_name(), Phase::Migrated).await;
    for widgets in [unlabelled, otherwise, outside, above] {
        assert_untouched(&shared.control_plane, &client, SHARED_USER, &widgets).await;
    }

    let made = migration_of(&client, &inside).await.unwrap();
    assert_eq!(
        *made.labels(),
        [(MADE_BY_LABEL.to_owned(), "operator".to_owned())].into()
    );
    assert_eq!(
        *made.annotations(),
        [(OPERATOR_ANNOTATION.to_owned(), "default/exuvia".to_owned())].into()
    );
    assert_eq!(made.spec, spec_of(&inside, json!({})));
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = crds.get(&inside.crd_name()).await.unwrap();
    let owners = made.owner_references();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(
        (
            owners[0].api_version.as_str(),
            owners[0].kind.as_str(),
            owners[0].name.as_str()
        ),
        (
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            inside.crd_name().as_str()
        )
    );
    assert_eq!(Some(&owners[0].uid), crd.uid().as_ref());
}

#[tokio::test]
async fn an_exclusion_wins_over_the_label_also_when_it_comes_later() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let exclude = |reason: Option<&str>| json!({"metadata": {"annotations": {EXCLUDE_ANNOTATION: reason}}});
    let excluded = flipped(&client, "excluded.example.com", 2, false).await;
    merge_crd(
        &client,
        &excluded,
        exclude(Some("kept at v1alpha1 for the auditors")),
    )
    .await;
    label(&client, &excluded, Some("true")).await;
    // Without a reason, too: lint complains, but a switch that is off is off.
    let silently = flipped(&client, "silently.example.com", 2, false).await;
    merge_crd(&client, &silently, exclude(Some(""))).await;
    label(&client, &silently, Some("true")).await;

    let later = flipped(&client, "later.example.com", 2, true).await;
    in_phase(&client, &later.crd_name(), Phase::Migrated).await;
    merge_crd(&client, &later, exclude(Some("another tool looks after it"))).await;
    until("its migration goes", async || {
        migration_of(&client, &later).await.is_none().then_some(())
    })
    .await;
    let writes = object_writes(&shared.control_plane, SHARED_USER, later.group()).len();
    later.flip_storage(&client, "v1alpha1").await.unwrap();

    // What comes after it is done, so it has been seen, and let be.
    let last = flipped(&client, "last.example.com", 2, true).await;
    in_phase(&client, &last.crd_name(), Phase::Migrated).await;
    assert_untouched(&shared.control_plane, &client, SHARED_USER, &excluded).await;
    assert_untouched(&shared.control_plane, &client, SHARED_USER, &silently).await;
    assert!(migration_of(&client, &later).await.is_none());
    assert_eq!(
        object_writes(&shared.control_plane, SHARED_USER, later.group()).len(),
        writes
    );

    merge_crd(&client, &later, exclude(None)).await;
    in_phase(&client, &later.crd_name(), Phase::Migrated).await;
    assert_eq!(stored_versions(&client, &later).await, ["v1alpha1"]);
}

#[tokio::test]
async fn one_made_by_hand_is_enough_for_a_labelled_crd_and_never_changed_or_removed() {
    let shared = shared().await;
    let client = shared.control_plane.client().unwrap();
    let widgets = flipped(&client, "hand.example.com", 3, false).await;
    let spec = spec_of(&widgets, json!({"qps": 500, "verify": "Full"}));
    let by_hand = by_hand(&client, "my-own", spec.clone()).await;
    in_phase(&client, "my-own", Phase::Migrated).await;
    label(&client, &widgets, Some("true")).await;
    widgets.flip_storage(&client, "v1alpha1").await.unwrap();
    let generation = async || {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        crds.get(&widgets.crd_name()).await.unwrap().metadata.generation
    };
    let now = generation().await;
    let again = |status: &exuvia_api::StorageMigrationStatus| {
        status.phase == Some(Phase::Migrated)
            && status.observed.as_ref().map(|observed| observed.generation) == now
    };
    status_when(&client, "my-own", "migrated again", again).await;
    assert!(migration_of(&client, &widgets).await.is_none(), "no second one");

    label(&client, &widgets, None).await;
    widgets.flip_storage(&client, "v1").await.unwrap();
    let now = generation().await;
    let again = |status: &exuvia_api::StorageMigrationStatus| {
        status.phase == Some(Phase::Migrated)
            && status.observed.as_ref().map(|observed| observed.generation) == now
    };
    status_when(&client, "my-own", "migrated without the label", again).await;
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let kept = migrations.get("my-own").await.unwrap();
    assert_eq!((&kept.spec, kept.uid()), (&spec, by_hand.uid()));
    assert_eq!(kept.metadata.labels, by_hand.metadata.labels);
    assert_eq!(kept.metadata.owner_references, by_hand.metadata.owner_references);

    // With nobody's left, a labelled CRD gets its own.
    label(&client, &widgets, Some("true")).await;
    migrations
        .delete("my-own", &DeleteParams::default())
        .await
        .unwrap();
    in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
}

#[tokio::test]
async fn a_vendors_own_label_and_a_list_of_names_take_the_place_of_ours_and_of_groups() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let vendors = "toolhive.stacklok.dev/auto-migrate-storage-version";
    let labelled_with = |key: &str| json!({"metadata": {"labels": {key: "true"}}});

    let user = control_plane.user("vendor", &["system:masters"]).unwrap();
    let label = format!("--opt-in-label={vendors}=true");
    let operator = Operator::start(&control_plane, &user, "vendor", &[&label, "--groups=*"]);
    let ours = flipped(&client, "ours.example.com", 2, true).await;
    let theirs = flipped(&client, "theirs.dev", 2, false).await;
    merge_crd(&client, &theirs, labelled_with(vendors)).await;
    in_phase(&client, &theirs.crd_name(), Phase::Migrated).await;
    assert_untouched(&control_plane, &client, "vendor", &ours).await;
    operator.process.stop(std::time::Duration::from_secs(30)).unwrap();

    let user = control_plane.user("named", &["system:masters"]).unwrap();
    let named = flipped(&client, "named.dev", 2, false).await;
    let unlabelled = flipped(&client, "unlabelled.dev", 2, false).await;
    let only = format!("--crds={},{}", named.crd_name(), unlabelled.crd_name());
    let _operator = Operator::start(&control_plane, &user, "named", &[&only]);
    merge_crd(&client, &named, labelled_with(OPT_IN_LABEL)).await;
    in_phase(&client, &named.crd_name(), Phase::Migrated).await;
    // In the group that would be managed, and labelled, but not named.
    assert_untouched(&control_plane, &client, "named", &ours).await;
    assert_untouched(&control_plane, &client, "named", &unlabelled).await;
    // Nobody manages it any more: what an operator made for it goes.
    until("the vendor's migration goes", async || {
        migration_of(&client, &theirs).await.is_none().then_some(())
    })
    .await;
}

/// Two that removed each other's migrations would never come to an end.
#[tokio::test]
async fn two_operators_with_groups_of_their_own_leave_each_others_migrations_alone() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let admin = control_plane.admin();
    let one = Operator::start(&control_plane, admin, "one", &["--lease-name=one"]);
    let other = ["--lease-name=two", "--groups=example.org"];
    let two = Operator::start(&control_plane, admin, "two", &other);
    let first = [
        flipped(&client, "first.example.com", 2, true).await,
        flipped(&client, "first.example.org", 2, true).await,
    ];
    let uids = async || {
        let mut uids = Vec::new();
        for widgets in &first {
            in_phase(&client, &widgets.crd_name(), Phase::Migrated).await;
            uids.push(migration_of(&client, widgets).await.and_then(|made| made.uid()));
        }
        uids
    };
    let made = uids().await;
    // When these are done, each has seen the other's.
    for group in ["second.example.com", "second.example.org"] {
        let second = flipped(&client, group, 2, true).await;
        in_phase(&client, &second.crd_name(), Phase::Migrated).await;
    }
    assert_eq!(uids().await, made);
    for operator in [one, two] {
        assert!(!operator.log().contains("removed"), "{}", operator.log());
    }
}

#[tokio::test]
async fn a_label_that_is_taken_off_right_before_the_trim_keeps_it_from_being_made() {
    let control_plane = control_plane().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "lastminute.example.com", 3, true).await;
    let proxy = control_plane.proxy().await.unwrap();
    let told = Match::any()
        .resource("storagemigrations")
        .object("", widgets.crd_name());
    let stop = Stop::once_stored(&proxy, told, |request| {
        String::from_utf8_lossy(&request.body).contains(r#""phase":"Trimming""#)
    });
    let access = control_plane.admin().clone().at(proxy.url());
    let _operator = Operator::start(&control_plane, &access, "late", &["--lease-duration=30s"]);
    stop.reached().await;
    label(&client, &widgets, None).await;
    stop.go();
    until("its migration goes", async || {
        migration_of(&client, &widgets).await.is_none().then_some(())
    })
    .await;
    assert_eq!(stored_versions(&client, &widgets).await, ["v1alpha1", "v1"]);
}
