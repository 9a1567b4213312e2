//! The verdict on one version, from what was seen. Pure: no client, no clock, no async.

use exuvia_api::{Phase, counted};
use exuvia_sweep::api_service::Hidden;
use exuvia_write::{Name, Redacted, redacted};

use super::holders::{Words, concealed, migrate, ownership, stored, unasked, unlisted, used};
use super::{Answer, Clear, Holder, Holds, Migration, Unknown, Verdict};
use crate::audience::Audience;
use crate::definition::Definition;
use crate::optin::exclusion;
use crate::ownership::Owners;
use crate::record::Record;
use crate::references::{OwnerKind, References};
use crate::report::{Verified, objects};
use crate::usage::Usage;

/// Something that was looked at, or why it was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked<'a, T> {
    /// This was seen.
    At(T),
    /// The caller chose not to look.
    No,
    /// It could not be looked at, for this reason.
    Failed(&'a Redacted),
}

/// What was seen of a CRD, its objects and the rest of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The CRD.
    pub definition: &'a Definition,
    /// What is on record for it, as [`Record::read`] gives it.
    pub record: Option<&'a Record>,
    /// Why the sweep that was to prove it did not, if it was tried.
    pub unproven: Option<&'a Redacted>,
    /// The owners of fields of its objects.
    pub owners: Looked<'a, &'a Owners>,
    /// ownerReferences in the whole cluster.
    pub references: Looked<'a, &'a References>,
    /// What the API servers count.
    pub usage: Looked<'a, &'a Usage>,
    /// The `StorageMigration`s of the cluster; an error if they could not be read although there may be some.
    pub migrations: Looked<'a, &'a [Migration]>,
    /// Versions of the CRD at which another server answers.
    pub hidden: Looked<'a, &'a [Hidden]>,
    /// The versions that will be served once those in question are gone.
    pub served_after: &'a [String],
    /// Who is told what to do about it.
    pub audience: Audience,
}

/// Collects what holds a version, what does not, and what is not known.
#[derive(Default)]
struct Findings {
    holders: Vec<Holder>,
    unknown: Vec<Unknown>,
    clear: Vec<Clear>,
}

impl Findings {
    fn unknown(&mut self, what: Holds, why: impl Into<Redacted>, command: impl Into<String>) {
        self.unknown.push(Unknown {
            what,
            why: why.into(),
            command: command.into(),
        });
    }

    fn clear(&mut self, what: Holds, because: impl Into<String>) {
        self.clear.push(Clear {
            what,
            because: because.into(),
        });
    }
}

