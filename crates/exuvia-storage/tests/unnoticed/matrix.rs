//! Who conflicts with whom, before and after: pairs of schemas × objects × managers × applies, with the server as oracle.

use std::collections::BTreeMap;

use exuvia_storage::End;
use serde_json::{Value, json};

use crate::{Bench, managers, spec_of};

/// One way to declare a field.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Declared {
    // {"name": …, "kind": …}
    Granular,
    Atomic,
    Free,
    Keys,
    AtomicKeys,
    // ["a", "b"]
    AtomicStrings,
    Set,
    FreeStrings,
    // [{"name", "kind", "n"}, …]
    AtomicObjects,
    ByName,
    ByNameAndKind,
    FreeObjects,
    // [{"name", "ref": {…}}] by name
    RefAtomic,
    RefGranular,
    // {"x": {…}} of any key
    MapOfAtomic,
    MapOfGranular,
}

use Declared::{
    Atomic, AtomicKeys, AtomicObjects, AtomicStrings, ByName, ByNameAndKind, Free, FreeObjects, FreeStrings,
    Granular, Keys, MapOfAtomic, MapOfGranular, RefAtomic, RefGranular, Set,
};

/// Fields of one type of value: each of these can become each other one.
const FAMILIES: [&[Declared]; 5] = [
    &[Granular, Atomic, Free, Keys, AtomicKeys],
    &[AtomicStrings, Set, FreeStrings],
    &[AtomicObjects, ByName, ByNameAndKind, FreeObjects],
    &[RefAtomic, RefGranular],
    &[MapOfAtomic, MapOfGranular],
];

