//! The mapping language from outside: what a spec makes of objects, and what is said of one that cannot be right.
#![allow(
    clippy::needless_pass_by_value,
    reason = "`json!` reads better without a reference"
)]

mod converters;
mod invalid;
mod moves;
mod objects;
mod properties;
mod speed;

use exuvia_api::DatastoreMigrationSpec;
use exuvia_datastore::mapping::{ConvertError, Converted, Mappings, Output};
use serde_json::{Value, json};

/// A spec with these mappings.
fn spec(mappings: Value) -> DatastoreMigrationSpec {
    from(json!({"mappings": mappings}))
}

fn from(spec: Value) -> DatastoreMigrationSpec {
    serde_json::from_value(spec).expect("the shape of a spec")
}

#[track_caller]
fn compile(spec: &DatastoreMigrationSpec) -> Mappings {
    Mappings::compile(spec).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// One mapping of `Widget` from old.example.com to example.com with these fields more.
fn widgets(more: Value) -> Value {
    let mut mapping = json!({
        "name": "widgets",
        "from": {"group": "old.example.com", "version": "v1", "kinds": ["Widget"]},
        "to": {"group": "example.com", "version": "v1"},
    });
    merge(&mut mapping, more);
    mapping
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A `Widget` with these fields more.
fn widget(more: Value) -> Value {
    let mut widget = json!({
        "apiVersion": "old.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "a", "namespace": "shop"},
    });
    merge(&mut widget, more);
    widget
}

fn convert(more: Value, object: &Value) -> Result<Converted, ConvertError> {
    compile(&spec(json!([widgets(more)]))).convert(object)
}

/// The one target of an object.
#[track_caller]
fn only(converted: Result<Converted, ConvertError>) -> Output {
    let mut outputs = converted.expect("it converts").outputs;
    assert_eq!(outputs.len(), 1);
    outputs.remove(0)
}
