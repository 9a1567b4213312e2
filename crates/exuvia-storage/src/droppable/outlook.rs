//! What `storedVersions` and ownership say of a CRD's versions: a first look, which needs neither a sweep of the cluster
//! nor a record, and which is therefore not a verdict.

use kube::core::Version;

use super::holders::{ownership, stored};
use super::{Answer, Holder, Verdict};
use crate::definition::Definition;
use crate::ownership::Owners;

/// What may become of a CRD's versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// May be dropped.
    pub droppable: Vec<String>,
    /// What holds the others, but for the storage version.
    pub held: Vec<(String, Holder)>,
}

impl Outlook {
    /// As far as the definition and these owners tell.
    pub fn of(definition: &Definition, owners: &Owners) -> Self {
        let droppable = droppable(definition, owners);
        let names = definition.versions.iter().map(|version| &version.name);
        let others = names.filter(|name| **name != definition.crd.storage && !droppable.contains(name));
        let held = others.flat_map(|name| {
            let blockers = blockers(definition, name, owners);
            blockers.into_iter().map(|blocker| (name.clone(), blocker))
        });
        Self {
            held: held.collect(),
            droppable,
        }
    }
}

impl From<Vec<Verdict>> for Outlook {
    /// What a yes lists may be dropped. What is not known is in neither list: nothing is said of it.
    fn from(verdicts: Vec<Verdict>) -> Self {
        let mut outlook = Self::default();
        for verdict in verdicts {
            let version = verdict.version;
            match verdict.answer {
                Answer::Yes => outlook.droppable.push(version),
                Answer::No | Answer::NotKnown => {
                    let held = verdict.holders.into_iter();
                    outlook.held.extend(held.map(|holder| (version.clone(), holder)));
                }
            }
        }
        outlook
    }
}

/// What `storedVersions` and ownership hold `version` by. Empty does not mean that it may be dropped: see
/// [`Seen::judge`](super::Seen::judge).
pub fn blockers(definition: &Definition, version: &str, owners: &Owners) -> Vec<Holder> {
    let mut blockers: Vec<Holder> = stored(definition, version).into_iter().collect();
    if version != definition.crd.storage {
        blockers.extend(ownership(definition, version, owners));
    }
    blockers
}

/// The versions of the CRD that are older than its storage version and that neither `storedVersions` nor these owners
/// hold: those that one may ask about. A newer one that nobody uses yet could be dropped as well, but nobody would want to
/// hear that.
pub fn droppable(definition: &Definition, owners: &Owners) -> Vec<String> {
    let names = definition.versions.iter().map(|version| version.name.as_str());
    let priority = |version: &str| Version::parse(version).priority();
    let storage = priority(&definition.crd.storage);
    names
        .filter(|version| priority(version) < storage)
        .filter(|version| blockers(definition, version, owners).is_empty())
        .map(str::to_owned)
        .collect()
}
