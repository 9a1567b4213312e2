//! What expressions give, what they cannot do, and what becomes of hostile ones.

mod hostile;

use allocation_counter::{AllocationInfo, measure};
use serde_json::{Value, json};

use super::*;
use crate::mapping::pool::Pool;

/// Milliseconds that this thread was on a processor, however busy the machine is.
fn processor_ms() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    times
        .split(' ')
        .next()
        .and_then(|ns| ns.parse::<u64>().ok())
        .unwrap_or_default()
        / 1_000_000
}

/// What an expression gives for an object, and what memory and how many milliseconds that took.
fn measured(source: &str, object: &Value) -> (Result<Option<Value>, String>, AllocationInfo, u64) {
    let (source, object) = (source.to_owned(), object.clone());
    let evaluation = move || {
        let mut result = Ok(None);
        // The first use of the parser makes tables that stay.
        let warm = Program::compile("[1].map(x, x + 1)", &["object"]);
        assert!(warm.is_ok());
        let began = processor_ms();
        let memory = measure(|| {
            result = Program::compile(&source, &["object", "unpacked"])
                .map_err(|rejected| rejected.problem)
                .and_then(|program| program.value(&Scope::new(&object)));
        });
        (result, memory, processor_ms() - began)
    };
    Pool::new().expect("threads").run(evaluation).expect("no panic")
}

fn value(source: &str, object: &Value) -> Result<Option<Value>, String> {
    measured(source, object).0
}

#[track_caller]
fn gives(source: &str, object: &Value, expected: Value) {
    assert_eq!(value(source, object), Ok(Some(expected)), "{source}");
}

fn rejected(source: &str) -> Rejected {
    let source = source.to_owned();
    let compile = move || Program::compile(&source, &["object"]).expect_err(&source);
    Pool::new().expect("threads").run(compile).expect("no panic")
}

fn object() -> Value {
    json!({
        "apiVersion": "old.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "a", "labels": {"z": "26", "a": "1", "m": "13"}},
        "spec": {
            "max": i64::MAX, "above": u64::MAX, "minus": -1, "zero": 0, "float": 1000.5, "none": null,
            "list": [1, 2, 3], "nested": {"a": {"b": ["x"]}}, "secret": "hunter2", "json": "{\"k\": [1, -1, 2.5]}",
        },
    })
}

#[test]
fn integers_stay_integers() {
    let object = object();
    gives("object.spec", &object, object["spec"].clone());
    gives("object.spec.max", &object, json!(i64::MAX));
    gives("object.spec.above", &object, json!(u64::MAX));
    gives("object.spec.minus", &object, json!(-1));
    gives("object.spec.zero - 1", &object, json!(-1));
    gives("object.spec.float", &object, json!(1000.5));
    gives("object.spec.list.map(x, x * 2)", &object, json!([2, 4, 6]));
    gives(
        "type(object.spec.zero) == int && type(object.spec.float) == double",
        &object,
        json!(true),
    );
    gives("1.0", &object, json!(1.0));
}

