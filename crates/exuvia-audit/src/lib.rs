//! Reads etcd itself and counts objects per stored `apiVersion`: the only proof that there is of what is stored how.
//!
//! No API tells at which version an object is stored (PITFALLS A2). Custom resources are JSON in etcd, built-in ones an
//! envelope that names its version; both are read without being decoded. Everything is read at one revision, page by
//! page, so memory does not grow with the number of objects.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use exuvia_audit::{AuditOptions, audit};
//!
//! let report = audit(&AuditOptions {
//!     endpoints: vec!["https://127.0.0.1:2379".into()],
//!     cacert: Some("/etc/kubernetes/pki/etcd/ca.crt".into()),
//!     cert: Some("/etc/kubernetes/pki/apiserver-etcd-client.crt".into()),
//!     key: Some("/etc/kubernetes/pki/apiserver-etcd-client.key".into()),
//!     ..AuditOptions::default()
//! })
//! .await?;
//! for resource in &report.resources {
//!     println!("{}: {:?}, {:?}", resource.name, resource.verdict, resource.versions);
//! }
//! # Ok(()) }
//! ```

mod definition;
mod envelope;
mod error;
mod etcd;
mod fault;
mod page;
mod place;
mod report;
mod tally;
mod tls;
mod value;
mod walk;

use std::path::PathBuf;
use std::time::Duration;

pub use definition::{Crd, Definition};
pub use error::{EndpointError, Error, Fault};
pub use report::{AuditReport, Offender, ResourceReport, Unreadable, Verdict};
pub use value::Cause;

use etcd::{Etcd, Failure};
use walk::Walk;

/// Which etcd to read, and what of it.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// URLs of etcd's client port, `http` or `https`, tried in this order.
    pub endpoints: Vec<String>,
    /// The authority that signed etcd's certificate, PEM; `https` needs it.
    pub cacert: Option<PathBuf>,
    /// A client certificate, PEM.
    pub cert: Option<PathBuf>,
    /// The key of the client certificate, PEM.
    pub key: Option<PathBuf>,
    /// The key below which the API server keeps everything (its `--etcd-prefix`).
    pub prefix: String,
    /// Reads these resources only: `widgets.example.com`, `example.com/widgets`, `secrets`. Empty: all.
    pub resources: Vec<String>,
    /// How many objects a page has at most; it has fewer if they are large.
    pub page_size: u32,
    /// How many offenders, and how many unreadable objects of each cause, are named per resource.
    pub offenders: usize,
    /// How long one answer may take.
    pub timeout: Duration,
}

impl Default for AuditOptions {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            cacert: None,
            cert: None,
            key: None,
            prefix: "/registry".to_owned(),
            resources: Vec::new(),
            page_size: 500,
            offenders: 20,
            timeout: Duration::from_secs(60), // a page of 4 MiB from a busy member on a slow disk
        }
    }
}

/// How far an audit has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The resource that is being read.
    pub resource: &'a str,
    /// Objects read so far.
    pub objects: u64,
    /// Objects below the prefix in all; fewer are read if resources were named.
    pub total: u64,
}

/// Reads everything below the prefix, or the resources named, at one revision.
pub async fn audit(options: &AuditOptions) -> Result<AuditReport, Error> {
    audit_with_progress(options, &mut |_| {}).await
}

/// Like [`audit`], and calls `progress` after every page.
pub async fn audit_with_progress(
    options: &AuditOptions,
    progress: &mut (dyn FnMut(&Progress<'_>) + Send),
) -> Result<AuditReport, Error> {
    let mut etcd = Etcd::new(options)?;
    let prefix = &prefix(options);
    let mut restarted = false;
    loop {
        let mut walk = Walk::new(&mut etcd, options, prefix, progress);
        match walk.read().await {
            Ok(report) => return Ok(AuditReport { restarted, ..report }),
            Err(Failure::Fatal(error)) => return Err(error),
            Err(Failure::Compacted) if !restarted => {
                restarted = true;
                tracing::warn!(
                    revision = walk.revision(),
                    "etcd compacted the revision away while it was being read: starting again"
                );
            }
            Err(Failure::Compacted) => {
                let revision = walk.revision();
                return Err(Error::Compacted { revision });
            }
            Err(Failure::TooLarge) => {
                let (key, limit) = (prefix.clone(), etcd::LARGEST_ANSWER);
                return Err(Error::TooLarge { key, limit });
            }
        }
    }
}

/// Asks whether there is anything to audit: etcd answers, and holds something below the prefix. Says how many objects it holds
/// of one custom resource, `widgets.example.com`, without reading them.
pub async fn count(options: &AuditOptions, resource: &str) -> Result<u64, Error> {
    let mut etcd = Etcd::new(options)?;
    let prefix = prefix(options);
    let counted = Walk::new(&mut etcd, options, &prefix, &mut |_| {})
        .count(resource)
        .await;
    counted.map_err(|failure| match failure {
        Failure::Fatal(error) => error,
        Failure::Compacted => Error::Compacted { revision: 0 },
        Failure::TooLarge => Error::TooLarge {
            key: prefix.clone(),
            limit: etcd::LARGEST_ANSWER,
        },
    })
}

/// As the API server does it: a slash in front, none at the end.
fn prefix(options: &AuditOptions) -> String {
    match options.prefix.trim().trim_matches('/') {
        "" => String::new(),
        prefix => format!("/{prefix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_can_be_spawned() {
        fn is_send(_: &impl Send) {}
        is_send(&audit(&AuditOptions::default()));
    }
}
