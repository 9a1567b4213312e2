//! Reads Kubernetes API paths, and matches them against patterns with `*`.

/// The resource, and perhaps the object, that an API path names. Pieces are as on the wire (not unescaped).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectPath<'a> {
    /// The API group, empty for the core group.
    pub group: &'a str,
    /// The API version.
    pub version: &'a str,
    /// The namespace, empty for a cluster-scoped object and for a list over all namespaces.
    pub namespace: &'a str,
    /// The resource's plural name.
    pub resource: &'a str,
    /// The object's name, empty for a whole collection.
    pub name: &'a str,
    /// The subresource such as `status`, empty for the object itself.
    pub subresource: &'a str,
}

impl<'a> ObjectPath<'a> {
    /// Reads a path without query. `None` for paths such as `/version` or `/apis/apps`, that name no
    /// resource.
    pub fn parse(path: &'a str) -> Option<Self> {
        let mut segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        let start = match segments[0] {
            "api" => 1,
            "apis" => 2,
            _ => return None,
        };
        if segments.len() < start + 2 {
            return None;
        }
        let group = if start == 2 { segments[1] } else { "" };
        let version = segments[start];
        let mut rest = segments.split_off(start + 1);
        let mut namespace = "";
        // `namespaces/x/status` is the object x of the resource namespaces, `namespaces/x/pods` is not.
        let in_namespace = rest[0] == "namespaces"
            && (rest.len() > 3 || rest.len() == 3 && !["status", "finalize"].contains(&rest[2]));
        if in_namespace {
            namespace = rest[1];
            rest.drain(..2);
        }
        let piece = |index: usize| rest.get(index).copied().unwrap_or_default();
        Some(Self {
            group,
            version,
            namespace,
            resource: piece(0),
            name: piece(1),
            subresource: piece(2),
        })
    }
}

/// Whether `text` fits `pattern`, in which `*` stands for any run of characters, none and `/` included.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = pieces.next_back() else {
        return rest.is_empty();
    };
    for piece in pieces {
        // The leftmost place is as good as any other, since all that follows may be as long as it likes.
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_without_star_fits_only_itself() {
        assert!(glob("/api/v1", "/api/v1"));
        assert!(!glob("/api/v1", "/api/v1/pods"));
        assert!(!glob("/api/v1/pods", "/api/v1"));
        assert!(glob("", ""));
        assert!(!glob("", "/"));
    }

    #[test]
    fn a_star_stands_for_anything_slashes_and_nothing_included() {
        let path = "/apis/example.com/v1/namespaces/n/widgets/w";
        for pattern in [
            "*",
            "/apis/*/widgets/*",
            "*/w",
            "/apis/*",
            "/apis/*w",
            "/*/widgets/w*",
            "**",
            "*widgets*",
        ] {
            assert!(glob(pattern, path), "{pattern}");
        }
        for pattern in [
            "/api/*",
            "*/gadgets/*",
            "*/widgets",
            "/apis/*/widgets/w/*",
            "*v1*v1*",
        ] {
            assert!(!glob(pattern, path), "{pattern}");
        }
    }

    #[test]
    fn a_star_does_not_let_two_pieces_share_characters() {
        assert!(!glob("ab*ba", "aba"));
        assert!(glob("ab*ba", "abba"));
        assert!(!glob("a*b*b", "ab"));
        assert!(glob("a*b*b", "axbxbxb"));
    }

    fn parts(path: &str) -> Option<[&str; 6]> {
        ObjectPath::parse(path).map(|o| [o.group, o.version, o.namespace, o.resource, o.name, o.subresource])
    }

    #[test]
    fn objects_are_read_from_core_and_group_paths() {
        let cases = [
            ("/api/v1/namespaces/n/pods/p", ["", "v1", "n", "pods", "p", ""]),
            ("/api/v1/namespaces/n/pods", ["", "v1", "n", "pods", "", ""]),
            ("/api/v1/pods", ["", "v1", "", "pods", "", ""]),
            (
                "/api/v1/nodes/one/status",
                ["", "v1", "", "nodes", "one", "status"],
            ),
            (
                "/apis/g.io/v1/namespaces/n/widgets/w/status",
                ["g.io", "v1", "n", "widgets", "w", "status"],
            ),
            (
                "/apis/g.io/v1/namespaces/n/widgets/status",
                ["g.io", "v1", "n", "widgets", "status", ""],
            ),
            ("/apis/g.io/v1/widgets/w", ["g.io", "v1", "", "widgets", "w", ""]),
        ];
        for (path, expected) in cases {
            assert_eq!(parts(path), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_namespace_is_an_object_and_a_place() {
        assert_eq!(
            parts("/api/v1/namespaces"),
            Some(["", "v1", "", "namespaces", "", ""])
        );
        assert_eq!(
            parts("/api/v1/namespaces/n"),
            Some(["", "v1", "", "namespaces", "n", ""])
        );
        assert_eq!(
            parts("/api/v1/namespaces/n/finalize"),
            Some(["", "v1", "", "namespaces", "n", "finalize"])
        );
        assert_eq!(
            parts("/api/v1/namespaces/n/secrets"),
            Some(["", "v1", "n", "secrets", "", ""])
        );
    }

    #[test]
    fn paths_that_name_no_resource_are_not_objects() {
        for path in [
            "",
            "/",
            "/version",
            "/api",
            "/api/v1",
            "/apis",
            "/apis/apps",
            "/apis/apps/v1",
            "/readyz",
        ] {
            assert_eq!(parts(path), None, "{path}");
        }
    }
}
