//! Takes values out of a server's messages: they may hold what nobody should read in a log (PITFALLS B27).

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
    let one_line = kept.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&one_line, 512).to_owned()
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
    use super::redact;

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
    fn what_holds_no_value_stays_readable() {
        let denied = r#"admission webhook "policy.example.com" denied the request: no"#;
        assert_eq!(redact(denied), denied);
    }
}
