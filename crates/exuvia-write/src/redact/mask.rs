//! Compares a message with the object that it is about: what the object holds is taken out, what caused it stays.

use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::DynamicObject;
use serde_json::Value;

use super::{FAULTS, LONGEST, SHORTEST, one_line};

/// The message without anything that the object holds, no matter who quoted it: no text in it of six bytes or more.
///
/// Who refused and which field it is about stay, and so do `public` texts, such as a rule's message in the CRD, even if the
/// object happens to hold the same words.
///
/// ```text
/// the payload s3cret! must change    becomes    the payload … must change
/// ```
pub(super) fn mask(message: &str, object: &DynamicObject, public: &[String]) -> String {
    let forms = forms_of(object);
    let causes = causes(message, public);
    let mut hidden: Vec<Range<usize>> = forms
        .iter()
        .flat_map(|form| message.match_indices(form.as_str()))
        .map(|(at, form)| at..at + form.len())
        .filter(|found| !causes.iter().any(|cause| contains(cause, found)))
        .collect();
    // Who quotes a long value may cut it, and so may we.
    let cuts = ["...", "…"].iter().flat_map(|dots| message.match_indices(dots));
    let cuts = cuts.map(|(at, _)| (at, SHORTEST));
    let is_cut = message.len() + SHORTEST > LONGEST;
    for (end, at_least) in cuts.chain(is_cut.then_some((message.len(), 1))) {
        let begun = forms.iter().map(|form| begun(&message[..end], form));
        if let Some(begun) = begun.max().filter(|begun| *begun >= at_least) {
            hidden.push(end - begun..end);
        }
    }
    without(message, hidden)
}

/// How many bytes of the beginning of `form` the text ends with.
fn begun(text: &str, form: &str) -> usize {
    (1..form.len())
        .rev()
        .filter(|end| form.is_char_boundary(*end))
        .find(|end| text.ends_with(&form[..*end]))
        .unwrap_or_default()
}

/// The message's causes alone, for where the object cannot be read: nothing tells then what of the rest it quotes.
pub(super) fn only_causes(message: &str, public: &[String]) -> String {
    let mut shown = causes(message, public);
    shown.sort_by_key(|range| range.start);
    let mut hidden = Vec::new();
    let mut end = 0;
    for range in shown {
        if range.start > end {
            hidden.push(end..range.start);
        }
        end = end.max(range.end);
    }
    hidden.push(end..message.len());
    // What is between two causes and holds no word need not be hidden.
    hidden.retain(|range| message[range.clone()].contains(char::is_alphanumeric));
    without(message, hidden)
}

/// The text with `…` for each of these ranges, and for those that touch or overlap.
fn without(text: &str, mut hidden: Vec<Range<usize>>) -> String {
    hidden.sort_by_key(|range| range.start);
    let mut kept = String::new();
    let mut end = 0;
    for range in hidden {
        if range.start > end || (range.start == 0 && end == 0) {
            kept.push_str(&text[end..range.start]);
            kept.push('…');
        }
        end = end.max(range.end);
    }
    kept.push_str(&text[end..]);
    kept
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// What a message says that is not the object's: who refused it, which field it is about, what is wrong with that, and
/// `public` texts.
fn causes(message: &str, public: &[String]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for text in public.iter().filter(|text| text.len() >= SHORTEST) {
        let places = message.match_indices(text.as_str());
        found.extend(places.map(|(at, text)| at..at + text.len()));
    }
    let mut paths = Vec::new();
    for (fault, _) in FAULTS {
        for (at, _) in message.match_indices(fault) {
            let before = message[..at].strip_suffix(": ").unwrap_or_default();
            let start = before.rfind([' ', ',']).map_or(0, |space| space + 1);
            let path = before[start..].trim_start_matches('[');
            let start = before.len() - path.len();
            if is_path(path) {
                paths.push(path);
                found.push(start..at + fault.len());
            }
        }
    }
    // The reason names the field once more: `spec.size in body must be of type integer`.
    for path in paths {
        let places = message.match_indices(path);
        let whole = |at: usize| message[..at].ends_with([' ', '[']);
        found.extend(
            places
                .filter(|(at, _)| whole(*at))
                .map(|(at, path)| at..at + path.len()),
        );
    }
    for (begin, end) in [
        ("admission webhook \"", "denied the request"),
        ("ValidatingAdmissionPolicy '", "denied request"),
        ("failed calling webhook \"", "\": "),
    ] {
        found.extend(message.find(begin).and_then(|at| {
            let length = message[at..].find(end)? + end.len();
            // Names, and nothing that could be longer.
            let is_short = !message[at..at + length].contains(": ") || end.ends_with(": ");
            is_short.then_some(at..at + length)
        }));
    }
    // `widgets.example.com "a" is invalid`, at the beginning.
    for verb in [" is invalid", " is forbidden"] {
        let head = message.find(verb).map(|at| 0..at + verb.len());
        found.extend(head.filter(|head| message[head.clone()].split_whitespace().count() <= 4));
    }
    if let Some(at) = message.rfind(" (http ") {
        found.push(at..message.len());
    }
    found
}

/// Whether it looks like the path of a field: `spec.ports[0].name`, or `<nil>` for the object itself.
fn is_path(text: &str) -> bool {
    const ROOTS: [&str; 5] = ["spec", "status", "metadata", "data", "<nil>"];
    let part = |c: char| c.is_ascii_alphanumeric() || "._-[]/$*<>".contains(c);
    let root = text.split(['.', '[']).next().unwrap_or_default();
    ROOTS.contains(&root) && text.chars().all(part)
}

/// Every text that an object holds, in the forms in which a message may quote it; the longest first.
fn forms_of(object: &DynamicObject) -> Vec<String> {
    let mut values = Vec::new();
    texts(&object.data, &mut values);
    for annotation in object.metadata.annotations.iter().flatten() {
        add_text(annotation.1, &mut values);
    }
    let mut forms: Vec<String> = values
        .iter()
        .filter(|value| value.len() >= SHORTEST)
        .flat_map(|value| {
            let json = one_line(Value::from(value.as_str()).to_string().trim_matches('"'));
            // As Go's own library writes it.
            let escaped = json
                .replace('&', "\\u0026")
                .replace('<', "\\u003c")
                .replace('>', "\\u003e");
            [one_line(value), json, escaped, STANDARD.encode(value)]
        })
        .filter(|form| form.len() >= SHORTEST)
        .collect();
    forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    forms.dedup();
    forms
}

/// All texts in a JSON value.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => add_text(text, found),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// A text, and what it holds in turn: its lines, for a configuration file; its values, if it is JSON; what it was before it
/// was encoded, as in a Secret.
fn add_text(text: &str, found: &mut Vec<String>) {
    found.push(text.to_owned());
    if text.contains('\n') {
        found.extend(text.lines().map(|line| line.trim().to_owned()));
    }
    if text.starts_with(['{', '['])
        && let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text)
    {
        texts(&json, found);
    }
    let decoded = STANDARD.decode(text).ok().map(String::from_utf8);
    if let Some(Ok(decoded)) = decoded
        && decoded.len() >= SHORTEST
    {
        add_text(&decoded, found);
    }
}
