//! Whether a request may be sent on: what every reader of JSON, strict or not, would find in its body (pure).
//!
//! What two readers could understand differently is refused, so that nobody can show the proxy one call and the server another one.

use http::{HeaderMap, StatusCode, header::CONTENT_TYPE};
use serde_json::value::RawValue;

use super::{
    Allowed, error,
    json::{Members, list, string},
};
use crate::headers::{METHOD, NAME};

const CALL: &str = "tools/call";
const LIST: &str = "tools/list";

const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_PARAMS: i32 = -32602;
const HEADER_MISMATCH: i32 = -32020;

/// So much of an unknown tool's name is repeated, and of an id.
const MAX_REPEATED: usize = 128;

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is sent on.
    Pass {
        /// Whether it asks for a list of tools.
        lists: bool,
        /// The id of that, as JSON, if it is the only message.
        id: Option<String>,
    },
    /// It is answered here, without a body if all of it were notifications.
    Refuse(StatusCode, Option<String>),
}

/// A message that cannot be sent on, with the code and text of the error.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    code: i32,
    text: String,
}

impl Refused {
    fn unclear(text: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code: INVALID_REQUEST,
            text: text.to_owned(),
        }
    }
}

/// One message of a body.
struct Message {
    /// As JSON; `None` for a notification.
    id: Option<String>,
    method: Option<String>,
    /// The name of the tool that it calls.
    tool: Option<String>,
}

/// Decides about a whole body. An empty one passes, as it says nothing, unless the headers do.
pub(crate) fn judge(allowed: &Allowed, headers: &HeaderMap, body: &[u8]) -> Verdict {
    if body.is_empty() && names_a_message(headers) {
        let Refused { status, code, text } = mismatch();
        return Verdict::Refuse(status, Some(error("null", code, &text)));
    }
    if body.is_empty() {
        return Verdict::Pass {
            lists: false,
            id: None,
        };
    }
    if !is_plain_json(headers) {
        let text = "expected a body of type application/json, in UTF-8 and not compressed";
        let body = error("null", INVALID_REQUEST, text);
        return Verdict::Refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(body));
    }
    let whole = |refused: Refused| {
        let body = error("null", refused.code, &refused.text);
        Verdict::Refuse(refused.status, Some(body))
    };
    let text = std::str::from_utf8(body).ok();
    let Some(text) = text.filter(|text| serde_json::from_str::<&RawValue>(text).is_ok()) else {
        return whole(Refused {
            code: PARSE_ERROR,
            ..Refused::unclear("not JSON")
        });
    };
    if let Some(messages) = list(text) {
        let messages: Result<Vec<Message>, Refused> =
            messages.iter().map(|message| read(message.get())).collect();
        return match messages {
            Ok(messages) => batch(allowed, headers, &messages),
            Err(refused) => whole(refused),
        };
    }
    let message = match read(text) {
        Ok(message) => message,
        Err(refused) => return whole(refused),
    };
    let checked = agrees(headers, &message).and_then(|()| check(allowed, &message));
    match (checked, message.id) {
        (Ok(()), id) => {
            let lists = message.method.as_deref() == Some(LIST);
            let id = id.filter(|_| lists);
            Verdict::Pass { lists, id }
        }
        (Err(refused), Some(id)) => {
            let body = error(&id, refused.code, &refused.text);
            Verdict::Refuse(refused.status, Some(body))
        }
        (Err(_), None) => Verdict::Refuse(StatusCode::ACCEPTED, None),
    }
}

/// One call that is refused has the whole batch refused, so that nothing of it was carried out.
fn batch(allowed: &Allowed, headers: &HeaderMap, messages: &[Message]) -> Verdict {
    let refuse =
        |refused: Refused| Verdict::Refuse(refused.status, Some(error("null", refused.code, &refused.text)));
    if messages.is_empty() {
        return refuse(Refused::unclear("an empty batch"));
    }
    if names_a_message(headers) {
        return refuse(mismatch());
    }
    let checked: Vec<Result<(), Refused>> = messages.iter().map(|message| check(allowed, message)).collect();
    if checked.iter().all(Result::is_ok) {
        let lists = messages
            .iter()
            .any(|message| message.method.as_deref() == Some(LIST));
        return Verdict::Pass { lists, id: None };
    }
    let answers: Vec<String> = messages
        .iter()
        .zip(checked)
        .filter_map(|(message, checked)| {
            let id = message.id.as_deref().filter(|_| message.method.is_some())?;
            Some(match checked {
                Ok(()) => error(
                    id,
                    INVALID_REQUEST,
                    "not carried out: another message of this batch was refused",
                ),
                Err(refused) => error(id, refused.code, &refused.text),
            })
        })
        .collect();
    if answers.is_empty() {
        return Verdict::Refuse(StatusCode::ACCEPTED, None);
    }
    Verdict::Refuse(StatusCode::OK, Some(format!("[{}]", answers.join(","))))
}

