//! Copies that have owners.

use exuvia_api::MissingOwner;
use exuvia_datastore::owners::{Absence, Edges, Lookup, Member, Moves, Outcome, Owners, Why};
use exuvia_write::Writer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ListParams};

use super::*;

fn references(object: &DynamicObject) -> &[OwnerReference] {
    object.metadata.owner_references.as_deref().unwrap_or_default()
}

/// PITFALLS A13, D20: what would become of anything else.
#[tokio::test]
async fn the_collector_deletes_what_names_one_group_with_the_uid_of_the_other() {
    let world = world().await;
    let place = world.namespace("control").await;
    let old = widget(&place.old, "till", &[]).await;
    let new = widget(&place.new, "till", &[]).await;
    let config_maps = place.any_config_maps();
    place
        .config_map("new-group-old-uid", &[owned_by(&world.new, "till", uid(&old))])
        .await;
    place
        .config_map("old-group-new-uid", &[owned_by(&world.old, "till", uid(&new))])
        .await;
    let right = [
        ("old-and-right", owned_by(&world.old, "till", uid(&old))),
        ("new-and-right", owned_by(&world.new, "till", uid(&new))),
    ];
    for (name, reference) in &right {
        place.config_map(name, std::slice::from_ref(reference)).await;
    }
    is_collected(&config_maps, "new-group-old-uid").await;
    is_collected(&config_maps, "old-group-new-uid").await;
    world.collects(&config_maps, &world.new).await;
    for (name, reference) in right {
        let lives = place.config_maps.get(name).await.unwrap();
        assert_eq!(lives.metadata.owner_references, Some(vec![reference]));
    }
}

#[tokio::test]
async fn copies_of_three_levels_in_two_namespaces_have_their_own_owners_and_live() {
    let world = world().await;
    let client = world.client();
    let places = [
        world.namespace("levels-a").await,
        world.namespace("levels-b").await,
    ];
    let mut sources = Vec::new();
    for place in &places {
        let shop = place.config_map("shop", &[]).await;
        let root = widget(&place.old, "root", &[]).await;
        let mut foreign = owned_by_config_map(&shop);
        foreign.block_owner_deletion = Some(false);
        let branch = widget(
            &place.old,
            "branch",
            &[foreign, owned_by(&world.old, "root", uid(&root))],
        )
        .await;
        widget(
            &place.old,
            "leaf",
            &[owned_by(&world.old, "branch", uid(&branch))],
        )
        .await;
        sources.extend(place.old.list(&ListParams::default()).await.unwrap().items);
    }
    assert_eq!(sources.len(), 6);

    let mut edges = Edges::default();
    let mut moves = Moves::default();
    for source in &sources {
        let member = Member {
            uids: &[uid(source)],
            wave: 0,
            name: source.metadata.name.as_deref().unwrap(),
        };
        edges.add(
            member,
            references(source).iter().map(|reference| reference.uid.as_str()),
        );
        moves.expect(uid(source));
    }
    let order = edges.order().unwrap();
    assert_eq!(order.passes(0), 3);
    let lookup = Lookup::new(client.clone(), Writer::named("test"));
    let kinds = world.moved();
    let written = async |source: &DynamicObject, moves: &Moves| {
        let owners = Owners {
            kinds: &kinds,
            successors: moves,
            lookup: &lookup,
        };
        let namespace = source.metadata.namespace.as_deref();
        owners
            .rewritten(references(source), (namespace, namespace), MissingOwner::Hold)
            .await
    };
    let leaf = sources
        .iter()
        .find(|source| source.metadata.name.as_deref() == Some("leaf"))
        .unwrap();
    let awaited = references(leaf)[0].uid.clone();
    assert_eq!(written(leaf, &moves).await, Outcome::WaitFor(vec![awaited]));

    for pass in 0..order.passes(0) {
        for source in sources.iter().filter(|source| order.depth(uid(source)) == pass) {
            let Outcome::Ready { references, dropped } = written(source, &moves).await else {
                panic!("{:?} has to wait", source.metadata.name);
            };
            assert_eq!(dropped, []);
            let place = places
                .iter()
                .find(|place| Some(&place.name) == source.metadata.namespace.as_ref());
            let name = source.metadata.name.as_deref().unwrap();
            let target = widget(&place.unwrap().new, name, &references).await;
            moves.note([uid(source)], &successor(&world.new, &target));
        }
    }
    for place in &places {
        world.collects(&place.new, &world.new).await;
        let root = place.new.get("root").await.unwrap();
        let branch = place.new.get("branch").await.unwrap();
        let leaf = place.new.get("leaf").await.unwrap();
        let shop = place.config_maps.get("shop").await.unwrap();
        let mut foreign = owned_by_config_map(&shop);
        foreign.block_owner_deletion = Some(false);
        assert_eq!(
            references(&branch),
            [foreign, owned_by(&world.new, "root", uid(&root))]
        );
        assert_eq!(references(&leaf), [owned_by(&world.new, "branch", uid(&branch))]);
    }
}

/// References that come to light by `unpack` were never seen by the collector.
#[tokio::test]
async fn a_missing_owner_holds_a_copy_or_is_left_out() {
    let world = world().await;
    let place = world.namespace("missing").await;
    let shop = owned_by_config_map(&place.config_map("shop", &[]).await);
    let gone = OwnerReference {
        name: "gone".to_owned(),
        ..shop.clone()
    };
    let unpacked = [gone.clone(), shop.clone()];
    let lookup = Lookup::new(world.client(), Writer::named("test"));
    let owners = Owners {
        kinds: &world.moved(),
        successors: &Moves::default(),
        lookup: &lookup,
    };
    let namespaces = (Some(place.name.as_str()), Some(place.name.as_str()));
    match spawnable(owners.rewritten(&unpacked, namespaces, MissingOwner::Hold)).await {
        Outcome::Held(faults) => {
            assert_eq!(faults.len(), 1);
            assert_eq!(faults[0].to_string(), "its owner ConfigMap gone does not exist");
        }
        other => panic!("{other:?}"),
    }
    let Outcome::Ready { references, dropped } =
        owners.rewritten(&unpacked, namespaces, MissingOwner::Drop).await
    else {
        panic!("it was to be dropped");
    };
    assert_eq!(references, [shop]);
    assert_eq!(dropped[0].why, Why::Missing(Absence::NoObject));

    widget(&place.new, "without", &references).await;
    widget(&place.new, "with", &[gone]).await;
    is_collected(&place.new, "with").await;
    world.collects(&place.new, &world.new).await;
    place.new.get("without").await.unwrap();
}

#[tokio::test]
async fn a_copy_in_another_namespace_than_its_owner_is_held() {
    let world = world().await;
    let place = world.namespace("apart").await;
    let shop = owned_by_config_map(&place.config_map("shop", &[]).await);
    let lookup = Lookup::new(world.client(), Writer::named("test"));
    let owners = Owners {
        kinds: &world.moved(),
        successors: &Moves::default(),
        lookup: &lookup,
    };
    let from = Some(place.name.as_str());
    for (to, said) in [
        (Some("default"), "would be in namespace default"),
        (None, "an object without a namespace cannot have such an owner"),
    ] {
        match owners
            .rewritten(std::slice::from_ref(&shop), (from, to), MissingOwner::Drop)
            .await
        {
            Outcome::Held(faults) => assert!(faults[0].to_string().contains(said), "{}", faults[0]),
            other => panic!("{other:?}"),
        }
    }
}
