//! The pods behind the proxy: who they are, which are ready, and who gets the next request.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use http::{HeaderValue, Uri};
use tokio::sync::watch;

use crate::{pool::Pool, session::POD_ID_LEN};

/// One pod of the MCP server, or one server given by its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authority: String,
    ready: bool,
    pub(crate) ending: bool,
}

/// An address that is not that of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid backend {0:?}: expected http://host[:port], such as http://10.0.0.7:8080")]
pub struct InvalidBackend(String);

/// Whether the text after the colon is not a port: the parser takes `:99999`, and leaves the port out.
fn has_unreadable_port(authority: &http::uri::Authority) -> bool {
    let port = authority.as_str().rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.contains(']')) && authority.port_u16().is_none()
}

impl Backend {
    /// A pod by its uid, of which the first eight characters are in the ids of its sessions, and its URL
    /// (`http://10.0.0.7:8080`) or authority (`10.0.0.7:8080`). It is not ready until [`Backend::ready`] says so.
    pub fn new(uid: &str, url: &str) -> Result<Self, InvalidBackend> {
        let invalid = || InvalidBackend(url.to_owned());
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest.strip_suffix('/').unwrap_or(rest),
            Some(_) => return Err(invalid()),
            None => url,
        };
        let uri: Uri = rest.parse().map_err(|_| invalid())?;
        let http::uri::Parts {
            authority: Some(authority),
            path_and_query: None,
            ..
        } = uri.into_parts()
        else {
            return Err(invalid());
        };
        let is_reachable = !authority.host().is_empty() && authority.port_u16() != Some(0);
        if !is_reachable
            || authority.as_str().contains('@')
            || HeaderValue::try_from(authority.as_str()).is_err()
            || has_unreadable_port(&authority)
        {
            return Err(invalid());
        }
        let id: String = uid
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(POD_ID_LEN)
            .collect();
        if id.len() < POD_ID_LEN {
            return Err(InvalidBackend(format!(
                "{uid}: a uid of at least {POD_ID_LEN} characters is needed for {url}"
            )));
        }
        Ok(Self {
            id,
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(80),
            authority: authority.as_str().to_owned(),
            ready: false,
            ending: false,
        })
    }

    /// A ready server that is known by its URL alone. Its id is made of the URL, so that sessions outlive a restart of the proxy.
    pub fn from_url(url: &str) -> Result<Self, InvalidBackend> {
        // A word alone is a mistake more often than a host.
        if !url.contains("://") {
            return Err(InvalidBackend(url.to_owned()));
        }
        let mut hasher = DefaultHasher::new(); // with fixed keys
        url.hash(&mut hasher);
        Ok(Self::new(&format!("{:016x}", hasher.finish()), url)?.ready(true))
    }

    /// Whether new sessions and sessionless requests may go to it. The sessions that it has stay on it until it is removed.
    #[must_use]
    pub fn ready(mut self, ready: bool) -> Self {
        self.ready = ready;
        self
    }

    /// Whether it is being deleted, and will not come back. It keeps its sessions as long as it can be connected to, and then they are gone.
    #[must_use]
    pub fn ending(mut self, ending: bool) -> Self {
        self.ending = ending;
        self
    }

    /// What stands before the ids of its sessions.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// A backend and the connections to it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) backend: Backend,
    pub(crate) host: HeaderValue,
    pub(crate) pool: Arc<Pool>,
}

/// The backends of a proxy. Cheap to clone; all clones are one set.
#[derive(Clone, Debug)]
pub struct Backends(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: RwLock<Arc<Vec<Arc<Known>>>>,
    turn: AtomicUsize,
    ready: watch::Sender<usize>,
}

impl Default for Backends {
    fn default() -> Self {
        Self(Arc::new(Inner {
            known: RwLock::default(),
            turn: AtomicUsize::new(0),
            ready: watch::Sender::new(0),
        }))
    }
}

