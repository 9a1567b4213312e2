//! Why a migration does not go on, in a sentence for people.

use exuvia_api::FrozenBy;
use exuvia_write::{Name, Redacted, redacted};

use super::Engine;
use crate::preflight::Obstacle;
use crate::protocol::Hold;
use crate::report::objects;

impl Engine {
    /// Why it does not go on, for people.
    pub fn sentence(&self, hold: &Hold) -> Redacted {
        let trimmed = self.pass.as_ref().is_some_and(|pass| pass.trimmed);
        match hold {
            Hold::Gone => "the CRD is gone".into(),
            Hold::Suspended => "it is suspended".into(),
            Hold::Blocked(_) => match &self.report.obstacle {
                Some(Obstacle::Pruning(losses)) => losses.sentence(self.audience),
                // Whatever a server said is redacted in it.
                obstacle => Redacted::ours(obstacle.as_ref().map(ToString::to_string).unwrap_or_default()),
            },
            Hold::ServerBehind(servers) if servers.is_empty() => redacted!(
                "{} came back at an old version right after being rewritten: an API server is behind; nothing was trimmed; \
                 name the servers with {} to find it",
                Name(&objects(self.report.came_back)),
                self.audience.setting("--apiserver", "spec.apiServers")
            ),
            Hold::ServerBehind(servers) if trimmed => redacted!(
                "{}; storedVersions is trimmed, but the patrol waits for that",
                named(servers)
            ),
            Hold::ServerBehind(servers) => redacted!(
                "{}; nothing was trimmed; bring it up to date, or if it is gone for good go on without it: {}, which \
                 verifies in full",
                named(servers),
                self.audience
                    .setting("--ignore-apiserver", "spec.ignoreApiServers")
            ),
            Hold::NotProven => self.doubt(),
            Hold::Failures(count) if trimmed => self.with_freeze(redacted!(
                "{} could not be looked at once more after the trim",
                Name(&objects(*count))
            )),
            Hold::Failures(count) => self.with_freeze(redacted!(
                "{} could not be migrated; nothing was trimmed",
                Name(&objects(*count))
            )),
        }
    }

    /// Many refusals may have one cause, which ends with one command.
    fn with_freeze(&self, sentence: Redacted) -> Redacted {
        match &self.report.frozen_by {
            None => sentence,
            Some(frozen) => redacted!("{}; {}", sentence, frozen_by(frozen)),
        }
    }

    fn doubt(&self) -> Redacted {
        if let Some(in_etcd) = self.seen_in_etcd_only() {
            return in_etcd;
        }
        redacted!(
            "not proven: {} changed again when verified, sweep after sweep, and nothing tells why (a webhook that changes \
             objects now and then, or an API server that nobody asked); nothing was trimmed; `exuvia storage audit` reads etcd",
            Name(&objects(self.report.unexplained))
        )
    }
}

/// Who freezes objects, and what ends that. Whether the migration still exists is not known here.
fn frozen_by(frozen: &FrozenBy) -> Redacted {
    redacted!(
        "the policy {} of DatastoreMigration {} refuses writes: if that migration is deleted, `{}` ends it, and otherwise \
         `exuvia datastore status {}` shows how far it is",
        Name(&frozen.policy),
        Name(&frozen.migration),
        Name(&frozen.thaw()),
        Name(&frozen.migration)
    )
}

/// Servers, each in a sentence of ours, in which everything that a server said is redacted.
fn named(servers: &[String]) -> Redacted {
    Redacted::ours(servers.join(", "))
}