/// Whether the body is what its bytes look like. A server could decode another character set, or anything compressed, to a
/// different message; and more than one type says nothing.
fn is_plain_json(headers: &HeaderMap) -> bool {
    let is_encoded = headers
        .get_all(http::header::CONTENT_ENCODING)
        .iter()
        .any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let is_json = types.next().is_none_or(|kind| {
        let mut parts = kind.to_str().unwrap_or_default().split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        kind.eq_ignore_ascii_case("application/json")
            && parts.all(|parameter| {
                let parameter = parameter.to_ascii_lowercase();
                !parameter.contains("charset")
                    || matches!(parameter.as_str(), "charset=utf-8" | "charset=\"utf-8\"")
            })
    });
    !is_encoded && is_json && types.next().is_none()
}

/// A message of which every reader finds the same method.
fn read(text: &str) -> Result<Message, Refused> {
    let members = Members::read(text)
        .ok_or_else(|| Refused::unclear("expected one JSON-RPC message, or a batch of them"))?;
    unambiguous(
        &members,
        &["jsonrpc", "id", "method", "params", "result", "error"],
    )?;
    let id = members.all("id").next();
    let id = id.map(|id| match id.get() {
        id if id.len() <= MAX_REPEATED && !id.starts_with(['{', '[']) => id.to_owned(),
        _ => "null".to_owned(),
    });
    let method = match members.all("method").next() {
        None => None,
        Some(method) => {
            let method = string(method).filter(|method| method.bytes().all(|byte| byte.is_ascii_graphic()));
            Some(method.ok_or_else(|| Refused::unclear("the method is not a plain name"))?)
        }
    };
    let mut tool = None;
    if method.as_deref() == Some(CALL) {
        let params = members.all("params").next();
        let params = params.and_then(|params| Members::read(params.get()));
        if let Some(params) = params {
            unambiguous(&params, &["name"])?;
            tool = params.all("name").next().and_then(string);
        }
    }
    Ok(Message { id, method, tool })
}

/// Keys that matter stand there once, and no other key is the same to a reader that ignores case, or ends strings at a NUL, or lets
/// members be inherited.
fn unambiguous(members: &Members<'_>, watched: &[&str]) -> Result<(), Refused> {
    let mut seen = Vec::new();
    for (key, _) in &members.0 {
        if watched.contains(&key.as_str()) {
            if seen.contains(&key.as_str()) {
                return Err(Refused::unclear("a key that occurs twice"));
            }
            seen.push(key.as_str());
            continue;
        }
        let folded = folded(key);
        if watched.contains(&folded.as_str()) || folded == "__proto__" || key.contains(char::is_control) {
            return Err(Refused::unclear("a key that can be mistaken for another one"));
        }
    }
    Ok(())
}

/// As readers compare that ignore case: some of them know that the long s and the sign of Kelvin are letters, too.
fn folded(key: &str) -> String {
    key.chars()
        .map(|letter| match letter {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            letter => letter.to_ascii_lowercase(),
        })
        .collect()
}

fn check(allowed: &Allowed, message: &Message) -> Result<(), Refused> {
    let Some(method) = message.method.as_deref() else {
        return Ok(());
    };
    let refused = |code, text| {
        Err(Refused {
            status: StatusCode::OK,
            code,
            text,
        })
    };
    match (method, &message.tool) {
        (LIST, _) => Ok(()),
        (CALL, Some(name)) if allowed.contains(name) => Ok(()),
        (CALL, Some(name)) => {
            let name: String = name.chars().take(MAX_REPEATED).collect();
            refused(INVALID_PARAMS, format!("unknown tool: {name}"))
        }
        (CALL, None) => refused(INVALID_PARAMS, "expected the name of a tool".to_owned()),
        (other, _) if other.eq_ignore_ascii_case(CALL) || other.eq_ignore_ascii_case(LIST) => {
            refused(METHOD_NOT_FOUND, "unknown method".to_owned())
        }
        _ => Ok(()),
    }
}

fn mismatch() -> Refused {
    Refused {
        code: HEADER_MISMATCH,
        ..Refused::unclear("the headers contradict the message")
    }
}

/// Whether the headers say what the one message of the body is.
fn names_a_message(headers: &HeaderMap) -> bool {
    headers.contains_key(METHOD) || headers.contains_key(NAME)
}

/// A server may decide by the headers of the era without sessions: they must say what the message says.
fn agrees(headers: &HeaderMap, message: &Message) -> Result<(), Refused> {
    let all_are = |name, expected: Option<&str>| {
        let mut values = headers.get_all(name).iter();
        let is_expected = values.next().is_none_or(|value| {
            expected.is_some_and(|expected| {
                value == expected || value.as_bytes() == format!("=?base64?{}?=", base64(expected)).as_bytes()
            })
        });
        is_expected && values.next().is_none()
    };
    let is_call = message.method.as_deref() == Some(CALL);
    if all_are(METHOD, message.method.as_deref()) && (!is_call || all_are(NAME, message.tool.as_deref())) {
        Ok(())
    } else {
        Err(mismatch())
    }
}

/// How names are written in headers that have other characters than a header may have.
fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            out.push(if at > three.len() { '=' } else { letter.into() });
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
