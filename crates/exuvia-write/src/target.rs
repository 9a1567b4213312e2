//! What is written to, and by which call: the names that errors, logs and metrics share.

use std::fmt;

use kube::{Api, Resource, api::ObjectMeta};

use crate::{Error, Refusal};

/// The kind of write, as logs, metrics and the gate know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// A merge patch of the object itself.
    Patch,
    /// A merge patch of its status.
    PatchStatus,
    /// A server-side apply.
    Apply,
    /// A server-side apply of its status.
    ApplyStatus,
    /// A new object.
    Create,
    /// A replacement of the whole object: only ever as a dry-run.
    Replace,
    /// A deletion.
    Delete,
    /// One finalizer more.
    EnsureFinalizer,
    /// One finalizer fewer.
    RemoveFinalizer,
    /// An empty patch, which makes the server store the object again.
    Rewrite,
    /// managedFields entries given another version.
    MoveOwnership,
    /// A read of the object's metadata. Not a write: only errors know it, the gate and the observer do not.
    Look,
}

impl Verb {
    /// A name for logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Patch => "patch",
            Self::PatchStatus => "patch_status",
            Self::Apply => "apply",
            Self::ApplyStatus => "apply_status",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::EnsureFinalizer => "ensure_finalizer",
            Self::RemoveFinalizer => "remove_finalizer",
            Self::Rewrite => "rewrite",
            Self::MoveOwnership => "move_ownership",
            Self::Look => "look",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which object is written to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Plural and group, as `kubectl` takes it: `widgets.example.dev`, or `configmaps` in the core group.
    pub resource: String,
    /// The version whose endpoint is used.
    pub version: String,
    /// The object's namespace, if it has one.
    pub namespace: Option<String>,
    /// The object's name; empty if the server is to make one up.
    pub name: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(if self.name.is_empty() {
            "(unnamed)"
        } else {
            &self.name
        })
    }
}

/// A target and the collection it is in, as a URL path.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) target: Target,
    pub(crate) collection: String,
}

impl Place {
    /// Where an object is, for an `Api` of its kind; refused if the two do not fit or the name would not survive a URL.
    ///
    /// An `Api::all` of a namespaced kind can only list; with the object's own namespace it can be written through as
    /// well, which spares a sweep one `Api` per namespace.
    pub(crate) fn of<K: Resource>(api: &Api<K>, meta: &ObjectMeta, verb: Verb) -> Result<Self, Error> {
        let place = Self::unnamed(api, meta, verb)?;
        if place.target.name.is_empty() {
            return Err(Error::refused(verb, &place.target, Refusal::NoName));
        }
        let name = place.target.name.as_str();
        // Not a validation, which is the server's: only what would make another URL of it.
        if matches!(name, "." | "..")
            || name.contains(['/', '%', '?', '#'])
            || name.contains(char::is_whitespace)
        {
            return Err(Error::refused(verb, &place.target, Refusal::BadName));
        }
        Ok(place)
    }

    /// As [`of`](Self::of), for an object that need not have a name yet.
    pub(crate) fn unnamed<K: Resource>(api: &Api<K>, meta: &ObjectMeta, verb: Verb) -> Result<Self, Error> {
        let url = api.resource_url();
        let (resource, version) = resource_and_version(url);
        let own = meta
            .namespace
            .as_deref()
            .filter(|namespace| !namespace.is_empty());
        let namespace = own.or(api.namespace());
        let target = Target {
            resource,
            version,
            namespace: namespace.map(str::to_owned),
            name: meta.name.clone().unwrap_or_default(),
        };
        match (api.namespace(), own) {
            (Some(api), Some(own)) if api != own => Err(Error::refused(
                verb,
                &target,
                Refusal::WrongNamespace { api: api.to_owned() },
            )),
            (None, Some(own)) => Ok(Self {
                target,
                collection: within(url, own),
            }),
            _ => Ok(Self {
                target,
                collection: url.to_owned(),
            }),
        }
    }
}

fn within(url: &str, namespace: &str) -> String {
    match url.rsplit_once('/') {
        Some((head, plural)) => format!("{head}/namespaces/{namespace}/{plural}"),
        None => url.to_owned(),
    }
}

/// `/apis/<group>/<version>/…/<plural>` or `/api/<version>/…/<plural>`.
fn resource_and_version(url: &str) -> (String, String) {
    let mut segments = url.trim_start_matches('/').split('/');
    let group = match segments.next() {
        Some("apis") => segments.next(),
        _ => None,
    };
    let version = segments.next().unwrap_or_default().to_owned();
    let plural = segments.next_back().unwrap_or_default();
    (resource_name(plural, group.unwrap_or_default()), version)
}

/// What the resource of an `Api` is called: see [`resource_name`].
pub fn resource_of<K: Resource>(api: &Api<K>) -> String {
    resource_and_version(api.resource_url()).0
}

/// What a resource is called, as `kubectl` takes it: its plural and its group, or its plural alone in the core group.
///
/// ```
/// use exuvia_write::resource_name;
///
/// assert_eq!(resource_name("widgets", "example.dev"), "widgets.example.dev");
/// assert_eq!(resource_name("configmaps", ""), "configmaps");
/// ```
pub fn resource_name(plural: &str, group: &str) -> String {
    match group {
        "" => plural.to_owned(),
        group => format!("{plural}.{group}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_resource_and_version() {
        let named = |url| {
            let (resource, version) = resource_and_version(url);
            format!("{resource} {version}")
        };
        assert_eq!(
            named("/apis/example.dev/v1/namespaces/a/widgets"),
            "widgets.example.dev v1"
        );
        assert_eq!(
            named("/apis/example.dev/v1beta1/widgets"),
            "widgets.example.dev v1beta1"
        );
        assert_eq!(named("/api/v1/namespaces/a/configmaps"), "configmaps v1");
        assert_eq!(named("/api/v1/namespaces"), "namespaces v1");
    }

    #[test]
    fn an_objects_namespace_finds_its_place_in_a_cluster_wide_url() {
        assert_eq!(
            within("/apis/example.dev/v1/widgets", "a"),
            "/apis/example.dev/v1/namespaces/a/widgets"
        );
        assert_eq!(
            within("/api/v1/configmaps", "a"),
            "/api/v1/namespaces/a/configmaps"
        );
    }

    #[test]
    fn a_target_reads_as_kubectl_would_have_it() {
        let mut target = Target {
            resource: "widgets.example.dev".to_owned(),
            version: "v1".to_owned(),
            namespace: Some("shop".to_owned()),
            name: "w".to_owned(),
        };
        assert_eq!(target.to_string(), "widgets.example.dev shop/w");
        target.namespace = None;
        target.name.clear();
        assert_eq!(target.to_string(), "widgets.example.dev (unnamed)");
    }
}
