//! A server that speaks MCP on stdin and stdout, served as Streamable HTTP.
//!
//! Each session has a child process of its own. Requests of the era without sessions (2026-07-28) get a child for
//! themselves as well, which ends with the request: what a child says then belongs to nobody else.

mod answers;
mod child;
mod http;
mod message;
mod session;
mod sessionless;
mod stream;

use std::{
    collections::HashMap,
    ffi::OsString,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use ::http::{Request, Response};
use hyper::body::Incoming;
use tokio::{net::TcpListener, sync::watch};

use self::{child::Children, session::Session, stream::BridgeBody};
use crate::{Counters, Origins, serve, settings::Settings};

/// What a [`Bridge`] is told at its start.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// Where to listen. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The path that is served.
    pub path: String,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Which `Origin`s may send requests. Behind a proxy that looks at them, [`Origins::any`].
    pub allowed_origins: Origins,
    /// A larger message is refused, of the client (413) and of the child.
    pub max_message_bytes: usize,
    /// So many children run at most at one time. More sessions are refused (503).
    pub max_children: usize,
    /// A session without a request or an open stream for so long is ended, and so is a child that waits for a request.
    pub idle: Duration,
    /// How long calls may go on after the signal to stop.
    pub grace: Duration,
}

impl BridgeSettings {
    /// The defaults, for this command.
    pub fn new(command: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let shared = Settings::default();
        Self {
            listen: shared.listen,
            path: "/mcp".to_owned(),
            command: command.into_iter().map(Into::into).collect(),
            allowed_origins: Origins::default(),
            max_message_bytes: 16 * 1024 * 1024,
            max_children: 64,
            idle: Duration::from_secs(30 * 60),
            grace: shared.grace,
        }
    }
}

/// A bridge that listens and is ready to run.
///
/// ```
/// use mcp_proxy::bridge::{Bridge, BridgeSettings};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let settings = BridgeSettings { listen: ([127, 0, 0, 1], 0).into(), ..BridgeSettings::new(["my-server", "--stdio"]) };
/// let bridge = Bridge::bind(settings).await?;
/// println!("serving on {}", bridge.local_addr());
/// bridge.run(async { /* until the signal to stop */ }).await;
/// # Ok(()) }
/// ```
pub struct Bridge {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    end: watch::Sender<bool>,
}

pub(crate) struct Shared {
    settings: BridgeSettings,
    children: Arc<Children>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    counters: Arc<Counters>,
    end: watch::Receiver<bool>,
}

impl Shared {
    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a session; its child ends with it.
    fn end_session(&self, id: &str) -> bool {
        let ended = self.sessions().remove(id);
        if let Some(session) = &ended {
            session.end();
            tracing::info!(sessions = self.sessions().len(), "session ended");
        }
        ended.is_some()
    }
}

impl Bridge {
    /// Listens. Connections wait until [`Bridge::run`].
    pub async fn bind(settings: BridgeSettings) -> io::Result<Self> {
        if settings.command.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no command is given"));
        }
        let listener = serve::bind(settings.listen).await?;
        let (end, _) = watch::channel(false);
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            shared: Arc::new(Shared {
                children: Arc::new(Children::new(&settings)),
                sessions: Mutex::default(),
                counters: Arc::default(),
                end: end.subscribe(),
                settings,
            }),
            end,
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it counts: requests, refusals, and calls and streams in work.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves until `stop` is ready. Then nobody is accepted any more, calls may end within the grace, and streams and all
    /// children end last.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let shared = self.shared;
        let watched = tokio::spawn(end_idle(shared.clone()));
        let grace = shared.settings.grace;
        serve::serve(self.listener, Connections(shared.clone()), self.end, grace, stop).await;
        watched.abort();
        let sessions: Vec<_> = shared.sessions().drain().collect();
        for (_, session) in sessions {
            session.end();
        }
        shared.children.all_ended().await;
    }
}

/// Ends sessions and spare children that nobody has used for a while.
async fn end_idle(shared: Arc<Shared>) {
    let idle = shared.settings.idle;
    let mut tick =
        tokio::time::interval((idle / 4).clamp(Duration::from_millis(50), Duration::from_secs(30)));
    loop {
        tick.tick().await;
        let over: Vec<String> = shared
            .sessions()
            .iter()
            .filter(|(_, session)| session.is_over(idle))
            .map(|(id, _)| id.clone())
            .collect();
        for id in over {
            shared.end_session(&id);
        }
        shared.children.end_idle_spares(idle);
    }
}

#[derive(Clone)]
struct Connections(Arc<Shared>);

impl serve::Handler for Connections {
    type Body = BridgeBody;

    async fn handle(self, _client: IpAddr, request: Request<Incoming>) -> Response<BridgeBody> {
        self.0.counters.requests.fetch_add(1, Relaxed);
        http::handle(&self.0, request).await
    }

    async fn calls_ended(&self) {
        self.0.counters.all_calls_ended().await;
    }
}
