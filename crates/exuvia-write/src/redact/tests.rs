//! What the API server, rules, policies and webhooks say, and what is left of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn no_form_of_value_gets_through() {
    for said in [
        r#"a: Invalid value: "CANARY": b"#,
        r#"a: Invalid value: {"x":["CANARY","}"]}: b"#,
        r"a: Invalid value: CANARY: b",
        r#"a: Unsupported value: "CANARY": supported values: "x""#,
        r#"a: Duplicate value: map[string]interface{}{"k":"CANARY"}"#,
        r#"a: Duplicate value: map[string]interface {}{"k":"CANARY"}: b"#,
        r#"a: Invalid value: &v1.Thing{Name:"CANARY", Other:"CANARY"}: b"#,
        r#"a: Invalid value: v1.Thing{Name:"CANARY"}: b"#,
        r#"a: Invalid value: []string{"CANARY"}: b"#,
        r#"a: Invalid value: "unterminated CANARY"#,
        r#"[a: Invalid value: "CANARY": x, b: Invalid value: "CANARY": y]"#,
        r#"a: Not found: "CANARY""#,
        r#"spec.date: Invalid value: "CANARY": spec.date in body must be of type date: "CANARY""#,
    ] {
        assert!(!redact(said).contains("CANARY"), "{said} became {}", redact(said));
    }
}

/// Each as kube-apiserver 1.37 says it, with `…` for the value.
#[test]
fn causes_stay() {
    for (said, shown) in [
        (
            r#"W "a" is invalid: spec: Invalid value: must grow"#,
            r#"W "a" is invalid: spec: Invalid value: must grow"#,
        ),
        (
            r#"W "a" is invalid: spec: Invalid value: "object": must grow"#,
            r#"W "a" is invalid: spec: Invalid value: "object": must grow"#,
        ),
        (
            "spec.size: Invalid value: 5: must be one of: 1, 2",
            "spec.size: Invalid value: …: must be one of: 1, 2",
        ),
        (
            "spec.size: Invalid value: failed rule: self.size > oldSelf.size",
            "spec.size: Invalid value: failed rule: self.size > oldSelf.size",
        ),
        (
            "[spec.b: Required value, <nil>: Invalid value: null: some validation rules were not checked]",
            "[spec.b: Required value, <nil>: Invalid value: null: some validation rules were not checked]",
        ),
        (
            r#"spec.size: Invalid value: "string": spec.size in body must be of type integer: "string""#,
            r#"spec.size: Invalid value: "string": spec.size in body must be of type integer: "string""#,
        ),
        (
            r#"spec.name: Invalid value: "x y": spec.name in body should match '^[a-z]+$'"#,
            "spec.name: Invalid value: …: spec.name in body should match '^[a-z]+$'",
        ),
        (
            r#"spec.mode: Unsupported value: "x": supported values: "Fast", "Slow""#,
            r#"spec.mode: Unsupported value: …: supported values: "Fast", "Slow""#,
        ),
        (
            "spec.name: Too long: may not be more than 5 bytes",
            "spec.name: Too long: may not be more than 5 bytes",
        ),
        (
            "spec.tags: Too many: 4: must have at most 3 items",
            "spec.tags: Too many: 4: must have at most 3 items",
        ),
        (
            r#"admission webhook "v.example.com" denied the request: spec.issuerRef: Required value: must be specified"#,
            r#"admission webhook "v.example.com" denied the request: spec.issuerRef: Required value: must be specified"#,
        ),
        ("spec: Invalid value: immutable", "spec: Invalid value: immutable"),
        (
            "spec.on: Invalid value: true: must be off",
            "spec.on: Invalid value: …: must be off",
        ),
    ] {
        assert_eq!(redact(said), shown);
    }
}

