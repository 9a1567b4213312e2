//! What a server says that it serves, in both documents, in one form that can be compared.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize;
use serde_json::json;

/// How the aggregated document is asked for; a server that does not have it gives the plain list of groups.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// The resources of one group-version, by plural.
pub(super) type Resources = BTreeMap<String, Shown>;

/// What discovery shows of a resource. In the order of the server: CRDs list their verbs in an order of their own, other API
/// servers sort them, which may be all that tells the two apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) kind: String,
    pub(super) singular: String,
    pub(super) namespaced: bool,
    pub(super) verbs: Vec<String>,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) subresources: BTreeSet<String>,
}

/// The plain document of a group-version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) resources: Resources,
    /// Not in the aggregated document.
    pub(super) hashes: BTreeMap<String, String>,
}

/// What the aggregated document says about a group-version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Aggregated {
    /// The server has no such document, so it cannot be old.
    Unsupported,
    /// The group-version is not in it.
    Absent,
    /// It is in it.
    Listed {
        /// The server knows it to be current.
        is_current: bool,
        resources: Resources,
    },
}

/// What CRDs would show of a kind; the verbs are not compared with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) plural: String,
    pub(super) shown: Shown,
    pub(super) hash: String,
}

impl Plain {
    pub(super) fn parse(document: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct List {
            resources: Vec<Entry>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Entry {
            name: String,
            #[serde(default)]
            singular_name: String,
            #[serde(default)]
            namespaced: bool,
            kind: String,
            #[serde(default)]
            verbs: Vec<String>,
            #[serde(default)]
            short_names: Vec<String>,
            #[serde(default)]
            categories: Vec<String>,
            storage_version_hash: Option<String>,
        }
        let list: List = serde_json::from_slice(document)?;
        let mut plain = Self::default();
        let mut subresources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for entry in list.resources {
            if let Some((plural, name)) = entry.name.split_once('/') {
                let known = subresources.entry(plural.to_owned()).or_default();
                known.insert(name.to_owned());
                continue;
            }
            if let Some(hash) = entry.storage_version_hash {
                plain.hashes.insert(entry.name.clone(), hash);
            }
            let shown = Shown {
                kind: entry.kind,
                singular: entry.singular_name,
                namespaced: entry.namespaced,
                verbs: entry.verbs,
                short_names: entry.short_names,
                categories: entry.categories,
                subresources: BTreeSet::new(),
            };
            plain.resources.insert(entry.name, shown);
        }
        for (plural, names) in subresources {
            plain.resources.entry(plural).or_default().subresources = names;
        }
        Ok(plain)
    }
}

impl Aggregated {
    pub(super) fn parse(document: &[u8], group: &str, version: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Document {
            kind: String,
            #[serde(default)]
            items: Vec<Group>,
        }
        #[derive(Deserialize)]
        struct Group {
            metadata: Metadata,
            #[serde(default)]
            versions: Vec<Version>,
        }
        #[derive(Deserialize)]
        struct Metadata {
            #[serde(default)]
            name: String,
        }
        #[derive(Deserialize)]
        struct Version {
            version: String,
            #[serde(default)]
            freshness: String,
            #[serde(default)]
            resources: Vec<Entry>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Entry {
            resource: String,
            response_kind: Option<Kind>,
            #[serde(default)]
            scope: String,
            #[serde(default)]
            singular_resource: String,
            #[serde(default)]
            verbs: Vec<String>,
            #[serde(default)]
            short_names: Vec<String>,
            #[serde(default)]
            categories: Vec<String>,
            #[serde(default)]
            subresources: Vec<Subresource>,
        }
        #[derive(Deserialize)]
        struct Kind {
            #[serde(default)]
            kind: String,
        }
        #[derive(Deserialize)]
        struct Subresource {
            subresource: String,
        }
        let document: Document = serde_json::from_slice(document)?;
        if document.kind != "APIGroupDiscoveryList" {
            return Ok(Self::Unsupported);
        }
        let mut groups = document.items.into_iter();
        let group = groups.find(|item| item.metadata.name == group);
        let versions = group.into_iter().flat_map(|group| group.versions);
        let Some(found) = versions.into_iter().find(|found| found.version == version) else {
            return Ok(Self::Absent);
        };
        let resources = found.resources.into_iter().map(|entry| {
            let shown = Shown {
                kind: entry.response_kind.map(|kind| kind.kind).unwrap_or_default(),
                singular: entry.singular_resource,
                namespaced: entry.scope == "Namespaced",
                verbs: entry.verbs,
                short_names: entry.short_names,
                categories: entry.categories,
                subresources: entry
                    .subresources
                    .into_iter()
                    .map(|sub| sub.subresource)
                    .collect(),
            };
            (entry.resource, shown)
        });
        Ok(Self::Listed {
            is_current: found.freshness == "Current",
            resources: resources.collect(),
        })
    }
}

impl Expected {
    /// What this CRD shows at this version; `None`: it does not serve it.
    pub(super) fn from_crd(crd: &CustomResourceDefinition, version: &str) -> Option<Self> {
        let served = crd.spec.versions.iter().find(|known| known.name == version);
        let served = served.filter(|known| known.served)?;
        let storage = crd.spec.versions.iter().find(|known| known.storage)?;
        let accepted = crd
            .status
            .as_ref()
            .and_then(|status| status.accepted_names.clone());
        let names = accepted.unwrap_or_else(|| crd.spec.names.clone());
        let mut subresources = BTreeSet::new();
        if let Some(declared) = &served.subresources {
            subresources.extend(declared.status.as_ref().map(|_| "status".to_owned()));
            subresources.extend(declared.scale.as_ref().map(|_| "scale".to_owned()));
        }
        Some(Self {
            hash: storage_version_hash(&crd.spec.group, &storage.name, &crd.spec.names.kind),
            plural: names.plural,
            shown: Shown {
                kind: names.kind,
                singular: names.singular.unwrap_or_default(),
                namespaced: crd.spec.scope == "Namespaced",
                verbs: Vec::new(),
                short_names: names.short_names.unwrap_or_default(),
                categories: names.categories.unwrap_or_default(),
                subresources,
            },
        })
    }
}

/// What discovery shows for a resource that is stored at this version: eight bytes of a SHA-256, in base64.
fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    let text = format!("{group}/{version}/{kind}");
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    let encoded = json!(ByteString(digest.as_ref()[..8].to_vec()));
    encoded.as_str().unwrap_or_default().to_owned()
}
