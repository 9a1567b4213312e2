//! Owners and dependents across a whole migration, with the garbage collector at work.

use std::sync::atomic::{AtomicU64, Ordering};

use exuvia_api::datastore_reason as reason;
use exuvia_datastore::protocol::{Hold, Step};
use exuvia_runtime::machine::Ended;
use exuvia_testenv::{Widgets, until};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::{Stage, made, owned_by, up_to};

/// The uid of nobody.
const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Waits until the collector has dealt with an object that was made just now in `api`, and so with what was there before.
async fn collects(api: &Api<DynamicObject>, resource: &ApiResource, owner: &Widgets) {
    static CANARIES: AtomicU64 = AtomicU64::new(0);
    for _ in 0..2 {
        let name = format!("canary-{}", CANARIES.fetch_add(1, Ordering::Relaxed));
        let mut canary = DynamicObject::new(&name, resource);
        canary.metadata.owner_references = Some(vec![OwnerReference {
            api_version: format!("{}/v1", owner.group()),
            kind: "Widget".to_owned(),
            name: "nobody".to_owned(),
            uid: NOBODY.to_owned(),
            ..OwnerReference::default()
        }]);
        made(api, &canary).await;
        until(&format!("{name} is collected"), async || {
            api.get_opt(&name).await.is_ok_and(|there| there.is_none())
        })
        .await;
    }
}

fn in_namespace(stage: &Stage, namespace: &str, widgets: &Widgets) -> Api<DynamicObject> {
    Api::namespaced_with(stage.client.clone(), namespace, &widgets.resource("v1"))
}

async fn widget(
    api: &Api<DynamicObject>,
    widgets: &Widgets,
    name: &str,
    owners: &[OwnerReference],
) -> DynamicObject {
    let mut widget = DynamicObject::new(name, &widgets.resource("v1")).data(json!({"spec": {"size": 1}}));
    widget.metadata.owner_references = Some(owners.to_vec()).filter(|owners| !owners.is_empty());
    made(api, &widget).await
}

fn named(object: &DynamicObject) -> Vec<(String, String)> {
    let owners = object.metadata.owner_references.iter().flatten();
    owners
        .map(|owner| (owner.api_version.clone(), owner.uid.clone()))
        .collect()
}

#[tokio::test]
async fn three_levels_in_two_namespaces_keep_their_owners_and_nothing_is_collected() {
    let stage = Stage::new("levels", 0).await;
    let second = "levels-too";
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": second}})).unwrap();
    Api::all(stage.client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let places = [stage.name.as_str(), second];
    let config_map = ApiResource::erase::<ConfigMap>(&());
    for widgets in [&stage.old, &stage.new] {
        let api = in_namespace(&stage, second, widgets);
        collects(&api, &widgets.resource("v1"), widgets).await;
    }
    let mut foreign_owners = Vec::new();
    for place in places {
        let (old, config_maps) = (
            in_namespace(&stage, place, &stage.old),
            Api::<ConfigMap>::namespaced(stage.client.clone(), place),
        );
        let make = async |name: &str, owners: &[OwnerReference]| {
            let object = json!({"metadata": {"name": name, "ownerReferences": owners}});
            let object = serde_json::from_value(object).unwrap();
            config_maps.create(&PostParams::default(), &object).await.unwrap()
        };
        let shop: ConfigMap = make("shop", &[]).await;
        let foreign = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: "shop".to_owned(),
            uid: shop.uid().unwrap(),
            ..OwnerReference::default()
        };
        // By name the dependents come before their owners.
        let root = widget(&old, &stage.old, "c-root", &[]).await;
        let branch = widget(&old, &stage.old, "b-branch", &[owned_by(&root), foreign]).await;
        let leaf = widget(&old, &stage.old, "a-leaf", &[owned_by(&branch)]).await;
        make("dependent", &[owned_by(&leaf)]).await;
        foreign_owners.push(shop.uid().unwrap());
    }
    assert_eq!(stage.run(stage.spec()).await, Ended::Done);
    let progress = stage.read().await.status.unwrap().progress.unwrap();
    assert_eq!((progress.total, progress.migrated), (6, 6), "each counts once");
    let new = format!("{}/v1", stage.new.group());
    for (place, foreign) in places.into_iter().zip(foreign_owners) {
        let targets = in_namespace(&stage, place, &stage.new);
        collects(&targets, &stage.new.resource("v1"), &stage.new).await;
        let config_maps: Api<DynamicObject> = Api::namespaced_with(stage.client.clone(), place, &config_map);
        collects(&config_maps, &config_map, &stage.new).await;
        let get = async |name: &str| targets.get(name).await.unwrap();
        let (root, branch, leaf) = (get("c-root").await, get("b-branch").await, get("a-leaf").await);
        assert_eq!(named(&root), []);
        assert_eq!(
            named(&branch),
            [(new.clone(), root.uid().unwrap()), ("v1".to_owned(), foreign)]
        );
        assert_eq!(named(&leaf), [(new.clone(), branch.uid().unwrap())]);
        let dependent = config_maps.get("dependent").await.unwrap();
        assert_eq!(named(&dependent), [(new.clone(), leaf.uid().unwrap())]);
        assert_eq!(
            in_namespace(&stage, place, &stage.old)
                .get("a-leaf")
                .await
                .unwrap()
                .name_any(),
            "a-leaf"
        );
    }
}

