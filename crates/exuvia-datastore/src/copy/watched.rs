//! Watches the metadata of one kind and tells the ledger: lists, resumes, and lists again where something may have been missed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use exuvia_api::MIGRATION_UID_ANNOTATION;
use exuvia_sweep::{Identity, Pages, ResourceVersion};
use exuvia_write::{ErrorClass, Redacted, RetryPolicy, brief};
use futures::TryStreamExt;
use kube::api::{ListParams, ObjectMeta, PartialObjectMeta, WatchEvent, WatchParams};
use kube::core::{DeserializeGuard, Request as Requests};
use kube::{Api, Client, Resource};
use tokio::sync::watch;

use super::ledger::{Key, Ledger, Named};
use super::trial::key;
use crate::kinds::Kind;
use crate::lock::lock;

/// Up to 5 s apart, from 100 ms on. A server may ask for up to 30 s.
const PAUSES: RetryPolicy = RetryPolicy {
    attempts: u32::MAX,
    conflicts: 1,
    base: Duration::from_millis(100),
    cap: Duration::from_secs(5),
    patience: Duration::from_secs(30),
};

/// The length of a watch that the server is asked for, and what is waited for beyond: then the connection is dead.
const SECONDS: u32 = 240;
const GRACE: Duration = Duration::from_secs(10);

/// A server says how far a watch is once in a minute, and two seconds before its end. So a watch of three seconds tells soon.
const HURRIED_SECONDS: u32 = 3;

/// After so many failures in a row everything is listed again.
const MAX_FAILURES: u32 = 5;

/// Which side of the move a kind is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Target,
}

/// What a watch is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Orders {
    /// Say soon how far it is.
    pub(super) hurry: bool,
    /// How often it was asked to list again.
    pub(super) relists: u32,
}

/// The watch of one kind.
pub(super) struct Watched {
    pub(super) client: Client,
    pub(super) kind: Kind,
    /// Its place in the list of its side.
    pub(super) index: usize,
    pub(super) side: Side,
    /// The migration's uid: what our targets are marked with.
    pub(super) uid: String,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) orders: watch::Receiver<Orders>,
    /// Everything up to this has been told.
    pub(super) told: watch::Sender<Option<ResourceVersion>>,
}

/// Why a watch came to its end.
enum End {
    /// The server closed it, or it was dropped to open another one.
    Resume,
    /// Something may have been missed.
    ListAgain,
    /// It can be resumed after a pause.
    Failed(ErrorClass),
}

/// A number for a uid.
pub(super) fn uid_key(uid: Option<&str>) -> Key {
    key("uid", None, uid.unwrap_or_default())
}

