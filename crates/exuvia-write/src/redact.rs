//! Takes values out of a server's messages, and leaves causes in: who refused, which field, by which rule (PITFALLS B27).

mod mask;
mod text;

use std::sync::atomic::{AtomicBool, Ordering};

use mask::{mask, only_causes};
pub use text::{Name, Redacted, SafePart, safe_part};

/// So much of a message is shown: a status names many objects.
const LONGEST: usize = 512;
/// Shorter texts than this are words; to take them out would leave nothing to read.
const SHORTEST: usize = 6;
/// What the API server calls a fault of a field. Those with `true` are followed by the value, if it is not left out.
const FAULTS: [(&str, bool); 10] = [
    ("Invalid value", true),
    ("Unsupported value", true),
    ("Duplicate value", true),
    ("Not found", true),
    ("Required value", false),
    ("Forbidden", false),
    ("Too long", false),
    ("Too short", false),
    ("Too many", false), // followed by how many there are
    ("Too few", false),
];
/// Where the API server has no value to show, it names its type.
const TYPES: [&str; 7] = [
    "object", "array", "string", "integer", "number", "boolean", "null",
];
/// What the API server itself says of a conversion webhook, after "failed: ".
const OF_CONVERTERS: [&str; 5] = [
    "Post \"",
    "no response provided",
    "expected webhook response of ",
    "expected response.uid=",
    "unrecognized response type: ",
];
/// Said instead of a conversion webhook's words.
const CONVERTER_UNSHOWN: &str =
    "… (what it answered may quote objects and is not shown; see the webhook's own log)";

static SHOWS_VALUES: AtomicBool = AtomicBool::new(false);

/// From now on, and for the rest of this process, messages are shown whole, with what objects hold.
///
/// For a command that a person runs at a terminal and asks to do so. What it is told must not reach a log, a status or an
/// event, so a controller never calls it.
pub fn show_values() {
    SHOWS_VALUES.store(true, Ordering::Relaxed);
}

/// Whether messages are shown whole in this process, see [`show_values`].
pub fn shows_values() -> bool {
    SHOWS_VALUES.load(Ordering::Relaxed)
}

/// The message with every rejected value replaced by `…`, on one line, 512 bytes at most.
///
/// The API server quotes the value that it refuses, and then says why. The reason stays: it is the schema's, or the words of
/// the author of the rule.
///
/// ```
/// use exuvia_write::redact;
///
/// let said = r#"Widget "a" is invalid: spec.token: Invalid value: "s3c\"ret": must not be empty"#;
/// assert_eq!(redact(said), r#"Widget "a" is invalid: spec.token: Invalid value: …: must not be empty"#);
/// let object = r#"spec: Invalid value: {"a":{"b":"s3cret"}}: spec.a in body must be of type string"#;
/// assert_eq!(redact(object), "spec: Invalid value: …: spec.a in body must be of type string");
/// let rule = "spec: Invalid value: must grow"; // an object is not quoted
/// assert_eq!(redact(rule), rule);
/// ```
pub fn redact(message: &str) -> String {
    let redacted = redact_uncut(message);
    if shows_values() {
        return redacted;
    }
    cut(&redacted, LONGEST).to_owned()
}

/// As [`redact`], however long it is.
pub fn redact_uncut(message: &str) -> String {
    if shows_values() {
        return one_line(message);
    }
    let mut kept = String::new();
    let mut values = Vec::new();
    let mut rest = message;
    while let Some(at) = next_value(rest) {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = end_of_value(rest);
        let value = &rest[..end];
        if end == 0 || TYPES.contains(&value.trim_matches('"')) {
            kept.push_str(value);
        } else {
            kept.push('…');
            values.extend(Some(value).filter(|value| value.starts_with('"')));
        }
        rest = &rest[end..];
    }
    kept.push_str(rest);
    for value in values {
        // Once more in the reason: `must be of type date: "s3cret"`.
        kept = kept.replace(value, "…");
    }
    one_line(without_converters_words(&kept))
}

/// Where the next value may begin: after a fault, or after anything else that ends in `value: `.
fn next_value(text: &str) -> Option<usize> {
    const VALUE: &str = "value: ";
    let after_word = text.match_indices(VALUE).find_map(|(at, _)| {
        let is_required = text[..at].ends_with("Required ");
        (!is_required).then_some(at + VALUE.len())
    });
    let after_fault = FAULTS
        .iter()
        .filter(|(_, has_value)| *has_value)
        .filter_map(|(fault, _)| {
            let at = text.find(&format!("{fault}: "))?;
            Some(at + fault.len() + 2)
        })
        .min();
    after_word.into_iter().chain(after_fault).min()
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
        Some((before, words)) if !OF_CONVERTERS.iter().any(|own| words.starts_with(own)) => {
            format!("{before}{CONVERTER_UNSHOWN}").into()
        }
        _ => message.into(),
    }
}

/// Where the value at the start of `text` ends; 0 if the text has no value, because the server left it out and the reason follows.
///
/// The server quotes a text, and writes lists and objects as JSON or, at worst, as Go does. Numbers and booleans stand alone.
fn end_of_value(text: &str) -> usize {
    let is_structured = text.starts_with(['"', '{', '[', '`', '\''])
        || ["map[", "&", "[]"].iter().any(|go| text.starts_with(go))
        || text
            .find('{')
            .is_some_and(|brace| !text[..brace].contains([' ', ':']));
    if is_structured {
        return end_of_structure(text);
    }
    let word = text.find([' ', ',', ']']).map_or(text, |end| &text[..end]);
    let number = word.trim_end_matches(':');
    let is_plain = number.parse::<f64>().is_ok() || ["true", "false", "null", "<nil>"].contains(&number);
    // A word with a colon after it is not how a reason begins.
    if is_plain || word.ends_with(':') {
        number.len()
    } else {
        0
    }
}

fn end_of_structure(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut quote = None;
    let mut escaped = false;
    let mut opened = false;
    for (at, c) in text.char_indices() {
        let mut closes = false;
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some('"'), '\\') => escaped = true,
            (Some(open), c) if open == c => (quote, closes) = (None, true),
            (Some(_), _) => {}
            (None, '"' | '`') => (quote, opened) = (Some(c), true),
            (None, '\'') if at == 0 => (quote, opened) = (Some(c), true),
            (None, '{' | '[' | '(') => (depth, opened) = (depth + 1, true),
            (None, '}' | ']' | ')') => (depth, closes) = (depth.saturating_sub(1), true),
            _ => {}
        }
        // Go writes a map as `map[string]interface {}{"k":"v"}`: brackets may follow each other.
        let goes_on = text[at + c.len_utf8()..].trim_start_matches("interface ");
        if opened && closes && depth == 0 && quote.is_none() {
            let is_type = c == ']' || (c == '}' && goes_on.starts_with('{'));
            let more = goes_on.starts_with(['{', '[']) || (c == ']' && goes_on.contains('{') && is_go(text));
            if !(is_type && more) {
                return at + c.len_utf8();
            }
        }
    }
    text.len() // no end in sight: nothing of it is shown
}

fn is_go(text: &str) -> bool {
    text.starts_with("map[") || text.starts_with("[]") || text.starts_with('&')
}

fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
