//! A list of tools without those that clients may not see, and errors in its place (pure).

use serde_json::value::RawValue;

use super::{
    Allowed,
    json::{Members, list, object, quoted, string},
};

/// A list of tools that is not written as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// A message or a batch of them, without the tools that are not allowed. `None`: nothing is to be left out. All other values stay
/// as they were written, cursors among them.
pub(crate) fn filtered(allowed: &Allowed, text: &str) -> Result<Option<String>, Unreadable> {
    if let Some(batch) = list(text) {
        let mut changed = false;
        let mut messages = Vec::with_capacity(batch.len());
        for value in batch {
            let new = message(allowed, value.get())?;
            changed |= new.is_some();
            messages.push(new.unwrap_or_else(|| value.get().to_owned()));
        }
        return Ok(changed.then(|| format!("[{}]", messages.join(","))));
    }
    message(allowed, text)
}

fn message(allowed: &Allowed, text: &str) -> Result<Option<String>, Unreadable> {
    let message = Members::read(text).ok_or(Unreadable)?;
    with_new(&message, "result", |result| {
        // A result that is not an object has no tools.
        Members::read(result.get()).map_or(Ok(None), |result| {
            with_new(&result, "tools", |tools| without_hidden(allowed, tools))
        })
    })
}

/// The object with every value of this key replaced; `None` if none of them is.
fn with_new(
    members: &Members<'_>,
    key: &str,
    new: impl Fn(&RawValue) -> Result<Option<String>, Unreadable>,
) -> Result<Option<String>, Unreadable> {
    let mut changed = false;
    let mut values = Vec::with_capacity(members.0.len());
    for (name, value) in &members.0 {
        let replaced = if name == key { new(value)? } else { None };
        changed |= replaced.is_some();
        values.push((name, replaced.unwrap_or_else(|| value.get().to_owned())));
    }
    let members = values.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    Ok(changed.then(|| object(members)))
}

fn without_hidden(allowed: &Allowed, tools: &RawValue) -> Result<Option<String>, Unreadable> {
    if tools.get() == "null" {
        return Ok(None); // what some servers write for an empty list
    }
    let tools = list(tools.get()).ok_or(Unreadable)?;
    let shown: Vec<&str> = tools
        .iter()
        .filter(|tool| is_allowed(allowed, tool))
        .map(|tool| tool.get())
        .collect();
    Ok((shown.len() < tools.len()).then(|| format!("[{}]", shown.join(","))))
}

fn is_allowed(allowed: &Allowed, tool: &RawValue) -> bool {
    let Some(tool) = Members::read(tool.get()) else {
        return false;
    };
    let mut names = tool.all("name");
    let name = names.next().and_then(string);
    name.is_some_and(|name| allowed.contains(&name)) && names.next().is_none()
}

/// An error as a message. `id` is JSON.
pub(crate) fn error(id: &str, code: i32, text: &str) -> String {
    let error = object([("code", code.to_string().as_str()), ("message", &quoted(text))]);
    object([("jsonrpc", "\"2.0\""), ("id", id), ("error", &error)])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seen(text: &str) -> Result<Option<String>, Unreadable> {
        let allowed = ["a", "b\"c"].map(str::to_owned);
        filtered(&std::sync::Arc::new(allowed.into()), text)
    }

    #[test]
    fn hidden_tools_are_left_out_and_the_rest_stays_as_it_was_written() {
        for (text, expected) in [
            (
                r#"{ "jsonrpc":"2.0", "id" : 1e0, "result":{"nextCursor":"\u0041=", "tools":[ {"name":"a","x":1.0e5}, {"name":"h"} ], "ttlMs":9007199254740993}}"#,
                r#"{"jsonrpc":"2.0","id":1e0,"result":{"nextCursor":"\u0041=","tools":[{"name":"a","x":1.0e5}],"ttlMs":9007199254740993}}"#,
            ),
            (
                r#"[{"id":1,"result":{"tools":[{"name":"h"},7,{"name":"a","name":"h"},{}]}},{"id":2,"result":{}}]"#,
                r#"[{"id":1,"result":{"tools":[]}},{"id":2,"result":{}}]"#,
            ),
            (
                r#"{"result":{"tools":[{"name":"\u0061"},{"name":"b\"c"},{"name":"A"}]},"id":1}"#,
                r#"{"result":{"tools":[{"name":"\u0061"},{"name":"b\"c"}]},"id":1}"#,
            ),
            (
                r#"{"id":1,"result":{"tools":[{"name":"h"}]},"result":{"tools":[{"name":"h"}],"tools":[{"name":"h"}]}}"#,
                r#"{"id":1,"result":{"tools":[]},"result":{"tools":[],"tools":[]}}"#,
            ),
            (
                r#"{"id":1,"result":{"t\u006fols":[{"name":"h"}]}}"#,
                r#"{"id":1,"result":{"tools":[]}}"#,
            ),
        ] {
            assert_eq!(seen(text), Ok(Some(expected.to_owned())), "{text}");
        }
    }

    #[test]
    fn what_has_nothing_to_hide_is_not_touched() {
        for text in [
            r#"{"id":1,"result":{"tools":[{"name":"a"}]}}"#,
            r#"{"id":1,"result":{"tools":null}}"#,
            r#"{"id":1,"result":{"content":[],"structuredContent":{"tools":[{"name":"h"}]}}}"#,
            r#"{"id":1,"error":{"code":-32601,"message":"m"}}"#,
            r#"{"method":"notifications/tools/list_changed"}"#,
            r#"{"id":1,"result":7}"#,
            "[]",
        ] {
            assert_eq!(seen(text), Ok(None), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_passed() {
        for text in [
            "",
            "{",
            "no",
            r#"{"result":{"tools":{}}}"#,
            "[1]",
            r#"{"result":{"tools":"h"}}"#,
            "{} {}",
        ] {
            assert_eq!(seen(text), Err(Unreadable), "{text}");
        }
    }

    #[test]
    fn an_error_is_json_whatever_it_says() {
        let error: serde_json::Value = serde_json::from_str(&error("\"i\"", -1, "a\"b\n")).unwrap();
        assert_eq!(error["id"], "i");
        assert_eq!(error["error"]["message"], "a\"b\n");
    }
}
