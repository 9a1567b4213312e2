//! The references of a copy, and of a dependent that stays: pure, from what is known of each owner.

use std::fmt;

use exuvia_api::MissingOwner;
use exuvia_write::{Name, Redacted, redacted};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::successor::{Fate, Successor};

/// What is known of the owner that a reference names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It was moved.
    Moved(Successor),
    /// It will be moved, and its target does not exist yet.
    NotYet,
    /// It is not moved, and exists by kind, name and uid.
    Exists {
        /// Its namespace, if it has one.
        namespace: Option<String>,
    },
    /// It does not exist.
    Missing(Absence),
    /// It is of a namespaced kind, and the dependent is in no namespace: the garbage collector cannot find it.
    Unreachable,
    /// It could not be found out.
    Unknown(Redacted),
}

/// In which way an owner does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// No object has this name.
    NoObject,
    /// The object of this name has another uid.
    OtherUid,
    /// The kind is not served.
    NotServed,
}

/// Why a reference cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The owner does not exist.
    Missing(Absence),
    /// The owner is in another namespace than the dependent will be in.
    OtherNamespace {
        /// The owner's namespace.
        owner: String,
        /// The dependent's namespace.
        dependent: String,
    },
    /// The owner is in a namespace, and the dependent will not be in any.
    Namespaced,
    /// It could not be found out whether the owner exists.
    Unknown(Redacted),
}

/// A reference that cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The owner's kind and name, as the reference has them: `Widget.example.dev till`.
    pub owner: String,
    /// The owner's uid, as the reference has it.
    pub uid: String,
    /// Why.
    pub why: Why,
}

impl Fault {
    fn new(reference: &OwnerReference, why: Why) -> Self {
        let group = reference.api_version.rsplit_once('/').map(|(group, _)| group);
        let kind = exuvia_write::resource_name(&reference.kind, group.unwrap_or_default());
        Self {
            owner: format!("{kind} {}", reference.name),
            uid: reference.uid.clone(),
            why,
        }
    }

    /// Whether it may pass without anybody's doing.
    pub fn may_pass(&self) -> bool {
        matches!(self.why, Why::Unknown(_))
    }

    /// The fault in one sentence.
    pub fn message(&self) -> Redacted {
        let owner = Name(&self.owner);
        match &self.why {
            Why::Missing(Absence::NoObject) => redacted!("its owner {} does not exist", owner),
            Why::Missing(Absence::OtherUid) => {
                redacted!(
                    "its owner {} does not exist: the object of that name has another uid",
                    owner
                )
            }
            Why::Missing(Absence::NotServed) => {
                redacted!("its owner {} does not exist: the kind is not served", owner)
            }
            Why::OtherNamespace {
                owner: from,
                dependent,
            } => redacted!(
                "its owner {} is in namespace {}, and it would be in namespace {}: an owner must be in the same namespace",
                owner,
                Name(from),
                Name(dependent)
            ),
            Why::Namespaced => redacted!(
                "its owner {} is in a namespace: an object without a namespace cannot have such an owner",
                owner
            ),
            Why::Unknown(why) => redacted!("whether its owner {} exists is not known: {}", owner, why),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message().fmt(f)
    }
}

/// What becomes of a copy's references.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// They can be written.
    Ready {
        /// The references, in the order of the source.
        references: Vec<OwnerReference>,
        /// Those that were left out, because their owners do not exist.
        dropped: Vec<Fault>,
    },
    /// Owners of these uids must be copied first.
    WaitFor(Vec<String>),
    /// Nothing can be written, because of these.
    Held(Vec<Fault>),
}

