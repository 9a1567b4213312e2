//! What can be done to a request, and the answers given in the server's place.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::{Value, json};

use super::{path::ObjectPath, record::Recorded};

/// What happens to a request. Faults named after the request keep it from the server; those named after the
/// answer strike when the server has answered, so a write is committed (if the server accepted it).
///
/// A request that is delayed or whose answer is struck goes to the server even if the client gives up
/// meanwhile, as one that is already in the network does.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Closes the connection; nothing reaches the server.
    DropRequest,
    /// Forwards, then closes the connection instead of answering.
    DropAnswer,
    /// Answers in the server's place; nothing reaches the server. See [`Fault::refuse`].
    Refuse(Answer),
    /// Forwards, then gives another answer than the server's. See [`Fault::replace`].
    Replace(Answer),
    /// Waits, then forwards and passes the server's answer.
    Delay(Duration),
    /// Never answers and never forwards, until the client goes away or the proxy ends.
    StallRequest,
    /// Forwards, then never answers, until the client goes away or the proxy ends.
    StallAnswer,
    /// Passes the server's answer up to so many bytes of its body, then closes the connection. An answer that
    /// is not longer passes whole.
    Truncate(usize),
    /// Ends the connection with a TCP reset; nothing reaches the server.
    ResetRequest,
    /// Forwards, then ends the connection with a TCP reset.
    ResetAnswer,
}

impl Fault {
    /// Answers in the server's place: `Fault::refuse(503)`, or more of it with an [`Answer`].
    pub fn refuse(answer: impl Into<Answer>) -> Self {
        Self::Refuse(answer.into())
    }

    /// Lets the server do it, but tells the client otherwise: `Fault::replace(504)`.
    pub fn replace(answer: impl Into<Answer>) -> Self {
        Self::Replace(answer.into())
    }
}

/// An answer that does not come from the server. Unless a body is given it is a Kubernetes `Status` with the
/// reason and message that the API server has for the code, about the object of the request.
///
/// ```
/// use exuvia_testenv::proxy::{Answer, Fault};
///
/// let overloaded = Fault::refuse(Answer::status(429).retry_after(7));
/// let load_balancer = Fault::replace(Answer::status(504).text("upstream request timeout"));
/// ```
#[derive(Clone, Debug)]
pub struct Answer {
    code: u16,
    retry_after: Option<u32>,
    date: Option<HeaderValue>,
    body: Option<(&'static str, Bytes)>,
}

impl From<u16> for Answer {
    fn from(code: u16) -> Self {
        Self::status(code)
    }
}

impl Answer {
    /// An answer with this code. 429 comes with `Retry-After: 1`, as the API server's does.
    ///
    /// # Panics
    /// If `code` is not between 100 and 999.
    pub fn status(code: u16) -> Self {
        assert!(
            StatusCode::from_u16(code).is_ok(),
            "invalid HTTP status code {code}: expected 100 to 999"
        );
        Self {
            code,
            retry_after: (code == 429).then_some(1),
            date: None,
            body: None,
        }
    }

    /// With a `Retry-After` header of so many seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Without a `Retry-After` header.
    #[must_use]
    pub fn without_retry_after(mut self) -> Self {
        self.retry_after = None;
        self
    }

    /// With this `Date` header, as from a server whose clock goes otherwise.
    #[must_use]
    pub fn dated(mut self, date: HeaderValue) -> Self {
        self.date = Some(date);
        self
    }

    /// With plain text as body, as a load balancer answers, or the API server itself when it is overloaded.
    #[must_use]
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.body = Some(("text/plain; charset=utf-8", text.into().into()));
        self
    }

    /// With this JSON as body.
    #[must_use]
    pub fn json(mut self, body: &Value) -> Self {
        self.body = Some(("application/json", body.to_string().into()));
        self
    }

    /// With any body.
    #[must_use]
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    pub(crate) fn code(&self) -> u16 {
        self.code
    }

    pub(crate) fn to_response(&self, request: &Recorded) -> Response<Full<Bytes>> {
        let status = || {
            (
                "application/json",
                status(self.code, self.retry_after, request).to_string().into(),
            )
        };
        let (content_type, body) = self.body.clone().unwrap_or_else(status);
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::from_u16(self.code).unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(date) = &self.date {
            headers.insert(header::DATE, date.clone());
        }
        response
    }
}

