//! Asks for one page of metadata.

use std::{marker::PhantomData, time::Duration};

use exuvia_write::ErrorClass;
use http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use http_body_util::BodyExt;
use kube::{
    Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, ObjectMeta},
    client::Body,
    core::{ListMeta, PartialObjectMeta, Request, Status},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::tally::Named;

/// 65 s: the API server itself gives up on a list after 60 s, so that it is nearly always the server who says so.
const TIMEOUT: Duration = Duration::from_secs(65);

/// One page. The objects are text until it is their turn: that takes a fraction of the memory, and one that cannot be
/// read does not spoil the others (PITFALLS B5).
#[derive(Deserialize)]
pub(crate) struct Page {
    #[serde(rename = "metadata", default)]
    pub(crate) list: ListMeta,
    #[serde(default)]
    pub(crate) items: Option<Vec<Box<RawValue>>>,
}

/// A list that failed.
pub(crate) struct ListFailure {
    pub(crate) class: ErrorClass,
    /// The token by which to go on after a 410.
    pub(crate) fresh: Option<String>,
    pub(crate) error: kube::Error,
}

/// Where pages come from.
pub(crate) trait Source {
    fn page(&self, params: ListParams) -> impl Future<Output = Result<Page, ListFailure>> + Send;
}

/// The pages of an API server.
pub(crate) struct Lister {
    client: Client,
    collection: Request,
}

impl Lister {
    pub(crate) fn new(client: Client, resource: &ApiResource, namespace: Option<&str>) -> Self {
        Self {
            client,
            collection: Request::new(DynamicObject::url_path(resource, namespace)),
        }
    }

    /// `Client::request` would lose the `Retry-After` header, and wait for ever.
    #[expect(clippy::disallowed_methods, reason = "a list only reads")]
    async fn exchange(&self, params: &ListParams) -> Result<Page, ListFailure> {
        let request = self
            .collection
            .list_metadata(params)
            .map_err(|error| ListFailure::from(kube::Error::BuildRequest(error)))?;
        let answer = self.client.send(request.map(Body::from)).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(ListFailure::from)?.to_bytes();
        if head.status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| kube::Error::SerdeError(error).into());
        }
        Err(ListFailure::of_answer(head.status, &head.headers, &body))
    }
}

impl Source for Lister {
    async fn page(&self, params: ListParams) -> Result<Page, ListFailure> {
        match tokio::time::timeout(TIMEOUT, self.exchange(&params)).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into()).into()),
        }
    }
}

impl ListFailure {
    fn of_answer(code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut status: Status = serde_json::from_slice(body)
            .unwrap_or_else(|_| Status::failure(String::from_utf8_lossy(body).trim(), ""));
        status.code = code.as_u16();
        let mut failure = Self::from(kube::Error::Api(status.boxed()));
        let asked = headers
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        // An overloaded server answers in plain text, with the delay in the header only.
        if let ErrorClass::Throttled(after) | ErrorClass::Transient(after) = &mut failure.class {
            *after = asked.max(*after);
        }
        failure
    }
}

impl From<kube::Error> for ListFailure {
    fn from(error: kube::Error) -> Self {
        let fresh = match &error {
            kube::Error::Api(status) => status.metadata.as_ref().and_then(|list| list.continue_.clone()),
            _ => None,
        };
        Self {
            class: ErrorClass::of(&error),
            fresh,
            error,
        }
    }
}

/// Reads an object and its name; if it cannot be read, then at least the name, by which it can be reported.
pub(crate) fn read(item: &RawValue) -> Result<(PartialObjectMeta, Named), (Named, serde_json::Error)> {
    #[derive(Default, Deserialize)]
    struct Item<M> {
        metadata: M,
    }
    match serde_json::from_str(item.get()) {
        Ok(Item::<ObjectMeta> { metadata }) => {
            let named = Named {
                namespace: metadata.namespace.clone(),
                name: metadata.name.clone().unwrap_or_default(),
            };
            let object = PartialObjectMeta {
                types: None, // always the same, and not those of the object
                metadata,
                _phantom: PhantomData,
            };
            Ok((object, named))
        }
        Err(error) => {
            let Item { metadata } = serde_json::from_str(item.get()).unwrap_or_default();
            Err((metadata, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: u16, retry_after: Option<&'static str>, body: &str) -> ListFailure {
        let mut headers = HeaderMap::new();
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, http::HeaderValue::from_static(seconds));
        }
        let code = StatusCode::from_u16(code).expect("a code");
        ListFailure::of_answer(code, &headers, body.as_bytes())
    }

    #[test]
    fn the_delay_in_the_header_is_kept_though_the_body_is_text() {
        let second = Some(Duration::from_secs(1));
        let throttled = failure(429, Some("1"), "Too many requests, please try again later.\n");
        assert_eq!(throttled.class, ErrorClass::Throttled(second));
        assert_eq!(failure(503, Some("1"), "").class, ErrorClass::Transient(second));
        assert_eq!(failure(503, None, "{}").class, ErrorClass::Transient(None));
        assert_eq!(failure(403, Some("1"), "no").class, ErrorClass::Denied);
        let status = r#"{"code": 429, "details": {"retryAfterSeconds": 7}}"#;
        let longest = ErrorClass::Throttled(Some(Duration::from_secs(7)));
        assert_eq!(failure(429, Some("1"), status).class, longest);
    }

    /// PITFALLS A8.
    #[test]
    fn an_expired_token_comes_with_another() {
        let status = r#"{"code": 410, "reason": "Expired", "metadata": {"continue": "fresh"}}"#;
        let expired = failure(410, None, status);
        assert_eq!(
            (expired.class, expired.fresh.as_deref()),
            (ErrorClass::Expired, Some("fresh"))
        );
        assert_eq!(failure(410, None, "gone").fresh, None);
    }

    /// PITFALLS B5.
    #[test]
    fn an_object_that_cannot_be_read_still_has_a_name() -> Result<(), serde_json::Error> {
        let page = r#"{"metadata": {}, "items": [
            {"metadata": {"name": "good", "namespace": "n", "managedFields": []}},
            {"metadata": {"name": "bad", "namespace": "n", "generation": "many"}},
            7
        ]}"#;
        let page: Page = serde_json::from_str(page)?;
        let names: Vec<_> = page
            .items
            .unwrap_or_default()
            .iter()
            .map(|item| match read(item) {
                Ok((_, named)) => (true, named.name),
                Err((named, _)) => (false, named.name),
            })
            .collect();
        let expected =
            [(true, "good"), (false, "bad"), (false, "")].map(|(read, name)| (read, name.to_owned()));
        assert_eq!(names, expected);
        Ok(())
    }

    #[test]
    fn a_page_may_have_no_items_at_all() -> Result<(), serde_json::Error> {
        for page in [r#"{"items": null}"#, r#"{"metadata": {}}"#] {
            assert!(serde_json::from_str::<Page>(page)?.items.is_none());
        }
        Ok(())
    }
}
