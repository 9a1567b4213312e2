//! Clones judge objects as the target does, and none is left, whatever happens.

use exuvia_datastore::route::{Clones, Error};
use exuvia_testenv::proxy::Fault;
use exuvia_testenv::{Widgets, until};
use exuvia_write::Writer;
use http::Request;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, ListParams, Patch, PatchParams};
use kube::client::Body;
use serde_json::{Value, json};

use crate::{both, killed_at, servers};

/// A target with a bit of everything that refuses: types, bounds, enums, required fields, a CEL rule; and defaults.
fn target(group: &str) -> (Widgets, Value) {
    let widgets = Widgets::in_group(group);
    let mut crd = widgets.crd("v1");
    crd["spec"]["names"]["shortNames"] = json!([format!("w{}", &group[..3])]);
    crd["spec"]["names"]["categories"] = json!(["all"]);
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"] = json!({
        "type": "object",
        "required": ["size"],
        "x-kubernetes-validations": [{"rule": "self.size <= self.limit", "message": "size must not exceed limit"}],
        "properties": {
            "size": {"type": "integer", "minimum": 1},
            "limit": {"type": "integer", "default": 10},
            "color": {"type": "string", "enum": ["green", "red"]},
        },
    });
    (widgets, crd)
}

async fn clones(client: Client, uid: &str) -> Clones {
    Clones::new(client, Writer::named("exuvia-datastore"), both().await, uid)
}

/// The verdict of a strict dry-run create: what would be stored, or why it is refused.
async fn verdict(client: &Client, resource: &ApiResource, spec: &Value, extra: bool) -> (u16, Value) {
    let mut object = json!({
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": "tried"}, "spec": spec,
    });
    if extra {
        object["unknown"] = true.into();
    }
    let path = format!(
        "/apis/{}/namespaces/default/{}?dryRun=All&fieldValidation=Strict&fieldManager=exuvia-datastore",
        resource.api_version, resource.plural
    );
    let request = Request::post(path).header("content-type", "application/json");
    let request = request.body(Body::from(object.to_string().into_bytes())).unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let body = response.into_body().collect_bytes().await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap();
    if code < 300 {
        return (code, body["spec"].clone());
    }
    let said = json!({
        "reason": body["reason"], "message": body["message"], "causes": body["details"]["causes"],
    });
    (code, said)
}

/// The CRDs in a group.
async fn crds_in(client: &Client, group: &str) -> Vec<String> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let all = api.list(&ListParams::default()).await.unwrap();
    all.into_iter()
        .filter(|crd| crd.spec.group == group)
        .filter_map(|crd| crd.metadata.name)
        .collect()
}