fn object() -> DynamicObject {
    serde_json::from_value(json!({
        "metadata": {"name": "a", "annotations": {"token": "CANARY-in-annotation"}},
        "spec": {"plain": "CANARY-plain", "longer": "CANARY-plain-and-more", "nested": [{"deep": "CANARY\n\"quoted\""}],
                 "words": ["must grow", "payload", "v.example.com"],
                 "file": "[db]\n  password=CANARY-line\n", "json": r#"{"a":["CANARY-nested"]}"#, "html": "<CANARY&>"},
        "data": {"sealed": STANDARD.encode("CANARY-decoded"),
                 "file": STANDARD.encode("user: me\ntoken: CANARY-in-a-file\n")},
    }))
    .expect("an object")
}

#[test]
fn what_an_object_holds_is_not_repeated_in_any_form() {
    for said in [
        "no: CANARY-plain",
        "no: CANARY-plain-and-more, CANARY-plain",
        "no: CANARY-in-annotation",
        r#"no: {"deep":"CANARY\n\"quoted\""}"#,
        "no: CANARY \"quoted\"",
        "no: CANARY-decoded",
        &format!("no: {}", STANDARD.encode("CANARY-decoded")),
        &format!("{}CANARY-pl", "x".repeat(LONGEST - 9)),
        "CANARY-plain",
        "CANARY-plainCANARY-plain",
        "no: CANARY-pl... is too long",
        "no: \"CANARY-pl…\" is too long",
        "bad line \"password=CANARY-line\"",
        "bad line: token: CANARY-in-a-file",
        "no: CANARY-nested",
        r#"no: {"html":"\u003cCANARY\u0026\u003e"}"#,
        &format!("no: {}", STANDARD.encode("CANARY-plain")),
    ] {
        let masked = mask(said, &object(), &["CAN".to_owned(), "plain, CANARY".to_owned()]);
        let encoded = STANDARD.encode("CANARY-plain");
        assert!(
            !masked.contains("CANARY") && !masked.contains(&encoded),
            "{said} became {masked}"
        );
    }
    let harmless = "no: the size must be larger";
    assert_eq!(mask(harmless, &object(), &[]), harmless);
}

/// The object holds all of these words.
#[test]
fn who_refused_and_what_it_is_about_stays_even_if_the_object_holds_the_same_words() {
    let public = ["it must grow".to_owned()];
    for said in [
        r#"admission webhook "v.example.com" denied the request: too small"#,
        "w is invalid: spec.payload: Invalid value: it must grow",
        "w is invalid: spec.payload: Invalid value: …: spec.payload in body should match '^a$'",
    ] {
        assert_eq!(mask(said, &object(), &public), said);
    }
    assert_eq!(
        mask(
            "the payload is wrong: CANARY-plain it must grow",
            &object(),
            &public
        ),
        "the … is wrong: … it must grow"
    );
}

#[test]
fn of_an_object_that_cannot_be_read_the_causes_are_shown_alone() {
    let public = ["it must grow".to_owned()];
    for (said, shown) in [
        (
            r#"widgets.example.com "w" is invalid: spec: Invalid value: it must grow (http 422)"#,
            r#"widgets.example.com "w" is invalid: spec: Invalid value: it must grow (http 422)"#,
        ),
        (
            r#"widgets.example.com "w" is invalid: spec: Invalid value: CANARY must grow (http 422)"#,
            r#"widgets.example.com "w" is invalid: spec: Invalid value… (http 422)"#,
        ),
        (
            r#"admission webhook "v.example.com" denied the request: no CANARY (http 400)"#,
            r#"admission webhook "v.example.com" denied the request… (http 400)"#,
        ),
        (
            r#"widgets.example.com "w" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: CANARY"#,
            r#"widgets.example.com "w" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request…"#,
        ),
        ("CANARY", "…"),
    ] {
        assert_eq!(only_causes(said, &public), shown);
    }
}

#[test]
fn a_conversion_webhooks_own_words_are_not_repeated_but_why_there_are_none_is() {
    let answered = "conversion webhook for example.com/v1, Kind=Widget failed: no CANARY";
    let shown = redact(answered);
    assert!(
        shown.starts_with("conversion webhook for example.com/v1, Kind=Widget failed: … (")
            && shown.contains("log")
            && !shown.contains("CANARY"),
        "{shown}"
    );
    let silent = r#"conversion webhook for example.com/v1, Kind=Widget failed: Post "https://w.x.svc:443/convert": dial tcp 10.0.0.1:443: connect: connection refused"#;
    assert_eq!(redact(silent), silent);
}

#[test]
fn what_holds_no_value_stays_readable() {
    let denied = r#"admission webhook "policy.example.com" denied the request: no"#;
    assert_eq!(redact(denied), denied);
}

proptest! {
    #[test]
    fn whatever_is_quoted_whole_is_not_shown(value in "[ -~]{6,40}", before in "[a-z ]{0,20}", after in "[a-z: ]{0,20}") {
        let object: DynamicObject = serde_json::from_value(json!({"metadata": {}, "spec": {"x": value}})).expect("an object");
        let secret = one_line(&value);
        prop_assume!(secret.len() >= SHORTEST && !before.contains(&secret) && !after.contains(&secret));
        let quoted = Value::from(value.as_str()).to_string();
        for said in [format!("{before} {value} {after}"), format!("{before} {quoted} {after}")] {
            let masked = mask(&redact(&said), &object, &[]);
            prop_assert!(!masked.contains(&secret), "{} became {}", said, masked);
        }
    }

    #[test]
    fn no_text_is_too_odd_to_be_redacted(text in any::<String>(), value in any::<String>()) {
        let said = format!("spec.x: Invalid value: {value:?}: {text} value: {text}");
        let _ = redact(&said);
        let object: DynamicObject = serde_json::from_value(json!({"metadata": {}, "spec": {"x": value, "y": text}})).expect("an object");
        let _ = mask(&redact(&said), &object, std::slice::from_ref(&text));
        let _ = only_causes(&said, &[text]);
    }
}
