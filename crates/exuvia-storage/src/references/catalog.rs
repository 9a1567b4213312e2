//! Everything that can be listed, each stored resource once.

use std::collections::BTreeSet;

use exuvia_write::{ErrorClass, Redacted, RetryPolicy, brief};
use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::Client;
use kube::api::ApiResource;

use super::{BETWEEN_SEARCHES, MAX_SEARCHES, Unseen};

/// Discovery documents that are asked for at once.
const AT_ONCE: usize = 8;

/// A version of a resource that is only asked for if no other is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Avoid {
    /// The group.
    pub group: String,
    /// The plural.
    pub plural: String,
    /// The version.
    pub version: String,
}

/// The resources to list, and which parts of discovery did not answer.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    pub(super) resources: Vec<ApiResource>,
    pub(super) unseen: Vec<Unseen>,
}

impl Catalog {
    /// Asks every group-version for its resources, the servers behind aggregated ones included.
    ///
    /// Not by aggregated discovery: that may show an old state of a server that is gone, and has no storage hashes.
    pub(super) async fn read(client: &Client, avoid: &[Avoid]) -> Result<Self, kube::Error> {
        let mut group_versions: Vec<String> = RetryPolicy::default()
            .read(|| client.list_core_api_versions())
            .await?
            .versions;
        for group in RetryPolicy::default()
            .read(|| client.list_api_groups())
            .await?
            .groups
        {
            group_versions.extend(in_order(&group));
        }
        let asked =
            futures::stream::iter(group_versions).map(|group_version| ask(client, group_version).boxed());
        let answers: Vec<_> = asked.buffered(AT_ONCE).collect().await;
        let mut found = Vec::new();
        let mut unseen = Vec::new();
        for (group_version, answer) in answers {
            match answer {
                Ok(list) => found.push((group_version, list.resources)),
                // Removed since the groups were listed; but a broken server may answer the same.
                Err(error) if is_gone(client, &group_version, &error).await? => {}
                Err(error) => unseen.push(Unseen::new(group_version, &error)),
            }
        }
        Ok(Self {
            resources: choose(&found, avoid),
            unseen,
        })
    }

    /// One resource at a version that is served now; `None`: it is not served at all.
    pub(super) async fn find(
        client: &Client,
        group: &str,
        plural: &str,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let groups = RetryPolicy::default()
            .read(|| client.list_api_groups())
            .await?
            .groups;
        let group_versions = match groups.iter().find(|known| known.name == group) {
            Some(group) => in_order(group).collect(),
            None if group.is_empty() => {
                RetryPolicy::default()
                    .read(|| client.list_core_api_versions())
                    .await?
                    .versions
            }
            None => Vec::new(),
        };
        for group_version in group_versions {
            let list = match resources(client, &group_version).await {
                Err(error) if ErrorClass::of(&error) == ErrorClass::Gone => continue,
                list => list?,
            };
            let found = list.resources.iter().find(|resource| resource.name == plural);
            if let Some(resource) = found {
                return Ok(Some(api_resource(&group_version, resource)));
            }
        }
        Ok(None)
    }
}

/// Whether a group-version that answered with an error is gone. Its endpoint and the list of groups change at different
/// times, so they are given a moment to agree.
async fn is_gone(client: &Client, group_version: &str, error: &kube::Error) -> Result<bool, kube::Error> {
    if ErrorClass::of(error) != ErrorClass::Gone {
        return Ok(false);
    }
    for _ in 0..MAX_SEARCHES {
        let groups = RetryPolicy::default()
            .read(|| client.list_api_groups())
            .await?
            .groups;
        if !groups
            .iter()
            .flat_map(in_order)
            .any(|known| known == group_version)
        {
            return Ok(true);
        }
        tokio::time::sleep(BETWEEN_SEARCHES).await;
    }
    Ok(false)
}

/// The group's versions, the preferred one first.
fn in_order(
    group: &k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroup,
) -> impl Iterator<Item = String> + use<> {
    let preferred = group
        .preferred_version
        .iter()
        .map(|version| version.group_version.clone());
    let all = group.versions.iter().map(|version| version.group_version.clone());
    let mut seen = BTreeSet::new();
    let mut versions: Vec<String> = preferred.chain(all).collect();
    versions.retain(|version| seen.insert(version.clone()));
    versions.into_iter()
}

async fn ask(client: &Client, group_version: String) -> (String, Result<APIResourceList, kube::Error>) {
    let answer = resources(client, &group_version).await;
    (group_version, answer)
}

async fn resources(client: &Client, group_version: &str) -> Result<APIResourceList, kube::Error> {
    if group_version.contains('/') {
        RetryPolicy::default()
            .read(|| client.list_api_group_resources(group_version))
            .await
    } else {
        RetryPolicy::default()
            .read(|| client.list_core_api_resources(group_version))
            .await
    }
}

