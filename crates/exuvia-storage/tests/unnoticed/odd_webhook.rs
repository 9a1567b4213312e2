//! Conversion webhooks that do more than give a field a new name: does every apply answer as before?

use exuvia_testenv::ControlPlane;
use exuvia_testenv::webhook::{Conversion, WebhookServer};
use serde_json::{Map, Value, json};

use crate::odd::{Answer, differences};
use crate::{Bench, spec_of};

pub(crate) fn text() -> Value {
    json!({"type": "string"})
}

pub(crate) fn integer() -> Value {
    json!({"type": "integer"})
}

/// A CRD whose spec has these properties at v1alpha1 and at v1, and a webhook that makes one of the other.
pub(crate) async fn converted(
    group: &str,
    [old, new]: [Value; 2],
    convert: impl Fn(&mut Map<String, Value>, bool) + Send + Sync + 'static,
) -> (Bench, WebhookServer) {
    let hooks = converting("spec", convert).await;
    let conversion = hooks.conversion();
    let bench = Bench::installed(group, |crd| {
        crd["spec"]["conversion"] = conversion;
        for (version, properties) in [old, new].into_iter().enumerate() {
            for (name, property) in properties.as_object().unwrap() {
                spec_of(crd, version)["properties"][name] = property.clone();
            }
        }
    })
    .await;
    (bench, hooks)
}

/// A webhook that converts this part of an object.
async fn converting(
    part: &'static str,
    convert: impl Fn(&mut Map<String, Value>, bool) + Send + Sync + 'static,
) -> WebhookServer {
    let hooks = ControlPlane::shared().await.webhooks().await.unwrap();
    hooks.on_convert(Conversion::by(move |mut object: Value, to: &str| {
        if let Some(part) = object[part].as_object_mut() {
            convert(part, to.ends_with("/v1"));
        }
        object["apiVersion"] = json!(to);
        object
    }));
    hooks
}

/// A CRD whose `status.phase` is `status.state` at v1; changed before it is installed.
pub(crate) async fn renaming_phase(group: &str, change: impl FnOnce(&mut Value)) -> (Bench, WebhookServer) {
    let hooks = converting("status", |status, to_new| {
        rename_between(["phase", "state"], status, to_new);
    })
    .await;
    let conversion = hooks.conversion();
    let bench = Bench::installed(group, |crd| {
        crd["spec"]["conversion"] = conversion;
        let new = &mut crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"];
        let status = new["properties"]["status"]["properties"].as_object_mut().unwrap();
        rename(status, "phase", "state");
        change(crd);
    })
    .await;
    (bench, hooks)
}

