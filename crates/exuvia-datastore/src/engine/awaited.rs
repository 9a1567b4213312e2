//! What a migration that is held waits for: kinds and objects whose changes are worth another look.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{ApiResource, GroupVersionKind, ListParams};

use super::Engine;
use crate::Error;
use crate::copy::Findings;
use crate::kinds::{Kind, Kinds};
use crate::protocol::Hold;
use crate::waits;

/// Namespace and name of objects.
type Names = BTreeSet<(String, String)>;

/// Objects of one kind that may let a migration go on when they change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Awaited {
    group: String,
    version: String,
    kind: String,
    plural: String,
    /// In which namespace; `None`: in all of them.
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    /// Namespace and name of those that count; `None`: all of them.
    objects: Option<Names>,
}

impl Awaited {
    fn all_of(resource: &ApiResource) -> Self {
        Self {
            group: resource.group.clone(),
            version: resource.version.clone(),
            kind: resource.kind.clone(),
            plural: resource.plural.clone(),
            namespace: None,
            labels: None,
            fields: None,
            objects: None,
        }
    }

    pub(crate) fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        ApiResource::from_gvk_with_plural(&kind, &self.plural)
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Which of them to list and watch.
    pub(crate) fn which(&self) -> ListParams {
        ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        }
    }

    /// Whether the objects that count are known by name.
    pub(crate) fn is_by_name(&self) -> bool {
        self.objects.is_some() || self.fields.is_some()
    }

    /// Whether this one counts.
    pub(crate) fn counts(&self, namespace: &str, name: &str) -> bool {
        let is_named = |objects: &Names| objects.contains(&(namespace.to_owned(), name.to_owned()));
        self.objects.as_ref().is_none_or(is_named)
    }
}

impl Engine {
    /// What to watch while it is held.
    pub(crate) async fn awaited(&self, hold: Hold) -> Result<BTreeSet<Awaited>, Error> {
        match hold {
            Hold::Blocked | Hold::Conflicts | Hold::CleanupBlocked => {
                let Some(work) = &self.work else {
                    return Ok(BTreeSet::new()); // no kind is known: the CRDs are watched anyway
                };
                let mut found = self.found();
                found.blockers.clone_from(&self.blockers);
                let renames = |mapping: usize| {
                    let declared = self.migration.spec.mappings.get(mapping);
                    declared.is_some_and(|declared| {
                        let metadata = &declared.metadata;
                        let given = [&metadata.name, &metadata.namespace, &metadata.unpack];
                        given.into_iter().any(|expression| !expression.is_empty())
                    })
                };
                Ok(in_the_way(&work.mover.kinds, &found, &renames))
            }
            Hold::WaitingFor => self.waited_for().await,
            // Whose policy keeps them is not known.
            Hold::CopiesLeft | Hold::Suspended | Hold::Failed | Hold::BeforeCutover => Ok(BTreeSet::new()),
        }
    }

    async fn waited_for(&self) -> Result<BTreeSet<Awaited>, Error> {
        let mut awaited = BTreeSet::new();
        for wait in &self.migration.spec.cutover.wait_for {
            let kind = GroupVersionKind::gvk(&wait.group, &wait.version, &wait.kind);
            // One that is not served comes with its CRD.
            let Some((resource, namespaced)) = waits::find(&self.client, &kind).await? else {
                continue;
            };
            let given = |text: String| Some(text).filter(|text| !text.is_empty());
            awaited.insert(Awaited {
                namespace: given(wait.namespace.clone()).filter(|_| namespaced),
                labels: given(waits::label_selector(&wait.selector)),
                fields: given(wait.name.clone()).map(|name| format!("metadata.name={name}")),
                ..Awaited::all_of(&resource)
            });
        }
        Ok(awaited)
    }
}

