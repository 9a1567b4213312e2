//! Watches that do not end: lists, watches, resumes, lists again, and survives what a server and a network can do.

use std::{
    collections::HashSet,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use exuvia_write::{ErrorClass, RetryPolicy, brief};
use futures::{Stream, TryStreamExt};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PartialObjectMeta, WatchEvent, WatchParams},
    core::{DeserializeGuard, ObjectList, Request as Requests},
};
use serde::de::DeserializeOwned;

use crate::Metrics;

/// Up to 10 s apart, from 200 ms on: nobody notices the first, and 10 s is as long as a server that restarts should wait
/// for us. A server that asks for up to 30 s is heard.
const PAUSES: RetryPolicy = RetryPolicy {
    attempts: u32::MAX,
    conflicts: 1,
    base: Duration::from_millis(200),
    cap: Duration::from_secs(10),
    patience: Duration::from_secs(30),
};

/// A watch that lived for so long was a good one, even if nothing happened in it.
const LONG: Duration = Duration::from_secs(10);

/// So many watches in a row that come to nothing, and the resourceVersion itself is suspected: after a restore of etcd the
/// server may not reach it for days.
const SUSPICIOUS: u32 = 5;

/// 60 s for one page, and for a watch to begin: the server gives up on a list after as long.
const ANSWER: Duration = Duration::from_secs(60);

/// What kube asks the server for as a watch's length if nobody says otherwise, and 10 s more: then the connection is dead.
const WATCH_SECONDS: u32 = 290;
const DEAD: Duration = Duration::from_secs(10);

/// What a watch sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<K> {
    /// A list begins: what is not `Applied` until `Synced` is gone.
    Restarted,
    /// It is there, new or changed or as before.
    Applied(K),
    /// It is gone.
    Deleted(K),
    /// The list is complete; from here on it is changes.
    Synced,
}

/// As large as kubectl's: a page of metadata is then a megabyte or two.
const PAGE: u32 = 500;

/// Follows all objects that `api` and `which` select, for ever.
///
/// An object that does not fit `K` is named in the log, once, and left out; it does not stop the others. Of
/// `which`, selectors and limit count: the list comes in pages of so many, 500 unless told.
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
///     Seen::Deleted(map) => println!("{} is gone", map.name_any()),
///     Seen::Restarted | Seen::Synced => {}
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
    run(
        source,
        metrics,
        resource,
        |guarded: DeserializeGuard<K>| guarded.0.ok(),
        on,
    )
    .await;
}

/// As [`follow`], of the metadata alone: no more than that is asked for.
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
    run(source, metrics, resource, Some, on).await;
}

/// What is watched.
struct Source {
    client: Client,
    requests: Requests,
    metadata: bool,
    list: ListParams,
    watch: WatchParams,
}

/// Why a list or a watch came to its end.
enum Ended {
    /// The server closed it, as it does every few minutes.
    Cleanly,
    /// Nothing came any more, not even the end that was asked for.
    Dead,
    /// The server does not have that resourceVersion any more.
    Expired,
    Failed(ErrorClass, String),
}