/// The `Status` that the API server gives for a code, worded as in its `k8s.io/apimachinery/pkg/api/errors`.
fn status(code: u16, retry_after: Option<u32>, request: &Recorded) -> Value {
    let object = request.object();
    let name = named(request, object);
    let resource = object.map_or(String::new(), |o| match o.group {
        "" => o.resource.to_owned(),
        group => format!("{}.{group}", o.resource),
    });
    let (reason, message) = match code {
        400 => (
            "BadRequest",
            "the server rejected our request for an unknown reason".to_owned(),
        ),
        401 => ("Unauthorized", "Unauthorized".to_owned()),
        403 => ("Forbidden", format!("{resource} \"{name}\" is forbidden")),
        404 => ("NotFound", format!("{resource} \"{name}\" not found")),
        409 if request.method == Method::POST => {
            ("AlreadyExists", format!("{resource} \"{name}\" already exists"))
        }
        409 => (
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {resource} \"{name}\": the object has been modified; please \
                 apply your changes to the latest version and try again"
            ),
        ),
        410 => (
            "Expired",
            "The provided continue parameter is too old to display a consistent list result.".to_owned(),
        ),
        422 => ("Invalid", format!("{resource} \"{name}\" is invalid")),
        429 => (
            "TooManyRequests",
            "too many requests, please try again later".to_owned(),
        ),
        500 => (
            "InternalError",
            "Internal error occurred: etcdserver: leader changed".to_owned(),
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request".to_owned(),
        ),
        504 => (
            "Timeout",
            "Timeout: request did not complete within requested timeout - context deadline exceeded"
                .to_owned(),
        ),
        _ => ("", format!("the server responded with the status code {code}")),
    };
    let mut details = json!({});
    if let Some(object) = object {
        let pairs = [
            ("name", name.as_str()),
            ("group", object.group),
            ("kind", object.resource),
        ];
        for (key, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
            details[key] = value.into();
        }
    }
    if let Some(seconds) = retry_after {
        details["retryAfterSeconds"] = seconds.into();
    }
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": if code < 400 { "Success" } else { "Failure" },
        "message": message,
        "reason": reason,
        "details": details,
        "code": code,
    })
}

/// The object's name: in the path, or for a create in the body.
pub(crate) fn named(request: &Recorded, object: Option<ObjectPath<'_>>) -> String {
    let name = object.map_or("", |object| object.name);
    if name.is_empty() && request.method == Method::POST {
        return request.json()["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    name.to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::HeaderMap;
    use http_body_util::BodyExt;

    use super::*;
    use crate::proxy::record::tests::request;

    async fn body(answer: Answer, request: &Recorded) -> (HeaderMap, Bytes) {
        let (head, body) = answer.to_response(request).into_parts();
        (head.headers, body.collect().await.unwrap().to_bytes())
    }

    #[tokio::test]
    async fn a_status_speaks_of_the_object_of_the_request() {
        let path = "/apis/example.com/v1/namespaces/ns/widgets/w";
        let (_, conflict) = body(
            409.into(),
            &Recorded {
                method: Method::PUT,
                ..request(path)
            },
        )
        .await;
        let status: kube::core::Status = serde_json::from_slice(&conflict).unwrap();
        assert!(status.is_conflict());
        assert!(
            status
                .message
                .contains("widgets.example.com \"w\": the object has been modified")
        );
        let details = status.details.unwrap();
        assert_eq!(
            (details.name.as_str(), details.group.as_str()),
            ("w", "example.com")
        );

        let create = Recorded {
            method: Method::POST,
            body: br#"{"metadata": {"name": "new"}}"#.as_slice().into(),
            ..request("/api/v1/namespaces/ns/configmaps")
        };
        let (_, exists) = body(409.into(), &create).await;
        let status: kube::core::Status = serde_json::from_slice(&exists).unwrap();
        assert_eq!(
            (status.reason.as_str(), status.message.as_str()),
            ("AlreadyExists", "configmaps \"new\" already exists")
        );
    }

    #[tokio::test]
    async fn too_many_requests_says_when_to_come_back() {
        let request = request("/api/v1/pods");
        let retry_after = |headers: HeaderMap| headers.get(header::RETRY_AFTER).cloned();
        assert_eq!(retry_after(body(429.into(), &request).await.0).unwrap(), "1");
        let later = Answer::status(503).retry_after(30);
        assert_eq!(retry_after(body(later, &request).await.0).unwrap(), "30");
        assert_eq!(
            retry_after(body(Answer::status(429).without_retry_after(), &request).await.0),
            None
        );
    }

    #[tokio::test]
    async fn a_given_body_takes_the_place_of_the_status() {
        let (headers, text) = body(Answer::status(502).text("bad gateway"), &request("/")).await;
        assert_eq!(text, "bad gateway");
        assert_eq!(headers[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    }
}
