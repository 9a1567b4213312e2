//! Objects that are not moved and are owned by moved ones.

use exuvia_datastore::owners::{Dependents, Found, Moves, Rewrite};
use exuvia_testenv::proxy::Proxy;
use exuvia_write::Writer;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;

use super::*;

/// Two tills of one name, an old one and its copy, and what became of the old one.
async fn till(world: &World, place: &Place, moves: &mut Moves) -> (DynamicObject, DynamicObject) {
    let old = widget(&place.old, "till", &[]).await;
    let new = widget(&place.new, "till", &[]).await;
    moves.note([uid(&old)], &successor(&world.new, &new));
    (old, new)
}

fn patches(proxy: &Proxy) -> Vec<String> {
    proxy
        .writes()
        .iter()
        .map(|write| {
            format!(
                "{} {} {:?}",
                write.method,
                write.path,
                write.answer.unwrap_or_default()
            )
        })
        .collect()
}

#[tokio::test]
async fn dependents_that_are_not_moved_get_their_new_owner_in_one_write_and_live() {
    let world = world().await;
    let proxy = world.control_plane.proxy().await.unwrap();
    let through = proxy.client().unwrap();
    let places = [world.namespace("stay-a").await, world.namespace("stay-b").await];
    let mut moves = Moves::default();
    let mut wanted = Vec::new();
    let mut drawers = Vec::new();
    for place in &places {
        let (old, new) = till(world, place, &mut moves).await;
        let shop = owned_by_config_map(&place.config_map("shop", &[]).await);
        place
            .config_map(
                "receipt",
                &[shop.clone(), owned_by(&world.old, "till", uid(&old))],
            )
            .await;
        wanted.push(vec![shop, owned_by(&world.new, "till", uid(&new))]);
        let secrets: Api<Secret> = Api::namespaced(world.client(), &place.name);
        let secret = json!({"metadata": {"name": "pin", "ownerReferences": [owned_by(&world.old, "till", uid(&old))]}});
        secrets
            .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
            .await
            .unwrap();
        // Moved itself, and so not a dependent that stays.
        let drawer = widget(&place.old, "drawer", &[owned_by(&world.old, "till", uid(&old))]).await;
        moves.expect(uid(&drawer));
        drawers.push(drawer);
        // Not moved, and its dependent neither.
        let other = widget(&place.old, "other", &[]).await;
        place
            .config_map("others", &[owned_by(&world.old, "other", uid(&other))])
            .await;
        // Of a moved kind, not moved, and owned by a moved object.
        widget(&place.old, "stays", &[owned_by(&world.old, "till", uid(&old))]).await;
    }
    let kinds = world.moved();
    let dependents = Dependents {
        client: &through,
        kinds: &kinds,
        successors: &moves,
    };
    let writer = Writer::named("test");
    let found: Found = dependents.scan(&|_| {}).await.unwrap();
    assert_eq!(patches(&proxy), [""; 0], "a scan writes nothing");
    let counts: Vec<_> = found
        .dependents
        .iter()
        .map(|(resource, examples)| (resource.as_str(), examples.objects))
        .collect();
    assert_eq!(
        counts,
        [("configmaps", 2), ("secrets", 2), ("widgets.old.example.com", 2)]
    );
    assert_eq!(
        found.dependents["configmaps"].names,
        ["stay-a/receipt", "stay-b/receipt"]
    );
    assert!(found.unmoved["configmaps"].objects >= 2, "{found:?}");
    assert!(found.is_complete() && found.count() == 6, "{found:?}");

    let rewritten = spawnable(dependents.rewrite(&writer, &|_| {})).await.unwrap();
    assert_eq!(
        (rewritten.rewritten, rewritten.gone, rewritten.failed),
        (6, 0, 0),
        "{rewritten:?}"
    );
    let mut sent = patches(&proxy);
    sent.sort();
    let mut expected: Vec<String> = places
        .iter()
        .flat_map(|place| {
            [
                format!("PATCH /api/v1/namespaces/{}/configmaps/receipt 200", place.name),
                format!("PATCH /api/v1/namespaces/{}/secrets/pin 200", place.name),
                format!(
                    "PATCH /apis/old.example.com/v1/namespaces/{}/widgets/stays 200",
                    place.name
                ),
            ]
        })
        .collect();
    expected.sort();
    assert_eq!(sent, expected, "one write each");
    for (place, wanted) in places.iter().zip(wanted) {
        let receipt = place.config_maps.get("receipt").await.unwrap();
        assert_eq!(
            receipt.metadata.owner_references,
            Some(wanted),
            "each has its own till"
        );
        assert_eq!(receipt.data.unwrap()["kept"], "yes");
    }
    for drawer in &drawers {
        let place = places
            .iter()
            .find(|place| Some(&place.name) == drawer.metadata.namespace.as_ref())
            .unwrap();
        let now = place.old.get("drawer").await.unwrap();
        assert_eq!(now.metadata.resource_version, drawer.metadata.resource_version);
    }

    proxy.forget();
    let again = dependents.rewrite(&writer, &|_| {}).await.unwrap();
    assert_eq!((again.count(), again.rewritten), (0, 0), "{again:?}");
    assert_eq!(patches(&proxy), [""; 0]);

    // The old owners go, and take along what they still own.
    for place in &places {
        for name in ["till", "other"] {
            place.old.delete(name, &DeleteParams::background()).await.unwrap();
        }
        let config_maps = place.any_config_maps();
        is_collected(&config_maps, "others").await;
        is_collected(&place.old, "drawer").await;
        world.collects(&config_maps, &world.new).await;
        world.collects(&place.old, &world.new).await;
        place.config_maps.get("receipt").await.unwrap();
        place.old.get("stays").await.unwrap();
        let secrets: Api<Secret> = Api::namespaced(world.client(), &place.name);
        secrets.get("pin").await.unwrap();
    }
}