impl Declared {
    fn schema(self) -> Value {
        let text = json!({"type": "string"});
        let free = json!({"x-kubernetes-preserve-unknown-fields": true});
        let map = json!({"type": "object", "properties": {"name": text, "kind": text}});
        let atomic = |mut schema: Value| {
            schema["x-kubernetes-map-type"] = json!("atomic");
            schema
        };
        let objects = |keys: &[&str]| {
            let item = json!({"type": "object", "required": ["name", "kind"],
                              "properties": {"name": text, "kind": text, "n": {"type": "integer"}}});
            let mut list = json!({"type": "array", "items": item});
            if !keys.is_empty() {
                list["x-kubernetes-list-type"] = json!("map");
                list["x-kubernetes-list-map-keys"] = json!(keys);
            }
            list
        };
        let by_name = |inner: Value| {
            let item =
                json!({"type": "object", "required": ["name"], "properties": {"name": text, "ref": inner}});
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item})
        };
        let strings = json!({"type": "array", "items": text});
        match self {
            Granular => map,
            Atomic => atomic(map),
            Free | FreeStrings | FreeObjects => free,
            Keys => json!({"type": "object", "additionalProperties": text}),
            AtomicKeys => atomic(json!({"type": "object", "additionalProperties": text})),
            AtomicStrings => strings,
            Set => {
                let mut set = strings;
                set["x-kubernetes-list-type"] = json!("set");
                set
            }
            AtomicObjects => objects(&[]),
            ByName => objects(&["name"]),
            ByNameAndKind => objects(&["name", "kind"]),
            RefAtomic => by_name(atomic(map)),
            RefGranular => by_name(map),
            MapOfAtomic => json!({"type": "object", "additionalProperties": atomic(map)}),
            MapOfGranular => json!({"type": "object", "additionalProperties": map}),
        }
    }

    /// What every object holds here.
    fn value(self) -> Value {
        match self {
            Granular | Atomic | Free | Keys | AtomicKeys => json!({"name": "n", "kind": "k"}),
            AtomicStrings | Set | FreeStrings => json!(["a", "b"]),
            AtomicObjects | ByName | ByNameAndKind | FreeObjects => {
                json!([{"name": "a", "kind": "x", "n": 1}, {"name": "b", "kind": "x", "n": 2}])
            }
            RefAtomic | RefGranular => json!([{"name": "a", "ref": {"name": "n", "kind": "k"}}]),
            MapOfAtomic | MapOfGranular => json!({"x": {"name": "n", "kind": "k"}}),
        }
    }

    /// Two halves that two managers can own apart; `None`: it has one owner.
    fn halves(self) -> Option<[Value; 2]> {
        match self {
            Granular | Free | Keys => Some([json!({"name": "n"}), json!({"kind": "k"})]),
            Set => Some([json!(["a"]), json!(["b"])]),
            ByName | ByNameAndKind => Some([
                json!([{"name": "a", "kind": "x", "n": 1}]),
                json!([{"name": "b", "kind": "x", "n": 2}]),
            ]),
            RefGranular => Some([
                json!([{"name": "a", "ref": {"name": "n"}}]),
                json!([{"name": "a", "ref": {"kind": "k"}}]),
            ]),
            MapOfGranular => Some([json!({"x": {"name": "n"}}), json!({"x": {"kind": "k"}})]),
            _ => None,
        }
    }

    /// What somebody may apply to a field of this kind: the same, and each part changed.
    fn applies(self) -> Vec<Value> {
        let same = self.value();
        let mut applies = vec![same.clone()];
        match self {
            Granular | Free | Keys => applies.extend([json!({"name": "other"}), json!({"kind": "other"})]),
            Atomic | AtomicKeys => {
                applies.extend([
                    json!({"name": "other", "kind": "k"}),
                    json!({"name": "n", "kind": "other"}),
                ]);
            }
            AtomicStrings | FreeStrings => applies.extend([json!(["a", "c"]), json!(["b", "a"])]),
            Set => {} // nothing in a set can be changed, only added
            AtomicObjects | FreeObjects => {
                for (at, field, value) in [(0, "n", json!(9)), (0, "kind", json!("y")), (1, "n", json!(9))] {
                    let mut changed = same.clone();
                    changed[at][field] = value;
                    applies.push(changed);
                }
            }
            ByName => applies.extend([
                json!([{"name": "a", "kind": "x", "n": 9}]),
                json!([{"name": "a", "kind": "y"}]),
                json!([{"name": "b", "kind": "x", "n": 9}]),
            ]),
            ByNameAndKind => applies.extend([
                json!([{"name": "a", "kind": "x", "n": 9}]),
                json!([{"name": "b", "kind": "x", "n": 9}]),
            ]),
            RefAtomic => applies.extend([
                json!([{"name": "a", "ref": {"name": "other", "kind": "k"}}]),
                json!([{"name": "a", "ref": {"name": "n", "kind": "other"}}]),
            ]),
            RefGranular => applies.extend([
                json!([{"name": "a", "ref": {"name": "other"}}]),
                json!([{"name": "a", "ref": {"kind": "other"}}]),
            ]),
            MapOfAtomic => applies.extend([
                json!({"x": {"name": "other", "kind": "k"}}),
                json!({"x": {"name": "n", "kind": "other"}}),
            ]),
            MapOfGranular => {
                applies.extend([json!({"x": {"name": "other"}}), json!({"x": {"kind": "other"}})]);
            }
        }
        applies
    }
}

/// A field that is declared in one way at v1alpha1 and in another one at v1.
#[derive(Clone, Copy, Debug)]
struct Pair {
    number: usize,
    from: Declared,
    to: Declared,
}

impl Pair {
    fn all() -> Vec<Self> {
        let mut pairs = Vec::new();
        for family in FAMILIES {
            for from in family {
                for to in family {
                    let (number, from, to) = (pairs.len(), *from, *to);
                    pairs.push(Self { number, from, to });
                }
            }
        }
        pairs
    }

    fn field(self) -> String {
        format!("field{:02}", self.number)
    }

