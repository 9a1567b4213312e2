//! How many CEL expressions are evaluated in a second: a mapping with ten of them, over one object, on one thread.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use exuvia_datastore::mapping::Mappings;
use serde_json::json;

const EXPRESSIONS: u32 = 10;
const FOR: Duration = Duration::from_secs(3);

/// Evaluations per second. The rest of a conversion, such as the raw copy, is counted as well.
pub(crate) fn evaluations_per_second() -> anyhow::Result<f64> {
    let value = "object.spec.rules.filter(r, r.port > 5).map(r, r.?name.orValue('x') + '-y')";
    let convert: Vec<_> = (0..EXPRESSIONS)
        .map(|index| json!({"path": format!("spec.f{index}"), "value": value}))
        .collect();
    let spec = serde_json::from_value(json!({"mappings": [{
        "name": "widgets",
        "from": {"group": "old.example.com", "version": "v1", "kinds": ["Widget"]},
        "to": {"group": "example.com", "version": "v1"},
        "convert": convert,
    }]}))?;
    let mappings = Mappings::compile(&spec).map_err(|invalid| anyhow!("{invalid:?}"))?;
    let rules: Vec<_> = (0..10)
        .map(|port| json!({"port": port, "name": format!("rule-{port}")}))
        .collect();
    let object = json!({
        "apiVersion": "old.example.com/v1", "kind": "Widget", "metadata": {"name": "a", "namespace": "shop"},
        "spec": {"rules": rules, "text": "x".repeat(1000)},
    });
    let (began, mut conversions) = (Instant::now(), 0);
    while began.elapsed() < FOR {
        let converted = mappings.convert(&object).map_err(|error| anyhow!("{error:?}"))?;
        ensure!(converted.outputs.len() == 1, "one target");
        conversions += 1;
    }
    Ok(f64::from(conversions * EXPRESSIONS) / began.elapsed().as_secs_f64())
}
