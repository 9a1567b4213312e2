//! One object of the rewrite sweep: one write that stores it anew and moves its managedFields entries.

use std::sync::Arc;

use exuvia_sweep::{Pressure, ResourceVersion, Verdict};
use exuvia_write::{Effect, Error, ErrorClass, Writer};
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta};

use crate::definition::Definition;
use crate::options::ManagedFields;
use crate::ownership;
use crate::redact::redact;

/// What the rewrite sweep does to each object.
#[derive(Clone, Debug)]
pub(crate) struct Rewriter {
    pub(crate) writer: Writer,
    /// All namespaces, at the endpoint's version.
    pub(crate) api: Api<DynamicObject>,
    /// `None` for a built-in type, which has no versions of its own to shed.
    pub(crate) definition: Option<Arc<Definition>>,
    pub(crate) managed_fields: ManagedFields,
    pub(crate) status_fallback: bool,
    /// What is above it was stored by a settled server; `None`: nothing is known to be.
    pub(crate) r0: Option<ResourceVersion>,
}

impl Rewriter {
    pub(crate) async fn rewrite(&self, metadata: &ObjectMeta) -> Verdict {
        let plan = |entries: &[_]| match &self.definition {
            Some(definition) => ownership::plan(definition, self.managed_fields, entries),
            None => exuvia_write::Plan::default(),
        };
        let entries = metadata.managed_fields.as_deref().unwrap_or_default();
        let nothing_to_move = plan(entries).is_empty();
        if nothing_to_move && self.r0.is_some() && ResourceVersion::of(metadata) > self.r0 {
            return Verdict::skipped();
        }
        let written = if nothing_to_move {
            self.writer
                .rewrite(&self.api, metadata)
                .await
                .map(|written| written.effect)
        } else {
            self.move_and_rewrite(metadata, plan).await
        };
        match written {
            Err(error) if self.status_fallback && error.class() == ErrorClass::Denied => {
                let written = self.writer.rewrite_through_status(&self.api, metadata).await;
                verdict(written.map(|written| written.effect))
            }
            written => verdict(written),
        }
    }

    async fn move_and_rewrite(
        &self,
        metadata: &ObjectMeta,
        plan: impl FnMut(
            &[k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry],
        ) -> exuvia_write::Plan,
    ) -> Result<Effect, Error> {
        let moved = self.writer.move_ownership(&self.api, metadata, plan).await?;
        match moved.effect {
            // Somebody else's write has moved the last old entry meanwhile; that tells nothing of the bytes.
            Effect::Unsent => Ok(self.writer.rewrite(&self.api, &moved.metadata).await?.effect),
            effect => Ok(effect),
        }
    }
}

/// What a write came to, in a sweep's terms.
pub(crate) fn verdict(written: Result<Effect, Error>) -> Verdict {
    match written {
        Ok(Effect::Changed) => Verdict::rewritten(),
        Ok(_) => Verdict::current(),
        Err(error) => failed(&error),
    }
}

/// What a failed write comes to: 404 is done, a conflict never is (DESIGN §3 step 5).
pub(crate) fn failed(error: &Error) -> Verdict {
    let class = error.class();
    match class {
        // An object that was made anew meanwhile was stored by the server as it is now.
        _ if matches!(error, Error::Recreated { .. }) => Verdict::gone(),
        // A 404 that names the object. One about the endpoint or the namespace is `Missing` (PITFALLS A33).
        ErrorClass::Gone => Verdict::gone(),
        ErrorClass::Conflict => Verdict::conflict(said(error)),
        _ => Verdict::failed(class.as_str(), said(error)).under(Pressure::of(class)),
    }
}

/// What the server said. The object and the class are told beside it: with long names there is no room for them twice.
fn said(error: &Error) -> String {
    redact(&match error.status() {
        Some(status) => format!("{} (http {})", status.message, status.code),
        None => error.to_string(),
    })
}
