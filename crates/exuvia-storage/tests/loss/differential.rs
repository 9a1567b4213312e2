//! Hundreds of schema pairs, and the server as the judge of what was said about them.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_storage::Losses;
use exuvia_storage::loss::certainly_keeps;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::Bench;
use crate::generate::{DEPTH, Random, without_defaults};

/// CRDs, each with so many independent fields and objects: installing one costs the server more than its fields do.
const CRDS: u64 = 10;
const FIELDS: usize = 30;
const OBJECTS: usize = 14;

/// What came of it, so that a generator that proves nothing is noticed.
#[derive(Debug, Default)]
struct Sum {
    certain: usize,
    lost: usize,
    looked_at_and_fine: usize,
}

/// A field with its two schemas.
struct Field {
    name: String,
    kind: &'static str,
    old: Value,
    new: Value,
}

impl Field {
    fn is_certain(&self) -> bool {
        let alone = |schema: &Value| {
            let spec = json!({"type": "object", "properties": {&self.name: schema}});
            json!({"type": "object", "properties": {"spec": spec}})
        };
        certainly_keeps(&alone(&self.old), &alone(&self.new))
    }

    fn is_lost(&self, before: &Value, after: &Value) -> bool {
        let held = before["spec"].get(&self.name);
        held.is_some_and(|held| is_lost(held, after["spec"].get(&self.name)))
    }

    /// The paths that were named in this field.
    fn named<'a>(&self, losses: &'a Losses) -> Vec<&'a String> {
        let path = format!("spec.{}", self.name);
        let is_here = |named: &&String| {
            let rest = named.strip_prefix(&path);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        losses
            .erased
            .keys()
            .chain(losses.changed.keys())
            .filter(is_here)
            .collect()
    }
}

fn spec(fields: &[Field], schema: impl Fn(&Field) -> Value) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| (field.name.clone(), schema(field)))
        .collect();
    json!({"type": "object", "properties": properties})
}

/// Whether something of `before` is not in `after`, or another value there. More is not a loss.
fn is_lost(before: &Value, after: Option<&Value>) -> bool {
    match (before, after) {
        (_, None) => true,
        (Value::Object(before), Some(Value::Object(after))) => {
            before.iter().any(|(key, value)| is_lost(value, after.get(key)))
        }
        (Value::Array(before), Some(Value::Array(after))) if before.len() == after.len() => {
            let mut pairs = before.iter().zip(after);
            pairs.any(|(before, after)| is_lost(before, Some(after)))
        }
        (before, Some(after)) => before != after,
    }
}

/// Objects stored at v1alpha1 by a schema without defaults; then, in one change, v1alpha1 gets its defaults and v1 becomes
/// the storage version. So a default is in nobody's bytes, and what is lost from them is a loss.
async fn prepared(seed: u64) -> (Bench<'static>, Vec<Field>) {
    let mut random = Random(seed);
    let mut field = |number| {
        let kind = random.kind();
        let (old, new) = random.pair(kind);
        let name = format!("f{number:02}");
        Field { name, kind, old, new }
    };
    let fields: Vec<Field> = (0..FIELDS).map(&mut field).collect();
    let early = spec(&fields, |field| without_defaults(&field.old));
    let new = spec(&fields, |field| field.new.clone());
    let bench = Bench::installed(&format!("differential-{seed}"), early, new).await;
    for number in 0..OBJECTS {
        let mut values = json!({});
        for field in &fields {
            values[&field.name] = random.value(field.kind, DEPTH);
        }
        bench
            .create("v1alpha1", &format!("widget-{number}"), values)
            .await;
    }
    // The marker's default shows when the server has understood the change.
    let mut late = spec(&fields, |field| field.old.clone());
    late["properties"]["marker"] = json!({"type": "string", "default": "set"});
    bench
        .change_versions(|version| {
            let is_old = version["name"] == "v1alpha1";
            version["storage"] = json!(!is_old);
            if is_old {
                version["schema"]["openAPIV3Schema"]["properties"]["spec"] = late.clone();
            }
        })
        .await;
    let api = bench.widgets.api(&bench.client, "v1alpha1");
    let is_set =
        async || (api.get("widget-0").await).is_ok_and(|object| object.data["spec"]["marker"] == "set");
    exuvia_testenv::until("the late schema is served", is_set).await;
    (bench, fields)
}

/// Asks what would be lost, rewrites, and lets etcd's bytes judge the answer.
async fn tried_out(seed: u64) -> Sum {
    let (bench, fields) = prepared(seed).await;
    let losses = bench.look(&bench.client).await;
    assert_eq!((losses.more_paths, losses.unseen.len()), (0, 0), "{seed}");
    let all = u64::try_from(OBJECTS).unwrap();
    assert_eq!(losses.looked_at, all, "{seed}: {losses:?}");
    assert_eq!(losses.defaults_not_kept["spec.marker"].objects, all);

    let before = bench.stored().await;
    for name in before.keys() {
        let rewritten = bench.rewrite(name).await;
        assert!(rewritten.is_ok(), "{seed}, {name}: {rewritten:?}");
    }
    let after = bench.stored().await;
    let new = format!("{}/v1", bench.widgets.group());
    assert!(after.values().all(|(object, _)| object["apiVersion"] == new));

    let pairs: BTreeMap<&String, (&Value, &Value)> = before
        .iter()
        .map(|(name, (before, _))| (name, (before, &after[name].0)))
        .collect();
    let mut sum = Sum::default();
    let mut losers = BTreeSet::new();
    for field in &fields {
        let mut losing = pairs.clone();
        losing.retain(|_, (before, after)| field.is_lost(before, after));
        let (named, is_certain) = (field.named(&losses), field.is_certain());
        let Field { name, old, new, .. } = field;
        let told = || {
            let example = losing.iter().next();
            let example = example
                .map(|(object, (before, after))| (object, &before["spec"][name], &after["spec"][name]));
            format!("seed {seed}, {name}\nold: {old}\nnew: {new}\nlost: {example:?}\nnamed: {named:?}")
        };
        assert!(
            !is_certain || losing.is_empty(),
            "called certain, and lost: {}",
            told()
        );
        assert_eq!(
            named.is_empty(),
            losing.is_empty(),
            "named and lost differ: {}",
            told()
        );
        sum.certain += usize::from(is_certain);
        sum.lost += usize::from(!losing.is_empty());
        sum.looked_at_and_fine += usize::from(!is_certain && losing.is_empty());
        losers.extend(losing.into_keys());
    }
    assert_eq!(
        losses.objects,
        u64::try_from(losers.len()).unwrap(),
        "seed {seed}: {losers:?}"
    );
    sum
}

/// PITFALLS A34, A35.
#[tokio::test]
async fn nothing_is_ever_called_certain_that_the_server_loses_and_what_it_loses_is_named() {
    let trials = futures::stream::iter(0..CRDS).map(|seed| Box::pin(tried_out(seed)));
    let sums: Vec<Sum> = trials.buffer_unordered(3).collect().await;
    let count = |what: fn(&Sum) -> usize| sums.iter().map(what).sum::<usize>();
    let (certain, lost) = (count(|sum| sum.certain), count(|sum| sum.lost));
    let fine = count(|sum| sum.looked_at_and_fine);
    println!("{certain} pairs are certain, {lost} lose something, {fine} were looked at and lose nothing");
    assert!(
        certain >= 30 && lost >= 30,
        "the generator is lopsided: {certain}, {lost}"
    );
}
