//! Conversions that are programs, for those who embed the crate.

use std::sync::Arc;

use exuvia_datastore::mapping::{Convert, Converters, InvalidSpec, Mappings};
use serde_json::{Value, json};

use super::{spec, widget, widgets};

/// Makes as many objects as `spec.copies` says.
struct Copies;

impl Convert for Copies {
    fn convert(&self, object: &Value) -> Result<Vec<Value>, String> {
        let copies = object["spec"]["copies"]
            .as_u64()
            .ok_or("spec.copies is not a number")?;
        Ok((0..copies)
            .map(|number| {
                let mut copy = object.clone();
                copy["apiVersion"] = json!("example.com/v1");
                copy["metadata"]["name"] = json!(format!("copy-{number}"));
                copy
            })
            .collect())
    }
}

fn converters() -> Converters {
    [("widgets".to_owned(), Arc::new(Copies) as Arc<dyn Convert>)].into()
}

#[test]
fn a_program_makes_the_successor_and_extra_objects() {
    let mappings = Mappings::compile_with(&spec(json!([widgets(json!({"status": "Copy"}))])), converters())
        .expect("valid");
    let source = widget(json!({
        "metadata": {
            "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "1"}],
        },
        "spec": {"copies": 2},
        "status": {"phase": "Ready"},
    }));
    let converted = mappings.convert(&source).expect("it converts");
    assert_eq!(converted.taken_by, Some(0));
    let [first, second] = converted.outputs.as_slice() else {
        panic!("two outputs")
    };
    assert_eq!((first.extra, second.extra), (false, true));
    assert_eq!(
        first.object,
        json!({
            "apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": "copy-0", "namespace": "shop", "labels": {"a": "b"}},
            "spec": {"copies": 2},
        })
    );
    assert_eq!(first.status, Some(json!({"phase": "Ready"})));
    assert_eq!(first.owners[0].uid, "1");

    for (copies, words) in [
        (json!(0), "expected its successor"),
        (json!("x"), "spec.copies is not a number"),
    ] {
        let error = mappings
            .convert(&widget(json!({"spec": {"copies": copies}})))
            .expect_err(words);
        assert!(error.problem().contains(words), "{error}");
    }
}

#[test]
fn a_program_must_make_what_the_mapping_says() {
    let other = widgets(json!({"to": {"kind": "Gadget"}}));
    let mappings = Mappings::compile_with(&spec(json!([other])), converters()).expect("valid");
    let error = mappings
        .convert(&widget(json!({"spec": {"copies": 1}})))
        .expect_err("another kind");
    assert!(
        error
            .problem()
            .contains("expected the kind Gadget of example.com"),
        "{error}"
    );
}

#[test]
fn a_program_is_for_a_mapping_that_declares_no_conversion() {
    let problems = |spec| -> Vec<InvalidSpec> {
        Mappings::compile_with(&spec, converters())
            .map(|_| ())
            .expect_err("not valid")
    };
    let unknown = problems(spec(json!([widgets(json!({"name": "other"}))])));
    assert!(
        unknown[0].problem().contains("expected the name of a mapping"),
        "{unknown:?}"
    );
    let both = problems(spec(json!([widgets(json!({"remove": ["spec.a"]}))])));
    assert!(both[0].problem().contains("the program converts"), "{both:?}");
}
