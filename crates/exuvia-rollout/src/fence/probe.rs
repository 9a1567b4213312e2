//! Whether the fence is in force: a creation that must be denied, sent as a dry run.

use exuvia_write::{Error, Writer};
use kube::Client;

use crate::{Intent, ObjectRef};

use super::{Fence, PROBE_MANAGER};

/// What an API server said to the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InForce {
    /// It denies.
    Yes,
    /// It lets writes pass: the policy is not there, or this server does not know it yet (about a second after it was made).
    NotYet,
}

/// The probe told nothing: somebody else refused it, or the server cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("cannot tell whether the fence is in force: {0}")]
pub struct ProbeError(#[from] pub Box<Error>);

impl Fence {
    /// Sends a creation of `intent`, as a dry run and under a field manager that the fence always denies.
    ///
    /// This asks the one API server that the client talks to. Each server learns of a policy by itself (PITFALLS D10), so ask
    /// each of them where there are several. The intent must be one that the server would accept: a schema is checked before
    /// policies are asked. It needs the right to create the kind.
    pub async fn probe(
        &self,
        client: &Client,
        writer: &Writer,
        target: &ObjectRef,
        intent: &Intent,
    ) -> Result<InForce, ProbeError> {
        let prober = writer.acting_as(PROBE_MANAGER).dry_run();
        let object = intent.object(intent.body());
        match prober.create(&target.api(client), &object).await {
            Ok(_) => Ok(InForce::NotYet),
            Err(error) if Self::is_denial(&self.name, &error) => Ok(InForce::Yes),
            // Admission comes first, so it passed.
            Err(error) if error.is_already_exists() => Ok(InForce::NotYet),
            Err(error) => Err(ProbeError(Box::new(error))),
        }
    }
}
