//! One request and its whole answer: the one place that turns an HTTP answer into a `Status` with `Retry-After` kept.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt;
use kube::{
    Client,
    client::Body,
    core::{Status, response::StatusDetails},
};

/// Sends one request, within the timeout. The caller answers for what it does: every write is a [`Writer`](crate::Writer)'s.
///
/// `Client::request` differs in three ways: it loses the `Retry-After` header, it has no timeout, and it logs an answer
/// that does not fit the type, body and all.
#[expect(clippy::disallowed_methods, reason = "this is the one place that sends")]
pub(crate) async fn exchange(
    client: &Client,
    request: Request<Bytes>,
    timeout: Duration,
) -> Result<Bytes, kube::Error> {
    let exchange = async {
        let response = client.send(request.map(Body::from)).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        if head.status.is_client_error() || head.status.is_server_error() {
            Err(kube::Error::Api(
                status_of(head.status, &head.headers, &body).boxed(),
            ))
        } else {
            Ok(body)
        }
    };
    tokio::time::timeout(timeout, exchange)
        .await
        .unwrap_or_else(|_| Err(kube::Error::Service(Box::new(TimedOut(timeout)))))
}

/// Reads: one GET and its whole answer, within the timeout.
///
/// For readers whose answer no `Api` can hold, such as a page of a list whose objects are parsed one by one. An error keeps
/// the `Retry-After` header, also where the body is plain text: [`ErrorClass::of`](crate::ErrorClass::of) gives it.
/// Whatever the request's method is, GET is sent: this function cannot write.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let request = http::Request::get("/version").body(Vec::new())?;
/// let version = exuvia_write::read(&client, request, Duration::from_secs(10)).await?;
/// println!("{}", String::from_utf8_lossy(&version));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// An answer outside 2xx and 3xx, no answer within the timeout, or a connection that failed.
pub async fn read(
    client: &Client,
    request: Request<Vec<u8>>,
    timeout: Duration,
) -> Result<Bytes, kube::Error> {
    let mut request = request.map(Bytes::from);
    *request.method_mut() = Method::GET;
    exchange(client, request, timeout).await
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct TimedOut(Duration);

/// The server's `Status`, or one made of a plain-text answer as kube does it. An overloaded server answers in plain text,
/// with the delay in the header only: it is kept either way.
fn status_of(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Status {
    let mut status = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| {
        Status::failure(String::from_utf8_lossy(body).trim(), "Failed to parse error data")
    });
    if status.code == 0 {
        status.code = code.as_u16();
    }
    let asked = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse::<u32>().ok());
    if let Some(seconds) = asked {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorClass;

    fn class(code: u16, retry_after: Option<&'static str>, body: &str) -> ErrorClass {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, http::HeaderValue::from_static(seconds));
        }
        let code = StatusCode::from_u16(code).expect("a code");
        ErrorClass::of_status(&status_of(code, &headers, body.as_bytes()))
    }

    #[test]
    fn the_delay_in_the_header_is_kept_though_the_body_is_text() {
        let second = Some(Duration::from_secs(1));
        let throttled = class(429, Some("1"), "Too many requests, please try again later.\n");
        assert_eq!(throttled, ErrorClass::Throttled(second));
        assert_eq!(class(503, Some("1"), ""), ErrorClass::Transient(second));
        assert_eq!(class(503, None, "{}"), ErrorClass::Transient(None));
        assert_eq!(class(403, Some("1"), "no"), ErrorClass::Denied);
    }

    #[test]
    fn the_longer_of_two_delays_counts() {
        let status = r#"{"code": 429, "details": {"retryAfterSeconds": 7}}"#;
        let seven = ErrorClass::Throttled(Some(Duration::from_secs(7)));
        assert_eq!(class(429, Some("1"), status), seven);
        assert_eq!(class(429, Some("7"), r#"{"code": 429}"#), seven);
    }

    /// PITFALLS A8.
    #[test]
    fn an_expired_list_keeps_the_token_that_came_with_it() {
        let body = r#"{"code": 410, "reason": "Expired", "metadata": {"continue": "fresh"}}"#;
        let status = status_of(StatusCode::GONE, &HeaderMap::new(), body.as_bytes());
        assert_eq!(ErrorClass::of_status(&status), ErrorClass::Expired);
        let token = status.metadata.and_then(|list| list.continue_);
        assert_eq!(token.as_deref(), Some("fresh"));
    }
}
