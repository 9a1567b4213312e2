//! The pager: all objects of a resource, page by page, whatever happens to the lists.

use exuvia_write::{ErrorClass, RetryPolicy, brief};
use kube::{Api, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use crate::{
    cursor::{Cursor, Lists, Place, Recovery},
    list::{Item, Payload, Server, Source, fresh_token},
};

/// All objects of a resource, page by page.
///
/// The first page is a consistent read, never `resourceVersion=0`, and the others are of the same moment. A page that
/// fails is asked for again. An expired continue token (410) goes on with the token that the server hands back: the place
/// in the list is kept, its moment is not (PITFALLS A8). Without such a token the list starts over, and
/// [`Page::is_first`] says so. All of it is bounded, and decided in one place for everything that lists.
///
/// ```no_run
/// use exuvia_sweep::Pages;
/// use kube::{Api, Client, api::{ApiResource, DynamicObject}};
///
/// # async fn example(client: Client, widgets: ApiResource) -> Result<(), Box<dyn std::error::Error>> {
/// let api: Api<DynamicObject> = Api::all_with(client, &widgets);
/// let mut pages = Pages::of(&api).page_size(50);
/// while let Some(page) = pages.next().await? {
///     for item in &page.items {
///         let widget: DynamicObject = item.read()?; // text until now
///         println!("{:?}", widget.metadata.name);
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Pages(pub(crate) Walk<Server>);

/// Some objects of a resource.
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// The objects, in the order in which the server lists them.
    pub items: Vec<Item>,
    /// The list starts with this page, for the first time or over again: forget what pages before it showed.
    pub is_first: bool,
    /// The moment that the page shows.
    pub resource_version: Option<String>,
    place: Place,
}

/// A page that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list {resource}: {}", brief(.source))]
#[non_exhaustive]
pub struct ListError {
    /// Plural and group: `widgets.example.dev`.
    pub resource: String,
    /// What kind of failure.
    pub class: ErrorClass,
    /// What the pager does when it is asked again.
    pub recovery: Recovery,
    /// The failure.
    pub source: Box<kube::Error>,
}

impl From<ListError> for kube::Error {
    fn from(error: ListError) -> Self {
        *error.source
    }
}

impl Pages {
    /// The objects that an `Api` lists: those of its namespace, or of all namespaces. Whole objects, unless the `Api` is
    /// one of metadata.
    pub fn of<K: Resource + Clone>(api: &Api<K>) -> Self {
        let payload = if K::metadata_api() {
            Payload::Metadata
        } else {
            Payload::Whole
        };
        let server = Server::new(api.clone().into_client(), api.resource_url(), payload);
        Self(Walk::new(server, exuvia_write::resource_of(api), Cursor::new()))
    }

    /// Metadata only.
    #[must_use]
    pub fn metadata(mut self) -> Self {
        self.0.source.payload = Payload::Metadata;
        self
    }

    /// Only objects that these selectors choose. The rest of `which` does not count.
    #[must_use]
    pub fn select(mut self, which: &ListParams) -> Self {
        let params = &mut self.0.cursor.params;
        params.label_selector.clone_from(&which.label_selector);
        params.field_selector.clone_from(&which.field_selector);
        self
    }

    /// How many objects a page has: 500 of metadata and 100 whole ones by default. Memory grows with it.
    #[must_use]
    pub fn page_size(mut self, objects: u32) -> Self {
        self.0.cursor.params.limit = Some(objects.max(1)); // 0 would ask for all of them at once
        self
    }

