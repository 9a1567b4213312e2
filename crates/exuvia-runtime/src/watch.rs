//! Watches that do not end: lists, watches, resumes, lists again, and survives what a server and a network can do.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use exuvia_sweep::{Identity, ListError, Pages, Recovery};
use exuvia_write::{ErrorClass, Redacted, RetryPolicy, brief};
use futures::{Stream, TryStreamExt};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
    core::{DeserializeGuard, Request as Requests},
};
use serde::de::DeserializeOwned;

use crate::{Metrics, book::Book};

/// Up to 10 s apart, from 200 ms on: nobody notices the first, and 10 s is as long as a server that restarts should wait
/// for us. A server may ask for up to 30 s.
const PAUSES: RetryPolicy = RetryPolicy {
    attempts: u32::MAX,
    conflicts: 1,
    base: Duration::from_millis(200),
    cap: Duration::from_secs(10),
    patience: Duration::from_secs(30),
};

/// A watch that lived for so long was a good one, even if nothing happened in it.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// After so many watches in a row that show nothing, the resourceVersion itself is suspected: after a restore of etcd the
/// server may not reach it for days.
const MAX_FRUITLESS_WATCHES: u32 = 5;

/// 60 s for a watch to begin.
const WATCH_START_TIMEOUT: Duration = Duration::from_secs(60);

/// The length of a watch that kube asks the server for by default, and 10 s more: then the connection is dead.
const WATCH_SECONDS: u32 = 290;
const WATCH_GRACE: Duration = Duration::from_secs(10);

/// What a watch sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<K> {
    /// It is there, new or changed or as before.
    Applied(K),
    /// It is gone: deleted while the watch looked, or missing from a new list. Each object that was `Applied` is `Deleted`
    /// once, also if another object of the same name has replaced it.
    Deleted(Identity),
    /// A list is complete: all that exists was `Applied`, all that vanished was `Deleted`. From here on it is changes, until
    /// a new list is needed. That may be at once: what changed while a long list was read comes with the next one.
    Synced,
}

/// As large as kubectl's: a page of metadata is then a megabyte or two.
const PAGE: u32 = 500;

/// Follows all objects that `api` and `which` select, for ever.
///
/// It remembers namespace, name and uid of each object, to tell what vanished between two lists. An object that does not fit
/// `K` is named in the log, once, and left out; it does not stop the others. If it did fit before, it stays as it was last
/// seen until it is deleted. Of `which`, selectors and limit count: the list comes in pages of so many, 500 by default.
///
/// ```no_run
/// # async fn example(client: kube::Client, metrics: exuvia_runtime::Metrics) {
/// use exuvia_runtime::{Seen, follow};
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::{Api, ResourceExt, api::ListParams};
///
/// let api: Api<ConfigMap> = Api::namespaced(client, "shop");
/// follow(api, ListParams::default().labels("app=till"), &metrics, "configmaps", |seen| match seen {
///     Seen::Applied(map) => println!("{} is there", map.name_any()),
///     Seen::Deleted(map) => println!("{map} is gone"),
///     Seen::Synced => println!("that is all for now"),
/// })
/// .await;
/// # }
/// ```
pub async fn follow<K>(
    api: Api<K>,
    which: ListParams,
    metrics: &Metrics,
    resource: &'static str,
    on: impl FnMut(Seen<K>) + Send,
) where
    K: Resource + Clone + DeserializeOwned + Send + 'static,
{
    let source = Source::new(api, which, K::metadata_api());
    run(source, metrics, resource, on, &|_| {}).await;
}

/// As [`follow`]; each time a list or a watch fails, `troubled` is told why.
pub(crate) async fn follow_and_tell<K>(
    api: Api<K>,
    which: ListParams,
    metrics: &Metrics,
    resource: &'static str,
    on: impl FnMut(Seen<K>) + Send,
    troubled: &(dyn Fn(&Redacted) + Send + Sync),
) where
    K: Resource + Clone + DeserializeOwned + Send + 'static,
{
    let source = Source::new(api, which, K::metadata_api());
    run(source, metrics, resource, on, troubled).await;
}

/// As [`follow`], of the metadata alone: nothing else is asked for.
pub async fn follow_metadata<K>(
    api: Api<K>,
    which: ListParams,
    metrics: &Metrics,
    resource: &'static str,
    on: impl FnMut(Seen<PartialObjectMeta<K>>) + Send,
) where
    K: Resource + Clone + Send + 'static,
    PartialObjectMeta<K>: DeserializeOwned,
{
    let source = Source::new(api, which, true);
    run(source, metrics, resource, on, &|_| {}).await;
}