#[tokio::test]
async fn objects_that_own_each_other_block_by_name() {
    let stage = Stage::new("circle", 2).await;
    let first = stage.api(&stage.old).get("w0").await.unwrap();
    let second = stage
        .merge(
            &stage.old,
            "w1",
            json!({"metadata": {"ownerReferences": [owned_by(&first)]}}),
        )
        .await;
    stage
        .merge(
            &stage.old,
            "w0",
            json!({"metadata": {"ownerReferences": [owned_by(&second)]}}),
        )
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let [blocker] = engine.blockers() else {
        panic!("{:?}", engine.blockers());
    };
    assert_eq!(blocker.reason, reason::OWNER_CYCLE);
    for name in ["circle/w0", "circle/w1"] {
        assert!(blocker.message.contains(name), "{}", blocker.message);
    }
    assert_eq!(stage.policies(migration.uid().as_deref().unwrap()).await, 0);
    stage
        .merge(&stage.old, "w0", json!({"metadata": {"ownerReferences": null}}))
        .await;
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
}

#[tokio::test]
async fn an_owner_that_does_not_exist_holds_the_object_or_is_dropped() {
    let stage = Stage::new("ghost", 1).await;
    // The garbage collector leaves kinds alone that it does not know.
    let ghost = OwnerReference {
        api_version: "ghosts.example.com/v1".to_owned(),
        kind: "Ghost".to_owned(),
        name: "casper".to_owned(),
        uid: NOBODY.to_owned(),
        ..OwnerReference::default()
    };
    stage
        .merge(
            &stage.old,
            "w0",
            json!({"metadata": {"ownerReferences": [ghost]}}),
        )
        .await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    let blocker = &engine.blockers()[0];
    assert_eq!(
        (blocker.reason.as_str(), blocker.name.as_str()),
        (reason::MISSING_OWNER, "w0")
    );
    let drop = json!({"spec": {"references": {"missingOwner": "Drop"}}});
    stage
        .migrations()
        .patch(&stage.name, &PatchParams::default(), &Patch::Merge(&drop))
        .await
        .unwrap();
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.all(&stage.new).await[0].metadata.owner_references, None);
}

/// Owner and dependent change their namespace together: what counts is where the owner's copy will be.
#[tokio::test]
async fn an_owner_that_moves_to_another_namespace_is_followed_by_its_dependents() {
    let stage = Stage::new("elsewhere", 1).await;
    let there = "elsewhere-new";
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": there}})).unwrap();
    Api::all(stage.client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    let old = stage.api(&stage.old);
    widget(&old, &stage.old, "dependent", &[owned_by(&owner)]).await;
    let mut spec = stage.spec();
    spec["mappings"][0]["metadata"] = json!({
        "namespace": format!("'{there}'"), "name": "'renamed-' + object.metadata.name",
    });
    assert_eq!(stage.run(spec).await, Ended::Done);
    let targets = in_namespace(&stage, there, &stage.new);
    let owner = targets.get("renamed-w0").await.unwrap();
    let dependent = targets.get("renamed-dependent").await.unwrap();
    let reference = &dependent.metadata.owner_references.unwrap()[0];
    assert_eq!(
        (reference.name.as_str(), Some(&reference.uid)),
        ("renamed-w0", owner.metadata.uid.as_ref())
    );
}

/// PITFALLS D22: the collector takes dependents along with an owner that somebody deletes. After the commit anybody may want to.
#[tokio::test]
async fn a_source_cannot_be_deleted_before_its_dependents_name_the_target() {
    let stage = Stage::new("early", 1).await;
    let owner = stage.api(&stage.old).get("w0").await.unwrap();
    stage
        .config_map("dependent", &[owned_by(&owner)], json!({"kept": "yes"}))
        .await;
    let config_map = ApiResource::erase::<ConfigMap>(&());
    let config_maps: Api<DynamicObject> =
        Api::namespaced_with(stage.client.clone(), &stage.name, &config_map);
    collects(&config_maps, &config_map, &stage.old).await;
    let migration = stage.migration(stage.spec()).await;
    let mut engine = stage.engine(&migration);
    up_to(&mut engine, Step::RewriteReferences).await;
    let delete = async || {
        let deleted = stage.api(&stage.old).delete("w0", &DeleteParams::default()).await;
        deleted.map(drop).map_err(|error| error.to_string())
    };
    // The target is free, so somebody who has moved on may want to be rid of the source.
    until("the target can be written", async || {
        let patch = Patch::Merge(json!({"spec": {"color": "new"}}));
        let target = stage.api(&stage.new);
        target.patch("w0", &PatchParams::default(), &patch).await.is_ok()
    })
    .await;
    let refused = until("the refusal is about dependents", async || {
        delete()
            .await
            .expect_err("it is not deleted")
            .contains("dependents")
    });
    refused.await;
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    until("the source is deleted", async || delete().await).await;
    collects(&config_maps, &config_map, &stage.new).await;
    let dependent = config_maps.get("dependent").await.unwrap();
    let target = stage.api(&stage.new).get("w0").await.unwrap();
    assert_eq!(dependent.metadata.owner_references, Some(vec![owned_by(&target)]));
}