    /// How often and how long to try again for a page: ten times, up to 5 s apart, by default.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.0.cursor.retry = policy;
        self
    }

    /// The next page; `None` after the last one. Tries again as far as the policy allows.
    ///
    /// # Errors
    ///
    /// The page cannot be read now. After that, `next` tries the same page again.
    pub async fn next(&mut self) -> Result<Option<Page>, ListError> {
        loop {
            match self.ask().await {
                Err(error) if error.recovery != Recovery::GiveUp => {}
                answer => return answer,
            }
        }
    }

    /// All objects at once, for resources that have few of them, such as CRDs: memory grows with their number.
    ///
    /// # Errors
    ///
    /// A page cannot be read now, or an object in it is not what `K` expects.
    pub async fn collect<K: DeserializeOwned>(mut self) -> Result<Vec<K>, kube::Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next().await? {
            if page.is_first {
                all.clear(); // the list started over
            }
            for item in &page.items {
                all.push(item.read().map_err(kube::Error::SerdeError)?);
            }
        }
        Ok(all)
    }

    /// As [`next`](Self::next), with one request at most: for callers that report each failure. Ask again to go on as
    /// [`ListError::recovery`] says; a delay is waited for inside the next call.
    ///
    /// # Errors
    ///
    /// This request failed.
    pub async fn ask(&mut self) -> Result<Option<Page>, ListError> {
        self.0.ask().await
    }

    /// A pager that starts with `page` as another version's endpoint shows it: the same objects as of the same moment. A
    /// continue token holds both, and is good at the endpoints of all versions; the first page is asked for by its
    /// resourceVersion. Once that moment is gone from the server, it shows what is there now.
    #[must_use]
    pub fn beside<K: Resource + Clone>(&self, api: &Api<K>, page: &Page) -> Self {
        let mut beside = Self::of(api);
        let walk = &mut beside.0;
        walk.source.payload = self.0.source.payload;
        walk.cursor.params = self.0.cursor.params.clone();
        walk.cursor.retry = self.0.cursor.retry.clone();
        walk.cursor.place = match (&page.place, &page.resource_version) {
            (Place::Start, Some(version)) => Place::Exactly(version.clone()),
            (place, _) => place.clone(),
        };
        beside
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages")
            .field("resource", &self.0.resource)
            .field("params", &self.0.cursor.params)
            .finish_non_exhaustive()
    }
}

/// A pager over any source of pages.
pub(crate) struct Walk<S> {
    source: S,
    resource: String,
    cursor: Cursor,
    /// When the next page may be asked for.
    not_before: Option<Instant>,
}

impl<S: Source> Walk<S> {
    pub(crate) fn new(source: S, resource: String, cursor: Cursor) -> Self {
        Self {
            source,
            resource,
            cursor,
            not_before: None,
        }
    }

    /// What the lists told so far.
    pub(crate) fn lists(&self) -> Lists {
        self.cursor.lists()
    }

    /// One request at most, and what follows from its answer.
    pub(crate) async fn ask(&mut self) -> Result<Option<Page>, ListError> {
        let Some(params) = self.cursor.next() else {
            return Ok(None);
        };
        if let Some(not_before) = self.not_before {
            sleep_until(not_before).await;
        }
        self.not_before = None;
        match self.source.page(params).await {
            Ok(answer) => {
                let items = answer.items;
                let place = self.cursor.place.clone();
                let resource_version = answer.list.resource_version.clone();
                Ok(Some(Page {
                    is_first: self.cursor.on_page(answer.list, items.len()),
                    items,
                    resource_version,
                    place,
                }))
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&mut self, error: kube::Error) -> ListError {
        let class = ErrorClass::of(&error);
        let recovery = self.cursor.on_error(class, fresh_token(&error));
        let resource = self.resource.as_str();
        match recovery {
            Recovery::Retry(delay) => {
                tracing::debug!(resource, %class, ?delay, "list failed; retrying");
                self.not_before = Some(Instant::now() + delay);
            }
            Recovery::Resume => tracing::debug!(resource, "continue token expired; resuming list"),
            Recovery::Restart => tracing::warn!(resource, "continue token expired; restarting list"),
            Recovery::GiveUp => {}
        }
        ListError {
            resource: self.resource.clone(),
            class,
            recovery,
            source: Box::new(error),
        }
    }
}