async fn metadata(place: &Place, name: &str) -> PartialObjectMeta {
    place.any_config_maps().get_metadata(name).await.unwrap()
}

#[tokio::test]
async fn a_dependent_that_changed_in_between_still_ends_right() {
    let world = world().await;
    let proxy = world.control_plane.proxy().await.unwrap();
    let through = proxy.client().unwrap();
    let place = world.namespace("between").await;
    let mut moves = Moves::default();
    let (old, new) = till(world, &place, &mut moves).await;
    let old_reference = owned_by(&world.old, "till", uid(&old));
    let new_reference = owned_by(&world.new, "till", uid(&new));
    let shop = owned_by_config_map(&place.config_map("shop", &[]).await);
    for name in ["changed", "freed", "deleted", "recreated"] {
        place.config_map(name, std::slice::from_ref(&old_reference)).await;
    }
    let kinds = world.moved();
    let dependents = Dependents {
        client: &through,
        kinds: &kinds,
        successors: &moves,
    };
    let writer = Writer::named("test");
    let config_maps = ApiResource::erase::<ConfigMap>(&());
    let stale = |name: &'static str| metadata(&place, name);
    let change = async |name: &str, patch: Value| {
        place
            .config_maps
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    };

    let read = stale("changed").await;
    let owners = [&old_reference, &shop];
    change(
        "changed",
        json!({"metadata": {"labels": {"new": "yes"}, "ownerReferences": owners}}),
    )
    .await;
    let rewrite = dependents.rewrite_one(&writer, &config_maps, &read).await;
    assert_eq!(rewrite, Rewrite::Rewritten);
    let path = "/api/v1/namespaces/between/configmaps/changed";
    assert_eq!(
        patches(&proxy),
        [format!("PATCH {path} 409"), format!("PATCH {path} 200")]
    );
    let changed = place.config_maps.get("changed").await.unwrap();
    assert_eq!(
        changed.metadata.owner_references,
        Some(vec![new_reference, shop.clone()])
    );
    assert_eq!(changed.metadata.labels.unwrap()["new"], "yes");

    let read = stale("freed").await;
    change("freed", json!({"metadata": {"ownerReferences": [shop]}})).await;
    proxy.forget();
    let rewrite = dependents.rewrite_one(&writer, &config_maps, &read).await;
    assert_eq!(rewrite, Rewrite::Unchanged);
    assert_eq!(patches(&proxy).len(), 1, "the one that met the conflict");
    let freed = place.config_maps.get("freed").await.unwrap();
    assert_eq!(freed.metadata.owner_references.unwrap().len(), 1);

    for (name, is_made_again) in [("deleted", false), ("recreated", true)] {
        let read = stale(name).await;
        place
            .config_maps
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
        if is_made_again {
            place.config_map(name, &[]).await;
        }
        let rewrite = dependents.rewrite_one(&writer, &config_maps, &read).await;
        assert_eq!(rewrite, Rewrite::Gone, "{name}");
    }
    let recreated = place.config_maps.get("recreated").await.unwrap();
    assert_eq!(recreated.metadata.owner_references, None);
}

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