#[test]
fn functions_are_those_of_the_language_and_three_more() {
    let object = object();
    for (source, expected) in [
        ("json(object.spec.json).k[1]", json!(-1)),
        (
            "merge({'a': 1, 'b': 1}, {'b': 2, 'c': 2})",
            json!({"a": 1, "b": 2, "c": 2}),
        ),
        ("without({'a': 1, 'b': 2}, ['b', 'x'])", json!({"a": 1})),
        ("cel.bind(s, object.spec, s.zero + s.minus)", json!(-1)),
        ("cel.bind(a, 1, cel.bind(b, a + 1, [a, b]))", json!([1, 2])),
        ("object.spec.?nested.?a.?b.orValue([])", json!(["x"])),
        ("object.?missing.?a.orValue('none')", json!("none")),
        (
            "object.spec.?nested.a.optMap(a, a.b[0] + 'y').orValue('')",
            json!("xy"),
        ),
        (
            "optional.of(1).optFlatMap(x, optional.of(x + 1)).value()",
            json!(2),
        ),
        ("object.spec[?'zero'].orValue(7)", json!(0)),
        ("has(object.spec.none) && !has(object.spec.nothing)", json!(true)),
        ("[1, 2, 3].filter(x, x > 1)", json!([2, 3])),
        (
            "[1, 2, 3].exists_one(x, x > 2) && [1, 2].all(x, x > 0) && [1].exists(x, x == 1)",
            json!(true),
        ),
        (
            "2 in [1, 2] && 'a' in {'a': 1} && !('b' in object.metadata.labels)",
            json!(true),
        ),
        (
            "object.metadata.labels == {'a': '1', 'm': '13', 'z': '26'}",
            json!(true),
        ),
        ("'a,b,c'.split(',').join('+')", json!("a+b+c")),
        ("'a,b,c'.split(',', 2)", json!(["a", "b,c"])),
        ("'äbc'.split('')", json!(["ä", "b", "c"])),
        ("'äbc'.split('', 2)", json!(["ä", "bc"])),
        ("'abc'.split('b', 0)", json!([])),
        (
            "'aXbX'.replace('X', '-') + 'aXbX'.replace('X', '-', 1) + 'ab'.replace('', '.')",
            json!("a-b-a-bX.a.b."),
        ),
        (
            "['é'.indexOf('x'), 'éxéx'.indexOf('x', 2), 'éxéx'.lastIndexOf('x'), 'éxéx'.lastIndexOf('x', 2)]",
            json!([-1, 3, 3, 1]),
        ),
        (
            "['abc'.indexOf(''), 'abc'.lastIndexOf(''), 'abc'.indexOf('', 9), 'abc'.lastIndexOf('bc', 1)]",
            json!([0, 3, 3, 1]),
        ),
        ("'%s is %d'.format(['a', 7])", json!("a is 7")),
        (
            "' Ab '.trim().lowerAscii().upperAscii().reverse().substring(1).charAt(0)",
            json!("A"),
        ),
        (
            "'v1beta1'.matches('^v[0-9]+(alpha|beta)') && matches('x', 'x')",
            json!(true),
        ),
        (
            "base64.encode(b'hi') + string(base64.decode('aGk='))",
            json!("aGk=hi"),
        ),
        ("strings.quote('a\"b')", json!("\"a\\\"b\"")),
        ("size('äb') + size([1]) + {'a': 1}.size()", json!(4)),
        ("{?'a': optional.none(), ?'b': optional.of(1)}", json!({"b": 1})),
        ("[?optional.none(), ?optional.of(1)]", json!([1])),
        ("int('7') + int(1.9)", json!(8)),
        ("true ? 'a' : 'b'", json!("a")),
        ("object.spec.nested.a['b']", json!(["x"])),
    ] {
        gives(source, &object, expected);
    }
}

#[test]
fn absent_is_not_null() {
    let object = object();
    assert_eq!(value("optional.none()", &object), Ok(None));
    assert_eq!(value("object.?nothing", &object), Ok(None));
    gives("object.spec.?zero", &object, json!(0));
    gives("object.spec.?none", &object, json!(null));
}

#[test]
fn a_map_is_gone_through_in_the_same_order_each_time() {
    let labels: serde_json::Map<String, Value> = (0..50).map(|n| (format!("k{n:02}"), json!("v"))).collect();
    let keys: Vec<Value> = labels.keys().cloned().map(Value::from).collect();
    let object = json!({"metadata": {"labels": labels}});
    for _ in 0..3 {
        gives(
            "object.metadata.labels.map(k, k)",
            &object,
            Value::from(keys.clone()),
        );
    }
}

#[test]
fn what_json_cannot_hold_is_an_error() {
    let object = object();
    for (source, reason) in [
        ("{'a': object.?nothing}", "optional inside"),
        ("[optional.of(1)]", "optional inside"),
        ("optional.of(optional.of(1))", "optional inside"),
        ("0.0 / 0.0", "NaN"),
        ("[1.0 / 0.0]", "infinite"),
        ("{1: 'a'}", "key of type int"),
        ("{'a': {true: 1}}", "key of type bool"),
        ("b'a'", "type bytes"),
        ("type(1)", "type type"),
    ] {
        let error = value(source, &object).expect_err(source);
        assert!(error.contains(reason), "{source}: {error}");
    }
}

