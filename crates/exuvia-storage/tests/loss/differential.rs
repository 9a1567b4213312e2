//! Hundreds of schema pairs, and the server as the judge of what was said about them.

use std::collections::BTreeSet;

use exuvia_storage::loss::certainly_keeps;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::generate::{Random, without_defaults};
use crate::{Bench, soon};

/// CRDs, each with so many independent fields and objects. Installing one costs the server more than its fields do.
const CRDS: u64 = 10;
const FIELDS: usize = 20;
const OBJECTS: usize = 12;

/// What came of it, so that a generator that proves nothing is noticed.
#[derive(Debug, Default)]
struct Sum {
    certain: usize,
    lost: usize,
    looked_at_in_vain: usize,
}

/// A field with its two schemas.
struct Field {
    name: String,
    kind: &'static str,
    old: Value,
    new: Value,
}

fn spec(fields: &[Field], schema: impl Fn(&Field) -> Value) -> Value {
    let properties: Map<String, Value> = fields
        .iter()
        .map(|field| (field.name.clone(), schema(field)))
        .collect();
    json!({"type": "object", "properties": properties})
}

/// Whether something of `before` is not in `after`, or another value there. More is no loss.
fn is_lost(before: &Value, after: Option<&Value>) -> bool {
    match (before, after) {
        (_, None) => true,
        (Value::Object(before), Some(Value::Object(after))) => {
            before.iter().any(|(key, value)| is_lost(value, after.get(key)))
        }
        (Value::Array(before), Some(Value::Array(after))) => {
            before.len() != after.len()
                || before
                    .iter()
                    .zip(after)
                    .any(|(before, after)| is_lost(before, Some(after)))
        }
        (before, Some(after)) => before != after,
    }
}

/// Creates objects, gives the old schema its defaults and flips, asks what would be lost, rewrites, and reads etcd.
async fn try_out(seed: u64) -> Sum {
    let mut random = Random(seed);
    let fields: Vec<Field> = (0..FIELDS)
        .map(|number| {
            let kind = random.kind();
            let (old, new) = random.pair(kind);
            Field {
                name: format!("f{number:02}"),
                kind,
                old,
                new,
            }
        })
        .collect();
    let group = format!("differential-{seed}");
    let early = spec(&fields, |field| without_defaults(&field.old));
    let new = spec(&fields, |field| field.new.clone());
    let bench = Bench::installed(&group, early, new).await;
    for number in 0..OBJECTS {
        let mut values = json!({});
        for field in &fields {
            values[&field.name] = random.value(field.kind, 3);
        }
        bench
            .create("v1alpha1", &format!("widget-{number}"), values)
            .await;
    }
    // One change of the CRD; the marker's default shows when the server has understood it.
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
    soon(async {
        while api
            .get("widget-0")
            .await
            .is_ok_and(|object| object.data["spec"]["marker"] != "set")
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;

    let losses = bench.look(&bench.client).await;
    assert_eq!(losses.looked_at as usize, OBJECTS, "{seed}: {losses:?}");
    assert_eq!((losses.more_paths, losses.unseen.len()), (0, 0), "{seed}");
    assert_eq!(losses.defaults_not_kept["spec.marker"].objects as usize, OBJECTS);
    let before = bench.stored().await;
    for name in before.keys() {
        let rewritten = bench.rewrite(name).await;
        assert!(rewritten.is_ok(), "{seed}, {name}: {rewritten:?}");
    }
    let after = bench.stored().await;

    let spec_of = |object: &Value, field: &Field| object["spec"].get(&field.name).cloned();
    let mut sum = Sum::default();
    let mut losers = BTreeSet::new();
    for field in &fields {
        let of_this: Vec<&String> = before
            .iter()
            .filter(|(name, (before, _))| {
                let after = spec_of(&after[*name].0, field);
                spec_of(before, field).is_some_and(|before| is_lost(&before, after.as_ref()))
            })
            .map(|(name, _)| name)
            .collect();
        let path = format!("spec.{}", field.name);
        let is_here = |named: &&String| {
            named
                .strip_prefix(&path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        let named: Vec<_> = losses
            .erased
            .keys()
            .chain(losses.changed.keys())
            .filter(is_here)
            .collect();
        let described = || {
            let example = of_this.first().map(|name| {
                (
                    &before[*name].0["spec"][&field.name],
                    &after[*name].0["spec"][&field.name],
                )
            });
            format!(
                "{seed}, {path}: old {}\nnew {}\nlost by {of_this:?}: {example:?}\nnamed {named:?}",
                field.old, field.new
            )
        };
        let only = |schema: &Value| json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {&field.name: schema}}}});
        let is_certain = certainly_keeps(&only(&field.old), &only(&field.new));
        assert!(
            !is_certain || of_this.is_empty(),
            "certain, and lost: {}",
            described()
        );
        assert_eq!(
            named.is_empty(),
            of_this.is_empty(),
            "named and lost differ: {}",
            described()
        );
        sum.certain += usize::from(is_certain);
        sum.lost += usize::from(!of_this.is_empty());
        sum.looked_at_in_vain += usize::from(!is_certain && of_this.is_empty());
        losers.extend(of_this);
    }
    assert_eq!(losses.objects as usize, losers.len(), "{seed}: {losers:?}");
    assert!(
        after
            .values()
            .all(|(object, _)| object["apiVersion"] == format!("{group}.example.com/v1"))
    );
    sum
}

/// PITFALLS A34, A35.
#[tokio::test]
async fn nothing_is_ever_called_certain_that_the_server_loses_and_what_it_loses_is_named() {
    let sums: Vec<Sum> = futures::stream::iter(0..CRDS)
        .map(try_out)
        .buffer_unordered(3)
        .collect()
        .await;
    let count = |what: fn(&Sum) -> usize| sums.iter().map(what).sum::<usize>();
    let all = (
        count(|sum| sum.certain),
        count(|sum| sum.lost),
        count(|sum| sum.looked_at_in_vain),
    );
    println!("certain, lost, looked at in vain: {all:?}");
    assert!(all.0 >= 30 && all.1 >= 30, "the generator is lopsided: {all:?}");
}
