//! Tells from an error of the transport, or from an answer that is not valid, what is wrong with an endpoint.

use std::error::Error as StdError;
use std::io::ErrorKind;

use rustls::{AlertDescription, CertificateError};
use serde::Deserialize;

use super::error::Fault;

/// How the endpoint was asked, which decides what an error means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) over_tls: bool,
    pub(super) with_certificate: bool,
    /// etcd has answered before, so that the way to it is right in principle.
    pub(super) before: bool,
    /// There was no connection yet, or TLS was not agreed upon.
    pub(super) connecting: bool,
}

/// What a failed request means.
pub(super) fn of_transport(error: &(dyn StdError + 'static), asked: Asked) -> Fault {
    let mut kind = None;
    let mut last = error.to_string();
    let mut cause = Some(error);
    while let Some(error) = cause {
        last = error.to_string();
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return of_tls(tls, asked);
        }
        let io = error.downcast_ref::<std::io::Error>();
        kind = io.map(std::io::Error::kind).or(kind);
        // An io::Error that wraps another error gives out the cause of that, never the error itself.
        cause = match io.and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    let closed = matches!(
        kind,
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof)
    );
    match kind {
        Some(ErrorKind::ConnectionRefused) => Fault::Refused,
        _ if closed && asked.over_tls && asked.connecting => Fault::NotTls(last),
        // Under TLS 1.3 a server that misses a certificate says so after the handshake, if the connection lasts that long.
        _ if closed && asked.over_tls && !asked.with_certificate && !asked.before => {
            Fault::WantsClientCertificate
        }
        _ if closed => Fault::Closed(last),
        Some(_) => Fault::Unreachable(last),
        None if asked.over_tls || asked.before => Fault::Closed(last),
        None => Fault::NotHttp(last),
    }
}

fn of_tls(error: &rustls::Error, asked: Asked) -> Fault {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    match error {
        InvalidCertificate(certificate) => match certificate {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Fault::UntrustedServer(certificate.to_string())
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Fault::WrongName(certificate.to_string())
            }
            other => Fault::InvalidServer(other.to_string()),
        },
        AlertReceived(AlertDescription::CertificateRequired) => Fault::WantsClientCertificate,
        AlertReceived(AlertDescription::BadCertificate | AlertDescription::HandshakeFailure)
            if !asked.with_certificate =>
        {
            Fault::WantsClientCertificate
        }
        AlertReceived(alert) => Fault::ClientCertificateRefused(format!("{alert:?}")),
        other => Fault::NotTls(other.to_string()),
    }
}

/// What an answer other than 200 means; `None` if the revision was compacted away.
pub(super) fn of_status(status: u16, body: &[u8]) -> Option<Fault> {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let refusal: Option<Refusal> = serde_json::from_slice(body).ok();
    if refusal.is_none() && String::from_utf8_lossy(body).contains("HTTP request to an HTTPS server") {
        return Some(Fault::NotHttp("it says that it speaks TLS".to_owned()));
    }
    // etcd answers JSON. Anything else is somebody else's text, and may repeat what it was sent.
    let message = refusal.map_or_else(
        || format!("{} bytes that are not etcd's", body.len()),
        |refusal| refusal.message,
    );
    let message: String = message
        .chars()
        .take(200)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if message.contains("required revision has been compacted") {
        return None;
    }
    Some(match status {
        404 => Fault::NoGateway,
        // Others refuse as well: an API server, a proxy.
        401 | 403 if message.contains("etcdserver") => Fault::AuthEnabled(message),
        400 if message.contains("user name is empty") => Fault::AuthEnabled(message),
        _ => Fault::Status { status, message },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Asked = Asked {
        over_tls: false,
        with_certificate: false,
        before: false,
        connecting: false,
    };
    const TLS: Asked = Asked {
        over_tls: true,
        ..PLAIN
    };

    #[test]
    fn a_closed_connection_means_a_missing_certificate_only_over_tls() {
        let reset = std::io::Error::from(ErrorKind::ConnectionReset);
        assert_eq!(of_transport(&reset, TLS), Fault::WantsClientCertificate);
        assert!(matches!(of_transport(&reset, PLAIN), Fault::Closed(_)));
        let before = Asked { before: true, ..TLS };
        assert!(matches!(of_transport(&reset, before), Fault::Closed(_)));
        let connecting = Asked {
            connecting: true,
            ..TLS
        };
        assert!(matches!(of_transport(&reset, connecting), Fault::NotTls(_)));
    }

    #[test]
    fn tls_errors_are_found_inside_of_others() {
        let wrapped = std::io::Error::new(
            ErrorKind::InvalidData,
            rustls::Error::InvalidCertificate(CertificateError::Expired),
        );
        let twice = std::io::Error::other(wrapped);
        assert!(matches!(of_transport(&twice, TLS), Fault::InvalidServer(_)));
        let eof = std::io::Error::other(std::io::Error::from(ErrorKind::UnexpectedEof));
        assert_eq!(of_transport(&eof, TLS), Fault::WantsClientCertificate);
    }

    #[test]
    fn answers_are_told_apart_and_cut_short() {
        let compacted = br#"{"code":11,"message":"etcdserver: mvcc: required revision has been compacted"}"#;
        assert_eq!(of_status(400, compacted), None);
        assert_eq!(of_status(404, b"404 page not found"), Some(Fault::NoGateway));
        let long = format!(r#"{{"message":"{}"}}"#, "no\\n".repeat(100));
        let Some(Fault::Status { message, .. }) = of_status(500, long.as_bytes()) else {
            panic!("a status")
        };
        assert_eq!((message.len(), message.contains('\n')), (200, false));
        let page = of_status(500, b"<html>CANARY</html>").expect("a status");
        assert!(!page.to_string().contains("CANARY"), "{page}");
    }
}
