//! An API server that missed a CRD change: paused with requests queued on it, so that they run on old ideas later.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Error;
use crate::access::Credential;
use crate::apiserver::ApiServer;

/// A paused API server with requests in its sockets (PITFALLS A4). Dropping it resumes the server.
#[derive(Debug)]
pub struct StaleServer<'a> {
    server: &'a ApiServer,
    queued: Vec<TlsStream<TcpStream>>,
}

impl ApiServer {
    /// Pauses this server and queues `requests` (path and query as URI, the administrator's) on open connections. Whatever
    /// is changed through another server meanwhile, this one learns of only after [`StaleServer::resume`], and may
    /// handle the queued requests first.
    pub async fn pause_with_queued(&self, requests: Vec<Request<Bytes>>) -> Result<StaleServer<'_>, Error> {
        let Credential::Certificate(identity) = self.admin().credential() else {
            unreachable!("the administrator has a certificate")
        };
        let tls = TlsConnector::from(Arc::new(crate::http::tls(self.admin().ca_pem(), Some(identity))?));
        let failed = |e: std::io::Error| Error::Request {
            uri: self.url().to_owned(),
            source: e.into(),
        };
        let mut queued = Vec::new();
        // All handshakes first: a paused server answers none.
        for _ in &requests {
            let stream = TcpStream::connect(self.address()).await.map_err(failed)?;
            let name = ServerName::try_from("localhost").map_err(Error::certificate)?;
            queued.push(tls.connect(name, stream).await.map_err(failed)?);
        }
        self.process().pause()?;
        let mut stale = StaleServer { server: self, queued };
        // Written by hand and flushed: when this returns, the bytes are in the server's socket, which no HTTP client
        // would promise.
        for (stream, request) in stale.queued.iter_mut().zip(&requests) {
            stream.write_all(&wire_form(request)).await.map_err(failed)?;
            stream.flush().await.map_err(failed)?;
        }
        Ok(stale)
    }
}

impl StaleServer<'_> {
    /// Lets the server go on and returns the queued requests' answer codes, in their order.
    pub async fn resume(mut self) -> Result<Vec<u16>, Error> {
        self.server.process().resume()?;
        let mut codes = Vec::new();
        for stream in &mut self.queued {
            let mut answer = Vec::new();
            // It does not matter here if a server ends a TLS stream without a close message.
            let _ = stream.read_to_end(&mut answer).await;
            let head = String::from_utf8_lossy(&answer[..answer.len().min(32)]).into_owned();
            let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
            codes.push(code.ok_or_else(|| Error::Request {
                uri: self.server.url().to_owned(),
                source: format!("no HTTP answer but {head:?}").into(),
            })?);
        }
        Ok(codes)
    }
}

impl Drop for StaleServer<'_> {
    fn drop(&mut self) {
        let _ = self.server.process().resume(); // it may have been killed, which is fine
    }
}

fn wire_form(request: &Request<Bytes>) -> Vec<u8> {
    let mut text = format!(
        "{} {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n",
        request.method(),
        request.uri()
    );
    for (name, value) in request.headers() {
        text.push_str(&format!(
            "{name}: {}\r\n",
            String::from_utf8_lossy(value.as_bytes())
        ));
    }
    text.push_str(&format!("content-length: {}\r\n\r\n", request.body().len()));
    let mut bytes = text.into_bytes();
    bytes.extend_from_slice(request.body());
    bytes
}
