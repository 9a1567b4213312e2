//! The proxy as a whole: bind, run, stop.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::{net::TcpListener, sync::watch};

use crate::{
    Backends, Counters, Settings,
    body::AnswerBody,
    filtering::Held,
    handle::{Shared, handle},
    old_streams::OldStreams,
    serve,
};

/// A proxy that listens and is ready to run. See the [crate's example](crate).
pub struct Proxy {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    end: watch::Sender<bool>,
}

impl Proxy {
    /// Listens. Connections wait until [`Proxy::run`].
    pub async fn bind(settings: Settings, backends: Backends) -> io::Result<Self> {
        let listener = serve::bind(settings.listen).await?;
        let (end, _) = watch::channel(false);
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            shared: Arc::new(Shared {
                settings,
                backends,
                counters: Arc::default(),
                held: Held::default(),
                old_streams: OldStreams::default(),
                end: end.subscribe(),
            }),
            end,
        })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it counts.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Serves until `stop` is ready. Then nobody is accepted any more, calls may end within the grace of the settings, and
    /// streams end last: events end cleanly, so that clients connect again, and anything else is cut.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let grace = self.shared.settings.grace;
        serve::serve(self.listener, Connections(self.shared), self.end, grace, stop).await;
    }
}

#[derive(Clone)]
struct Connections(Arc<Shared>);

impl serve::Handler for Connections {
    type Body = AnswerBody;

    async fn handle(self, client: IpAddr, request: Request<Incoming>) -> Response<AnswerBody> {
        handle(&self.0, client, request).await
    }

    async fn calls_ended(&self) {
        self.0.counters.all_calls_ended().await;
    }

    fn connected(&self, come: bool) {
        let clients = &self.0.counters.clients;
        if come {
            clients.fetch_add(1, Relaxed);
        } else {
            clients.fetch_sub(1, Relaxed);
        }
    }
}
