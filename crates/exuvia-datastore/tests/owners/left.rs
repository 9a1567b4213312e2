//! Dependents that keep their old owner, and what could not be looked at: all of it named.

use exuvia_datastore::owners::{Dependents, Moves};
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::{Patch, PatchParams};

use super::dependents::till;
use super::*;

#[tokio::test]
async fn a_dependent_that_cannot_get_its_new_owner_is_named_and_left_as_it_is() {
    let world = world().await;
    let client = world.client();
    let [place, elsewhere] = [
        world.namespace("left").await,
        world.namespace("left-elsewhere").await,
    ];
    let old = widget(&place.old, "till", &[]).await;
    let new = widget(&elsewhere.new, "till", &[]).await;
    let mut moves = Moves::default();
    moves.note([uid(&old)], &successor(&world.new, &new));
    let before = place
        .config_map("receipt", &[owned_by(&world.old, "till", uid(&old))])
        .await;
    let kinds = world.moved();
    let dependents = Dependents {
        client: &client,
        kinds: &kinds,
        successors: &moves,
    };
    let scanned = dependents.scan(&|_| {}).await.unwrap();
    let rewritten = dependents.rewrite(&Writer::named("test"), &|_| {}).await.unwrap();
    for found in [scanned, rewritten] {
        assert_eq!(
            (found.count(), found.rewritten, found.failed),
            (1, 0, 1),
            "{found:?}"
        );
        assert_eq!(found.left[0].object, "left/receipt");
        assert!(
            found.left[0].why.contains("is in namespace left-elsewhere"),
            "{}",
            found.left[0].why
        );
    }
    let now = place.config_maps.get("receipt").await.unwrap();
    assert_eq!(now.metadata.resource_version, before.metadata.resource_version);
}

#[tokio::test]
async fn a_dependent_that_may_not_be_written_is_named() {
    let world = world().await;
    let place = world.namespace("refused").await;
    let mut moves = Moves::default();
    let (old, _) = till(world, &place, &mut moves).await;
    place
        .config_map("receipt", &[owned_by(&world.old, "till", uid(&old))])
        .await;
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}]);
    let reader = world
        .control_plane
        .user_with_rules("reader", &rules)
        .await
        .unwrap();
    let client = reader.client().unwrap();
    let kinds = world.moved();
    let dependents = Dependents {
        client: &client,
        kinds: &kinds,
        successors: &moves,
    };
    let found = until("the binding is in force", async || {
        let found = dependents.rewrite(&Writer::named("test"), &|_| {}).await.unwrap();
        found.is_complete().then_some(found)
    })
    .await;
    assert_eq!(
        (found.count(), found.rewritten, found.failed),
        (1, 0, 1),
        "{found:?}"
    );
    assert!(
        found.left[0].why.contains("cannot patch resource"),
        "{}",
        found.left[0].why
    );
}

/// PITFALLS B27.
#[tokio::test]
async fn a_refusal_that_quotes_the_dependent_is_told_without_the_quotation() {
    let world = world().await;
    let client = world.client();
    let place = world.namespace("quoted").await;
    let mut moves = Moves::default();
    let (old, _) = till(world, &place, &mut moves).await;
    place
        .config_map("receipt", &[owned_by(&world.old, "till", uid(&old))])
        .await;
    let secret = json!({"data": {"number": "4111-1111-1111"}});
    let patch = async |patch: &Value, dry_run: bool| {
        let params = PatchParams {
            dry_run,
            ..PatchParams::default()
        };
        place
            .config_maps
            .patch("receipt", &params, &Patch::Merge(patch))
            .await
    };
    patch(&secret, false).await.unwrap();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let policy = json!({"metadata": {"name": "quotes"}, "spec": {
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["*"], "resources": ["configmaps"], "operations": ["UPDATE"]}]},
        "validations": [{"expression": "object.metadata.namespace != 'quoted'",
                         "messageExpression": "'not ' + object.data.number"}],
    }});
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let binding = json!({"metadata": {"name": "quotes"}, "spec": {"policyName": "quotes", "validationActions": ["Deny"]}});
    let params = PostParams::default();
    policies
        .create(&params, &serde_json::from_value(policy).unwrap())
        .await
        .unwrap();
    bindings
        .create(&params, &serde_json::from_value(binding).unwrap())
        .await
        .unwrap();
    until("the policy is in force", async || {
        let tried = patch(&json!({"data": {"tried": "yes"}}), true).await;
        tried.is_err_and(|error| error.to_string().contains("4111-1111-1111"))
    })
    .await;
    let kinds = world.moved();
    let dependents = Dependents {
        client: &client,
        kinds: &kinds,
        successors: &moves,
    };
    let found = dependents.rewrite(&Writer::named("test"), &|_| {}).await.unwrap();
    assert_eq!(
        (found.count(), found.rewritten, found.failed),
        (1, 0, 1),
        "{found:?}"
    );
    let why = &found.left[0].why;
    assert!(why.contains("quotes") && !why.contains("4111-1111-1111"), "{why}");
}

#[tokio::test]
async fn what_may_not_be_listed_is_not_known_and_named() {
    let world = world().await;
    let place = world.namespace("forbidden").await;
    let mut moves = Moves::default();
    let (old, _) = till(world, &place, &mut moves).await;
    place
        .config_map("receipt", &[owned_by(&world.old, "till", uid(&old))])
        .await;
    let admin = world.client();
    let served = admin.list_core_api_resources("v1").await.unwrap().resources;
    let but_secrets: Vec<&str> = served
        .iter()
        .map(|resource| resource.name.as_str())
        .filter(|name| *name != "secrets")
        .collect();
    let groups = admin.list_api_groups().await.unwrap().groups;
    let groups: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let rules = json!([
        {"apiGroups": [""], "resources": but_secrets, "verbs": ["list"]},
        {"apiGroups": groups, "resources": ["*"], "verbs": ["list"]},
    ]);
    let user = world
        .control_plane
        .user_with_rules("secretless", &rules)
        .await
        .unwrap();
    let client = user.client().unwrap();
    let kinds = world.moved();
    let dependents = Dependents {
        client: &client,
        kinds: &kinds,
        successors: &moves,
    };
    let found = until("the binding is in force", async || {
        let found = dependents.scan(&|_| {}).await.unwrap();
        (found.unseen.len() == 1).then_some(found)
    })
    .await;
    assert_eq!(
        (found.unseen[0].what.as_str(), found.unseen[0].forbidden),
        ("secrets", true)
    );
    assert!(!found.is_complete() && found.count() == 1, "{found:?}");
}