    /// Where two owned a half each and now nobody can own half of it, each of them owns it: an apply that changes one half may
    /// then be a conflict with both, and each of the two conflicts with the other.
    fn is_put_together(self) -> bool {
        self.from.halves().is_some() && self.to.halves().is_none()
    }
}

fn spec(pairs: &[Pair], value: impl Fn(Pair) -> Option<Value>) -> Value {
    let fields: serde_json::Map<String, Value> = pairs
        .iter()
        .filter_map(|pair| Some((pair.field(), value(*pair)?)))
        .collect();
    json!({ "spec": fields })
}

const OBJECTS: [&str; 4] = ["applied", "shared", "halved", "updated"];

/// Written by apply, by two who share, by two who own a half each, and by update; all at v1alpha1.
async fn written(bench: &Bench, pairs: &[Pair]) {
    let whole = spec(pairs, |pair| Some(pair.from.value()));
    bench.apply("v1alpha1", "alice", "applied", whole.clone()).await;
    bench.apply("v1alpha1", "alice", "shared", whole.clone()).await;
    let half = |at: usize| move |pair: Pair| pair.from.halves().map(|halves| halves[at].clone());
    bench
        .apply("v1alpha1", "bob", "shared", spec(pairs, half(0)))
        .await;
    let mine = spec(pairs, |pair| half(0)(pair).or_else(|| Some(pair.from.value())));
    bench.apply("v1alpha1", "alice", "halved", mine).await;
    bench
        .apply("v1alpha1", "bob", "halved", spec(pairs, half(1)))
        .await;
    bench.create("v1alpha1", "carol", "updated", whole).await;
}

/// With whom each apply by each manager is a conflict.
async fn conflicts(bench: &Bench, pairs: &[Pair]) -> BTreeMap<(String, String, String), Vec<String>> {
    let mut found = BTreeMap::new();
    for object in OBJECTS {
        for pair in pairs {
            for apply in pair.to.applies() {
                for manager in ["intruder", "alice", "bob", "carol"] {
                    // What the manager owns already goes along: a manager that leaves it out gives it up.
                    let data = json!({"spec": {pair.field(): apply}});
                    let with = bench.conflicts("v1", manager, object, data).await;
                    let case = (
                        format!("{object} {manager}"),
                        format!("{pair:?}"),
                        apply.to_string(),
                    );
                    found.insert(case, with.into_iter().collect());
                }
            }
        }
    }
    found
}

#[tokio::test]
async fn every_apply_that_was_a_conflict_is_one_and_no_other() {
    let pairs = Pair::all();
    assert!(pairs.len() >= 30);
    let bench = Bench::installed("matrix", |crd| {
        for pair in &pairs {
            spec_of(crd, 0)["properties"][pair.field()] = pair.from.schema();
            spec_of(crd, 1)["properties"][pair.field()] = pair.to.schema();
        }
    })
    .await;
    written(&bench, &pairs).await;
    bench.flip().await;
    let before = conflicts(&bench, &pairs).await;
    let report = bench.migrate().await;
    assert_eq!((&report.end, report.unmoved), (&End::Migrated, 0), "{report:?}");
    for object in OBJECTS {
        let live = bench.live(object).await;
        assert!(
            managers(&live).iter().all(|(_, version)| version == "v1"),
            "{live:?}"
        );
    }
    let after = conflicts(&bench, &pairs).await;
    assert!(
        before.values().filter(|with| !with.is_empty()).count() > 300,
        "it must be able to fail"
    );
    let mut wrong = Vec::new();
    for pair in &pairs {
        for (case, was) in before.iter().filter(|(case, _)| case.1 == format!("{pair:?}")) {
            let is = &after[case];
            let is_same = if pair.is_put_together() {
                was.iter().all(|owner| is.contains(owner))
            } else {
                was == is
            };
            if !is_same {
                wrong.push(format!("{case:?}: {was:?} became {is:?}"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        before.len(),
        wrong.join("\n")
    );
}
