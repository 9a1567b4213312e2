//! Objects that are not moved and are owned by moved ones.

use exuvia_datastore::owners::{Dependents, Found, Moves, Rewrite};
use exuvia_testenv::proxy::Proxy;
use exuvia_write::Writer;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;

use super::*;

/// Two tills of one name, an old one and its copy, and what became of the old one.
pub(crate) async fn till(world: &World, place: &Place, moves: &mut Moves) -> (DynamicObject, DynamicObject) {
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

/// A till that is moved, and what it owns: two that stay, one that is moved too, one of its kind that stays. Besides, a widget
/// that is not moved and what that owns.
struct Shop {
    place: Place,
    /// The references that the receipt is to have.
    wanted: Vec<OwnerReference>,
    drawer: DynamicObject,
}

async fn shop(world: &World, namespace: &str, moves: &mut Moves) -> Shop {
    let place = world.namespace(namespace).await;
    let (old, new) = till(world, &place, moves).await;
    let of_till = owned_by(&world.old, "till", uid(&old));
    let shop = owned_by_config_map(&place.config_map("shop", &[]).await);
    place
        .config_map("receipt", &[shop.clone(), of_till.clone()])
        .await;
    let secrets: Api<Secret> = Api::namespaced(world.client(), namespace);
    let secret = json!({"metadata": {"name": "pin", "ownerReferences": [of_till]}});
    let secret = serde_json::from_value(secret).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let drawer = widget(&place.old, "drawer", std::slice::from_ref(&of_till)).await;
    moves.expect(uid(&drawer));
    widget(&place.old, "stays", &[of_till]).await;
    let other = widget(&place.old, "other", &[]).await;
    place
        .config_map("others", &[owned_by(&world.old, "other", uid(&other))])
        .await;
    Shop {
        place,
        wanted: vec![shop, owned_by(&world.new, "till", uid(&new))],
        drawer,
    }
}

#[tokio::test]
async fn dependents_that_are_not_moved_get_their_new_owner_in_one_write_and_live() {
    let world = world().await;
    let proxy = world.control_plane.proxy().await.unwrap();
    let through = proxy.client().unwrap();
    let mut moves = Moves::default();
    let shops = [
        shop(world, "stay-a", &mut moves).await,
        shop(world, "stay-b", &mut moves).await,
    ];
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
    let mut expected: Vec<String> = shops
        .iter()
        .flat_map(|Shop { place, .. }| {
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
    for Shop {
        place,
        wanted,
        drawer,
    } in &shops
    {
        let receipt = place.config_maps.get("receipt").await.unwrap();
        let references = receipt.metadata.owner_references.unwrap();
        assert_eq!(&references, wanted, "each has its own till");
        assert_eq!(receipt.data.unwrap()["kept"], "yes");
        let now = place.old.get("drawer").await.unwrap();
        assert_eq!(now.metadata.resource_version, drawer.metadata.resource_version);
    }

    proxy.forget();
    let again = dependents.rewrite(&writer, &|_| {}).await.unwrap();
    assert_eq!((again.count(), again.rewritten), (0, 0), "{again:?}");
    assert_eq!(patches(&proxy), [""; 0]);

    // The old owners go, and take along what they still own.
    for Shop { place, .. } in &shops {
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
