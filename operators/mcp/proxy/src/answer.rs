//! The proxy's own answers: JSON-RPC errors that say what happened, and nothing about the cluster.

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER},
};
use http_body_util::Full;

use crate::tools;

/// Why a request was not answered by a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Method,
    Origin,
    TooLarge {
        limit: u64,
    },
    BrokenBody,
    /// Too much is held for others.
    Busy,
    /// The body does not come.
    Slow,
    SessionGone,
    NoBackend,
    Unreachable,
    Lost,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BrokenBody => StatusCode::BAD_REQUEST,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::SessionGone => StatusCode::NOT_FOUND,
            Self::Busy | Self::NoBackend | Self::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Lost => StatusCode::BAD_GATEWAY,
        }
    }

    fn code(self) -> i32 {
        match self {
            Self::TooLarge { .. } | Self::BrokenBody | Self::Slow | Self::Method => -32600,
            Self::SessionGone => -32001, // what the official SDKs' servers say
            _ => -32000,
        }
    }

    fn message(self) -> String {
        match self {
            Self::Method => "method not allowed: expected POST, GET, DELETE or OPTIONS".to_owned(),
            Self::Origin => "origin not allowed".to_owned(),
            Self::TooLarge { limit } => format!("request body too large: at most {limit} bytes are accepted"),
            Self::BrokenBody => "the request body ended early".to_owned(),
            Self::Busy => "too many large messages at once: try again in a moment".to_owned(),
            Self::Slow => "the request body came too slowly".to_owned(),
            Self::SessionGone => "session not found: initialize a new one".to_owned(),
            Self::NoBackend => "the MCP server is not ready: try again in a moment".to_owned(),
            Self::Unreachable => "the MCP server cannot be reached: try again in a moment".to_owned(),
            Self::Lost => {
                "the MCP server closed the connection before it answered: the call may have been carried out"
                    .to_owned()
            }
        }
    }

    /// Whether the message itself was of interest. The others are refused for what their head says, whatever they are about.
    pub(crate) fn is_about_the_message(self) -> bool {
        !matches!(self, Self::Method | Self::Origin)
    }

    /// The answer to the request with this id, as JSON. A client waits for an error that names its request; it may wait for ever if
    /// the error names none.
    pub(crate) fn answer(self, id: Option<&str>) -> Response<Full<Bytes>> {
        let body = tools::error(id.unwrap_or("null"), self.code(), &self.message());
        let mut response = json(self.status(), body);
        let headers = response.headers_mut();
        match self {
            Self::Method => {
                headers.insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
            }
            Self::Busy | Self::NoBackend | Self::Unreachable => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // What is left of the body will not be read.
            Self::TooLarge { .. } | Self::BrokenBody | Self::Slow => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// An answer of our own.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