#[test]
fn errors_quote_nothing_of_the_object() {
    let object = object();
    for source in [
        "object.spec.nothing",
        "object[object.spec.secret]",
        "int(object.spec.secret)",
        "object.spec.secret + 1",
        "object.spec.secret > 1",
        "object.spec.list[7]",
        "json(object.spec.secret)",
        "'x'.matches(object.spec.secret + '(')",
        "object.spec.secret.nothing",
        "{object.spec.secret: 1, object.spec.secret: 2}",
        "object.spec.max + 1",
        "1 / object.spec.zero",
        "object.spec.secret.charAt(99)",
        "object.spec.secret.substring(5, 1)",
        "'%d'.format([object.spec.secret])",
        "object.spec.secret.map(x, x)",
        "object.spec.list.join(',')",
        "object.spec.secret ? 1 : 2",
        "!object.spec.secret",
        "-object.spec.secret",
        "{object.spec.list: 1}",
        "base64.decode(object.spec.secret + '!')",
        "optional.none().value()",
        "bool(object.spec.secret)",
        "object.spec.secret in 1",
        "without({}, [object.spec.list])",
        "object.spec.list + {}",
    ] {
        let error = value(source, &object).expect_err(source);
        assert!(
            !error.contains("hunter2") && !error.contains("922337"),
            "{source}: {error}"
        );
        assert!(!error.contains('@') && error.len() > 10, "{source}: {error}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (source, position, reason) in [
        ("object.spec.", (1, 13), "invalid expression"),
        ("1 +\n  + 2", (2, 3), "invalid expression"),
        (
            "\n\n  objekt.spec",
            (3, 3),
            "unknown variable \"objekt\": expected object (did you mean object?)",
        ),
        ("'ü' + nope", (1, 7), "unknown variable \"nope\""),
        ("unpacked.name", (1, 1), "unknown variable \"unpacked\""),
        (
            "object.metadata.nam.lowerAsci()",
            (1, 30),
            "did you mean lowerAscii?",
        ),
        ("now()", (1, 4), "unknown function \"now\""),
        (
            "timestamp('2026-01-01T00:00:00Z')",
            (1, 10),
            "unknown function \"timestamp\"",
        ),
        ("contains('a', 'b')", (1, 9), "expected x.contains()"),
        ("'a'.json()", (1, 9), "expected json(x)"),
        ("size()", (1, 5), "takes 1 argument, not 0"),
        ("'a'.replace('b')", (1, 12), "takes 2 or 3 arguments"),
        ("math.greatest(1, 2)", (1, 14), "unknown function"),
        ("cel.bind(x, 1)", (1, 9), "unknown function"),
        ("cel.bind(1, 2, 3)", (1, 10), "must be a name"),
        ("[1].map(object, object)", (1, 8), "would hide"),
        ("[1].map(x, y)", (1, 12), "unknown variable \"y\""),
        ("[1].map(x, x)[0] + x", (1, 20), "unknown variable \"x\""),
        ("Widget{a: 1}", (1, 7), "unknown type \"Widget\""),
        ("'a'.matches('(')", (1, 12), "invalid regular expression"),
        ("has(object)", (1, 5), "has()"),
    ] {
        let rejected = rejected(source);
        assert_eq!(
            rejected.position,
            Some(position),
            "{source}: {}",
            rejected.problem
        );
        assert!(
            rejected.problem.contains(reason),
            "{source}: {}",
            rejected.problem
        );
        assert!(!rejected.problem.contains('\n'), "{source}");
    }
}

#[test]
fn what_is_said_stays_short() {
    for source in [
        "'".to_owned() + &"a".repeat(8_000),
        "a ".repeat(4_000),
        ",".repeat(8_000),
        "@".repeat(8_000),
    ] {
        let rejected = rejected(&source);
        assert!(
            rejected.problem.starts_with("invalid expression: "),
            "{}",
            rejected.problem
        );
        assert!(rejected.problem.chars().count() < 200, "{}", rejected.problem);
    }
}

#[test]
fn nothing_asks_for_the_time_or_for_chance() {
    for source in [
        "now()",
        "timestamp('x')",
        "duration('1s')",
        "random()",
        "uuid()",
        "object.getHours()",
        "lookup('x')",
    ] {
        assert!(rejected(source).problem.contains("unknown function"), "{source}");
    }
}

#[test]
fn what_is_large_but_honest_is_within_bounds() {
    let rules: Vec<Value> = (0..2_000)
        .map(|n| json!({"port": n, "protocol": "TCP", "nets": ["10.0.0.0/8"]}))
        .collect();
    let object = json!({"metadata": {"name": "a"}, "spec": {"rules": rules, "text": "x".repeat(1_000_000)}});
    gives(
        "object.spec.rules.map(r, merge(r, {'port': r.port + 1})).size()",
        &object,
        json!(2_000),
    );
    gives(
        "object.spec.rules.exists(r, r.protocol == 'UDP')",
        &object,
        json!(false),
    );
    gives(
        "object.spec.rules.filter(r, r.port > 1000 && '10.0.0.0/8' in r.nets).size()",
        &object,
        json!(999),
    );
    gives(
        "object.?spec.?text.orValue('').size() + object.?spec.?rules[?0].?port.orValue(7)",
        &object,
        json!(1_000_000),
    );
    assert_eq!(
        value("object.spec.text", &object),
        Ok(Some(object["spec"]["text"].clone()))
    );
    let ors = vec!["object.metadata.name == 'b'"; 250].join(" || ");
    gives(&ors, &object, json!(false));
    let sum = vec!["1"; 60].join(" + ");
    gives(&sum, &object, json!(60));
}

#[test]
fn a_result_that_no_object_could_hold_is_an_error() {
    let object = json!({"spec": {"text": "x".repeat(800_000)}});
    let error = value("[object.spec.text, object.spec.text]", &object).expect_err("too large");
    assert!(error.contains("larger than"), "{error}");
}
