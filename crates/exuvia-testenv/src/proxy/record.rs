//! The log of every request that came by, complete or still in flight.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, Method, header};
use tokio::sync::watch;

use super::path::ObjectPath;

/// One request as the proxy saw it, and what became of it so far.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Its number, in the order of arrival, from 0.
    pub id: u64,
    /// The HTTP method.
    pub method: Method,
    /// The path without the query.
    pub path: String,
    /// The query as it was on the wire; empty without one.
    pub query: String,
    /// The headers that the client sent. `Authorization` is marked as sensitive, so it is not printed.
    pub headers: HeaderMap,
    /// The request's body.
    pub body: Bytes,
    /// The server's status code. `None`: it was not forwarded, or the server has not answered.
    pub upstream: Option<u16>,
    /// The status code that the client saw. `None`: it saw none, or not yet.
    pub answer: Option<u16>,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of an answer's body that were passed to the client so far.
    pub bytes_out: u64,
    /// Whether it is over: answered in full, cut, or given up by the client.
    pub finished: bool,
}

impl Recorded {
    /// Whether it is a POST, PUT, PATCH or DELETE.
    pub fn is_write(&self) -> bool {
        is_write(&self.method)
    }

    /// The content type of the request's body.
    pub fn content_type(&self) -> Option<&str> {
        self.headers.get(header::CONTENT_TYPE)?.to_str().ok()
    }

    /// The request's body as JSON, `null` if it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The resource or object that the path names, if it names one.
    pub fn object(&self) -> Option<ObjectPath<'_>> {
        ObjectPath::parse(&self.path)
    }
}

pub(crate) fn is_write(method: &Method) -> bool {
    [Method::POST, Method::PUT, Method::PATCH, Method::DELETE].contains(method)
}

/// All requests so far. Each change has a revision, by which waiters know what is new to them.
pub(crate) struct Log {
    entries: Mutex<Entries>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Entries {
    next_id: u64,
    revision: u64,
    by_id: BTreeMap<u64, (u64, Recorded)>,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            entries: Mutex::default(),
            revision: watch::Sender::new(0),
        }
    }

    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.lock()
            .by_id
            .values()
            .map(|(_, recorded)| recorded.clone())
            .collect()
    }

    pub(crate) fn forget(&self) {
        self.lock().by_id.clear();
    }

    /// Adds a request; its number is given here.
    pub(crate) fn add(self: &Arc<Self>, mut request: Recorded) -> Entry {
        let mut entries = self.lock();
        let id = entries.next_id;
        request.id = id;
        entries.next_id += 1;
        entries.revision += 1;
        let revision = entries.revision;
        entries.by_id.insert(id, (revision, request.clone()));
        self.revision.send_replace(revision);
        drop(entries);
        Entry {
            log: Arc::clone(self),
            request,
        }
    }

    /// Waits for the first request, in the order of arrival, for which `predicate` holds.
    pub(crate) async fn wait_for(&self, predicate: impl Fn(&Recorded) -> bool) -> Recorded {
        let mut revisions = self.revision.subscribe();
        let mut seen = 0;
        loop {
            // Copied out, because the predicate may itself ask the proxy, which locks.
            let (changed, now) = self.changed_since(seen);
            if let Some(found) = changed.into_iter().find(|recorded| predicate(recorded)) {
                return found;
            }
            seen = now;
            // It fails only when the log is gone, and we hold on to that.
            let _ = revisions.wait_for(|revision| *revision > seen).await;
        }
    }

    fn changed_since(&self, seen: u64) -> (Vec<Recorded>, u64) {
        let entries = self.lock();
        let changed = entries.by_id.values().filter(|(revision, _)| *revision > seen);
        (
            changed.map(|(_, recorded)| recorded.clone()).collect(),
            entries.revision,
        )
    }

    fn update(&self, id: u64, change: impl FnOnce(&mut Recorded)) {
        let mut entries = self.lock();
        entries.revision += 1;
        let now = entries.revision;
        let Some((revision, recorded)) = entries.by_id.get_mut(&id) else {
            return;
        }; // forgotten
        *revision = now;
        change(recorded);
        self.revision.send_replace(now); // under the lock, so that revisions never go back
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight. Dropping it says that the request is over, however it ended.
pub(crate) struct Entry {
    log: Arc<Log>,
    request: Recorded,
}

impl Entry {
    /// The request as it stands, whether the log still has it or not.
    pub(crate) fn request(&self) -> &Recorded {
        &self.request
    }

    pub(crate) fn answered_by_upstream(&mut self, code: u16) {
        self.update(|recorded| recorded.upstream = Some(code));
    }

    pub(crate) fn answered(&mut self, code: u16) {
        self.update(|recorded| recorded.answer = Some(code));
    }

    pub(crate) fn passed(&mut self, bytes: usize) {
        self.update(|recorded| recorded.bytes_out += bytes as u64);
    }

    fn update(&mut self, change: impl Fn(&mut Recorded)) {
        change(&mut self.request);
        self.log.update(self.request.id, change);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.update(|recorded| recorded.finished = true);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn request(path: &str) -> Recorded {
        Recorded {
            id: 0,
            method: Method::GET,
            path: path.to_owned(),
            query: String::new(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            upstream: None,
            answer: None,
            bytes_in: 0,
            bytes_out: 0,
            finished: false,
        }
    }

    #[tokio::test]
    async fn a_waiter_sees_requests_of_before_and_after_it_began() {
        let log = Arc::new(Log::new());
        let mut first = log.add(request("/first"));
        assert_eq!(log.wait_for(|r| r.path == "/first").await.id, 0);

        let waiting = tokio::spawn({
            let log = Arc::clone(&log);
            async move { log.wait_for(|r| r.upstream == Some(201)).await }
        });
        let mut second = log.add(request("/second"));
        first.answered_by_upstream(200);
        second.answered_by_upstream(201);
        assert_eq!(waiting.await.unwrap().path, "/second");
    }

    #[test]
    fn a_forgotten_request_does_not_come_back_when_it_ends() {
        let log = Arc::new(Log::new());
        let mut entry = log.add(request("/"));
        log.forget();
        entry.answered(200);
        drop(entry);
        assert!(log.all().is_empty());
        assert_eq!(log.add(request("/next")).request().id, 1);
    }

    #[test]
    fn a_request_is_over_when_its_entry_is_dropped() {
        let log = Arc::new(Log::new());
        let entry = log.add(request("/"));
        assert!(!log.all()[0].finished);
        drop(entry);
        assert!(log.all()[0].finished);
    }
}
