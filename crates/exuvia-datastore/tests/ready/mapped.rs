//! What the manifests make of objects, without a server.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_datastore::mapping::Mappings;
use serde_json::{Value, json};

use crate::fixtures::{Move, names};

fn compile(ready: &Move) -> Mappings {
    Mappings::compile(&ready.migration.spec).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn sorted(mut objects: Vec<Value>) -> Vec<Value> {
    let place = |object: &Value| {
        let metadata = &object["metadata"];
        [&object["kind"], &metadata["namespace"], &metadata["name"]].map(ToString::to_string)
    };
    objects.sort_by_key(place);
    objects
}

/// What becomes of an object: its targets with their status, or itself as the rules for references change it.
fn becomes(mappings: &Mappings, rules: usize, object: &Value) -> Vec<Value> {
    let converted = mappings.convert(object).unwrap();
    if converted.taken_by.is_none() {
        let rewrite = |object: Value, rule| mappings.rewrite_object(rule, &object).unwrap().unwrap_or(object);
        return vec![(0..rules).fold(object.clone(), rewrite)];
    }
    let whole = converted.outputs.into_iter().map(|output| {
        let mut object = output.object;
        if let Some(status) = output.status {
            object["status"] = status;
        }
        object
    });
    whole.collect()
}

#[test]
fn every_ready_manifest_makes_of_its_fixtures_what_they_must_become() {
    assert_eq!(names(), ["calico", "cert-manager", "gateway-api", "traefik"]);
    for name in names() {
        let ready = Move::read(&name);
        let (mappings, rules) = (compile(&ready), ready.migration.spec.references.rewrite.len());
        let made = ready
            .objects
            .iter()
            .flat_map(|object| becomes(&mappings, rules, object));
        let (made, expected) = (sorted(made.collect()), sorted(ready.expected.clone()));
        for (made, expected) in made.iter().zip(&expected) {
            assert_eq!(made, expected, "{name}");
        }
        assert_eq!(made.len(), expected.len(), "{name}");
    }
}

/// What is not in the manifest would be left behind without a word.
#[test]
fn every_kind_of_the_fixtures_is_moved_or_rewritten_and_has_an_object() {
    for name in names() {
        let ready = Move::read(&name);
        let spec = &ready.migration.spec;
        let mut named: BTreeSet<(String, String)> = BTreeSet::new();
        for mapping in &spec.mappings {
            for kind in &mapping.from.kinds {
                let to = Some(&mapping.to.kind).filter(|to| !to.is_empty()).unwrap_or(kind);
                named.insert((mapping.from.group.clone(), kind.clone()));
                named.insert((mapping.to.group.clone(), to.clone()));
            }
        }
        let rewritten = spec.references.rewrite.iter().map(|rule| &rule.within);
        named.extend(rewritten.map(|within| (within.group.clone(), within.kind.clone())));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for crd in &ready.crds {
            let kind = (text(&crd["spec"]["group"]), text(&crd["spec"]["names"]["kind"]));
            assert!(named.contains(&kind), "{name}: {kind:?}");
            let has_one = [&ready.objects, &ready.expected]
                .into_iter()
                .flatten()
                .any(|object| {
                    let group = text(&object["apiVersion"]);
                    object["kind"] == kind.1 && group.split('/').next() == Some(kind.0.as_str())
                });
            assert!(has_one, "{name}: no fixture of {kind:?}");
        }
    }
}

#[test]
fn calico_moves_22_kinds_in_the_order_in_which_they_need_each_other() {
    let ready = Move::read("calico");
    let mut waves: BTreeMap<i32, BTreeSet<&str>> = BTreeMap::new();
    for mapping in &ready.migration.spec.mappings {
        let kinds = mapping.from.kinds.iter().map(String::as_str);
        waves.entry(mapping.wave).or_default().extend(kinds);
        assert_eq!(
            mapping.metadata.unpack, "projectcalico.org/metadata",
            "{}",
            mapping.name
        );
    }
    let order: Vec<BTreeSet<&str>> = waves.into_values().collect();
    let expected: [&[&str]; 8] = [
        &["Tier"],
        &[
            "BGPConfiguration",
            "FelixConfiguration",
            "KubeControllersConfiguration",
        ],
        &["BGPFilter", "BGPPeer", "IPPool", "IPReservation"],
        &[
            "GlobalNetworkPolicy",
            "NetworkPolicy",
            "StagedGlobalNetworkPolicy",
            "StagedKubernetesNetworkPolicy",
            "StagedNetworkPolicy",
        ],
        &["GlobalNetworkSet", "HostEndpoint", "NetworkSet"],
        &["BlockAffinity", "IPAMBlock", "IPAMConfig", "IPAMHandle"],
        &["CalicoNodeStatus"],
        &["ClusterInformation"],
    ];
    assert_eq!(order, expected.map(|kinds| kinds.iter().copied().collect()));
    assert_eq!(order.iter().map(BTreeSet::len).sum::<usize>(), 22);
}

/// The prefix goes only where Calico's API hides it, too.
#[test]
fn a_calico_policy_keeps_the_name_under_which_the_api_shows_it() {
    let ready = Move::read("calico");
    let mappings = compile(&ready);
    for (name, packed, tier, expected) in [
        ("default.a", Some("{}"), None, "a"),
        ("default.a", Some("{}"), Some(""), "a"),
        ("default.a", Some("{}"), Some("default"), "a"),
        ("default.a", Some("{}"), Some("security"), "default.a"),
        ("default.a", Some(r#"{"name":""}"#), Some("default"), "a"),
        (
            "default.a",
            Some(r#"{"name":"default.a"}"#),
            Some("default"),
            "default.a",
        ),
        ("default.a", Some(r#"{"name":"a"}"#), Some("security"), "a"),
        ("default.a", Some(""), Some("default"), "a"),
        ("default.a", None, Some("default"), "default.a"),
        ("default.a", None, None, "default.a"),
        ("a", Some("{}"), Some("default"), "a"),
        ("security.a", Some("{}"), Some("security"), "security.a"),
        ("defaulted", Some("{}"), Some("default"), "defaulted"),
    ] {
        for kind in [
            "NetworkPolicy",
            "GlobalNetworkPolicy",
            "StagedNetworkPolicy",
            "StagedGlobalNetworkPolicy",
        ] {
            let mut policy = json!({
                "apiVersion": "crd.projectcalico.org/v1", "kind": kind,
                "metadata": {"name": name, "namespace": "shop"}, "spec": {},
            });
            if let Some(packed) = packed {
                policy["metadata"]["annotations"] = json!({"projectcalico.org/metadata": packed});
            }
            if let Some(tier) = tier {
                policy["spec"]["tier"] = json!(tier);
            }
            let converted = mappings.convert(&policy).unwrap();
            assert_eq!(converted.outputs[0].name, expected, "{policy}");
            assert_eq!(
                converted.outputs[0].object["metadata"],
                json!({"name": expected, "namespace": "shop"})
            );
        }
    }
}

#[test]
fn a_calico_affinity_without_the_text_gets_no_boolean() {
    let ready = Move::read("calico");
    let affinity = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity",
        "metadata": {"name": "a"}, "spec": {"cidr": "10.0.0.0/26"},
    });
    let converted = compile(&ready).convert(&affinity).unwrap();
    assert_eq!(
        converted.outputs[0].object["spec"],
        json!({"cidr": "10.0.0.0/26"})
    );
}

/// Nobody else knows which port it got.
#[test]
fn a_listener_without_a_port_that_nobody_gave_one_stays_without() {
    let ready = Move::read("gateway-api");
    let mut set = ready.objects[0].clone();
    set["status"] = json!({"listeners": [{"name": "web", "port": 8080}]});
    let converted = compile(&ready).convert(&set).unwrap();
    let listeners = &converted.outputs[0].object["spec"]["listeners"];
    assert_eq!(listeners[1].get("port"), None, "{listeners}");
    assert_eq!(listeners[2]["port"], 0, "which the target's API refuses");
}
