//! How many objects are converted in a second. It asserts nothing about time: `cargo test -- --nocapture speed`.

use std::time::Instant;

use serde_json::json;

use super::{compile, only, spec, widget, widgets};

#[test]
fn speed_of_a_mapping_with_ten_expressions() {
    let convert: Vec<_> = (0..10)
        .map(|n| json!({"path": format!("spec.f{n}"), "value": "object.spec.rules.filter(r, r.port > 5).map(r, r.?name.orValue('x') + '-y')"}))
        .collect();
    let mappings = compile(&spec(json!([widgets(json!({"convert": convert}))])));
    let rules: Vec<_> = (0..10)
        .map(|n| json!({"port": n, "name": format!("rule-{n}")}))
        .collect();
    let object = widget(json!({"spec": {"rules": rules, "text": "x".repeat(1000)}}));
    let began = Instant::now();
    let rounds = 100;
    for _ in 0..rounds {
        assert_eq!(
            only(mappings.convert(&object)).object["spec"]["f9"]
                .as_array()
                .map(Vec::len),
            Some(4)
        );
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{:.0} objects/s, {:.0} evaluations/s",
        f64::from(rounds) / seconds,
        f64::from(rounds * 10) / seconds
    );
}