/// A CRD of which one field, with this schema, has another name at v1.
pub(crate) async fn renaming(group: &str, names: [&'static str; 2], schema: Value) -> (Bench, WebhookServer) {
    let properties = names.map(|name| json!({name: schema}));
    converted(group, properties, move |spec, to_new| {
        rename_between(names, spec, to_new);
    })
    .await
}

/// Gives the field the name that it has at the version that is converted to.
pub(crate) fn rename_between([old, new]: [&str; 2], spec: &mut Map<String, Value>, to_new: bool) {
    if to_new {
        rename(spec, old, new);
    } else {
        rename(spec, new, old);
    }
}

pub(crate) fn rename(spec: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = spec.remove(from) {
        spec.insert(to.to_owned(), value);
    }
}

pub(crate) fn assert_same(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// As cluster-api v1beta1 to v1beta2: what is called `conditions` moves away, and something else gets the name.
#[tokio::test]
async fn two_fields_that_swap_their_names_take_their_owners_along() {
    let properties = json!({"first": text(), "second": text()});
    let (bench, _hooks) = converted("swapped", [properties.clone(), properties], |spec, _| {
        let (first, second) = (spec.remove("first"), spec.remove("second"));
        spec.extend(first.map(|value| ("second".to_owned(), value)));
        spec.extend(second.map(|value| ("first".to_owned(), value)));
    })
    .await;
    bench
        .apply("v1alpha1", "alice", "a", json!({"spec": {"first": "1"}}))
        .await;
    bench
        .apply("v1alpha1", "bob", "a", json!({"spec": {"second": "2"}}))
        .await;
    bench.flip().await;
    let tries = [
        ("v1", "intruder", json!({"spec": {"first": "x"}})),
        ("v1", "intruder", json!({"spec": {"second": "x"}})),
        ("v1", "alice", json!({"spec": {"second": "x"}})),
        ("v1alpha1", "alice", json!({"spec": {"first": "x"}})),
    ];
    assert_same(&differences(&bench, &tries).await);
}

/// Only alice's field moves; the name that it had is used for something new, which nobody has.
#[tokio::test]
async fn a_name_that_is_used_for_something_else_takes_no_owner_along() {
    let old = json!({"limit": integer()});
    let new = json!({"limit": integer(), "hardLimit": integer()});
    let (bench, _hooks) = converted("reused", [old, new], |spec, to_new| {
        if to_new {
            rename(spec, "limit", "hardLimit");
        } else {
            spec.remove("limit");
            rename(spec, "hardLimit", "limit");
        }
    })
    .await;
    bench
        .apply("v1alpha1", "alice", "a", json!({"spec": {"limit": 5, "size": 1}}))
        .await;
    bench.flip().await;
    let tries = [
        ("v1", "intruder", json!({"spec": {"hardLimit": 6}})),
        ("v1alpha1", "intruder", json!({"spec": {"limit": 6}})),
        ("v1alpha1", "alice", json!({"spec": {"size": 1}})),
    ];
    assert_same(&differences(&bench, &tries).await);
}

/// A unit that is finer than the old one: one more of it is nothing at the old version.
#[tokio::test]
async fn the_owner_of_minutes_owns_the_seconds() {
    let (bench, _hooks) = converted(
        "seconds",
        [json!({"minutes": integer()}), json!({"seconds": integer()})],
        |spec, to_new| {
            if to_new {
                let minutes = spec.remove("minutes").and_then(|value| value.as_i64());
                spec.extend(minutes.map(|minutes| ("seconds".to_owned(), json!(minutes * 60))));
            } else {
                let seconds = spec.remove("seconds").and_then(|value| value.as_i64());
                spec.extend(seconds.map(|seconds| ("minutes".to_owned(), json!((seconds + 30) / 60))));
            }
        },
    )
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"minutes": 5, "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        ("v1", "intruder", json!({"spec": {"seconds": 3600}})),
        ("v1alpha1", "intruder", json!({"spec": {"minutes": 60}})),
        ("v1alpha1", "alice", json!({"spec": {"size": 1}})),
    ];
    assert_same(&differences(&bench, &tries).await);
}

#[tokio::test]
async fn the_owner_of_a_set_that_gets_another_name_can_still_take_an_item_out() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": text()});
    let (bench, _hooks) = renaming("renamedset", ["hosts", "hostnames"], set).await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"hosts": ["x", "y"], "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        ("v1", "alice", json!({"spec": {"hostnames": ["x"], "size": 1}})),
        ("v1alpha1", "alice", json!({"spec": {"hosts": ["x"], "size": 1}})),
        ("v1", "alice", json!({"spec": {"size": 1}})),
    ];
    assert_same(&differences(&bench, &tries).await);
}

#[tokio::test]
async fn the_owner_of_items_that_are_only_keys_can_still_take_one_out() {
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                      "items": {"type": "object", "required": ["name"], "properties": {"name": text()}}});
    let (bench, _hooks) = renaming("renamedkeys", ["refs", "references"], list).await;
    let refs = json!([{"name": "x"}, {"name": "y"}]);
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"refs": refs, "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [(
        "v1",
        "alice",
        json!({"spec": {"references": [{"name": "x"}], "size": 1}}),
    )];
    assert_same(&differences(&bench, &tries).await);
}

#[tokio::test]
async fn two_fields_that_become_one_have_both_owners() {
    let (bench, _hooks) = converted(
        "joined",
        [
            json!({"host": text(), "port": integer()}),
            json!({"address": text()}),
        ],
        |spec, to_new| {
            if to_new {
                let (host, port) = (spec.remove("host"), spec.remove("port"));
                if let (Some(host), Some(port)) = (host, port) {
                    spec.insert(
                        "address".to_owned(),
                        json!(format!("{}:{port}", host.as_str().unwrap())),
                    );
                }
            } else if let Some(address) = spec.remove("address") {
                let (host, port) = address.as_str().unwrap().split_once(':').unwrap();
                spec.insert("host".to_owned(), json!(host));
                spec.insert("port".to_owned(), json!(port.parse::<i64>().unwrap_or_default()));
            }
        },
    )
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"host": "h", "size": 1}}),
        )
        .await;
    bench
        .apply("v1alpha1", "bob", "a", json!({"spec": {"port": 80}}))
        .await;
    bench.flip().await;
    // What cannot be shared any more belongs to both: anyone who changes it has a conflict with each of them.
    let tries = [
        ("v1", json!({"spec": {"address": "x:80"}})),
        ("v1", json!({"spec": {"address": "h:81"}})),
        ("v1alpha1", json!({"spec": {"host": "x"}})),
    ];
    let conflicts = async || {
        let mut all = Vec::new();
        for (version, apply) in &tries {
            all.push(bench.conflicts(version, "intruder", "a", apply.clone()).await);
        }
        all
    };
    let before = conflicts().await;
    assert_eq!(bench.migrate().await.unmoved, 0);
    for (was, is) in before.iter().zip(conflicts().await) {
        assert!(!was.is_empty() && was.is_subset(&is), "{was:?} became {is:?}");
    }
}

