//! Which CRDs stand behind the kinds of a spec: their plurals, scopes and subresources, or what of that is missing.

use std::collections::BTreeMap;

use exuvia_api::{Blocker, DatastoreMigrationSpec, StatusCopy, datastore_reason as reason};
use exuvia_sweep::Pages;
use exuvia_write::resource_name;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PartialObjectMeta};
use kube::{Api, Client};
use serde::Deserialize;

/// A kind at one version, as its CRD says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Group, version, kind and plural.
    pub resource: ApiResource,
    /// As which its objects are read and written: a second version where another API server answers for its own.
    pub through: ApiResource,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether its status is written through a subresource of its own.
    pub has_status: bool,
    /// The CRD's uid.
    pub crd_uid: String,
    /// The CRD's generation: it changes with schema, subresources and conversion.
    pub crd_generation: i64,
}

impl Kind {
    /// Plural and group, such as `widgets.example.com`: also the name of its CRD.
    pub fn name(&self) -> String {
        resource_name(&self.resource.plural, &self.resource.group)
    }

    /// All objects of this kind.
    pub fn all(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.through)
    }

    /// The metadata of all objects of this kind.
    pub(crate) fn all_metadata(&self, client: &Client) -> Api<PartialObjectMeta<DynamicObject>> {
        Api::all_with(client.clone(), &self.through)
    }

    /// Whether it is reached through another version than its own.
    pub(crate) fn has_second_version(&self) -> bool {
        self.through != self.resource
    }

    /// The kind as people write it with its group: `Widget.example.com`.
    pub fn shown(&self) -> String {
        format!("{}.{}", self.resource.kind, self.resource.group)
    }
}

/// One kind of one mapping, with its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedKind {
    /// The mapping's place in the spec.
    pub mapping: usize,
    /// Its name.
    pub mapping_name: String,
    /// Whether it makes one more object from objects that another mapping moves.
    pub extra: bool,
    /// Waves are copied in ascending order.
    pub wave: i32,
    /// Where objects come from.
    pub source: Kind,
    /// Where they go.
    pub target: Kind,
}

/// All kinds of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    /// In the order of the mappings.
    pub moved: Vec<MovedKind>,
    /// CRDs of source kinds that are being deleted.
    pub leaving: Vec<String>,
    /// Plurals of further kinds that the spec names, by group and kind, as far as they are served.
    pub others: BTreeMap<(String, String), String>,
}

impl Kinds {
    /// Reads the CRDs and finds the spec's kinds in them; also what is missing, by name.
    pub async fn read(
        client: &Client,
        spec: &DatastoreMigrationSpec,
    ) -> Result<(Self, Vec<Blocker>), kube::Error> {
        let (mut kinds, missing) = Self::find(&Definitions::read(client).await?, spec);
        for kind in other_kinds(spec) {
            // One that is not served is named by what needs it.
            if let Ok((resource, _)) = kube::discovery::pinned_kind(client, &kind).await {
                kinds.others.insert((kind.group, kind.kind), resource.plural);
            }
        }
        Ok((kinds, missing))
    }

    /// The plural of a kind that is not moved. One that is not served is guessed.
    pub(crate) fn plural_of_other(&self, group: &str, kind: &str) -> String {
        let known = self.others.get(&(group.to_owned(), kind.to_owned()));
        known
            .cloned()
            .unwrap_or_else(|| format!("{}s", kind.to_lowercase()))
    }

    /// The targets that are tried at clones: those that another API server answers for, or else those whose status is copied.
    /// Clones of several groups would share one, so with several groups a status that is refused shows under the freeze.
    pub(crate) fn tried_at_clones(&self, spec: &DatastoreMigrationSpec, is_routed: bool) -> Vec<&Kind> {
        if is_routed {
            return self.targets();
        }
        let copies = |moved: &&MovedKind| {
            spec.mappings[moved.mapping].status == StatusCopy::Copy && moved.target.has_status
        };
        let mut with_status: Vec<&Kind> = Vec::new();
        for moved in self.moved.iter().filter(copies) {
            if !with_status.contains(&&moved.target) {
                with_status.push(&moved.target);
            }
        }
        let group = |kind: &Kind| kind.resource.group.clone();
        let is_one_group = with_status
            .windows(2)
            .all(|pair| group(pair[0]) == group(pair[1]));
        with_status.retain(|_| is_one_group);
        with_status
    }

