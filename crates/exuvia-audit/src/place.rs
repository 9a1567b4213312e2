//! Which resource a key belongs to, and where the objects of a resource lie.

/// Built-in resources whose keys do not begin with their plural.
const RENAMED: [(&str, &str); 5] = [
    ("controllers", "replicationcontrollers"),
    ("ingress", "ingresses"),
    ("minions", "nodes"),
    ("services/endpoints", "endpoints"),
    ("services/specs", "services"),
];
/// The groups of built-in resources that lie below their group, as custom resources do.
const BUILT_IN_GROUPS: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];
/// Where CRDs lie.
const CRDS: (&str, &str) = ("apiextensions.k8s.io", "customresourcedefinitions");

/// A resource's place below the prefix (`/registry`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// As kubectl and CRDs call it: `widgets.example.com`, `secrets`.
    pub(super) name: String,
    /// The part of the key between prefix and object, with its slash; or the whole of a key that has no slash.
    pub(super) path: Vec<u8>,
    /// Of a custom resource, by the look of it: a group has a dot.
    pub(super) group: Option<String>,
    /// The path is one whole key, and nothing lies below it.
    is_key: bool,
}

impl Place {
    /// The place of the CRDs themselves.
    pub(super) fn crds() -> Self {
        Self::below_group(CRDS.0, CRDS.1)
    }

    /// Of a key without the prefix and its slash.
    pub(super) fn of(key: &[u8]) -> Self {
        let mut slashes = key
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at);
        let Some(first) = slashes.next() else {
            return Self::single(key);
        };
        let second = slashes.next();
        let head = &key[..first];
        let two = second.map(|second| (String::from_utf8_lossy(head), &key[first + 1..second], second));
        match two {
            Some((group, plural, _)) if group.contains('.') => {
                Self::below_group(&group, &String::from_utf8_lossy(plural))
                    .at(&key[..=first + 1 + plural.len()])
            }
            Some((_, _, second)) if RENAMED.iter().any(|(path, _)| path.as_bytes() == &key[..second]) => {
                Self::built_in(&key[..=second])
            }
            None if head.contains(&b'.') => Self::single(key),
            _ => Self::built_in(&key[..=first]),
        }
    }

    /// Where a resource may lie that a user named: `widgets.example.com`, `example.com/widgets`, `secrets`,
    /// `deployments.apps`. A built-in's group does not show in its keys, so a group of Kubernetes' own may mean both.
    pub(super) fn named(name: &str) -> Vec<Self> {
        let name = name.trim().trim_matches('/');
        let (plural, group) = match (name.split_once('/'), name.split_once('.')) {
            (Some((group, plural)), _) => (plural, group),
            (None, Some((plural, group))) => (plural, group),
            (None, None) => (name, ""),
        };
        let mut places = Vec::new();
        if group.contains('.') {
            places.push(Self::below_group(group, plural));
        }
        if (!group.contains('.') || group.ends_with(".k8s.io")) && !BUILT_IN_GROUPS.contains(&group) {
            let path = RENAMED.iter().find(|(_, renamed)| *renamed == plural);
            places.push(Self::built_in(
                format!("{}/", path.map_or(plural, |(path, _)| path)).as_bytes(),
            ));
        }
        places
    }

    pub(super) fn below_group(group: &str, plural: &str) -> Self {
        Self {
            name: format!("{plural}.{group}"),
            path: format!("{group}/{plural}/").into_bytes(),
            group: (!BUILT_IN_GROUPS.contains(&group)).then(|| group.to_owned()),
            is_key: false,
        }
    }

    /// The first key after all keys of the resource, without the prefix.
    pub(super) fn end(&self) -> Vec<u8> {
        let mut end = self.path.clone();
        match end.last_mut().filter(|_| !self.is_key) {
            Some(slash) => *slash = b'/' + 1,
            None => end.push(0),
        }
        end
    }

    fn built_in(path: &[u8]) -> Self {
        let text = String::from_utf8_lossy(path);
        let text = text.trim_end_matches('/');
        let renamed = RENAMED.iter().find(|(path, _)| *path == text);
        Self {
            name: renamed.map_or(text, |(_, name)| name).to_owned(),
            path: path.to_owned(),
            group: None,
            is_key: false,
        }
    }

    fn single(key: &[u8]) -> Self {
        Self {
            name: String::from_utf8_lossy(key).into_owned(),
            path: key.to_owned(),
            group: None,
            is_key: true,
        }
    }

    fn at(mut self, path: &[u8]) -> Self {
        path.clone_into(&mut self.path); // the very bytes, should they not be UTF-8
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_tell_their_resource() {
        for (key, name, path, group) in [
            (
                "example.com/widgets/default/a",
                "widgets.example.com",
                "example.com/widgets/",
                Some("example.com"),
            ),
            (
                "example.com/clusters/a",
                "clusters.example.com",
                "example.com/clusters/",
                Some("example.com"),
            ),
            ("secrets/default/a", "secrets", "secrets/", None),
            ("minions/node-1", "nodes", "minions/", None),
            ("services/specs/default/a", "services", "services/specs/", None),
            (
                "services/endpoints/default/a",
                "endpoints",
                "services/endpoints/",
                None,
            ),
            ("services/other/default/a", "services", "services/", None),
            ("ranges/serviceips", "ranges", "ranges/", None),
            ("masterleases/10.0.0.1", "masterleases", "masterleases/", None),
            ("leases/kube-system/a.b.c", "leases", "leases/", None),
            ("health", "health", "health", None),
            (
                "example.com/stray",
                "example.com/stray",
                "example.com/stray",
                None,
            ),
            (
                "apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
                "customresourcedefinitions.apiextensions.k8s.io",
                "apiextensions.k8s.io/customresourcedefinitions/",
                None,
            ),
        ] {
            let place = Place::of(key.as_bytes());
            assert_eq!(place.name, name, "{key}");
            assert_eq!(place.path, path.as_bytes(), "{key}");
            assert_eq!(place.group.as_deref(), group, "{key}");
        }
    }

    #[test]
    fn names_lead_to_places() {
        let paths = |name: &str| -> Vec<String> {
            let text = |place: Place| String::from_utf8(place.path).expect("ASCII");
            Place::named(name).into_iter().map(text).collect()
        };
        assert_eq!(paths("widgets.example.com"), ["example.com/widgets/"]);
        assert_eq!(paths("a.example.com/widgets"), ["a.example.com/widgets/"]);
        assert_eq!(paths("secrets"), ["secrets/"]);
        assert_eq!(paths("services"), ["services/specs/"]);
        assert_eq!(paths("deployments.apps"), ["deployments/"]);
        assert_eq!(paths("apps/deployments"), ["deployments/"]);
        assert_eq!(
            paths("leases.coordination.k8s.io"),
            ["coordination.k8s.io/leases/", "leases/"]
        );
        assert_eq!(
            paths("customresourcedefinitions.apiextensions.k8s.io"),
            ["apiextensions.k8s.io/customresourcedefinitions/"]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Or a walk from place to place would lose keys, or never end.
        #[test]
        fn a_key_lies_between_its_place_and_the_end_of_it(
            key in prop_oneof![
                proptest::collection::vec(any::<u8>(), 1..20),
                "[a-b./]{1,12}".prop_map(String::into_bytes),
                "services/(specs|endpoints|x)/?[a-z/]{0,5}".prop_map(String::into_bytes),
            ],
        ) {
            let place = Place::of(&key);
            prop_assert!(key.starts_with(&place.path), "{:?}", place);
            prop_assert!(key < place.end());
        }
    }
}
