//! Everything that can be listed, each stored resource once, and what discovery did not show.

use std::collections::BTreeSet;
use std::time::Duration;

use exuvia_write::{ErrorClass, Redacted, RetryPolicy, brief};
use futures::{FutureExt, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use kube::Client;
use kube::api::ApiResource;
use serde::Serialize;

/// Discovery documents that are asked for at once.
const AT_ONCE: usize = 8;
/// How often something that answers 404 is looked up again: its versions may be changing.
pub(crate) const MAX_SEARCHES: usize = 5;
/// The pause between: an API server sees a CRD's change within a second.
pub(crate) const BETWEEN_SEARCHES: Duration = Duration::from_millis(500);

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

/// Something that could not be looked at. Nothing is known of what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// A resource, or a group-version whose resources are not known.
    pub what: String,
    /// Why.
    pub why: Redacted,
    /// Whether it is a right that is missing.
    pub forbidden: bool,
}

/// A resource that is served, and whether its objects are in namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The resource, at a version that is served.
    pub resource: ApiResource,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

/// The resources to list, and which parts of discovery did not answer.
///
/// ```no_run
/// # async fn example(client: kube::Client) -> Result<(), kube::Error> {
/// use exuvia_sweep::catalog::Catalog;
///
/// let catalog = Catalog::read(&client, &[]).await?;
/// for resource in &catalog.resources {
///     println!("{} {}", resource.plural, resource.api_version);
/// }
/// for unseen in &catalog.unseen {
///     println!("not known: {} ({})", unseen.what, unseen.why);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Catalog {
    /// What can be listed, each stored resource once, sorted by group and plural.
    pub resources: Vec<ApiResource>,
    /// What can be read and written by name, but not listed. The garbage collector cannot see these objects either, so it
    /// never deletes one.
    pub unlistable: Vec<ApiResource>,
    /// Group-versions whose resources are not known.
    pub unseen: Vec<Unseen>,
}

impl Catalog {
    /// Asks every group-version for its resources, the servers behind aggregated ones included. Versions in `avoid` are
    /// only chosen for a resource that is served at no other.
    ///
    /// Not by aggregated discovery: that may show an old state of a server that is gone, and has no storage hashes.
    ///
    /// # Errors
    ///
    /// The list of groups could not be read, so nothing is known at all.
    pub async fn read(client: &Client, avoid: &[Avoid]) -> Result<Self, kube::Error> {
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
            unlistable: unlistable(&found),
            unseen,
        })
    }

    /// One resource at a version that is served now; `None`: it is not served at all.
    ///
    /// # Errors
    ///
    /// A part of discovery that might have shown it could not be read.
    pub async fn find(
        client: &Client,
        group: &str,
        plural: &str,
    ) -> Result<Option<ApiResource>, kube::Error> {
        let found = find_by(client, group, "", |resource| resource.name == plural).await?;
        Ok(found.map(|served| served.resource))
    }

    /// The resource of a kind, at this version if that is served, else at another one; `None`: it is not served at all.
    ///
    /// # Errors
    ///
    /// A part of discovery that might have shown it could not be read.
    pub async fn find_kind(
        client: &Client,
        group: &str,
        version: &str,
        kind: &str,
    ) -> Result<Option<Served>, kube::Error> {
        find_by(client, group, version, |resource| {
            resource.kind == kind && !resource.name.contains('/')
        })
        .await
    }
}

async fn find_by(
    client: &Client,
    group: &str,
    preferred: &str,
    is_it: impl Fn(&APIResource) -> bool,
) -> Result<Option<Served>, kube::Error> {
    let groups = RetryPolicy::default()
        .read(|| client.list_api_groups())
        .await?
        .groups;
    let mut group_versions: Vec<String> = match groups.iter().find(|known| known.name == group) {
        Some(group) => in_order(group).collect(),
        None if group.is_empty() => {
            RetryPolicy::default()
                .read(|| client.list_core_api_versions())
                .await?
                .versions
        }
        None => Vec::new(),
    };
    group_versions.sort_by_key(|group_version| split(group_version).1 != preferred); // stable
    for group_version in group_versions {
        let list = match resources(client, &group_version).await {
            Err(error) if is_gone(client, &group_version, &error).await? => continue,
            list => list?,
        };
        if let Some(resource) = list.resources.iter().find(|resource| is_it(resource)) {
            return Ok(Some(Served {
                resource: api_resource(&group_version, resource),
                namespaced: resource.namespaced,
            }));
        }
    }
    Ok(None)
}

/// Whether a group-version that answered with an error is gone. Its endpoint and the list of groups change at different
/// times, so they are given a moment to agree.
async fn is_gone(client: &Client, group_version: &str, error: &kube::Error) -> Result<bool, kube::Error> {
    if !is_not_found(error) {
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

/// Whether it is a 404. That of a list or a discovery document is about the endpoint, so it names no object.
pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(ErrorClass::of(error), ErrorClass::Gone | ErrorClass::Missing)
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

/// Group and version.
fn split(group_version: &str) -> (&str, &str) {
    group_version.split_once('/').unwrap_or(("", group_version))
}

fn api_resource(group_version: &str, resource: &APIResource) -> ApiResource {
    let (group, version) = split(group_version);
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
    !resource.name.contains('/')
        && can(resource, "list")
        && ["create", "update", "patch", "delete"]
            .into_iter()
            .any(|verb| can(resource, verb))
}

fn can(resource: &APIResource, verb: &str) -> bool {
    resource.verbs.iter().any(|known| known == verb)
}

/// What has objects by name that no list shows, at no version.
fn unlistable(found: &[(String, Vec<APIResource>)]) -> Vec<ApiResource> {
    let all = || {
        found.iter().flat_map(|(group_version, resources)| {
            resources.iter().map(move |resource| (group_version, resource))
        })
    };
    let key = |group_version: &str, resource: &APIResource| {
        (split(group_version).0.to_owned(), resource.name.clone())
    };
    let mut listable: BTreeSet<_> = all()
        .filter(|(_, resource)| can(resource, "list"))
        .map(|(group_version, resource)| key(group_version, resource))
        .collect();
    all()
        .filter(|(_, resource)| {
            let is_written = ["update", "patch", "delete"]
                .into_iter()
                .any(|verb| can(resource, verb));
            !resource.name.contains('/') && can(resource, "get") && is_written
        })
        .filter(|(group_version, resource)| listable.insert(key(group_version, resource)))
        .map(|(group_version, resource)| api_resource(group_version, resource))
        .collect()
}

impl Unseen {
    /// What could not be read, and why. A denied request is a missing right.
    pub fn new(what: impl Into<String>, error: &kube::Error) -> Self {
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
    fn what_has_objects_that_no_list_shows_is_named() {
        let found = [
            (
                "a.io/v1".to_owned(),
                vec![
                    resource("hidden", "", &["get", "delete"]),
                    resource("later", "", &["get", "delete"]),
                    resource("hidden/status", "", &["get", "patch"]),
                    resource("reviews", "", &["create"]),
                    resource("figures", "", &["get"]),
                ],
            ),
            (
                "a.io/v2".to_owned(),
                vec![
                    resource("hidden", "", &["get", "delete"]),
                    resource("later", "", &["get", "list", "delete"]),
                ],
            ),
        ];
        let unlistable = unlistable(&found);
        let unlistable: Vec<&str> = unlistable
            .iter()
            .map(|resource| resource.plural.as_str())
            .collect();
        assert_eq!(unlistable, ["hidden"]);
        assert_eq!(names(&found, &[]), ["later a.io/v2"]);
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
