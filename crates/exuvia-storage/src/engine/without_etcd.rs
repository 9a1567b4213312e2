//! The gate before the trim in a build that cannot read etcd (without the feature `etcd`): it is always open.

#![expect(
    clippy::unused_self,
    clippy::unused_async,
    reason = "the same signatures as with the feature, so that callers need not know"
)]

use exuvia_write::Redacted;

use super::Engine;
use crate::Error;
use crate::protocol::Hold;

impl Engine {
    pub(super) async fn try_etcd(&self, _seen: u64) -> Result<(), Error> {
        Ok(())
    }

    pub(super) async fn audit_etcd(&mut self) -> Result<Option<Hold>, Error> {
        Ok(None)
    }

    pub(super) fn forget_audit(&mut self) {}

    pub(super) fn seen_in_etcd_only(&self) -> Option<Redacted> {
        None
    }
}