    /// Finds the spec's kinds among these CRDs.
    fn find(crds: &Definitions, spec: &DatastoreMigrationSpec) -> (Self, Vec<Blocker>) {
        let (mut moved, mut blockers) = (Vec::new(), Vec::new());
        let mut leaving = Vec::new();
        for (mapping, declared) in spec.mappings.iter().enumerate() {
            for kind in &declared.from.kinds {
                let to = match declared.to.kind.as_str() {
                    "" => kind,
                    given => given,
                };
                leaving.extend(crds.leaving(&declared.from.group, kind));
                let source = crds.kind(&declared.from.group, &declared.from.version, kind);
                let target = crds.kind(&declared.to.group, &declared.to.version, to);
                match (source, target) {
                    (Ok(source), Ok(target)) => moved.push(MovedKind {
                        mapping,
                        mapping_name: declared.name.clone(),
                        extra: declared.extra,
                        wave: declared.wave,
                        source,
                        target,
                    }),
                    (source, target) => {
                        blockers.extend([source, target].into_iter().filter_map(Result::err));
                    }
                }
            }
        }
        blockers.dedup();
        leaving.dedup();
        let kinds = Self {
            moved,
            leaving,
            ..Self::default()
        };
        (kinds, blockers)
    }

    /// From now on targets that `second` knows a version for are read and written through that one, and all others as what they
    /// are.
    pub(crate) fn reach_targets(&mut self, second: impl Fn(&ApiResource) -> Option<ApiResource>) {
        for moved in &mut self.moved {
            let target = &mut moved.target;
            target.through = second(&target.resource).unwrap_or_else(|| target.resource.clone());
        }
    }

    /// Each source kind once, with the mappings' places that may take its objects.
    pub fn sources(&self) -> Vec<&Kind> {
        let mut sources: BTreeMap<String, &Kind> = BTreeMap::new();
        for moved in &self.moved {
            sources.entry(moved.source.name()).or_insert(&moved.source);
        }
        sources.into_values().collect()
    }

    /// Each target kind once.
    pub fn targets(&self) -> Vec<&Kind> {
        let mut targets: BTreeMap<String, &Kind> = BTreeMap::new();
        for moved in &self.moved {
            targets.entry(moved.target.name()).or_insert(&moved.target);
        }
        targets.into_values().collect()
    }

    /// The target kind with this group and kind.
    pub fn target(&self, group: &str, kind: &str) -> Option<&Kind> {
        self.moved
            .iter()
            .map(|moved| &moved.target)
            .find(|target| target.resource.group == group && target.resource.kind == kind)
    }

    /// Whether sources and targets are those of these other kinds, by the same CRDs.
    pub(crate) fn are_as(&self, other: &Self) -> bool {
        self.sources() == other.sources() && self.targets() == other.targets()
    }

