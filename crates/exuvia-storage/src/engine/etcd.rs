//! The last gate before the trim, for those who can read etcd: the only proof there is.

use exuvia_audit::{AuditOptions, audit, count};
use exuvia_write::{Name, Redacted, redacted};

use super::Engine;
use crate::Error;
use crate::protocol::Hold;
use crate::report::objects;

impl Engine {
    /// Whether the etcd that is to be audited before the trim answers, and is this cluster's: better to know before 10,000
    /// objects are rewritten. `seen` objects were found by way of the API.
    pub(super) async fn try_etcd(&self, seen: u64) -> Result<(), Error> {
        let Some(etcd) = &self.options.etcd else {
            return Ok(());
        };
        let held = count(etcd, &self.name)
            .await
            .map_err(|error| Error::Audit(Box::new(error)))?;
        if held == 0 && seen > 0 {
            return Err(self.not_this_etcd(etcd, seen));
        }
        Ok(())
    }

    fn not_this_etcd(&self, etcd: &AuditOptions, swept: u64) -> Error {
        Error::NotThisEtcd {
            resource: self.name.clone(),
            swept,
            prefix: etcd.prefix.clone(),
        }
    }

    /// Reads etcd, if the user can, and says why not to trim if it holds something else than the sweeps saw.
    pub(super) async fn audit_etcd(&mut self) -> Result<Option<Hold>, Error> {
        let Some(etcd) = &self.options.etcd else {
            return Ok(None);
        };
        let report = audit(&AuditOptions {
            resources: vec![self.name.clone()],
            ..etcd.clone()
        })
        .await
        .map_err(|error| Error::Audit(Box::new(error)))?;
        let audited = report.resource(&self.name).map_or(0, |resource| resource.objects);
        let swept = self.survey.as_ref().map_or(0, |survey| survey.objects);
        if audited == 0 && swept > 0 {
            return Err(self.not_this_etcd(etcd, swept));
        }
        let is_current = report.is_current();
        self.report.audit = Some(report);
        if is_current {
            return Ok(None);
        }
        // The sweeps were wrong about something: the next try looks at everything.
        self.remember(|pass| (pass.verify, pass.verified_up_to) = (None, None));
        Ok(Some(Hold::NotProven))
    }

    /// Forgets what etcd held: it is about to be looked at again.
    pub(super) fn forget_audit(&mut self) {
        self.report.audit = None;
    }

    /// What etcd holds that the sweeps did not see, in one sentence; `None`: nothing, or nobody looked.
    pub(super) fn seen_in_etcd_only(&self) -> Option<Redacted> {
        let audit = self.report.audit.as_ref().filter(|audit| !audit.is_current())?;
        let resource = audit.resources.first()?;
        let unreadable: u64 = resource
            .unreadable
            .iter()
            .map(|unreadable| unreadable.objects)
            .sum();
        let example = resource.offenders.first().map(|offender| offender.key.as_str());
        Some(redacted!(
            "not proven: etcd holds {} at another version than the sweeps saw, and {} that cannot be read{}; nothing was \
             trimmed",
            Name(&objects(resource.offending)),
            unreadable,
            Name(&example.map(|key| format!(", such as {key}")).unwrap_or_default()),
        ))
    }
}