fn api_resource(group_version: &str, resource: &APIResource) -> ApiResource {
    let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: group_version.to_owned(),
        kind: resource.kind.clone(),
        plural: resource.name.clone(),
    }
}

/// Of all that group-versions serve, in their order of preference, what is to be listed.
///
/// Left out are subresources, what cannot be listed, and what nobody can create, change or delete: that is computed, not
/// stored (metrics, component statuses). Objects that are served by two groups (events) are stored once, which the hash of
/// the storage version tells.
fn choose(found: &[(String, Vec<APIResource>)], avoid: &[Avoid]) -> Vec<ApiResource> {
    let mut candidates: Vec<(ApiResource, &str)> = Vec::new();
    for (group_version, resources) in found {
        for resource in resources.iter().filter(|resource| is_stored(resource)) {
            let hash = resource.storage_version_hash.as_deref().unwrap_or_default();
            candidates.push((api_resource(group_version, resource), hash));
        }
    }
    let is_avoided = |resource: &ApiResource| {
        avoid.iter().any(|avoid| {
            (&avoid.group, &avoid.plural, &avoid.version)
                == (&resource.group, &resource.plural, &resource.version)
        })
    };
    candidates.sort_by_key(|(resource, _)| is_avoided(resource)); // stable: otherwise as the server prefers
    let mut names = BTreeSet::new();
    let mut hashes = BTreeSet::new();
    let mut chosen: Vec<ApiResource> = candidates
        .into_iter()
        .filter(|(resource, hash)| {
            names.insert((resource.group.clone(), resource.plural.clone()))
                && (hash.is_empty() || hashes.insert((resource.plural.clone(), (*hash).to_owned())))
        })
        .map(|(resource, _)| resource)
        .collect();
    chosen.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
    chosen
}

fn is_stored(resource: &APIResource) -> bool {
    let can = |verb: &str| resource.verbs.iter().any(|known| known == verb);
    !resource.name.contains('/')
        && can("list")
        && ["create", "update", "patch", "delete"].into_iter().any(can)
}

impl Unseen {
    pub(super) fn new(what: impl Into<String>, error: &kube::Error) -> Self {
        Self {
            what: what.into(),
            why: Redacted::from_server(&brief(error)),
            forbidden: ErrorClass::of(error) == ErrorClass::Denied,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(name: &str, hash: &str, verbs: &[&str]) -> APIResource {
        APIResource {
            name: name.to_owned(),
            kind: name.to_owned(),
            storage_version_hash: (!hash.is_empty()).then(|| hash.to_owned()),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..APIResource::default()
        }
    }

    fn names(found: &[(String, Vec<APIResource>)], avoid: &[Avoid]) -> Vec<String> {
        let chosen = choose(found, avoid);
        chosen
            .iter()
            .map(|resource| format!("{} {}", resource.plural, resource.api_version))
            .collect()
    }

    const STORED: [&str; 3] = ["list", "create", "delete"];

    #[test]
    fn each_stored_resource_is_listed_once() {
        let found = [
            (
                "v1".to_owned(),
                vec![
                    resource("events", "e", &STORED),
                    resource("pods", "p", &STORED),
                    resource("pods/status", "", &STORED),
                    resource("bindings", "", &["create"]),
                    resource("componentstatuses", "", &["get", "list"]),
                ],
            ),
            (
                "events.k8s.io/v1".to_owned(),
                vec![resource("events", "e", &STORED)],
            ),
            (
                "metrics.k8s.io/v1".to_owned(),
                vec![resource("pods", "", &["get", "list"])],
            ),
            (
                "b.io/v2".to_owned(),
                vec![resource("new", "", &STORED), resource("both", "", &STORED)],
            ),
            (
                "b.io/v1".to_owned(),
                vec![resource("both", "", &STORED), resource("old", "", &STORED)],
            ),
        ];
        assert_eq!(
            names(&found, &[]),
            [
                "events v1",
                "pods v1",
                "both b.io/v2",
                "new b.io/v2",
                "old b.io/v1"
            ]
        );
    }

    #[test]
    fn a_version_that_is_asked_about_is_avoided_if_it_can_be() {
        let found = [
            (
                "b.io/v2".to_owned(),
                vec![resource("both", "h", &STORED), resource("only", "", &STORED)],
            ),
            ("b.io/v1".to_owned(), vec![resource("both", "h", &STORED)]),
        ];
        let avoid = ["both", "only"].map(|plural| Avoid {
            group: "b.io".into(),
            plural: plural.into(),
            version: "v2".into(),
        });
        assert_eq!(names(&found, &avoid), ["both b.io/v1", "only b.io/v2"]);
    }
}
