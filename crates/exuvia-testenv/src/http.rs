//! A small HTTP client that trusts the control plane's authority and nothing else: for etcd and raw API paths.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};

use crate::Error;
use crate::certs::Pair;

/// TLS that trusts only `ca_pem`, whatever `SSL_CERT_FILE` says, and presents `identity` if there is one.
pub(crate) fn tls(ca_pem: &str, identity: Option<&Pair>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).map_err(Error::certificate)?)
        .map_err(Error::certificate)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::certificate)?
        .with_root_certificates(roots);
    match identity {
        Some(pair) => {
            let (certs, key) = pair.rustls_parts()?;
            builder
                .with_client_auth_cert(certs, key)
                .map_err(Error::certificate)
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Sends whole requests.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient {
    inner: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl HttpClient {
    pub(crate) fn new(ca_pem: &str, identity: Option<&Pair>) -> Result<Self, Error> {
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls(ca_pem, identity)?)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            inner: Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let uri = request.uri().to_string();
        let (parts, body) = self.open(request).await?.into_parts();
        let body = body.collect().await.map_err(|error| Error::Request {
            uri,
            source: error.into(),
        })?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }

    /// The answer with its body as it comes, for watches.
    pub(crate) async fn open(&self, request: Request<Bytes>) -> Result<Response<Incoming>, Error> {
        let uri = request.uri().to_string();
        let answer = self.inner.request(request.map(Full::new)).await;
        answer.map_err(|error| Error::Request {
            uri,
            source: error.into(),
        })
    }

    pub(crate) async fn get(&self, uri: &str) -> Result<Response<Bytes>, Error> {
        let request = Request::get(uri).body(Bytes::new()).map_err(|e| Error::Request {
            uri: uri.to_owned(),
            source: e.into(),
        })?;
        self.send(request).await
    }

    pub(crate) async fn post_json(
        &self,
        uri: &str,
        body: &serde_json::Value,
    ) -> Result<serde_json::Value, Error> {
        let failed = |source| Error::Request {
            uri: uri.to_owned(),
            source,
        };
        let request = Request::post(uri)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(body.to_string()))
            .map_err(|e| failed(e.into()))?;
        let answer = self.send(request).await?;
        if !answer.status().is_success() {
            let text = String::from_utf8_lossy(answer.body()).into_owned();
            return Err(failed(format!("{}: {text}", answer.status()).into()));
        }
        serde_json::from_slice(answer.body()).map_err(|e| failed(e.into()))
    }
}
