//! Whether an owner exists, as the server says.

use exuvia_datastore::owners::{Absence, Answer, Lookup};
use exuvia_write::Writer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;

use super::*;

#[tokio::test]
async fn an_owner_exists_by_kind_name_and_uid() {
    let world = world().await;
    let proxy = world.control_plane.proxy().await.unwrap();
    let place = world.namespace("lookups").await;
    let till = widget(&place.old, "till", &[]).await;
    let lookup = Lookup::new(proxy.client().unwrap(), Writer::named("test"));
    let here = Some(place.name.as_str());
    let exists = Answer::Exists {
        namespace: Some(place.name.clone()),
    };
    let right = owned_by(&world.old, "till", uid(&till));
    let at = |api_version: &str| OwnerReference {
        api_version: api_version.to_owned(),
        ..right.clone()
    };
    assert_eq!(lookup.find(&right, here).await, exists);
    assert_eq!(
        lookup.find(&at("old.example.com/v1alpha1"), here).await,
        exists,
        "another served version"
    );
    assert_eq!(
        lookup.find(&at("old.example.com/v0"), here).await,
        exists,
        "a version that is gone, of a kind that is not"
    );
    let missing = [
        (owned_by(&world.old, "other", uid(&till)), Absence::NoObject),
        (owned_by(&world.old, "till", NOBODY), Absence::OtherUid),
        (at("nobody.example.com/v1"), Absence::NotServed),
        (
            OwnerReference {
                kind: "Gadget".to_owned(),
                ..right.clone()
            },
            Absence::NotServed,
        ),
    ];
    for (reference, absence) in missing {
        let answer = lookup.find(&reference, here).await;
        assert_eq!(answer, Answer::Missing(absence), "{reference:?}");
    }
    assert_eq!(
        lookup.find(&right, Some("default")).await,
        Answer::Missing(Absence::NoObject),
        "a namespaced owner is looked for where the dependent is"
    );
    assert_eq!(lookup.find(&right, None).await, Answer::Unreachable);

    let namespaces: Api<Namespace> = Api::all(world.client());
    let namespace = namespaces.get(&place.name).await.unwrap();
    let cluster_scoped = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        name: place.name.clone(),
        uid: namespace.metadata.uid.unwrap(),
        ..OwnerReference::default()
    };
    for dependent in [here, None] {
        assert_eq!(
            lookup.find(&cluster_scoped, dependent).await,
            Answer::Exists { namespace: None }
        );
    }

    // One pass asks once.
    proxy.forget();
    lookup.find(&right, here).await;
    assert_eq!(proxy.requests().len(), 0);
    Lookup::new(proxy.client().unwrap(), Writer::named("test"))
        .find(&right, here)
        .await;
    assert_ne!(proxy.requests().len(), 0);
}

#[tokio::test]
async fn an_owner_that_may_not_be_read_is_not_called_missing() {
    let world = world().await;
    let place = world.namespace("unreadable").await;
    let till = widget(&place.old, "till", &[]).await;
    let stranger = world.control_plane.user("stranger", &[]).unwrap();
    let lookup = Lookup::new(stranger.client().unwrap(), Writer::named("test"));
    for name in ["till", "nobody"] {
        let answer = lookup
            .find(&owned_by(&world.old, name, uid(&till)), Some(&place.name))
            .await;
        assert!(
            matches!(&answer, Answer::Unknown(why) if why.contains("forbidden")),
            "{answer:?}"
        );
    }
}