/// The kinds of objects that stand in the way, and those objects. Where not all of them are known, any object counts.
fn in_the_way(kinds: &Kinds, found: &Findings, renames: &dyn Fn(usize) -> bool) -> BTreeSet<Awaited> {
    let mut named: BTreeMap<String, (ApiResource, Option<Names>)> = BTreeMap::new();
    let mut add = |kind: &Kind, object: Option<(&str, &str)>| {
        let (_, objects) = named
            .entry(kind.name())
            .or_insert_with(|| (kind.resource.clone(), Some(BTreeSet::new())));
        match (object, objects) {
            (Some((namespace, name)), Some(objects)) => {
                objects.insert((namespace.to_owned(), name.to_owned()));
            }
            (None, objects) => *objects = None,
            (Some(_), None) => {}
        }
    };
    let listed = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let all_conflicts =
        u64::try_from(found.progress.conflicts).unwrap_or_default() <= listed(found.conflicts.len());
    for conflict in &found.conflicts {
        let object = Some((conflict.namespace.as_str(), conflict.name.as_str())).filter(|_| all_conflicts);
        for moved in kinds
            .moved
            .iter()
            .filter(|moved| moved.target.shown() == conflict.kind)
        {
            add(&moved.target, object);
            // Its source is of the same name, unless the mapping gives it another.
            add(&moved.source, object.filter(|_| !renames(moved.mapping)));
        }
    }
    let all_blockers = found.blocked <= listed(found.blockers.len());
    for blocker in found.blockers.iter().filter(|blocker| !blocker.name.is_empty()) {
        let object = Some((blocker.namespace.as_str(), blocker.name.as_str())).filter(|_| all_blockers);
        let all = kinds.sources().into_iter().chain(kinds.targets());
        for kind in all.filter(|kind| kind.shown() == blocker.kind) {
            add(kind, object);
        }
    }
    let awaited = named.into_values().map(|(resource, objects)| Awaited {
        objects,
        ..Awaited::all_of(&resource)
    });
    awaited.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use exuvia_api::{Blocker, ConflictStatus};

    use super::*;
    use crate::kinds::MovedKind;

    fn kind(group: &str) -> Kind {
        let kind = GroupVersionKind::gvk(group, "v1", "Widget");
        let resource = ApiResource::from_gvk_with_plural(&kind, "widgets");
        Kind {
            through: resource.clone(),
            resource,
            namespaced: true,
            has_status: false,
            crd_uid: String::new(),
            crd_generation: 1,
        }
    }

    fn kinds() -> Kinds {
        Kinds {
            moved: vec![MovedKind {
                mapping: 0,
                mapping_name: "widgets".to_owned(),
                extra: false,
                wave: 0,
                source: kind("old.dev"),
                target: kind("new.dev"),
            }],
            ..Kinds::default()
        }
    }

    fn conflict() -> Findings {
        let mut found = Findings::default();
        found.progress.conflicts = 1;
        found.conflicts.push(ConflictStatus {
            kind: "Widget.new.dev".to_owned(),
            namespace: "shop".to_owned(),
            name: "till".to_owned(),
            field: "spec".to_owned(),
        });
        found
    }

    fn by_group(awaited: &BTreeSet<Awaited>, group: &str) -> Awaited {
        awaited
            .iter()
            .find(|awaited| awaited.group == group)
            .unwrap()
            .clone()
    }

    #[test]
    fn only_the_objects_in_conflict_count_on_both_sides() {
        let awaited = in_the_way(&kinds(), &conflict(), &|_| false);
        for group in ["old.dev", "new.dev"] {
            let awaited = by_group(&awaited, group);
            assert!(awaited.counts("shop", "till") && !awaited.counts("shop", "other"));
        }
    }

    #[test]
    fn where_names_are_not_known_every_object_counts() {
        let awaited = in_the_way(&kinds(), &conflict(), &|_| true);
        assert!(by_group(&awaited, "old.dev").counts("shop", "other"));
        assert!(!by_group(&awaited, "new.dev").counts("shop", "other"));
        let mut many = conflict();
        many.progress.conflicts = 40;
        let awaited = in_the_way(&kinds(), &many, &|_| false);
        assert!(by_group(&awaited, "new.dev").counts("shop", "other"));
    }

    #[test]
    fn an_object_that_blocks_is_waited_for_and_a_missing_right_is_not() {
        let mut found = Findings::default();
        found.blockers.extend([
            Blocker {
                kind: "Widget.old.dev".to_owned(),
                namespace: "shop".to_owned(),
                name: "till".to_owned(),
                ..Blocker::default()
            },
            Blocker {
                kind: "widgets.new.dev".to_owned(),
                ..Blocker::default()
            },
        ]);
        found.blocked = 2;
        let awaited = in_the_way(&kinds(), &found, &|_| false);
        assert_eq!(awaited.len(), 1);
        assert!(by_group(&awaited, "old.dev").counts("shop", "till"));
    }
}
