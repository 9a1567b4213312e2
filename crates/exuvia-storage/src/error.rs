//! What can go wrong with a migration as a whole; what goes wrong with one object is in the report.

use crate::audience::Audience;

/// An error that ends a migration. Nothing is trimmed then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A read failed.
    #[error("the API server did not answer as expected: {}", exuvia_write::brief(.0))]
    Read(#[from] kube::Error),

    /// A write failed that is not about one object: the trim, or putting a version back.
    #[error("the CRD's status could not be written: {0}")]
    Write(#[from] exuvia_write::Error),

    /// A `StorageMigration` could not be written.
    #[error("the StorageMigration could not be written: {0}")]
    Publish(#[source] exuvia_write::Error),

    /// A sweep could not go on.
    #[error("the objects of {resource} could not be listed: {source}")]
    Sweep {
        /// The resource.
        resource: String,
        /// Why.
        source: exuvia_sweep::Error,
    },

    /// The resource does not exist.
    #[error(
        "invalid resource {name:?}: expected a CRD, named <plural>.<group> as in `exuvia plan`, or a built-in resource"
    )]
    NotFound {
        /// What was asked for.
        name: String,
    },

    /// It cannot be listed and patched.
    #[error("{name} cannot be listed and patched, so there is nothing to migrate: name another resource")]
    NotStored {
        /// What was asked for.
        name: String,
    },

    /// Two built-in resources have this plural.
    #[error("{name} is ambiguous: write {candidates}")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// What may be meant.
        candidates: String,
    },

    /// `proof` was asked for where it proves nothing.
    #[error(
        "verifying by proof needs every API server to be asked itself, as many as there are identity Leases in kube-system: \
         name them with --apiserver, or use --verify auto"
    )]
    ProofImpossible,

    /// The server's lists have no resourceVersion that can be compared.
    #[error(
        "the lists of {resource} have no resourceVersion that can be compared, so nothing can be proven about it"
    )]
    Incomparable {
        /// The resource.
        resource: String,
    },

    /// The etcd that was to be audited holds nothing of what was swept.
    #[cfg(feature = "etcd")]
    #[error(
        "etcd holds no object of {resource} below {prefix}, but the API server shows {}: this is another cluster's etcd, or \
         the API server keeps them elsewhere (--etcd-prefix)", crate::report::objects(*swept)
    )]
    NotThisEtcd {
        /// The resource.
        resource: String,
        /// How many objects the sweep saw.
        swept: u64,
        /// Where etcd was read.
        prefix: String,
    },

    /// The audit of etcd that was asked for failed.
    #[cfg(feature = "etcd")]
    #[error("etcd cannot be audited, as --etcd-endpoint asks for before the trim: {0}")]
    Audit(#[source] Box<exuvia_audit::Error>),
}

impl Error {
    /// What went wrong, with what this audience can do about it.
    pub fn sentence(&self, audience: Audience) -> String {
        match (self, audience) {
            (Self::ProofImpossible, Audience::StorageMigration) => self
                .to_string()
                .replace("--apiserver", "spec.apiServers")
                .replace("--verify auto", "spec.verify: Auto"),
            _ => self.to_string(),
        }
    }

    pub(crate) fn unlisted(resource: &str, source: exuvia_sweep::Error) -> Self {
        Self::Sweep {
            resource: resource.to_owned(),
            source,
        }
    }
}

/// A sweep that was cancelled did not fail, but has no report either.
pub(crate) fn unless_cancelled(
    resource: &str,
    swept: Result<exuvia_sweep::SweepReport, exuvia_sweep::Error>,
) -> Result<Option<exuvia_sweep::SweepReport>, Error> {
    match swept {
        Ok(report) => Ok(Some(report)),
        Err(error) if error.is_cancelled() => Ok(None),
        Err(source) => Err(Error::unlisted(resource, source)),
    }
}