impl Backends {
    /// Replaces the set. Connections to those that stay are kept; idle ones to those that left or are not ready are closed.
    /// Requests in work are not touched.
    pub fn set(&self, backends: impl IntoIterator<Item = Backend>) {
        let before = self.known();
        let mut ids = HashSet::new();
        let mut known = Vec::new();
        for backend in backends {
            if !ids.insert(backend.id.clone()) {
                tracing::warn!(
                    backend = backend.authority,
                    "two backends with the same id, the second is not used"
                );
                continue;
            }
            let same = before
                .iter()
                .find(|known| known.backend.id == backend.id && known.backend.authority == backend.authority);
            let pool = same.map_or_else(Arc::default, |known| known.pool.clone());
            if !backend.ready {
                pool.close_idle();
            }
            let Ok(host) = HeaderValue::try_from(&backend.authority) else {
                continue; // `Backend::new` has looked
            };
            known.push(Arc::new(Known { backend, host, pool }));
        }
        for gone in before.iter() {
            if !known.iter().any(|known| Arc::ptr_eq(&known.pool, &gone.pool)) {
                gone.pool.close_idle();
            }
        }
        let ready = known.iter().filter(|known| known.backend.ready).count();
        *self.0.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
        self.0.ready.send_replace(ready);
    }

    /// How many are ready, now and whenever that changes.
    pub fn ready(&self) -> watch::Receiver<usize> {
        self.0.ready.subscribe()
    }

    fn known(&self) -> Arc<Vec<Arc<Known>>> {
        self.0
            .known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The pod of a session.
    pub(crate) fn by_id(&self, id: &str) -> Option<Arc<Known>> {
        self.known().iter().find(|known| known.backend.id == id).cloned()
    }

    /// The ready ones in the order in which they should be tried: each time another one first, and last those that could
    /// not be connected to a moment ago.
    pub(crate) fn in_turn(&self) -> Vec<Arc<Known>> {
        let known = self.known();
        let mut ready: Vec<_> = known
            .iter()
            .filter(|known| known.backend.ready)
            .cloned()
            .collect();
        if ready.len() > 1 {
            let first = self.0.turn.fetch_add(1, Relaxed) % ready.len();
            ready.rotate_left(first);
            ready.sort_by_key(|known| known.pool.is_shunned());
        }
        ready
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const UID: &str = "6f1c2a9e-0d5b-4c1d-9a56-000000000000";

    #[test]
    fn an_address_is_a_url_or_an_authority_without_a_path() {
        for (url, host, port, authority) in [
            ("http://10.0.0.7:8080", "10.0.0.7", 8080, "10.0.0.7:8080"),
            ("http://server.example/", "server.example", 80, "server.example"),
            ("10.0.0.7:8080", "10.0.0.7", 8080, "10.0.0.7:8080"),
            ("http://[fd00::7]:8080", "fd00::7", 8080, "[fd00::7]:8080"),
        ] {
            let backend = Backend::new(UID, url).unwrap();
            assert_eq!(
                (backend.host.as_str(), backend.port, backend.authority.as_str()),
                (host, port, authority)
            );
            assert_eq!(backend.id(), "6f1c2a9e");
        }
        for invalid in [
            "https://a",
            "http://a/path",
            "http://user:secret@a",
            "",
            "http://",
        ] {
            assert!(Backend::new(UID, invalid).is_err(), "{invalid}");
        }
        assert!(Backend::new("short", "http://a").is_err());
    }

    #[test]
    fn requests_go_round_the_ready_ones_and_sessions_find_every_one() {
        let backends = Backends::default();
        backends.set((0..4).map(|n| {
            Backend::new(&format!("0000000{n}-x"), &format!("10.0.0.{n}:80"))
                .unwrap()
                .ready(n != 2)
        }));
        let first: Vec<_> = (0..6).map(|_| backends.in_turn()[0].backend.id.clone()).collect();
        assert_eq!(first[..3], first[3..]);
        assert_eq!(HashSet::<_>::from_iter(&first).len(), 3);
        assert!(!first.contains(&"00000002".to_owned()));
        assert!(backends.by_id("00000002").is_some());
        assert!(backends.by_id("00000009").is_none());
        assert_eq!(*backends.ready().borrow(), 3);
    }

    #[test]
    fn a_backend_that_stays_keeps_its_connections() {
        let backends = Backends::default();
        let backend = |url| Backend::new(UID, url).unwrap().ready(true);
        backends.set([backend("10.0.0.1:80")]);
        let before = backends.by_id("6f1c2a9e").unwrap();
        backends.set([backend("10.0.0.1:80").ready(false)]);
        assert!(Arc::ptr_eq(
            &before.pool,
            &backends.by_id("6f1c2a9e").unwrap().pool
        ));
        backends.set([backend("10.0.0.2:80")]);
        assert!(!Arc::ptr_eq(
            &before.pool,
            &backends.by_id("6f1c2a9e").unwrap().pool
        ));
    }
}
