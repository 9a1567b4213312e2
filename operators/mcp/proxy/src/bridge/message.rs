//! What the bridge must know of a JSON-RPC message, and the line that a child gets (pure).

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

/// The first version of MCP without sessions.
pub(crate) const FIRST_SESSIONLESS: &str = "2026-07-28";

/// The parts of a message that decide its way.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Envelope {
    #[serde(default, deserialize_with = "present")]
    pub(crate) id: Option<Value>,
    #[serde(default)]
    pub(crate) method: Option<String>,
    #[serde(default)]
    pub(crate) params: Option<Value>,
    #[serde(default)]
    error: Option<ErrorCode>,
}

#[derive(Debug, Deserialize)]
struct ErrorCode {
    code: i64,
}

/// An id of `null` is an id, too.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Request,
    Notification,
    Response,
}

impl Envelope {
    pub(crate) fn kind(&self) -> Kind {
        match (&self.method, &self.id) {
            (Some(_), Some(_)) => Kind::Request,
            (Some(_), None) => Kind::Notification,
            (None, _) => Kind::Response,
        }
    }

    /// The id that an answer must have. An answer of the client has an id, too, and that one is the child's.
    pub(crate) fn asked_id(&self) -> Option<&Value> {
        self.id.as_ref().filter(|_| self.kind() == Kind::Request)
    }

    pub(crate) fn is(&self, method: &str) -> bool {
        self.method.as_deref() == Some(method)
    }

    pub(crate) fn param(&self, name: &str) -> Option<&Value> {
        self.params.as_ref()?.get(name)
    }

    /// The token under which a request wants to hear of progress.
    pub(crate) fn wanted_progress(&self) -> Option<&Value> {
        self.param("_meta")?.get("progressToken")
    }

    /// The version that a request without a session names in itself.
    pub(crate) fn version(&self) -> Option<&str> {
        self.param("_meta")?
            .get("io.modelcontextprotocol/protocolVersion")?
            .as_str()
    }

    pub(crate) fn error_code(&self) -> Option<i64> {
        self.error.as_ref().map(|error| error.code)
    }
}

/// The message as one line. A newline can only stand between tokens, so a space does as well.
pub(crate) fn line(message: &[u8]) -> Vec<u8> {
    let mut line: Vec<u8> = message
        .iter()
        .map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        })
        .collect();
    line.push(b'\n');
    line
}

/// The answer of the bridge itself to a request.
pub(crate) fn error(id: Option<&Value>, code: i64, message: &str) -> Bytes {
    let body = json!({
        "jsonrpc": "2.0",
        "id": id.unwrap_or(&Value::Null),
        "error": { "code": code, "message": message },
    });
    body.to_string().into()
}

pub(crate) fn cancelled(id: &Value) -> Vec<u8> {
    let cancelled = json!({
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": { "requestId": id, "reason": "the client closed the response" },
    });
    line(cancelled.to_string().as_bytes())
}

/// One event of a stream.
pub(crate) fn event(message: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(message.len() + 24);
    event.extend_from_slice(b"event: message\ndata: ");
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn envelope(text: &str) -> Envelope {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn requests_notifications_and_responses_are_told_apart() {
        assert_eq!(envelope(r#"{"id":1,"method":"ping"}"#).kind(), Kind::Request);
        assert_eq!(envelope(r#"{"id":null,"method":"ping"}"#).kind(), Kind::Request);
        assert_eq!(
            envelope(r#"{"method":"notifications/initialized"}"#).kind(),
            Kind::Notification
        );
        assert_eq!(
            envelope(r#"{"id":"a","result":{"method":"x"}}"#).kind(),
            Kind::Response
        );
        assert_eq!(
            envelope(r#"{"id":1,"error":{"code":-32601,"message":"m"}}"#).error_code(),
            Some(-32601)
        );
        assert!(serde_json::from_str::<Envelope>("[]").is_err() || envelope("[]").method.is_none());
    }

    #[test]
    fn a_message_of_many_lines_becomes_one() {
        assert_eq!(line(b"{\r\n \"a\": \"b\\n\"\n}"), b"{   \"a\": \"b\\n\" }\n");
    }

    #[test]
    fn progress_and_version_are_found_in_the_metadata() {
        let request = envelope(
            r#"{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
        );
        assert_eq!(request.wanted_progress(), Some(&json!(7)));
        assert_eq!(request.version(), Some("2026-07-28"));
        assert_eq!(
            envelope(r#"{"id":1,"method":"x","params":[1]}"#).wanted_progress(),
            None
        );
    }
}