impl Watched {
    /// Watches until it is dropped.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            let mut at = match self.list().await {
                Ok(Some(at)) => at,
                Ok(None) => {
                    tokio::time::sleep(PAUSES.base).await;
                    continue;
                }
                Err(error) => {
                    failures += 1;
                    let class = ErrorClass::of(&error);
                    let error = Redacted::from_server(&brief(&error));
                    tracing::warn!(kind = self.kind.name(), %error, "cannot list; trying again");
                    pause(failures, class).await;
                    continue;
                }
            };
            self.tell(at);
            let relists = self.orders.borrow().relists;
            while self.orders.borrow().relists == relists {
                let began = Instant::now();
                let (end, lively) = self.watch(&mut at).await;
                if lively || began.elapsed() > GRACE {
                    failures = 0;
                }
                match end {
                    End::ListAgain => break,
                    // A watch that ends as soon as it begins must not be asked for without a pause.
                    End::Resume if began.elapsed() > Duration::from_secs(1) || self.orders.borrow().hurry => {
                    }
                    End::Resume => tokio::time::sleep(PAUSES.base).await,
                    End::Failed(class) => {
                        failures += 1;
                        pause(failures, class).await;
                        // The version itself may be what is wrong.
                        if failures >= MAX_FAILURES {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn tell(&self, at: ResourceVersion) {
        self.told.send_modify(|told| *told = (*told).max(Some(at)));
    }

    fn api(&self) -> Api<PartialObjectMeta> {
        Api::all_with(self.client.clone(), &self.kind.through)
    }

    /// All objects. Returns the version from which to watch; `None`: the pages are not of one moment (PITFALLS A8), so that
    /// something may be missing between them.
    async fn list(&self) -> Result<Option<ResourceVersion>, kube::Error> {
        let mut pages = Pages::of(&self.api()).metadata().select(&ListParams::default());
        let (mut shown, mut version, mut has_one_moment) = (HashSet::new(), None, true);
        while let Some(page) = pages.next().await? {
            if page.is_first {
                shown.clear();
                version.clone_from(&page.resource_version);
                has_one_moment = true;
            }
            has_one_moment &= page.resource_version == version;
            for item in &page.items {
                shown.insert(match item.read::<PartialObjectMeta>() {
                    Ok(object) => self.seen(&object.metadata),
                    Err(_) => self.lost(&item.identity()),
                });
            }
        }
        if !has_one_moment {
            return Ok(None);
        }
        let mut ledger = lock(&self.ledger);
        match self.side {
            Side::Source => ledger.sources_listed(self.index, &shown),
            Side::Target => ledger.targets_listed(self.index, &shown),
        }
        Ok(version.and_then(|version| version.parse().ok()))
    }

    fn key(&self, namespace: Option<&str>, name: &str) -> (Key, Named) {
        let named = Named {
            kind: self.index,
            namespace: namespace.map(Into::into),
            name: name.into(),
        };
        (key(&self.kind.shown(), namespace, name), named)
    }

    fn seen(&self, object: &ObjectMeta) -> Key {
        let name = object.name.as_deref().unwrap_or_default();
        let (key, named) = self.key(object.namespace.as_deref(), name);
        let version = ResourceVersion::of(object);
        let mut ledger = lock(&self.ledger);
        match self.side {
            Side::Source => ledger.source_seen(key, named, uid_key(object.uid.as_deref()), version),
            Side::Target => {
                let marks = object.annotations.as_ref();
                let mark = marks.and_then(|marks| marks.get(MIGRATION_UID_ANNOTATION));
                ledger.target_seen(key, named, version, mark == Some(&self.uid));
            }
        }
        key
    }

    /// It is gone, or it cannot be read: the next look tells.
    fn lost(&self, object: &Identity) -> Key {
        let (key, named) = self.key(object.namespace.as_deref(), &object.name);
        let mut ledger = lock(&self.ledger);
        match self.side {
            Side::Source => ledger.source_lost(key, named),
            Side::Target => ledger.target_lost(key),
        }
        key
    }

    /// Watches from a version on, and moves it along. The version moves only with what was told, so a watch that is cut is
    /// resumed where it was, or the server says that it cannot. Also whether anything was heard.
    async fn watch(&mut self, at: &mut ResourceVersion) -> (End, bool) {
        let orders = *self.orders.borrow_and_update();
        let seconds = if orders.hurry { HURRIED_SECONDS } else { SECONDS };
        let params = WatchParams {
            timeout: Some(seconds),
            bookmarks: true,
            ..WatchParams::default()
        };
        let silence = Duration::from_secs(seconds.into()) + GRACE;
        let requests = Requests::new(self.api().resource_url());
        let Ok(request) = requests.watch_metadata(&params, &at.to_string()) else {
            return (End::ListAgain, false);
        };
        let opening = self
            .client
            .request_events::<DeserializeGuard<PartialObjectMeta>>(request);
        let opened = tokio::select! {
            opened = tokio::time::timeout(silence, opening) => opened,
            end = asked_for(&mut self.orders, orders) => return (end, true),
        };
        let events = match opened {
            Ok(Ok(events)) => events,
            Ok(Err(error)) => return (end_of(&error), false),
            Err(_) => return (End::Failed(ErrorClass::Ambiguous), false),
        };
        let mut events = std::pin::pin!(events);
        let mut is_lively = false;
        loop {
            let event = tokio::select! {
                event = tokio::time::timeout(silence, events.try_next()) => event,
                end = asked_for(&mut self.orders, orders) => return (end, true),
            };
            let event = match event {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => return (End::Resume, is_lively),
                Ok(Err(error)) => return (end_of(&error), is_lively),
                Err(_) => return (End::Failed(ErrorClass::Ambiguous), is_lively),
            };
            is_lively = true;
            let version = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => match object.0 {
                    Ok(object) => {
                        self.seen(&object.metadata);
                        ResourceVersion::of(&object.metadata)
                    }
                    Err(unfit) => {
                        self.lost(&Identity::from(&unfit.metadata));
                        ResourceVersion::of(&unfit.metadata)
                    }
                },
                WatchEvent::Deleted(object) => {
                    self.lost(&Identity::from(object.meta()));
                    ResourceVersion::of(object.meta())
                }
                WatchEvent::Bookmark(bookmark) => bookmark.metadata.resource_version.parse().ok(),
                WatchEvent::Error(status) => return (end_of(&kube::Error::Api(status)), is_lively),
            };
            let Some(version) = version else {
                return (End::ListAgain, is_lively); // nobody knows where it is
            };
            *at = (*at).max(version);
            self.tell(*at);
        }
    }
}

/// Waits for orders that a watch which began under these does not fulfil.
async fn asked_for(orders: &mut watch::Receiver<Orders>, begun: Orders) -> End {
    let is_other = |now: &Orders| now.relists != begun.relists || (now.hurry && !begun.hurry);
    let now = orders.wait_for(is_other).await.map(|now| *now);
    match now {
        Ok(now) if now.relists != begun.relists => End::ListAgain,
        // A watch that is asked to hurry is opened again; what it has told is not asked for twice.
        Ok(_) => End::Resume,
        Err(_) => std::future::pending().await, // nobody is left who could ask
    }
}

async fn pause(failures: u32, class: ErrorClass) {
    let class = ErrorClass::Transient(class.retry_after());
    tokio::time::sleep(PAUSES.after(failures, class).unwrap_or(PAUSES.patience)).await;
}

fn end_of(error: &kube::Error) -> End {
    match ErrorClass::of(error) {
        ErrorClass::Expired => End::ListAgain,
        class => End::Failed(class),
    }
}
