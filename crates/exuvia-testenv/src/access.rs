//! A way into an API server: address, authority and credential, as a client or as a kubeconfig.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};

use crate::Error;
use crate::certs::Pair;

/// Who a client says it is.
#[derive(Clone)]
pub enum Credential {
    /// Nobody: for a proxy that adds its own credential.
    None,
    /// A client certificate.
    Certificate(Pair),
    /// A bearer token, such as a service account's.
    Token(String),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Certificate(_) => "Certificate(..)",
            Self::Token(_) => "Token(..)",
        })
    }
}

impl Credential {
    fn auth_info(&self) -> Value {
        match self {
            Self::None => json!({}),
            Self::Certificate(pair) => json!({
                "client-certificate-data": BASE64.encode(&pair.cert_pem),
                "client-key-data": BASE64.encode(&pair.key_pem),
            }),
            Self::Token(token) => json!({"token": token}),
        }
    }
}

/// A user of one API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// The user's name, also the kubeconfig's file name.
    pub(crate) user: String,
    pub(crate) url: String,
    pub(crate) ca_pem: String,
    pub(crate) credential: Credential,
    /// Where kubeconfig files go.
    pub(crate) directory: PathBuf,
}

impl Access {
    /// The user's name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The authority that signed the server's certificate.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The credential.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// The same user at another address, such as that of a proxy or of a second API server.
    #[must_use]
    pub fn at(mut self, url: impl Into<String>) -> Self {
        self.url = url.into();
        self
    }

    /// What a client is made from. kube's own retry is off: a test wants to see what the server said.
    pub fn config(&self) -> Result<kube::Config, Error> {
        let uri = self
            .url
            .parse()
            .map_err(|e: http::uri::InvalidUri| Error::Client(e.into()))?;
        let mut config = kube::Config::new(uri);
        let ca = CertificateDer::from_pem_slice(self.ca_pem.as_bytes()).map_err(Error::certificate)?;
        config.root_cert = Some(vec![ca.to_vec()]);
        config.auth_info =
            serde_json::from_value(self.credential.auth_info()).map_err(|e| Error::Client(e.into()))?;
        config.default_retry = false;
        Ok(config)
    }

    /// A client for the current runtime.
    pub fn client(&self) -> Result<kube::Client, Error> {
        kube::Client::try_from(self.config()?).map_err(|e| Error::Client(e.into()))
    }

    /// The path of a kubeconfig file with this user in it; it is removed with the control plane.
    pub fn kubeconfig(&self) -> Result<PathBuf, Error> {
        let file_name: String = self
            .user
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || c == '-' {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let port = self.url.rsplit(':').next().unwrap_or_default();
        let path = self.directory.join(format!("{file_name}-{port}.kubeconfig"));
        write_private(&path, &self.kubeconfig_text())?;
        Ok(path)
    }

    /// The kubeconfig as text: JSON, which is YAML, too.
    pub fn kubeconfig_text(&self) -> String {
        format!(
            "{:#}\n",
            json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "exuvia", "cluster": {
                    "server": self.url,
                    "certificate-authority-data": BASE64.encode(&self.ca_pem),
                }}],
                "users": [{"name": self.user, "user": self.credential.auth_info()}],
                "contexts": [{"name": "exuvia", "context": {"cluster": "exuvia", "user": self.user}}],
                "current-context": "exuvia",
            })
        )
    }
}

/// Writes a file that holds a key: for us alone to read. It is there whole or not at all, since the same kubeconfig may be
/// asked for again while a program that was started with it reads it.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<(), Error> {
    let write = || {
        use std::io::Write;
        let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
        file.write_all(content.as_bytes())?;
        file.persist(path)?;
        Ok::<(), std::io::Error>(())
    };
    write().map_err(Error::file("write", path))
}