impl Seen<'_> {
    /// Whether `version` may be dropped: no if anything holds it, not known if something could not be seen, else yes.
    pub fn judge(&self, version: &str) -> Verdict {
        let mut findings = Findings::default();
        self.bytes(version, &mut findings);
        self.hidden(&mut findings);
        self.served(version, &mut findings);
        self.migration(&mut findings);
        // The storage version is in use by definition: new objects are stored at it, named at it, and asked for at it.
        if version != self.definition.crd.storage {
            self.ownership(version, &mut findings);
            self.references(version, &mut findings);
            self.usage(version, &mut findings);
        }
        let Findings {
            holders,
            unknown,
            clear,
        } = findings;
        Verdict {
            crd: self.definition.name.clone(),
            version: version.to_owned(),
            answer: match (holders.is_empty(), unknown.is_empty()) {
                (false, _) => Answer::No,
                (true, false) => Answer::NotKnown,
                (true, true) => Answer::Yes,
            },
            holders,
            unknown,
            clear,
        }
    }

    fn bytes(&self, version: &str, findings: &mut Findings) {
        let crd = &self.definition.name;
        let words = Words {
            audience: self.audience,
            unproven: self.unproven,
        };
        if let Some(holder) = stored(self.definition, version, words) {
            findings.holders.push(holder);
            return;
        }
        match self.record {
            Some(record) if record.patrolled => {
                let how = match record.verified {
                    Verified::Full => "in full",
                    Verified::Proof => "by proof",
                };
                let (storage, generation) = (&record.storage_version, record.generation);
                let when = match record.patrolled_before() {
                    Some(patrolled) => {
                        format!("({:.0}), and patrolled before that ({patrolled:.0})", record.at)
                    }
                    None => format!("and patrolled ({:.0})", record.at),
                };
                findings.clear(
                    Holds::Bytes,
                    format!(
                        "every object is stored at {storage}, verified {how} at the CRD's generation {generation} {when}"
                    ),
                );
            }
            Some(record) => {
                let why = self.unproven.map(|why| format!("{why}; ")).unwrap_or_default();
                findings.holders.push(Holder::new(
                    Holds::Migration,
                    Redacted::ours(format!(
                        "migrated at {:.0}, not patrolled yet: {why}{}",
                        record.at,
                        migrate(self.definition, "--patrol")
                    )),
                ));
            }
            None => {
                let all_the_same = exclusion(self.definition).map_or("", |_| " --include-excluded");
                let prove = format!("exuvia storage droppable {crd} {version} --prove{all_the_same}");
                match self.unproven {
                    Some(why) => findings.unknown(
                        Holds::Bytes,
                        redacted!("it is not proven: {}", why),
                        format!("remove the cause, then run `{prove}`"),
                    ),
                    None => findings.unknown(
                        Holds::Bytes,
                        "status.storedVersions does not list it, but anybody can write that, and no sweep of ours is on record \
                         for the CRD as it is now",
                        prove,
                    ),
                }
            }
        }
    }

    /// What another server shows says nothing about the CRD's objects, nor about who asks for them.
    fn hidden(&self, findings: &mut Findings) {
        match self.hidden {
            Looked::At([]) => {}
            Looked::At(hidden) => {
                let each: Vec<String> = hidden.iter().map(ToString::to_string).collect();
                let names: Vec<String> = hidden.iter().map(Hidden::api_service).collect();
                findings.unknown(
                    Holds::Bytes,
                    Redacted::ours(each.join(", ")),
                    format!(
                        "delete the APIService {}, or set `served: false` for that version in the CRD, then {}",
                        names.join(", "),
                        migrate(self.definition, "--patrol --verify full")
                    ),
                );
            }
            Looked::No if self.unproven.is_some() => {}
            Looked::No => findings.unknown(
                Holds::Bytes,
                "it was not looked at whether the CRD itself answers",
                "ask again",
            ),
            Looked::Failed(why) => findings.unknown(
                Holds::Bytes,
                redacted!(
                    "it is not known whether the CRD itself answers, since its APIServices cannot be read: {}",
                    why
                ),
                "allow `get` on apiservices.apiregistration.k8s.io, or repair the API server, then ask again",
            ),
        }
    }

    fn served(&self, version: &str, findings: &mut Findings) {
        if self.served_after.is_empty() {
            let alone = self.definition.served().all(|served| served == version);
            let message = if alone {
                "it is the only version that is served: after the drop no object can be read"
            } else {
                "no version that stays is served: after the drop no object can be read"
            };
            findings.holders.push(Holder::new(Holds::Served, message));
        } else {
            let after = self.served_after.join(", ");
            let stay = if self.served_after.len() == 1 {
                "stays"
            } else {
                "stay"
            };
            findings.clear(Holds::Served, format!("{after} {stay} served"));
        }
    }

    fn migration(&self, findings: &mut Findings) {
        let name = &self.definition.name;
        match self.migrations {
            Looked::At(all) => {
                let at_work = all
                    .iter()
                    .filter(|migration| migration.resource == *name && migration.is_under_way());
                findings.holders.extend(at_work.map(under_way));
            }
            Looked::No => {}
            Looked::Failed(why) => findings.unknown(
                Holds::Migration,
                redacted!("StorageMigrations cannot be listed: {}", why),
                "repair the API server, then ask again",
            ),
        }
    }

    fn ownership(&self, version: &str, findings: &mut Findings) {
        let name = &self.definition.name;
        match self.owners {
            Looked::At(owners) => {
                let before = findings.holders.len();
                let held = ownership(self.definition, version, owners, self.audience, self.record);
                findings.holders.extend(held);
                if findings.holders.len() == before {
                    findings.clear(Holds::Ownership, "no managedFields entry names it");
                }
            }
            Looked::No => findings.unknown(Holds::Ownership, "not looked at", self.ask_again(version)),
            Looked::Failed(why) => findings.unknown(
                Holds::Ownership,
                redacted!("the objects cannot be listed: {}", why),
                format!("allow `list` on {name}, or repair the server, then ask again"),
            ),
        }
    }

    fn references(&self, version: &str, findings: &mut Findings) {
        let Definition { group, kind, .. } = self.definition;
        let references = match self.references {
            Looked::At(references) => references,
            Looked::No => {
                let why = "not looked at (--no-references)";
                return findings.unknown(Holds::References, why, self.ask_again(version));
            }
            Looked::Failed(why) => {
                let why = redacted!("the resources of the cluster cannot be listed: {}", why);
                return findings.unknown(Holds::References, why, self.ask_again(version));
            }
        };
        let owner = OwnerKind {
            group: group.clone(),
            kind: kind.clone(),
        };
        let before = findings.holders.len();
        for (resource, dependents) in references.at(&owner, version) {
            let examples = dependents.examples.join(", ");
            let message = format!(
                "ownerReferences of {} in {resource} name it, such as {examples}: after the drop they are never collected; \
                 {}",
                objects(dependents.objects),
                migrate(self.definition, &format!("--shed {version} --owner-references"))
            );
            let holder = Holder::new(Holds::References, Redacted::ours(message));
            findings
                .holders
                .push(holder.on(dependents.objects, &dependents.examples));
        }
        if !references.unseen.is_empty() {
            let (why, command) = unlisted(&references.unseen);
            findings.unknown(Holds::References, why, command);
        }
        if !references.concealed.is_empty() {
            let (why, command) = concealed(&references.concealed);
            findings.unknown(Holds::References, why, command);
        }
        let is_complete = references.unseen.is_empty() && references.concealed.is_empty();
        if is_complete && findings.holders.len() == before {
            let (count, resources) = (references.extent.objects, references.extent.resources);
            findings.clear(
                Holds::References,
                format!(
                    "no ownerReference names it, of {} in {resources} resources",
                    objects(count)
                ),
            );
        }
    }

    fn usage(&self, version: &str, findings: &mut Findings) {
        let Definition { group, plural, .. } = self.definition;
        let is_served = self.definition.served().any(|served| served == version);
        let usage = match self.usage {
            Looked::At(usage) if !usage.servers.is_empty() => usage,
            _ if !is_served => {
                return findings.clear(Holds::Usage, "it is not served, so it cannot be asked for");
            }
            Looked::Failed(why) => return findings.unknown(Holds::Usage, why, self.ask_again(version)),
            Looked::At(_) | Looked::No => {
                return findings.unknown(Holds::Usage, "no API server was asked", self.ask_again(version));
            }
        };
        let mut asked = 0;
        let priority = |version: &str| kube::core::Version::parse(version).priority();
        let is_preferred = self.definition.served().max_by_key(|version| priority(version)) == Some(version);
        for (server, counts) in usage.at(group, plural, version) {
            match counts {
                Ok(counts) => {
                    asked += 1;
                    findings
                        .holders
                        .extend(used(server, &counts, usage, is_preferred));
                }
                Err(_) if !is_served => {}
                Err(unread) if unread.forbidden => findings.unknown(
                    Holds::Usage,
                    redacted!("/metrics of {} may not be read: {}", Name(server), &unread.why),
                    "allow `get` on the path /metrics (a ClusterRole's nonResourceURLs), then ask again",
                ),
                Err(unread) if unread.uncounted => findings.unknown(
                    Holds::Usage,
                    redacted!("/metrics of {} does not tell: {}", Name(server), &unread.why),
                    format!(
                        "let the API server publish it (its flags --disabled-metrics, --allow-metric-labels), or set `served: \
                         false` for {version} in the CRD, then ask again"
                    ),
                ),
                Err(unread) => findings.unknown(
                    Holds::Usage,
                    redacted!("/metrics of {} cannot be read: {}", Name(server), &unread.why),
                    "make this API server reachable by itself, then ask again",
                ),
            }
        }
        if let Some(missing) = usage.unasked.filter(|_| is_served) {
            let (why, command) = unasked(missing, self.definition, version, self.audience);
            return findings.unknown(Holds::Usage, why, command);
        }
        let held = findings.holders.iter().any(|holder| holder.holds == Holds::Usage);
        if asked > 0 && !held {
            let servers = counted(asked, "API server");
            findings.clear(
                Holds::Usage,
                match usage.within {
                    Some(within) => format!(
                        "no open watch, and no request within {} s, on {servers}",
                        within.as_secs_f64()
                    ),
                    None => {
                        format!(
                            "no open watch ({servers} asked); requests were not counted, --watch 5m does that"
                        )
                    }
                },
            );
        }
    }

    fn ask_again(&self, version: &str) -> String {
        format!("exuvia storage droppable {} {version}", self.definition.name)
    }
}

/// A migration that has not come to its end, and how it does.
fn under_way(migration: &Migration) -> Holder {
    let (phase, name) = (migration.phase.as_str(), &migration.name);
    let how = match migration.phase {
        Phase::Suspended => format!(
            "to go on, run `kubectl patch storagemigration {name} --type merge -p '{{\"spec\":{{\"suspend\":false}}}}'`, or \
             delete it"
        ),
        Phase::Stalled => format!(
            "`kubectl describe storagemigration {name}` says why; it goes on by itself when the cause is gone"
        ),
        _ => format!("wait for it, `kubectl get storagemigration {name} --watch`"),
    };
    Holder::new(
        Holds::Migration,
        Redacted::ours(format!("the StorageMigration {name} is {phase}: {how}")),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
