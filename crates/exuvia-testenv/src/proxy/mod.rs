//! The fault proxy: stands between a client and the API server, records every request, and breaks some.
//!
//! It takes TLS and HTTP/1.1 from the client without asking for a certificate. A request with a token goes on
//! with it; any other goes on with the credential that the proxy was given, so that a plain client
//! can act as any user. Connections that are to be upgraded (`exec`, `port-forward`) are not supported.
//!
//! ```no_run
//! use exuvia_testenv::{Credential, Error, certs::Authority, proxy::{Fault, Match, Proxy, Rule}};
//!
//! # async fn example(authority: Authority, api_server: std::net::SocketAddr) -> Result<(), Error> {
//! let admin = Credential::Certificate(authority.client("admin", &["system:masters"])?);
//! let proxy = Proxy::start(&authority, api_server, admin).await?;
//! proxy.inject(Rule::on(Match::writes().resource("widgets")).nth(3).then(Fault::DropAnswer));
//! let client = proxy.client()?;
//! // … the third write is committed, but the client does not learn of it …
//! assert_eq!(proxy.writes().len(), 3);
//! # Ok(())
//! # }
//! ```

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use self::serve::Gateway;
pub use self::{
    fault::{Answer, Fault},
    matching::Match,
    path::ObjectPath,
    record::Recorded,
    rule::{Injected, Rule},
};
use crate::{
    Error,
    access::{Access, Credential},
    certs::Authority,
    https::Listener,
};

mod fault;
mod matching;
mod path;
mod record;
mod rule;
mod serve;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

/// A running proxy. It has its own runtime, so it outlives the one that it was started from; dropping it
/// ends all its connections.
pub struct Proxy {
    listener: Listener,
    gateway: Arc<Gateway>,
    ca_pem: String,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts a proxy to `upstream`. Both sides trust `authority` and nothing else. Requests without a token
    /// go on with `credential`.
    pub async fn start(
        authority: &Authority,
        upstream: SocketAddr,
        credential: Credential,
    ) -> Result<Self, Error> {
        let ca_pem = authority.ca_pem().to_owned();
        let gateway = Arc::new(Gateway::new(upstream, &ca_pem, &credential)?);
        let handling = Arc::clone(&gateway);
        let handler = move |request, link| Arc::clone(&handling).handle(request, link);
        let listener = Listener::start(authority, "fault-proxy", handler).await?;
        Ok(Self {
            listener,
            gateway,
            ca_pem,
        })
    }

    /// Where the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The proxy's address as a cluster URL.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// A client for the current runtime that goes through the proxy. It never retries and never times out
    /// while it reads, so that what a test sees is what the proxy did.
    pub fn client(&self) -> Result<kube::Client, Error> {
        self.access().client()
    }

    /// A kubeconfig that goes through the proxy, with the CA in it and no credentials. (It is JSON, and so is
    /// YAML.)
    pub fn kubeconfig_yaml(&self) -> String {
        self.access().kubeconfig_text()
    }

    fn access(&self) -> Access {
        Access {
            user: "proxy".to_owned(),
            url: self.url(),
            ca_pem: self.ca_pem.clone(),
            credential: Credential::None,
            directory: PathBuf::new(), // for kubeconfig files, of which none is written here
        }
    }

    /// Puts a rule in force.
    pub fn inject(&self, rule: Rule) -> Injected {
        self.gateway.rules.inject(rule)
    }

    /// Takes all rules out of force. Requests that they stall stay stalled.
    pub fn clear(&self) {
        self.gateway.rules.clear();
    }

    /// All requests so far, in the order of arrival, those in flight included.
    pub fn requests(&self) -> Vec<Recorded> {
        self.gateway.log.all()
    }

    /// All POST, PUT, PATCH and DELETE requests so far.
    pub fn writes(&self) -> Vec<Recorded> {
        self.requests().into_iter().filter(Recorded::is_write).collect()
    }

    /// Forgets all requests so far. What rules have counted stays.
    pub fn forget(&self) {
        self.gateway.log.forget();
    }

    /// Waits until there is a request, of before or after this call, for which `predicate` holds, and returns
    /// the first such. For ever, if there never is: give it a time limit where that can be.
    pub async fn wait_for(&self, predicate: impl Fn(&Recorded) -> bool) -> Recorded {
        self.gateway.log.wait_for(predicate).await
    }
}
