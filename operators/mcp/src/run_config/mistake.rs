//! What is wrong with a run config: names the field, and never a value, which may be a secret. Pure.

use serde_json::error::Category;
use serde_json::{Map, Value, json};

use super::RunConfig;

/// What `error` means for this file.
pub(super) fn mistake(bytes: &[u8], error: &serde_json::Error) -> String {
    let at = format!("at line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Data => field(bytes, error).unwrap_or_else(|| format!("a field has another type {at}")),
        Category::Eof => format!("the file ends too early {at}"),
        _ => format!("not JSON {at}"),
    }
}

fn field(bytes: &[u8], error: &serde_json::Error) -> Option<String> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(bytes) else {
        return Some("expected a JSON object".to_owned());
    };
    if let Some((name, expected)) = fields.iter().find_map(wrong) {
        return Some(format!("field `{name}`: expected {expected}"));
    }
    // The names in these are our own, not the file's.
    let said = error.to_string();
    let (what, rest) = said.split_once(" `")?;
    let (name, _) = rest.split_once('`')?;
    matches!(what, "missing field" | "duplicate field").then(|| format!("{what} `{name}`"))
}

/// The field's name and what is expected, if the field alone makes a good config a wrong one.
fn wrong<'a>((name, value): (&'a String, &Value)) -> Option<(&'a str, String)> {
    let mut good = good();
    good.insert(name.clone(), value.clone());
    let error = serde_json::from_value::<RunConfig>(Value::Object(good)).err()?;
    let said = error.to_string();
    // What stands last is the reader's own word; before it is the value.
    let expected = match said.rsplit_once(", expected ") {
        Some((_, expected)) => expected,
        None => "another value",
    };
    let words = match expected {
        "u16" => "a whole number from 0 to 65535",
        "i32" | "i64" | "u32" | "u64" => "a whole number",
        "a sequence" => "a list",
        other => other,
    };
    Some((name.as_str(), words.to_owned()))
}

fn good() -> Map<String, Value> {
    let fields = [
        ("name", json!("a")),
        ("namespace", json!("a")),
        ("image", json!("a")),
        ("path", json!("/")),
        ("mcpPort", json!(1)),
        ("proxyPort", json!(1)),
    ];
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl FnOnce(&mut Map<String, Value>)) -> String {
        let mut config = good();
        change(&mut config);
        of(&Value::Object(config).to_string())
    }

    fn of(text: &str) -> String {
        let error = serde_json::from_slice::<RunConfig>(text.as_bytes()).expect_err(text);
        mistake(text.as_bytes(), &error)
    }

    #[test]
    fn the_field_is_named_and_no_value_is() {
        let with = |name: &str, value: Value| {
            let name = name.to_owned();
            said(|config| {
                config.insert(name, value);
            })
        };
        assert_eq!(with("image", json!(5)), "field `image`: expected a string");
        assert_eq!(with("args", json!("s3cret")), "field `args`: expected a list");
        assert_eq!(
            with("mcpPort", json!(70_000)),
            "field `mcpPort`: expected a whole number from 0 to 65535"
        );
        assert_eq!(
            with("mcpPort", json!("s3cret, expected s3cret")),
            "field `mcpPort`: expected a whole number from 0 to 65535"
        );
        assert_eq!(
            with("stateless", json!("s3cret")),
            "field `stateless`: expected a boolean"
        );
        let transport = with("transport", json!("s3cret"));
        assert!(
            transport.starts_with("field `transport`: expected "),
            "{transport}"
        );
        assert!(!transport.contains("s3cret"), "{transport}");
        let env = with("env", json!([{"name": "A", "value": 5}]));
        assert!(env.starts_with("field `env`: expected "), "{env}");
    }

    #[test]
    fn a_missing_or_misspelt_or_repeated_field_is_named() {
        let without_image = said(|config| {
            config.remove("image");
            config.insert("imgae".to_owned(), json!("s3cret"));
        });
        assert_eq!(without_image, "missing field `image`");
        assert_eq!(of("{}"), "missing field `name`");
        assert_eq!(of(r#"{"name": "a", "name": "s3cret"}"#), "duplicate field `name`");
        assert_eq!(of("5"), "expected a JSON object");
        assert_eq!(of("{"), "the file ends too early at line 1, column 1");
        assert_eq!(of("s3cret"), "not JSON at line 1, column 1");
    }
}
