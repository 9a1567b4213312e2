//! Asks for one page.

use std::{marker::PhantomData, time::Duration};

use kube::{
    Client,
    api::{ListParams, ObjectMeta, PartialObjectMeta},
    core::{ListMeta, Request},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::Identity;

/// 65 s: the API server itself gives up on a list after 60 s, so that the answer nearly always comes from the server.
const TIMEOUT: Duration = Duration::from_secs(65);

/// How much of each object a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    Metadata,
    Whole,
}

impl Payload {
    /// 500 as the API server's own clients ask for: a page of metadata is then a megabyte or so. A whole object may have
    /// 1 MiB, so fewer of those.
    pub(crate) fn page_size(self) -> u32 {
        match self {
            Self::Metadata => 500,
            Self::Whole => 100,
        }
    }
}

/// One page as the server sends it.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) list: ListMeta,
    pub(crate) items: Vec<Item>,
}

/// An answer of 200 that is not a list. A gateway in front of the API server may write one. It may pass, so its class is
/// that of a request without an answer.
#[derive(Debug, thiserror::Error)]
#[error(
    "the answer is not a list: expected JSON with apiVersion, kind and items; check what is between here and the API server"
)]
struct NotAList;

impl Answer {
    /// Reads a list. Anything else is an error and never an empty list: a list that is taken for empty, or for complete,
    /// makes everything that it does not show look deleted.
    ///
    /// Each API server writes `apiVersion`, `kind` and `items`. A CRD chooses the kind, so it need not end in `List`. The
    /// resourceVersion is not asked for: an aggregated API server may leave it out, and where it is needed it is checked.
    fn parse(body: &[u8]) -> Result<Self, kube::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct List {
            api_version: String,
            kind: String,
            #[serde(default)]
            metadata: ListMeta,
            // A function, so that the key is required: its value may be null, as Go writes a slice that was never filled.
            #[serde(deserialize_with = "Option::deserialize")]
            items: Option<Vec<Item>>,
        }
        match serde_json::from_slice::<List>(body) {
            Ok(list) if !list.api_version.is_empty() && !list.kind.is_empty() => Ok(Self {
                list: list.metadata,
                items: list.items.unwrap_or_default(),
            }),
            // What serde says may quote the answer (PITFALLS B27).
            _ => Err(kube::Error::Service(Box::new(NotAList))),
        }
    }
}

/// One object of a page. It is text until somebody reads it: that takes a fraction of the memory, and an object that
/// cannot be read does not spoil the others (PITFALLS B5).
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Item(Box<RawValue>);

#[derive(Default, Deserialize)]
struct Part<M> {
    metadata: M,
}

impl Item {
    /// The object.
    ///
    /// # Errors
    ///
    /// It does not fit the type. What serde says may quote a value of the object (PITFALLS B27): report the column.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.0.get())
    }

    /// The metadata, and nothing of the rest.
    pub(crate) fn metadata(&self) -> Result<PartialObjectMeta, serde_json::Error> {
        let Part::<ObjectMeta> { metadata } = self.read()?;
        Ok(PartialObjectMeta {
            types: None, // always the same, and not those of the object
            metadata,
            _phantom: PhantomData,
        })
    }

    /// Which object it is, as far as that can be read: an object that does not fit its type can still be named.
    pub fn identity(&self) -> Identity {
        self.read::<Part<Identity>>().unwrap_or_default().metadata
    }
}

/// Where pages come from.
pub(crate) trait Source {
    fn page(&self, params: ListParams) -> impl Future<Output = Result<Answer, kube::Error>> + Send;
}

/// The pages of an API server.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
    collection: Request,
    pub(crate) payload: Payload,
}

impl Server {
    pub(crate) fn new(client: Client, url: &str, payload: Payload) -> Self {
        Self {
            client,
            collection: Request::new(url),
            payload,
        }
    }
}

impl Source for Server {
    async fn page(&self, mut params: ListParams) -> Result<Answer, kube::Error> {
        params.limit.get_or_insert(self.payload.page_size());
        let request = match self.payload {
            Payload::Metadata => self.collection.list_metadata(&params),
            Payload::Whole => self.collection.list(&params),
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        let body = exuvia_write::read(&self.client, request, TIMEOUT).await?;
        Answer::parse(&body)
    }
}

/// The token that came with a 410, to go on with (PITFALLS A8).
pub(crate) fn fresh_token(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) => status.metadata.as_ref()?.continue_.clone(),
        _ => None,
    }
    .filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use exuvia_write::ErrorClass;

    use super::*;

    /// PITFALLS B5.
    #[test]
    fn an_object_that_cannot_be_read_still_has_a_name() -> Result<(), kube::Error> {
        let page = r#"{"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [
            {"metadata": {"name": "good", "namespace": "n", "uid": "u", "managedFields": []}},
            {"metadata": {"name": "bad", "namespace": "n", "generation": "many"}},
            7
        ]}"#;
        let items = Answer::parse(page.as_bytes())?.items;
        let names: Vec<_> = items
            .iter()
            .map(|item| (item.metadata().is_ok(), item.identity().to_string()))
            .collect();
        let expected = [(true, "n/good"), (false, "n/bad"), (false, "")];
        assert_eq!(names, expected.map(|(read, name)| (read, name.to_owned())));
        assert_eq!(items[0].identity().uid.as_deref(), Some("u"));
        Ok(())
    }

    #[test]
    fn a_list_may_be_empty() -> Result<(), kube::Error> {
        for page in [
            r#"{"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": null}"#,
            r#"{"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": ""}, "items": []}"#,
            r#"{"apiVersion": "example.dev/v1", "kind": "Herd", "items": []}"#,
        ] {
            assert!(Answer::parse(page.as_bytes())?.items.is_empty());
        }
        Ok(())
    }

    #[test]
    fn what_is_not_a_list_is_an_error_that_may_pass() {
        for page in [
            "",
            "<html>Please log in</html>",
            "null",
            "[]",
            "{}",
            r#"{"error": "session expired"}"#,
            r#"{"metadata": {}}"#,
            r#"{"items": []}"#,
            r#"{"items": null}"#,
            r#"{"metadata": {"resourceVersion": "7"}, "items": []}"#,
            r#"{"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}}"#,
            r#"{"apiVersion": "", "kind": "", "metadata": {"resourceVersion": "7"}, "items": []}"#,
            r#"{"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": {}}"#,
            r#"{"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "code": 500}"#,
        ] {
            let error = Answer::parse(page.as_bytes()).expect_err(page);
            assert_eq!(ErrorClass::of(&error), ErrorClass::Ambiguous, "{page}");
            let said = exuvia_write::brief(&error);
            assert!(said.contains("the answer is not a list"), "{page}: {said}");
        }
    }
}
