//! Takes values out of a server's messages: they may hold what nobody should read in a log (PITFALLS B27).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::DynamicObject;
use serde_json::Value;

/// So much of a message is shown: a status names many objects.
const LONGEST: usize = 512;
/// Shorter texts than this are words; to take them out would leave nothing to read.
const SHORTEST: usize = 6;

/// The message with every rejected value replaced by `…`, on one line, 512 bytes at most.
///
/// The API server quotes the value that it refuses: `spec.token: Invalid value: "s3cret": must be …`.
///
/// ```
/// use exuvia_storage::redact;
///
/// let said = r#"Widget "a" is invalid: spec.token: Invalid value: "s3c\"ret": must not be empty"#;
/// assert_eq!(redact(said), r#"Widget "a" is invalid: spec.token: Invalid value: …: must not be empty"#);
/// let object = r#"spec: Invalid value: {"a":{"b":"s3cret"}}: spec.a in body must be of type string"#;
/// assert_eq!(redact(object), "spec: Invalid value: …: spec.a in body must be of type string");
/// ```
pub fn redact(message: &str) -> String {
    cut(&redact_uncut(message), LONGEST).to_owned()
}

/// As [`redact`], however long it is.
pub fn redact_uncut(message: &str) -> String {
    const MARK: &str = "value: ";
    let mut kept = String::new();
    let mut rest = message;
    while let Some(at) = rest.find(MARK) {
        kept.push_str(&rest[..at + MARK.len()]);
        kept.push('…');
        rest = &rest[at + MARK.len()..];
        rest = &rest[end_of_value(rest)..];
    }
    kept.push_str(rest);
    one_line(without_converters_words(&kept))
}

fn one_line(text: impl AsRef<str>) -> String {
    text.as_ref().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a conversion webhook answers with may quote any object; why it does not answer at all is the client's own word.
fn without_converters_words(message: &str) -> std::borrow::Cow<'_, str> {
    const MARK: &str = " failed: ";
    let said = message.find("conversion webhook for ").and_then(|at| {
        let mark = message[at..].find(MARK)? + at + MARK.len();
        Some((&message[..mark], &message[mark..]))
    });
    match said {
        Some((before, words)) if !words.starts_with("Post \"") => format!("{before}…").into(),
        _ => message.into(),
    }
}

/// The message without anything that the object holds, whoever quoted it: no text in it of six bytes or more.
///
/// ```text
/// the payload s3cret! must change    becomes    the payload … must change
/// ```
pub(crate) fn mask(message: &str, object: &DynamicObject) -> String {
    let mut values = Vec::new();
    texts(&object.data, &mut values);
    let annotations = object.metadata.annotations.iter().flatten();
    values.extend(annotations.map(|(_, value)| value.clone()));
    // What a Secret holds is base64, and whoever quotes it may have decoded it.
    let decoded = values.iter().filter_map(|value| STANDARD.decode(value).ok());
    let decoded: Vec<String> = decoded
        .filter_map(|bytes| String::from_utf8(bytes).ok())
        .collect();
    values.extend(decoded);
    let mut forms: Vec<String> = values
        .iter()
        .flat_map(|value| {
            [
                one_line(value),
                one_line(Value::from(value.as_str()).to_string().trim_matches('"')),
            ]
        })
        .filter(|form| form.len() >= SHORTEST)
        .collect();
    // The longest first: it may hold a shorter one, and what is left of it then would not be known again.
    forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
    let mut masked = message.to_owned();
    for form in &forms {
        if masked.contains(form.as_str()) {
            masked = masked.replace(form.as_str(), "…");
        }
    }
    // A message that was cut may end in the middle of a value.
    let is_cut = message.len() + SHORTEST > LONGEST;
    let begun = |form: &String| {
        let begins = (1..form.len()).rev().filter(|end| form.is_char_boundary(*end));
        begins
            .map(|end| &form[..end])
            .find(|begin| masked.ends_with(begin))
            .map(str::len)
    };
    if is_cut && let Some(begun) = forms.iter().filter_map(begun).max() {
        masked.truncate(masked.len() - begun);
        masked.push('…');
    }
    masked
}

/// All texts in a JSON value.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// Where the value at the start of `text` ends: a quoted string, something in brackets, or all up to `: `.
fn end_of_value(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut quoted = false;
    let mut escaped = false;
    let structured = text.starts_with(['"', '{', '[', '`', '\'']);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth = depth.saturating_sub(1),
            ':' if !quoted && depth == 0 && !structured && text[at..].starts_with(": ") => return at,
            _ => {}
        }
        if structured && !quoted && depth == 0 && !escaped && at + c.len_utf8() > 1 {
            return at + c.len_utf8();
        }
    }
    text.len() // no end in sight: nothing of it is shown
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_form_of_value_gets_through() {
        for said in [
            r#"a: Invalid value: "CANARY": b"#,
            r#"a: Invalid value: {"x":["CANARY","}"]}: b"#,
            r"a: Invalid value: CANARY: b",
            r#"a: Unsupported value: "CANARY": supported values: "x""#,
            r#"a: Duplicate value: map[string]interface{}{"k":"CANARY"}"#,
            r#"a: Invalid value: "unterminated CANARY"#,
            r#"[a: Invalid value: "CANARY": x, b: Invalid value: "CANARY": y]"#,
        ] {
            assert!(!redact(said).contains("CANARY"), "{said} became {}", redact(said));
        }
    }

    #[test]
    fn what_an_object_holds_is_not_repeated_in_any_form() {
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "a", "annotations": {"token": "CANARY-in-annotation"}},
            "spec": {"plain": "CANARY-plain", "longer": "CANARY-plain-and-more", "nested": [{"deep": "CANARY\n\"quoted\""}]},
            "data": {"sealed": STANDARD.encode("CANARY-decoded")},
        }))
        .expect("an object");
        for said in [
            "no: CANARY-plain",
            "no: CANARY-plain-and-more, CANARY-plain",
            "no: CANARY-in-annotation",
            r#"no: {"deep":"CANARY\n\"quoted\""}"#,
            "no: CANARY \"quoted\"",
            "no: CANARY-decoded",
            &format!("no: {}", STANDARD.encode("CANARY-decoded")),
            &format!("{}CANARY-pl", "x".repeat(LONGEST - 9)),
        ] {
            let masked = mask(said, &object);
            assert!(!masked.contains("CANARY"), "{said} became {masked}");
        }
        assert_eq!(mask("no: the size must grow", &object), "no: the size must grow");
    }

    #[test]
    fn a_conversion_webhooks_own_words_are_not_repeated_but_why_there_are_none_is() {
        let answered = "conversion webhook for example.com/v1, Kind=Widget failed: no CANARY";
        assert_eq!(
            redact(answered),
            "conversion webhook for example.com/v1, Kind=Widget failed: …"
        );
        let silent = r#"conversion webhook for example.com/v1, Kind=Widget failed: Post "https://w.x.svc:443/convert": dial tcp 10.0.0.1:443: connect: connection refused"#;
        assert_eq!(redact(silent), silent);
    }

    #[test]
    fn what_holds_no_value_stays_readable() {
        let denied = r#"admission webhook "policy.example.com" denied the request: no"#;
        assert_eq!(redact(denied), denied);
    }
}