/// What is watched.
struct Source<A> {
    api: Api<A>,
    client: Client,
    requests: Requests,
    metadata: bool,
    list: ListParams,
    watch: WatchParams,
}

/// Why a list or a watch came to its end.
enum WatchEnd {
    /// The server closed it, as it does every few minutes.
    Cleanly,
    /// Nothing came any more, not even the end that was asked for.
    Dead,
    /// The server does not have that resourceVersion any more.
    Expired,
    Failed(ErrorClass, Redacted),
}

impl WatchEnd {
    fn of(error: &kube::Error) -> Self {
        match ErrorClass::of(error) {
            ErrorClass::Expired => Self::Expired,
            class => Self::Failed(class, Redacted::from_server(&brief(error))),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Cleanly => "ended",
            Self::Dead => "dead",
            Self::Expired => "expired",
            Self::Failed(class, _) => class.as_str(),
        }
    }
}

impl From<ListError> for WatchEnd {
    fn from(error: ListError) -> Self {
        Self::of(&error.source)
    }
}

/// Counts and logs why lists and watches end.
struct Notes<'a> {
    metrics: &'a Metrics,
    resource: &'static str,
    said: Option<Redacted>,
    /// Since when the server asks to come back later: it does so while it sets up the storage of a new CRD, for a second or
    /// several on a busy machine, and that is not worth a warning.
    asked_to_wait_since: Option<Instant>,
    troubled: &'a (dyn Fn(&Redacted) + Send + Sync),
}

impl Notes<'_> {
    /// Returns how long the server asked to be left alone, as a class to try again after.
    fn take(&mut self, ended: WatchEnd) -> ErrorClass {
        let resource = self.resource;
        self.metrics.watch_restarted(resource, ended.reason());
        match ended {
            WatchEnd::Failed(class, error) => {
                (self.troubled)(&error);
                let waits = matches!(class, ErrorClass::Throttled(_))
                    && self
                        .asked_to_wait_since
                        .get_or_insert_with(Instant::now)
                        .elapsed()
                        < PAUSES.patience;
                // The same error over and over is one line.
                if waits {
                    tracing::debug!(resource, error = error.as_str(), "asked to come back later");
                } else if self.said.as_ref() != Some(&error) {
                    tracing::warn!(resource, error = error.as_str(), "watch failed; retrying");
                    self.said = Some(error);
                }
                ErrorClass::Transient(class.retry_after())
            }
            ended => {
                tracing::debug!(resource, reason = ended.reason(), "watch ended; restarting");
                ErrorClass::Transient(None)
            }
        }
    }
}

/// kube's `watcher` is not used: it retries a 410 at the start of a watch for ever, and a watch that ends at once it starts
/// again at once, inside itself, where no back-off reaches (PITFALLS A20).
async fn run<A, K>(
    source: Source<A>,
    metrics: &Metrics,
    resource: &'static str,
    on: impl FnMut(Seen<K>) + Send,
    troubled: &(dyn Fn(&Redacted) + Send + Sync),
) where
    A: Resource + Clone,
    K: Resource + Clone + DeserializeOwned + Send + 'static,
{
    let mut book = Book::new(resource, on);
    let mut notes = Notes {
        metrics,
        resource,
        said: None,
        asked_to_wait_since: None,
        troubled,
    };
    let mut version = None;
    let mut failures = 0;
    loop {
        let ended = match version.take() {
            None => match source.list(&mut book, &mut notes).await {
                Ok(listed) => {
                    version = Some(listed);
                    continue;
                }
                Err(ended) => ended,
            },
            Some(mut at) => {
                let began = Instant::now();
                let (ended, lively) = source.watch(&mut at, &mut book).await;
                // A list is not a sign of recovery, or a 410 at each watch's start would make us list without a pause.
                if lively || began.elapsed() >= HEALTHY_AFTER {
                    failures = 0;
                    (notes.said, notes.asked_to_wait_since) = (None, None);
                }
                if !matches!(ended, WatchEnd::Expired) && failures + 1 < MAX_FRUITLESS_WATCHES {
                    version = Some(at);
                }
                ended
            }
        };
        failures += 1;
        let class = notes.take(ended);
        tokio::time::sleep(PAUSES.after(failures, class).unwrap_or(PAUSES.patience)).await;
    }
}

impl<A: Resource + Clone> Source<A> {
    fn new(api: Api<A>, which: ListParams, metadata: bool) -> Self {
        Self {
            metadata,
            watch: WatchParams {
                label_selector: which.label_selector.clone(),
                field_selector: which.field_selector.clone(),
                timeout: Some(WATCH_SECONDS),
                bookmarks: true,
                send_initial_events: false,
            },
            list: which,
            requests: Requests::new(api.resource_url()),
            client: api.clone().into_client(),
            api,
        }
    }

