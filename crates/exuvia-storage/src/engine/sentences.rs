//! Why a migration does not go on, in a sentence for people.

use super::Engine;
use crate::preflight::Obstacle;
use crate::protocol::Hold;
use crate::report::objects;

impl Engine {
    /// Why it does not go on, for people.
    pub fn sentence(&self, hold: &Hold) -> String {
        let trimmed = self.pass.as_ref().is_some_and(|pass| pass.trimmed);
        match hold {
            Hold::Gone => "the CRD is gone".to_owned(),
            Hold::Suspended => "it is suspended".to_owned(),
            Hold::Blocked(_) => match &self.report.obstacle {
                Some(Obstacle::Pruning(losses)) => losses.sentence(self.audience),
                obstacle => obstacle.as_ref().map(ToString::to_string).unwrap_or_default(),
            },
            Hold::ServerBehind(names) if names.is_empty() => format!(
                "{} came back at an old version right after being rewritten: an API server is behind; nothing was trimmed; \
                 name the servers with {} to find it",
                objects(self.report.came_back),
                self.audience.setting("--apiserver", "spec.apiServers")
            ),
            Hold::ServerBehind(names) if trimmed => format!(
                "{}; storedVersions is trimmed, but the patrol waits for that",
                names.join(", ")
            ),
            Hold::ServerBehind(names) => format!(
                "{}; nothing was trimmed; bring it up to date, or if it is gone for good go on without it: {}, which \
                 verifies in full",
                names.join(", "),
                self.audience
                    .setting("--ignore-apiserver", "spec.ignoreApiServers")
            ),
            Hold::NotProven => self.doubt(),
            Hold::Failures(count) if trimmed => {
                format!(
                    "{} could not be looked at once more after the trim",
                    objects(*count)
                )
            }
            Hold::Failures(count) => {
                format!("{} could not be migrated; nothing was trimmed", objects(*count))
            }
        }
    }

    fn doubt(&self) -> String {
        if let Some(in_etcd) = self.seen_in_etcd_only() {
            return in_etcd;
        }
        format!(
            "not proven: {} changed again when verified, sweep after sweep, and nothing tells why (a webhook that changes \
             objects now and then, or an API server that nobody asked); nothing was trimmed; `exuvia storage audit` reads etcd",
            objects(self.report.unexplained)
        )
    }
}