/// A list that is put together by the webhook's new version, with a new name: only its first part is asked for.
#[tokio::test]
async fn owners_of_later_items_of_a_list_that_becomes_atomic_come_along() {
    let items =
        json!({"type": "object", "required": ["name"], "properties": {"name": text(), "n": integer()}});
    let by_name = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": items});
    let atomic = json!({"type": "array", "items": items});
    let (bench, _hooks) = converted(
        "putinone",
        [json!({"ports": by_name}), json!({"endpoints": atomic})],
        |spec, to_new| rename_between(["ports", "endpoints"], spec, to_new),
    )
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"ports": [{"name": "x", "n": 1}]}}),
        )
        .await;
    bench
        .apply(
            "v1alpha1",
            "bob",
            "a",
            json!({"spec": {"ports": [{"name": "y", "n": 2}], "size": 1}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        (
            "v1",
            "intruder",
            json!({"spec": {"endpoints": [{"name": "x", "n": 1}, {"name": "y", "n": 9}]}}),
        ),
        (
            "v1alpha1",
            "intruder",
            json!({"spec": {"ports": [{"name": "y", "n": 9}]}}),
        ),
    ];
    let before = bench.tried_all(&tries).await;
    let _ = bench.migrate().await;
    let after = bench.tried_all(&tries).await;
    for (was, is) in before.iter().zip(&after) {
        let has_bob = |answer: &Answer| matches!(answer, Answer::Conflict(with) if with.iter().any(|with| with.contains("bob")));
        assert!(
            has_bob(was) && has_bob(is),
            "was {was:?}\nis  {is:?}\n{:?}",
            bench.owned().await
        );
    }
}

/// Items keep their place and get another key.
#[tokio::test]
async fn items_whose_key_is_written_otherwise_keep_their_owner() {
    let items = json!({"type": "object", "required": ["protocol"], "properties": {"protocol": text(), "port": integer()}});
    let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["protocol"], "items": items});
    let (bench, _hooks) = converted(
        "uppercase",
        [json!({"ports": list}), json!({"ports": list})],
        |spec, to_new| {
            for port in spec
                .get_mut("ports")
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                let protocol = port["protocol"].as_str().unwrap();
                port["protocol"] = json!(if to_new {
                    protocol.to_uppercase()
                } else {
                    protocol.to_lowercase()
                });
            }
        },
    )
    .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"ports": [{"protocol": "tcp", "port": 1}]}}),
        )
        .await;
    bench.flip().await;
    let tries = [
        (
            "v1",
            "intruder",
            json!({"spec": {"ports": [{"protocol": "TCP", "port": 2}]}}),
        ),
        (
            "v1alpha1",
            "intruder",
            json!({"spec": {"ports": [{"protocol": "tcp", "port": 2}]}}),
        ),
    ];
    assert_same(&differences(&bench, &tries).await);
}

/// Where the new version takes everything, every path of an entry "exists" there.
#[tokio::test]
async fn owners_come_along_to_a_version_that_preserves_unknown_fields() {
    let (bench, _hooks) = renaming("takesall", ["before", "after"], text()).await;
    bench
        .change_crd(|crd| spec_of(crd, 1)["x-kubernetes-preserve-unknown-fields"] = json!(true))
        .await;
    bench
        .apply(
            "v1alpha1",
            "alice",
            "a",
            json!({"spec": {"before": "x", "size": 1}}),
        )
        .await;
    bench.flip().await;
    assert_same(&differences(&bench, &[("v1", "intruder", json!({"spec": {"after": "y"}}))]).await);
}