#[tokio::test]
async fn clones_judge_objects_as_the_target_does() {
    let (control_plane, second) = servers().await;
    let client = control_plane.client().unwrap();
    let (widgets, mut crd) = target("judged.example.com");
    // A webhook that nobody answers: a clone does not ask it.
    crd["spec"]["versions"][0]["served"] = false.into();
    crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"],
    }});
    widgets.install_crd(&client, crd).await.unwrap();
    let resource = widgets.resource("v1");
    let clones = clones(client.clone(), "5f6e7d8c-0b1a-4c2d-8e3f-9a0b1c2d3e4f").await;
    clones.ensure(std::slice::from_ref(&resource)).await.unwrap();
    let clone = clones.resource(&resource);
    assert_eq!(clone.group, "5f6e7d8c.preflight.exuvia.dev");

    let objects = [
        ("valid", json!({"size": 3}), false, 201),
        ("wrong type", json!({"size": "three"}), false, 422),
        ("too small", json!({"size": 0}), false, 422),
        ("missing", json!({"color": "red"}), false, 422),
        ("enum", json!({"size": 3, "color": "blue"}), false, 422),
        ("rule", json!({"size": 11}), false, 422),
        (
            "rule, by other limits",
            json!({"size": 11, "limit": 11}),
            false,
            201,
        ),
        ("unknown field", json!({"size": 3, "lost": true}), false, 400),
        ("unknown top-level field", json!({"size": 3}), true, 400),
    ];
    // Each on both servers: wherever a load balancer goes, the clone is served.
    for client in [client.clone(), second.client().unwrap()] {
        for (what, spec, extra, expected) in &objects {
            let (code, at_target) = verdict(&client, &resource, spec, *extra).await;
            let (clone_code, at_clone) = verdict(&client, &clone, spec, *extra).await;
            assert_eq!((code, clone_code), (*expected, *expected), "{what}: {at_clone}");
            let at_clone = clones.in_words_of_target(&at_clone.to_string(), &resource);
            assert_eq!(at_clone, at_target.to_string(), "{what}");
        }
        let (_, stored) = verdict(&client, &clone, &json!({"size": 3}), false).await;
        assert_eq!(stored["limit"], 10, "defaults are the target's");
    }
    // Nobody finds a clone by accident.
    let list = client.list_api_group_resources(&clone.api_version).await.unwrap();
    for shown in &list.resources {
        assert!(shown.name.starts_with("preflight-"), "{shown:?}");
        assert_eq!((&shown.short_names, &shown.categories), (&None, &None));
    }

    clones.remove().await.unwrap();
    assert_eq!(crds_in(&client, clones.group()).await, [] as [&str; 0]);
    assert_eq!(crds_in(&client, widgets.group()).await, [widgets.crd_name()]);
    clones.remove().await.unwrap(); // again
    until("the scratch group is gone", async || {
        client.list_api_group_resources(&clone.api_version).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn a_clone_of_a_crd_that_changed_is_made_again_and_one_that_did_not_is_kept() {
    let (control_plane, _) = servers().await;
    let client = control_plane.client().unwrap();
    let (widgets, crd) = target("altered.example.com");
    let mut tightened = crd.clone();
    let schema = "/spec/versions/1/schema/openAPIV3Schema/properties/spec/properties/size";
    tightened.pointer_mut(schema).unwrap()["maximum"] = 5.into();
    widgets.install_crd(&client, crd).await.unwrap();
    let targets = [widgets.resource("v1")];
    let proxy = control_plane.proxy().await.unwrap();
    let clones = clones(proxy.client().unwrap(), "a17e2ed0-0000-4000-8000-000000000000").await;
    clones.ensure(&targets).await.unwrap();
    let writes = proxy.writes().len();
    clones.ensure(&targets).await.unwrap();
    assert_eq!(
        proxy.writes().len(),
        writes,
        "nothing is missing, nothing is written"
    );

    let clone = clones.resource(&targets[0]);
    assert_eq!(verdict(&client, &clone, &json!({"size": 9}), false).await.0, 201);
    let patch = Patch::Merge(json!({"spec": {"versions": tightened["spec"]["versions"]}}));
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.patch(&widgets.crd_name(), &PatchParams::default(), &patch)
        .await
        .unwrap();
    clones.ensure(&targets).await.unwrap();
    until("the clone has the new schema", async || {
        verdict(&client, &clone, &json!({"size": 9}), false).await.0 == 422
    })
    .await;
    clones.remove().await.unwrap();
}

#[tokio::test]
async fn killed_at_any_write_another_process_leaves_no_clone() {
    let (control_plane, _) = servers().await;
    let client = control_plane.client().unwrap();
    let mut targets = Vec::new();
    for (plural, kind) in [("widgets", "Widget"), ("gadgets", "Gadget")] {
        let (widgets, mut crd) = target("crashed.example.com");
        crd["metadata"]["name"] = format!("{plural}.{}", widgets.group()).into();
        crd["spec"]["names"] = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
        let crd: CustomResourceDefinition = serde_json::from_value(crd).unwrap();
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        crds.create(&kube::api::PostParams::default(), &crd)
            .await
            .unwrap();
        let mut resource = widgets.resource("v1");
        (resource.plural, resource.kind) = (plural.to_owned(), kind.to_owned());
        targets.push(resource);
    }
    let uid = "c0ffee00-0000-4000-8000-000000000000";
    let proxy = control_plane.proxy().await.unwrap();
    for fault in [Fault::StallRequest, Fault::StallAnswer] {
        for write in 1.. {
            let making = async {
                let clones = clones(proxy.client().unwrap(), uid).await;
                clones.ensure(&targets).await.unwrap();
                clones.remove().await.unwrap();
            };
            let struck = killed_at(&proxy, write, fault.clone(), Box::pin(making)).await;
            let another = clones(client.clone(), uid).await;
            another.remove().await.unwrap();
            let left = crds_in(&client, another.group()).await;
            assert_eq!(left, [] as [&str; 0], "{fault:?} of write {write}");
            if !struck {
                assert!(write > 4, "two are made and two are removed");
                break;
            }
        }
    }
    assert_eq!(crds_in(&client, "crashed.example.com").await.len(), 2);
}

#[tokio::test]
async fn a_crd_elsewhere_is_left_alone_whatever_its_label_says() {
    let (control_plane, _) = servers().await;
    let client = control_plane.client().unwrap();
    let uid = "1abe11ed-0000-4000-8000-000000000000";
    let (widgets, mut crd) = target("labelled.example.com");
    crd["metadata"]["labels"] = json!({exuvia_api::DATASTORE_LABEL: uid});
    widgets.install_crd(&client, crd).await.unwrap();
    let clones = clones(client.clone(), uid).await;
    clones.ensure(&[widgets.resource("v1")]).await.unwrap();
    assert_eq!(crds_in(&client, clones.group()).await.len(), 1);
    clones.remove().await.unwrap();
    assert_eq!(crds_in(&client, clones.group()).await.len(), 0);
    assert_eq!(crds_in(&client, widgets.group()).await, [widgets.crd_name()]);

    // What cannot be cloned is said by name.
    let mut missing = widgets.resource("v9");
    let refused = clones.ensure(std::slice::from_ref(&missing)).await.unwrap_err();
    assert!(
        matches!(&refused, Error::NoCrd { version, .. } if version == "v9"),
        "{refused}"
    );
    missing.group = "elsewhere.example.com".to_owned();
    let refused = clones
        .ensure(&[widgets.resource("v1"), missing])
        .await
        .unwrap_err();
    assert!(matches!(refused, Error::SeveralGroups { .. }), "{refused}");
    clones.remove().await.unwrap();
}
