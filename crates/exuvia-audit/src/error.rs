//! What can go wrong with an audit, each with the cause and the way out.

use std::fmt;
use std::path::PathBuf;

/// Why an audit failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No endpoint was given.
    #[error("no etcd endpoint was given; name at least one (--etcd-endpoint https://127.0.0.1:2379)")]
    NoEndpoint,
    /// An endpoint that is not a URL.
    #[error(
        "invalid etcd endpoint \"{endpoint}\": expected a URL such as https://127.0.0.1:2379, but it {why}"
    )]
    BadEndpoint {
        /// As it was given, without a password.
        endpoint: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An `https` endpoint and no authority to trust.
    #[error(
        "{endpoint} speaks TLS and no authority was given; name etcd's (--cacert, with kubeadm \
         /etc/kubernetes/pki/etcd/ca.crt)"
    )]
    NoAuthority {
        /// The endpoint.
        endpoint: String,
    },
    /// A client certificate without its key, or a key without its certificate.
    #[error("a client certificate and its key go together; give both (--cert and --key) or none")]
    HalfAnIdentity,
    /// A PEM file that cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A PEM file without what it should hold.
    #[error("invalid file \"{}\": expected a PEM file with a {wanted}, but: {why}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
        /// What was found.
        why: String,
    },
    /// No endpoint answered as etcd does.
    #[error("{}", join(.0))]
    NoAnswer(Vec<EndpointError>),
    /// The revision that was being read was compacted away, twice.
    #[error(
        "etcd compacted revision {revision} away while it was being read, at the second attempt too; audit fewer \
         resources at a time, or a member restored from a snapshot"
    )]
    Compacted {
        /// The revision.
        revision: i64,
    },
    /// One object whose answer is larger than etcd lets an object be.
    #[error("the answer for the one object after {key} is larger than {limit} bytes; is this really etcd?")]
    TooLarge {
        /// Where it was to begin.
        key: String,
        /// The largest answer that is taken.
        limit: usize,
    },
    /// No key is below the prefix.
    #[error("nothing under {prefix}: is --etcd-prefix right? {}", hint(.found.as_deref()))]
    NothingUnderPrefix {
        /// The prefix.
        prefix: String,
        /// What the first key in this etcd begins with.
        found: Option<String>,
    },
    /// A resource was asked for of which nothing is known.
    #[error("invalid resource \"{name}\": {}", expected(.near))]
    NoSuchResource {
        /// What was asked for.
        name: String,
        /// What may have been meant, joined by "or"; empty: nothing is like it.
        near: String,
    },
}

/// What is wrong with one endpoint.
#[derive(Debug)]
pub struct EndpointError {
    /// The endpoint.
    pub endpoint: String,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.endpoint, self.fault)
    }
}

/// What can be wrong with an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing listens there.
    #[error("refuses connections; does etcd run there, and is this its client port (2379 unless changed)?")]
    Refused,
    /// It cannot be reached.
    #[error("cannot be reached ({0}); is the address right, and is there a way to it from here?")]
    Unreachable(String),
    /// It did not answer in time.
    #[error("did not answer within {0} s; is it overloaded, or does a firewall drop the packets?")]
    TimedOut(u64),
    /// Its certificate is not to be trusted.
    #[error(
        "shows a certificate that the given authority did not sign ({0}); name etcd's own (--cacert, with kubeadm \
         /etc/kubernetes/pki/etcd/ca.crt), not the cluster's"
    )]
    UntrustedServer(String),
    /// Its certificate is for another name.
    #[error("shows a certificate for another name ({0}); use one of the names or addresses in it")]
    WrongName(String),
    /// Its certificate is not valid for another reason, such as its age.
    #[error("shows a certificate that is not valid ({0}); renew it, or set the clock right")]
    InvalidServer(String),
    /// It wants a client certificate.
    #[error(
        "wants a client certificate; give one (--cert and --key, with kubeadm \
         /etc/kubernetes/pki/apiserver-etcd-client.crt and .key)"
    )]
    WantsClientCertificate,
    /// It does not like the client certificate.
    #[error(
        "does not accept the client certificate ({0}); give one that etcd's own authority signed (--cert and --key)"
    )]
    ClientCertificateRefused(String),
    /// TLS went wrong otherwise, most likely because it speaks plain HTTP.
    #[error("does not speak TLS as expected ({0}); is it http:// and not https://?")]
    NotTls(String),
    /// It answers plain HTTP with something else, most likely because it speaks TLS.
    #[error("does not speak plain HTTP ({0}); is it https:// and not http://?")]
    NotHttp(String),
    /// It closed the connection.
    #[error("closed the connection ({0}); try again, and see the log of etcd if it stays so")]
    Closed(String),
    /// The JSON gateway is missing.
    #[error(
        "answers 404 to /v3/kv/range: is it etcd 3.4 or newer, and is its JSON gateway on (--enable-grpc-gateway, which \
         it is unless switched off)?"
    )]
    NoGateway,
    /// etcd's own user management is on, and its gateway knows no user by certificate.
    #[error(
        "asks for an etcd user ({0}), which its JSON gateway cannot take from a certificate; audit a member restored \
         from a snapshot, without auth"
    )]
    AuthEnabled(String),
    /// It belongs to another etcd cluster than the endpoint before.
    #[error("belongs to another etcd cluster than the endpoints before it; name members of one cluster")]
    OtherCluster,
    /// Any other answer.
    #[error("answers {status} ({message}); is this etcd's client port? then its log tells more")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What it says.
        message: String,
    },
    /// An answer that cannot be understood.
    #[error("answers what etcd would not ({0}); is this really etcd's client port?")]
    Odd(String),
}

fn join(errors: &[EndpointError]) -> String {
    errors
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

fn expected(near: &str) -> String {
    match near {
        "" => "etcd has no objects of it, so either there are none, or the name is wrong; expected <plural>.<group>, or the \
               plural of a built-in resource (widgets.example.com, secrets)"
            .to_owned(),
        near => format!("did you mean {near}?"),
    }
}

fn hint(found: Option<&str>) -> String {
    match found {
        Some(first) => format!("this etcd holds keys below {first}"),
        None => "this etcd holds no key at all".to_owned(),
    }
}
