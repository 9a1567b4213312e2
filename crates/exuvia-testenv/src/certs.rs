//! The control plane's certificate authority and the certificates it signs, made in memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::Error;

/// A certificate and its private key, both PEM encoded.
#[derive(Clone)]
pub struct Pair {
    /// The certificate.
    pub cert_pem: String,
    /// The private key, PKCS #8.
    pub key_pem: String,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(..)") // a private key has no business in a log
    }
}

impl Pair {
    pub(crate) fn rustls_parts(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let certs = CertificateDer::pem_slice_iter(self.cert_pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::certificate)?;
        let key = PrivateKeyDer::from_pem_slice(self.key_pem.as_bytes()).map_err(Error::certificate)?;
        Ok((certs, key))
    }
}

/// Signs every certificate of one control plane.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Authority {
    /// Makes a new authority with a new key.
    pub fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("exuvia-testenv", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(Error::certificate)?;
        let ca_pem = params.self_signed(&key).map_err(Error::certificate)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            ca_pem,
        })
    }

    /// The authority's own certificate: what clients and servers must trust, and nothing else.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// A serving certificate for loopback, valid for `localhost`, the in-cluster names of the API server, and Services of
    /// namespace `default`.
    pub fn server(&self) -> Result<Pair, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("localhost", &[])?;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.subject_alt_names = vec![
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            SanType::IpAddress(IpAddr::V6(Ipv6Addr::LOCALHOST)),
            SanType::IpAddress(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))),
        ];
        // The last one is for extension API servers: the aggregator asks for the name of their Service.
        for name in [
            "localhost",
            "kubernetes",
            "kubernetes.default.svc",
            "*.default.svc",
        ] {
            let name = name.try_into().map_err(Error::certificate)?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        self.sign(params)
    }

    /// A client certificate: `name` becomes the Kubernetes user, `groups` (two at most) its groups.
    pub fn client(&self, name: &str, groups: &[&str]) -> Result<Pair, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, groups)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Pair, Error> {
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        let key = KeyPair::generate().map_err(Error::certificate)?;
        let cert = params.signed_by(&key, &self.issuer).map_err(Error::certificate)?;
        Ok(Pair {
            cert_pem: cert.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// rcgen keeps one value per attribute type, so the second organisation (group) goes in under the attribute's
/// bare object identifier, which encodes to the same bytes. No third spelling exists.
fn subject(name: &str, groups: &[&str]) -> Result<DistinguishedName, Error> {
    const ORGANIZATION_OID: &[u64] = &[2, 5, 4, 10];
    if groups.len() > 2 {
        return Err(Error::TooManyGroups {
            user: name.to_owned(),
            groups: groups.len(),
        });
    }
    let attributes = [
        DnType::OrganizationName,
        DnType::CustomDnType(ORGANIZATION_OID.to_vec()),
    ];
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    for (attribute, group) in attributes.into_iter().zip(groups) {
        subject.push(attribute, *group);
    }
    Ok(subject)
}
