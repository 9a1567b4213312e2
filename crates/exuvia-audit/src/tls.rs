//! TLS towards etcd: trusts the given authority and nothing else, and shows the given certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};

use super::Error;

/// The PEM files that a user named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub(super) authority: Option<&'a Path>,
    pub(super) certificate: Option<&'a Path>,
    pub(super) key: Option<&'a Path>,
}

/// What to speak TLS with; without an authority no server is trusted.
pub(super) fn config(files: Files<'_>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = files.authority {
        for certificate in certificates(path, "CA certificate")? {
            roots
                .add(certificate)
                .map_err(|error| pem(path, "CA certificate", &error))?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the default versions")
        .with_root_certificates(roots);
    match (files.certificate, files.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key_path)) => {
            let key = PrivateKeyDer::from_pem_slice(&read(key_path)?);
            let key = key.map_err(|error| pem(key_path, "private key", &error))?;
            let chain = certificates(certificate, "client certificate")?;
            let config = builder.with_client_auth_cert(chain, key);
            config.map_err(|error| pem(key_path, "key of the client certificate", &error))
        }
        _ => Err(Error::HalfAnIdentity),
    }
}

fn certificates(path: &Path, wanted: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(pem(path, wanted, &"no such PEM section")),
        found => found.map_err(|error| pem(path, wanted, &error)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

fn pem(path: &Path, wanted: &'static str, why: &dyn std::fmt::Display) -> Error {
    Error::Pem {
        path: PathBuf::from(path),
        wanted,
        why: why.to_string(),
    }
}