    /// All objects, page by page; returns from which resourceVersion on to watch: that of all pages.
    ///
    /// Where a continue token expired on the way, later pages are of a later moment (PITFALLS A8). A watch from the first
    /// moment would show older changes of what those pages have shown, such as the end of an object that has been made
    /// again; a watch from the last would miss changes of what the first pages have shown. So that list is followed by
    /// another one, which never shows anything older.
    async fn list<K>(
        &self,
        book: &mut Book<K, impl FnMut(Seen<K>) + Send>,
        notes: &mut Notes<'_>,
    ) -> Result<String, WatchEnd>
    where
        K: Resource + DeserializeOwned,
    {
        let pages = Pages::of(&self.api).select(&self.list).retry(PAUSES);
        let pages = if self.metadata { pages.metadata() } else { pages };
        let mut pages = pages.page_size(self.list.limit.unwrap_or(PAGE));
        let mut version = None;
        let mut has_one_moment = true;
        loop {
            match pages.ask().await {
                Ok(Some(page)) => {
                    if page.is_first {
                        book.begin_list();
                        version.clone_from(&page.resource_version);
                        has_one_moment = true;
                    }
                    has_one_moment &= page.resource_version == version;
                    for item in &page.items {
                        match item.read::<K>() {
                            Ok(object) => book.see(object),
                            Err(_) => book.see_unfit(item.identity()),
                        }
                    }
                }
                Ok(None) => {
                    book.end_list();
                    return if has_one_moment {
                        Ok(version.unwrap_or_default())
                    } else {
                        Err(WatchEnd::Expired)
                    };
                }
                Err(error) if error.recovery == Recovery::GiveUp => return Err(error.into()),
                Err(error) => {
                    notes.take(error.into());
                }
            }
        }
    }

    /// Watches from `version` on, and moves it along; says why it ended, and whether anything was seen.
    async fn watch<K>(
        &self,
        version: &mut String,
        book: &mut Book<K, impl FnMut(Seen<K>) + Send>,
    ) -> (WatchEnd, bool)
    where
        K: Resource + Clone + DeserializeOwned + Send + 'static,
    {
        let mut lively = false;
        let mut events = match self.events::<K>(version).await {
            Ok(events) => events,
            Err(ended) => return (ended, lively),
        };
        let silence = Duration::from_secs(self.watch.timeout.unwrap_or(WATCH_SECONDS).into()) + WATCH_GRACE;
        loop {
            let event = match tokio::time::timeout(silence, events.try_next()).await {
                Err(_) => return (WatchEnd::Dead, lively),
                Ok(Ok(None)) => return (WatchEnd::Cleanly, lively),
                Ok(Err(error)) => return (WatchEnd::of(&error), lively),
                Ok(Ok(Some(event))) => event,
            };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    moved_to(version, object.resource_version());
                    match object.0 {
                        Ok(object) => book.see(object),
                        Err(unfit) => book.see_unfit(Identity::from(&unfit.metadata)),
                    }
                    lively = true;
                }
                WatchEvent::Deleted(object) => {
                    moved_to(version, object.resource_version());
                    book.lose(Identity::from(object.meta()));
                    lively = true;
                }
                WatchEvent::Bookmark(bookmark) => moved_to(version, Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(status) => return (WatchEnd::of(&kube::Error::Api(status)), lively),
            }
        }
    }

    async fn events<K>(&self, version: &str) -> Result<Events<K>, WatchEnd>
    where
        K: Resource + Clone + DeserializeOwned + Send + 'static,
    {
        let watch = async {
            let request = if self.metadata {
                self.requests.watch_metadata(&self.watch, version)
            } else {
                self.requests.watch(&self.watch, version)
            };
            let request = request.map_err(kube::Error::BuildRequest)?;
            self.client.request_events(request).await
        };
        let events = within(watch).await?;
        Ok(Box::pin(events))
    }
}

/// An object that does not fit its type does not end the watch.
type Events<K> = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DeserializeGuard<K>>>> + Send>>;

fn moved_to(version: &mut String, newer: Option<String>) {
    if let Some(newer) = newer.filter(|newer| !newer.is_empty()) {
        *version = newer;
    }
}

/// An answer, or the lack of one within reasonable time.
async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, WatchEnd> {
    match tokio::time::timeout(WATCH_START_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|error| WatchEnd::of(&error)),
        Err(_) => Err(WatchEnd::Failed(
            ErrorClass::Ambiguous,
            Redacted::ours(format!("no answer within {WATCH_START_TIMEOUT:?}")),
        )),
    }
}
