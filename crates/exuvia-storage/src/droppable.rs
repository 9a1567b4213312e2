//! May a version be dropped? Computed from the cluster whenever it is asked for; nothing needs to be remembered.

use kube::core::Version;
use serde::Serialize;

use crate::definition::Definition;
use crate::ownership::Owners;

/// Something that holds a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "holds")]
pub enum Blocker {
    /// Objects may be stored at it: `storedVersions` lists it, or it is the storage version.
    Bytes {
        /// Why one must think so.
        message: String,
    },
    /// managedFields name it: after the drop every server-side apply to such an object answers 500 (PITFALLS A7).
    Ownership {
        /// Who.
        manager: String,
        /// On how many objects.
        objects: u64,
        /// When it last wrote, RFC 3339.
        #[serde(skip_serializing_if = "Option::is_none")]
        last: Option<String>,
        /// One of the objects.
        example: String,
    },
    /// The version is still asked for.
    Usage {
        /// By whom and how often, as far as is known.
        message: String,
    },
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes { message } => write!(f, "bytes: {message}"),
            Self::Ownership {
                manager,
                objects,
                last,
                example,
            } => {
                write!(
                    f,
                    "ownership: {manager} owns fields at it on {objects} object(s), such as {example}"
                )?;
                last.iter()
                    .try_for_each(|last| write!(f, ", last written {last}"))
            }
            Self::Usage { message } => write!(f, "usage: {message}"),
        }
    }
}

/// What may become of a CRD's versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// May be dropped.
    pub droppable: Vec<String>,
    /// What holds the others, but for the storage version.
    pub held: Vec<(String, Blocker)>,
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

/// What holds `version`; empty: it may be dropped.
pub fn blockers(definition: &Definition, version: &str, owners: &Owners) -> Vec<Blocker> {
    let mut blockers = Vec::new();
    if version == definition.crd.storage {
        blockers.push(Blocker::Bytes {
            message: "it is the storage version: new objects are stored at it".into(),
        });
    } else if definition.crd.stored.iter().any(|stored| stored == version) {
        blockers.push(Blocker::Bytes {
            message:
                "status.storedVersions lists it, so objects may be stored at it: run `exuvia storage migrate`"
                    .into(),
        });
    }
    if version != definition.crd.storage {
        blockers.extend(
            owners
                .at(&definition.api_version(version))
                .map(|(manager, owner)| Blocker::Ownership {
                    manager: manager.to_owned(),
                    objects: owner.objects,
                    last: owner.last.map(|last| last.to_string()),
                    example: owner.example.clone(),
                }),
        );
    }
    blockers
}

/// The versions of the CRD that are older than its storage version and that nothing holds. A newer one that nobody uses
/// yet could be dropped as well, but nobody would want to hear that.
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
