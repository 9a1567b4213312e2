//! What holds for every object.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{compile, convert, only, spec, widget, widgets};

/// Any JSON that a server could store.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e300..1e300).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            fields(inner).prop_map(Value::Object),
        ]
    })
}

fn fields(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    let key = "[a-zA-Z0-9._/ äß@-]{1,10}";
    prop::collection::btree_map(key, value, 0..6)
        .prop_map(|fields: BTreeMap<String, Value>| fields.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_mapping_that_declares_nothing_changes_no_content(content in fields(any_json())) {
        let reserved = ["apiVersion", "kind", "metadata", "status"];
        let content: Map<String, Value> = content.into_iter().filter(|(key, _)| !reserved.contains(&key.as_str())).collect();
        let object = widget(Value::Object(content.clone()));
        let output = only(convert(json!({}), &object));
        let mut written = output.object.as_object().cloned().expect("an object");
        for field in reserved {
            written.remove(field);
        }
        prop_assert_eq!(Value::Object(written).to_string(), Value::Object(content).to_string());
    }

    #[test]
    fn an_expression_that_names_a_field_gives_it_unchanged(content in any_json()) {
        let mappings = compile(&spec(json!([widgets(json!({"convert": [
            {"path": "copy", "value": "object.content"},
            {"path": "inList", "value": "[object.content].map(x, x)[0]"},
            {"path": "bound", "value": "cel.bind(x, object.?content, x.orValue('absent'))"},
        ]}))])));
        let output = only(mappings.convert(&widget(json!({"content": content}))));
        for field in ["copy", "inList", "bound"] {
            prop_assert_eq!(output.object[field].to_string(), content.to_string());
        }
    }

    #[test]
    fn no_text_makes_the_compiler_panic(source in "[a-z0-9(){}\\[\\].,?:+*/%!<>=&|'\"\\\\ \n@`-]{0,60}") {
        let spec = spec(json!([widgets(json!({"from": {"when": source}}))]));
        if let Err(problems) = exuvia_datastore::mapping::Mappings::compile(&spec) {
            prop_assert!(problems.iter().all(|problem| !problem.to_string().contains("panicked")), "{:?}", problems);
        }
    }
}