/// The references of a copy that will be in `namespace`, from those of its source and what is known of each owner.
///
/// Only a reference to an owner that [exists](Owner::Exists) goes over as it is. One to a moved owner names its successor,
/// with the successor's uid; until that one exists, the copy has to wait. A missing owner is treated as `policy` says. An
/// owner that the garbage collector could not find from `namespace` holds the copy whatever the policy: it exists, and only
/// the mapping can be wrong.
///
/// ```
/// use exuvia_api::MissingOwner;
/// use exuvia_datastore::owners::{Absence, Outcome, Owner, rewritten};
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
///
/// let till = OwnerReference { kind: "Widget".into(), name: "till".into(), ..OwnerReference::default() };
/// let owners = [(&till, Owner::Missing(Absence::OtherUid))];
/// let outcome = rewritten(owners.clone(), Some("shop"), MissingOwner::Hold);
/// assert!(matches!(outcome, Outcome::Held(faults) if faults[0].owner == "Widget till"));
/// let outcome = rewritten(owners, Some("shop"), MissingOwner::Drop);
/// assert!(matches!(outcome, Outcome::Ready { references, .. } if references.is_empty()));
/// ```
pub fn rewritten<'a>(
    owners: impl IntoIterator<Item = (&'a OwnerReference, Owner)>,
    namespace: Option<&str>,
    policy: MissingOwner,
) -> Outcome {
    let mut references = Vec::new();
    let mut dropped = Vec::new();
    let mut held = Vec::new();
    let mut awaited: Vec<String> = Vec::new();
    for (reference, owner) in owners {
        let why = match owner {
            Owner::Moved(successor) => match reach(successor.namespace.as_deref(), namespace) {
                Ok(()) => {
                    add(&mut references, successor.in_place_of(reference));
                    continue;
                }
                Err(why) => why,
            },
            Owner::NotYet => {
                if !awaited.contains(&reference.uid) {
                    awaited.push(reference.uid.clone());
                }
                continue;
            }
            Owner::Exists { namespace: owner } => match reach(owner.as_deref(), namespace) {
                Ok(()) => {
                    add(&mut references, reference.clone());
                    continue;
                }
                Err(why) => why,
            },
            Owner::Missing(absence) => Why::Missing(absence),
            Owner::Unreachable => Why::Namespaced,
            Owner::Unknown(why) => Why::Unknown(why),
        };
        let is_missing = matches!(why, Why::Missing(_));
        let fault = Fault::new(reference, why);
        match policy {
            MissingOwner::Drop if is_missing => dropped.push(fault),
            MissingOwner::Drop | MissingOwner::Hold => held.push(fault),
        }
    }
    if !held.is_empty() {
        Outcome::Held(held)
    } else if !awaited.is_empty() {
        Outcome::WaitFor(awaited)
    } else {
        Outcome::Ready { references, dropped }
    }
}

/// What becomes of the references of a dependent that is not moved itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replaced {
    /// All its references, with successors in the places of moved owners.
    pub references: Vec<OwnerReference>,
    /// Whether that is another list than it has.
    pub changed: bool,
    /// References to moved owners that could not be replaced.
    pub held: Vec<Fault>,
    /// How many references name objects that are moved, but not yet.
    pub not_yet: usize,
    /// How many references name objects of moved kinds that are not moved.
    pub unmoved: usize,
}

impl Replaced {
    /// Whether a moved object owns it, by an old reference.
    pub fn is_dependent(&self) -> bool {
        self.changed || self.not_yet > 0 || !self.held.is_empty()
    }
}

/// The references of a dependent in `namespace` that is not moved: each that names a moved object gets its successor in the
/// same place, all others stay. `fates` has an answer for each reference to a moved kind, and `None` for the others.
pub fn replaced<'a>(
    fates: impl IntoIterator<Item = (&'a OwnerReference, Option<Result<Fate, Redacted>>)>,
    namespace: Option<&str>,
) -> Replaced {
    let mut answer = Replaced::default();
    for (reference, fate) in fates {
        let kept = match fate {
            None => reference.clone(),
            Some(Ok(Fate::Moved(successor))) if successor.is_named_by(reference) => reference.clone(),
            Some(Ok(Fate::Moved(successor))) => match reach(successor.namespace.as_deref(), namespace) {
                Ok(()) => {
                    answer.changed = true;
                    successor.in_place_of(reference)
                }
                Err(why) => {
                    answer.held.push(Fault::new(reference, why));
                    reference.clone()
                }
            },
            Some(Ok(Fate::NotYet)) => {
                answer.not_yet += 1;
                reference.clone()
            }
            Some(Ok(Fate::NotMoved)) => {
                answer.unmoved += 1;
                reference.clone()
            }
            Some(Err(why)) => {
                answer.held.push(Fault::new(reference, Why::Unknown(why)));
                reference.clone()
            }
        };
        add(&mut answer.references, kept);
    }
    answer
}

/// Whether the garbage collector finds an owner: it looks for a namespaced one in the dependent's namespace.
fn reach(owner: Option<&str>, dependent: Option<&str>) -> Result<(), Why> {
    match (owner, dependent) {
        (None, _) => Ok(()),
        (Some(owner), Some(dependent)) if owner == dependent => Ok(()),
        (Some(owner), Some(dependent)) => Err(Why::OtherNamespace {
            owner: owner.to_owned(),
            dependent: dependent.to_owned(),
        }),
        (Some(_), None) => Err(Why::Namespaced),
    }
}

/// Two references may have become one: by alias uids, or because the new one was there already.
fn add(references: &mut Vec<OwnerReference>, reference: OwnerReference) {
    let identity = |reference: &OwnerReference| {
        let OwnerReference {
            api_version,
            kind,
            name,
            uid,
            ..
        } = reference.clone();
        (api_version, kind, name, uid)
    };
    match references
        .iter_mut()
        .find(|known| identity(known) == identity(&reference))
    {
        Some(known) => {
            known.controller = known.controller.max(reference.controller);
            known.block_owner_deletion = known.block_owner_deletion.max(reference.block_owner_deletion);
        }
        None => references.push(reference),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
