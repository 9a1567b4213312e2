//! Open streams of the old SSE transport: a message that the proxy answers itself must be answered there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Answers that wait until the stream may take them: between two events.
const MAX_WAITING: usize = 16;

/// The streams by the pod and the path that their messages are sent to.
#[derive(Clone, Debug, Default)]
pub(crate) struct OldStreams(Arc<Mutex<HashMap<String, mpsc::Sender<Bytes>>>>);

/// Where the messages of a stream are sent to. `url` is relative to the path that the stream was asked for at.
pub(crate) fn key(pod: Option<&str>, asked_at: &str, url: &str) -> String {
    let pod = pod.unwrap_or_default();
    let url = url.split('#').next().unwrap_or_default();
    if url.starts_with('/') {
        return format!("{pod} {url}");
    }
    let path = asked_at.split('?').next().unwrap_or_default();
    let directory = path.rfind('/').map_or("", |slash| &path[..slash]);
    format!("{pod} {directory}/{url}")
}

impl OldStreams {
    fn streams(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream whose path is not known yet, and the call that says it.
    pub(crate) fn open(&self) -> (Told, impl Fn(String) + Send + Sync + use<>) {
        let (sender, answers) = mpsc::channel(MAX_WAITING);
        let known = Arc::new(Mutex::new(None));
        let told = Told {
            answers,
            known: known.clone(),
            streams: self.clone(),
        };
        let streams = self.clone();
        (told, move |key: String| {
            streams.streams().insert(key.clone(), sender.clone());
            *known.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        })
    }

    /// Answers on the stream of this key; false if it is not one of this proxy's.
    pub(crate) fn tell(&self, key: &str, message: &str) -> bool {
        let event = format!("event: message\ndata: {message}\n\n");
        let sender = self.streams().get(key).cloned();
        sender.is_some_and(|sender| sender.try_send(event.into()).is_ok())
    }
}

/// What the proxy has to say on a stream.
#[derive(Debug)]
pub(crate) struct Told {
    answers: mpsc::Receiver<Bytes>,
    known: Arc<Mutex<Option<String>>>,
    streams: OldStreams,
}

impl Told {
    /// The next answer. Pending for ever if there will not be any.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Bytes> {
        match self.answers.poll_recv(cx) {
            Poll::Ready(Some(answer)) => Poll::Ready(answer),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.answers.close();
        if let Some(key) = &*self.known.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut streams = self.streams.streams();
            // A server that gives out a path twice has the second stream under it.
            if streams.get(key).is_some_and(mpsc::Sender::is_closed) {
                streams.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_as_clients_do() {
        assert_eq!(key(Some("p"), "/sse", "/m?s=1#f"), "p /m?s=1");
        assert_eq!(key(None, "/a/sse?x=/y", "m?s=1"), " /a/m?s=1");
        assert_eq!(key(None, "/sse", "m"), " /m");
    }

    #[tokio::test]
    async fn a_stream_is_found_from_its_first_event_to_its_end() {
        let streams = OldStreams::default();
        let (mut told, known) = streams.open();
        assert!(!streams.tell("p /m", "{}"));
        known("p /m".to_owned());
        assert!(streams.tell("p /m", "{}"));
        let answer = std::future::poll_fn(|cx| told.poll(cx)).await;
        assert_eq!(answer, "event: message\ndata: {}\n\n");
        drop(told);
        assert!(!streams.tell("p /m", "{}"));
        assert!(streams.streams().is_empty());
    }
}
