//! What the diff of a 10 kB object costs, next to serialising that object once in the same run.
//!
//! Fails if the diff takes longer than the serialisation, or allocates for more than what changed.

use std::{hint::black_box, process::ExitCode, time::Instant};

use exuvia_write::diff;
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

/// Rounds of which the median is taken, and calls per round: about two seconds in all.
const ROUNDS: usize = 101;
const CALLS: u32 = 200;

fn main() -> ExitCode {
    let object = deployment(10_000);
    let mut changed = object.clone();
    changed.spec.replicas = Some(4);
    let forms = |object: &Deployment| serde_json::to_value(object).expect("a deployment is JSON");
    let (before, after) = (forms(&object), forms(&changed));
    let size = before.to_string().len();
    let patch = diff(&before, &after).expect("no nulls");
    assert_eq!(patch, Some(json!({"spec": {"replicas": 4}})));

    println!("an object of {size} bytes; median of {ROUNDS} rounds of {CALLS} calls");
    println!("{:<38} {:>12} {:>12} {:>12}", "", "time", "allocations", "bytes");
    let bytes = measure("serialise once, to bytes", || {
        drop(black_box(serde_json::to_vec(black_box(&object))));
    });
    measure("serialise once, to a value", || {
        drop(black_box(serde_json::to_value(black_box(&object))));
    });
    let one = measure("diff, one field changed", || {
        drop(black_box(diff(black_box(&before), black_box(&after))));
    });
    let none = measure("diff, nothing changed", || {
        drop(black_box(diff(black_box(&before), black_box(&before))));
    });
    measure("all that patch does before it sends", || {
        let mut mutated = black_box(&object).clone();
        mutated.spec.replicas = Some(4);
        drop(black_box(diff(&forms(&object), &forms(&mutated))));
    });
    let ratio = one.nanos / bytes.nanos;
    println!("the diff takes {ratio:.2} of the time of one serialisation (aim: at most 1.00)");

    // Two levels of object on the way to the change, with a key each; see tests/allocations.rs for how it grows.
    let (spare, quick) = (one.allocations <= 4 && none.allocations == 0, ratio <= 1.0);
    if spare && quick {
        ExitCode::SUCCESS
    } else {
        eprintln!("the aim is missed: quick {quick}, spare {spare}");
        ExitCode::FAILURE
    }
}

struct Cost {
    nanos: f64,
    allocations: u64,
}

fn measure(what: &str, call: impl Fn()) -> Cost {
    let heap = allocation_counter::measure(&call);
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            began.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    let nanos = rounds[ROUNDS / 2];
    println!(
        "{what:<38} {:>9.2} µs {:>12} {:>12}",
        nanos / 1e3,
        heap.count_total,
        heap.bytes_total
    );
    Cost {
        nanos,
        allocations: heap.count_total,
    }
}

/// A deployment as they are in the wild, of at least so many bytes.
fn deployment(at_least: usize) -> Deployment {
    let mut containers: Vec<Value> = Vec::new();
    loop {
        let at = containers.len();
        let env: Vec<Value> = (0..10)
            .map(|n| json!({"name": format!("SETTING_{at}_{n}"), "value": format!("value {n} of container {at}")}))
            .collect();
        containers.push(json!({
            "name": format!("container-{at}"), "image": format!("registry.example.com/team/app-{at}:1.2.3"),
            "env": env, "ports": [{"containerPort": 8080 + at, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
            "livenessProbe": {"httpGet": {"path": "/livez", "port": 8080}, "periodSeconds": 10},
            "volumeMounts": [{"name": "config", "mountPath": "/etc/app", "readOnly": true}],
        }));
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "app", "namespace": "shop", "labels": {"app": "app", "team": "till"},
                         "resourceVersion": "1", "uid": "u", "generation": 1},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "app"}},
                     "template": {"metadata": {"labels": {"app": "app"}}, "spec": {"containers": containers}}},
            "status": {"replicas": 3, "readyReplicas": 3, "conditions": [
                {"type": "Available", "status": "True", "reason": "Enough", "message": "all well"}]},
        });
        if object.to_string().len() >= at_least {
            return serde_json::from_value(object).expect("a deployment");
        }
    }
}