    /// Whether every CRD is still the one that was read. What another schema drops or adds raises no event of any object.
    pub(crate) async fn are_current(&self, client: &Client) -> Result<bool, kube::Error> {
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        for kind in self.sources().into_iter().chain(self.targets()) {
            let found = crds.get_metadata_opt(&kind.name()).await?;
            let is_same = found.is_some_and(|crd| {
                crd.metadata.uid.as_ref() == Some(&kind.crd_uid)
                    && crd.metadata.generation == Some(kind.crd_generation)
            });
            if !is_same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The waves in their order.
    pub fn waves(&self) -> Vec<i32> {
        let mut waves: Vec<i32> = self.moved.iter().map(|moved| moved.wave).collect();
        waves.sort_unstable();
        waves.dedup();
        waves
    }
}

/// Kinds that a spec names and does not move: flags, what is waited for, and what is rewritten.
fn other_kinds(spec: &DatastoreMigrationSpec) -> Vec<GroupVersionKind> {
    let flags = spec.freeze.flags.iter();
    let flags = flags.map(|flag| GroupVersionKind::gvk(&flag.group, &flag.version, &flag.kind));
    let waits = spec.cutover.wait_for.iter();
    let waits = waits.map(|wait| GroupVersionKind::gvk(&wait.group, &wait.version, &wait.kind));
    let rewritten = spec.references.rewrite.iter().map(|rule| &rule.within);
    let rewritten =
        rewritten.map(|within| GroupVersionKind::gvk(&within.group, &within.version, &within.kind));
    flags.chain(waits).chain(rewritten).collect()
}

/// What is needed of all CRDs. Schemas are left out: with them, a cluster's CRDs weigh tens of megabytes.
#[derive(Debug, Default)]
struct Definitions(Vec<Definition>);

#[derive(Debug, Deserialize)]
struct Definition {
    metadata: DefinitionMeta,
    spec: DefinitionSpec,
    #[serde(default)]
    status: DefinitionStatus,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DefinitionMeta {
    uid: String,
    #[serde(default)]
    generation: i64,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
struct DefinitionSpec {
    group: String,
    names: Names,
    scope: String,
    versions: Vec<Version>,
}

#[derive(Debug, Deserialize)]
struct Names {
    kind: String,
    plural: String,
}

#[derive(Debug, Deserialize)]
struct Version {
    name: String,
    served: bool,
    #[serde(default)]
    subresources: Subresources,
}

#[derive(Debug, Default, Deserialize)]
struct Subresources {
    status: Option<serde::de::IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
struct DefinitionStatus {
    /// `null` in a CRD that was just created.
    conditions: Option<Vec<DefinitionCondition>>,
}

#[derive(Debug, Deserialize)]
struct DefinitionCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl Definitions {
    async fn read(client: &Client) -> Result<Self, kube::Error> {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let (mut pages, mut read) = (Pages::of(&api).page_size(20), Vec::new());
        while let Some(page) = pages.next().await? {
            if page.is_first {
                read.clear();
            }
            for item in &page.items {
                read.push(item.read::<Definition>().map_err(kube::Error::SerdeError)?);
            }
        }
        Ok(Self(read))
    }

    /// The name of the kind's CRD if that is being deleted.
    fn leaving(&self, group: &str, kind: &str) -> Option<String> {
        let leaves = |crd: &&Definition| {
            crd.spec.group == group
                && crd.spec.names.kind == kind
                && crd.metadata.deletion_timestamp.is_some()
        };
        let crd = self.0.iter().find(leaves)?;
        Some(resource_name(&crd.spec.names.plural, group))
    }

    fn kind(&self, group: &str, version: &str, kind: &str) -> Result<Kind, Blocker> {
        let missing = |message: String| Blocker {
            reason: reason::NOT_SERVED.to_owned(),
            kind: format!("{kind}.{group}"),
            message,
            ..Blocker::default()
        };
        let of_kind = |crd: &&Definition| crd.spec.group == group && crd.spec.names.kind == kind;
        let Some(crd) = self.0.iter().find(of_kind) else {
            return Err(missing(format!(
                "no CRD for kind {kind} in group {group} was found: install it"
            )));
        };
        let plural = &crd.spec.names.plural;
        if crd.metadata.deletion_timestamp.is_some() {
            return Err(missing(format!("the CRD {plural}.{group} is being deleted")));
        }
        let is = |wanted: &str| {
            let conditions = crd.status.conditions.iter().flatten();
            conditions
                .filter(|condition| condition.type_ == wanted)
                .any(|condition| condition.status == "True")
        };
        if !is("Established") || !is("NamesAccepted") {
            return Err(missing(format!("the CRD {plural}.{group} is not established")));
        }
        let Some(served) = crd
            .spec
            .versions
            .iter()
            .find(|served| served.name == version && served.served)
        else {
            return Err(missing(format!(
                "the CRD {plural}.{group} does not serve version {version}"
            )));
        };
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: kind.to_owned(),
            plural: plural.clone(),
        };
        Ok(Kind {
            through: resource.clone(),
            resource,
            namespaced: crd.spec.scope == "Namespaced",
            has_status: served.subresources.status.is_some(),
            crd_uid: crd.metadata.uid.clone(),
            crd_generation: crd.metadata.generation,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(group: &str, established: &str) -> Definition {
        serde_json::from_value(json!({
            "metadata": {"uid": "u"},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [
                    {"name": "v1", "served": true, "subresources": {"status": {}}},
                    {"name": "v0", "served": false},
                ],
            },
            "status": {"conditions": [
                {"type": "Established", "status": established}, {"type": "NamesAccepted", "status": "True"},
            ]},
        }))
        .unwrap()
    }

    fn find(to_version: &str, crds: Vec<Definition>) -> (Kinds, Vec<Blocker>) {
        let spec = serde_json::from_value(json!({"mappings": [{
            "name": "all",
            "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
            "to": {"group": "new.dev", "version": to_version},
        }]}))
        .unwrap();
        Kinds::find(&Definitions(crds), &spec)
    }

    #[test]
    fn kinds_are_found_with_scope_and_status() {
        let kinds = find("v1", vec![crd("old.dev", "True"), crd("new.dev", "True")]).0;
        let target = kinds.target("new.dev", "Widget").unwrap();
        assert_eq!(target.name(), "widgets.new.dev");
        assert!(target.namespaced && target.has_status);
    }

    #[test]
    fn what_is_missing_is_named() {
        for (version, crds, expected) in [
            (
                "v1",
                vec![crd("old.dev", "True")],
                "no CRD for kind Widget in group new.dev was found",
            ),
            (
                "v0",
                vec![crd("old.dev", "True"), crd("new.dev", "True")],
                "does not serve version v0",
            ),
            (
                "v1",
                vec![crd("old.dev", "True"), crd("new.dev", "False")],
                "not established",
            ),
        ] {
            let (_, blockers) = find(version, crds);
            assert_eq!(blockers.len(), 1);
            assert!(blockers[0].message.contains(expected), "{blockers:?}");
        }
    }
}