impl Ended {
    fn of(error: &kube::Error) -> Self {
        match ErrorClass::of(error) {
            ErrorClass::Expired => Self::Expired,
            class => Self::Failed(class, brief(error)),
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

/// kube's `watcher` is not used: it retries a 410 at the start of a watch for ever, and a watch that ends at once it begins
/// anew at once, inside itself, where no back-off reaches (PITFALLS A20).
async fn run<T, K>(
    source: Source,
    metrics: &Metrics,
    resource: &'static str,
    fitting: fn(T) -> Option<K>,
    mut on: impl FnMut(Seen<K>) + Send,
) where
    T: Resource + Clone + DeserializeOwned + Send + 'static,
{
    let mut broken = Broken::default();
    let mut sieve = |seen: Seen<T>| {
        let seen = match seen {
            Seen::Restarted => Seen::Restarted,
            Seen::Synced => Seen::Synced,
            Seen::Applied(object) => match broken.sift(resource, object, fitting) {
                Some(object) => Seen::Applied(object),
                None => return,
            },
            Seen::Deleted(object) => {
                broken.0.remove(&full_name(&object));
                match fitting(object) {
                    Some(object) => Seen::Deleted(object),
                    None => return,
                }
            }
        };
        on(seen);
    };
    let mut version = None;
    let mut failures = 0;
    let mut said: Option<String> = None;
    loop {
        let ended = match version.take() {
            None => match source.list(&mut sieve).await {
                Ok(listed) => {
                    version = Some(listed);
                    continue;
                }
                Err(ended) => ended,
            },
            Some(mut at) => {
                let began = Instant::now();
                let (ended, lively) = source.watch(&mut at, &mut sieve).await;
                // A list is no sign of recovery, or a 410 at each watch's start would make us list without a pause.
                if lively || began.elapsed() >= LONG {
                    failures = 0;
                    said = None;
                }
                if !matches!(ended, Ended::Expired) && failures + 1 < SUSPICIOUS {
                    version = Some(at);
                }
                ended
            }
        };
        metrics.watch_restarted(resource, ended.reason());
        failures += 1;
        let class = match ended {
            Ended::Failed(class, error) => {
                if said.as_ref() != Some(&error) {
                    tracing::warn!(resource, error, "the watch broke; will try again");
                    said = Some(error);
                }
                ErrorClass::Transient(class.retry_after())
            }
            ended => {
                tracing::debug!(resource, reason = ended.reason(), "the watch ended; begins anew");
                ErrorClass::Transient(None)
            }
        };
        tokio::time::sleep(PAUSES.after(failures, class).unwrap_or(PAUSES.patience)).await;
    }
}

/// The objects that do not fit their type, by namespace and name: each is reported once.
#[derive(Default)]
struct Broken(HashSet<FullName>);

type FullName = (Option<String>, Option<String>);

fn full_name(object: &impl Resource) -> FullName {
    (object.meta().namespace.clone(), object.meta().name.clone())
}

impl Broken {
    fn sift<T: Resource, K>(&mut self, resource: &str, object: T, fitting: fn(T) -> Option<K>) -> Option<K> {
        let who = full_name(&object);
        let object = fitting(object);
        if object.is_some() {
            self.0.remove(&who);
        } else if !self.0.contains(&who) {
            let (namespace, name) = &who;
            // Not what serde says about it, which quotes the value (PITFALLS B27).
            tracing::warn!(
                resource,
                namespace,
                name,
                "an object does not fit its type; it is left out"
            );
            self.0.insert(who);
        }
        object
    }
}

impl Source {
    fn new<K: Resource>(api: Api<K>, which: ListParams, metadata: bool) -> Self {
        Self {
            metadata,
            watch: WatchParams {
                label_selector: which.label_selector.clone(),
                field_selector: which.field_selector.clone(),
                timeout: Some(WATCH_SECONDS),
                bookmarks: true,
                send_initial_events: false,
            },
            list: ListParams {
                label_selector: which.label_selector,
                field_selector: which.field_selector,
                limit: which.limit.or(Some(PAGE)),
                ..ListParams::default()
            },
            requests: Requests::new(api.resource_url()),
            client: api.into_client(),
        }
    }

    /// All objects, page by page; returns from which resourceVersion on to watch.
    async fn list<T: Resource + Clone + DeserializeOwned>(
        &self,
        see: &mut (impl FnMut(Seen<T>) + Send),
    ) -> Result<String, Ended> {
        let mut params = self.list.clone();
        loop {
            let page = self.page::<T>(&params).await?;
            if params.continue_token.is_none() {
                see(Seen::Restarted);
            }
            for object in page.items {
                see(Seen::Applied(object));
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                see(Seen::Synced);
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
            // A token knows its resourceVersion, and the server refuses both.
            params.resource_version = None;
            params.version_match = None;
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a list only reads")]
    async fn page<T: Clone + DeserializeOwned>(&self, params: &ListParams) -> Result<ObjectList<T>, Ended> {
        let list = async {
            let request = if self.metadata {
                self.requests
                    .list_metadata(params)
                    .map_err(kube::Error::BuildRequest)?
            } else {
                self.requests.list(params).map_err(kube::Error::BuildRequest)?
            };
            // Not `Client::request`, which logs an answer that does not fit the type, body and all.
            let text = self.client.request_text(request).await?;
            serde_json::from_str(&text).map_err(kube::Error::SerdeError)
        };
        within(list).await
    }

    /// Watches from `version` on, and moves it along; says why it ended, and whether anything was seen.
    async fn watch<T: Resource + Clone + DeserializeOwned + Send + 'static>(
        &self,
        version: &mut String,
        see: &mut (impl FnMut(Seen<T>) + Send),
    ) -> (Ended, bool) {
        let mut lively = false;
        let mut events = match self.events::<T>(version).await {
            Ok(events) => events,
            Err(ended) => return (ended, lively),
        };
        let silence = Duration::from_secs(self.watch.timeout.unwrap_or(WATCH_SECONDS).into()) + DEAD;
        loop {
            let event = match tokio::time::timeout(silence, events.try_next()).await {
                Err(_) => return (Ended::Dead, lively),
                Ok(Ok(None)) => return (Ended::Cleanly, lively),
                Ok(Err(error)) => return (Ended::of(&error), lively),
                Ok(Ok(Some(event))) => event,
            };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    moved_to(version, object.resource_version());
                    see(Seen::Applied(object));
                    lively = true;
                }
                WatchEvent::Deleted(object) => {
                    moved_to(version, object.resource_version());
                    see(Seen::Deleted(object));
                    lively = true;
                }
                WatchEvent::Bookmark(bookmark) => moved_to(version, Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(status) => return (Ended::of(&kube::Error::Api(status)), lively),
            }
        }
    }

    async fn events<T: Clone + DeserializeOwned + Send + 'static>(
        &self,
        version: &str,
    ) -> Result<Events<T>, Ended> {
        let watch = async {
            let request = if self.metadata {
                self.requests
                    .watch_metadata(&self.watch, version)
                    .map_err(kube::Error::BuildRequest)?
            } else {
                self.requests
                    .watch(&self.watch, version)
                    .map_err(kube::Error::BuildRequest)?
            };
            self.client.request_events::<T>(request).await
        };
        let events = within(watch).await?;
        Ok(Box::pin(events))
    }
}

type Events<T> = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<T>>> + Send>>;

fn moved_to(version: &mut String, newer: Option<String>) {
    if let Some(newer) = newer.filter(|newer| !newer.is_empty()) {
        *version = newer;
    }
}

/// An answer, or the lack of one within reasonable time.
async fn within<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<T, Ended> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(answer) => answer.map_err(|error| Ended::of(&error)),
        Err(_) => Err(Ended::Failed(
            ErrorClass::Ambiguous,
            format!("no answer within {ANSWER:?}"),
        )),
    }
}
