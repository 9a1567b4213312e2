//! Which requests a rule is about.

use http::Method;

use super::{
    fault::named,
    path::{ObjectPath, glob},
    record::Recorded,
};

/// Which requests a rule is about. All that is asked for must hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    methods: Option<Vec<Method>>,
    path: Option<String>,
    query: Vec<String>,
    resource: Option<String>,
    subresource: Option<String>,
    object: Option<(String, String)>,
    except: Vec<Match>,
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// POST, PUT, PATCH and DELETE.
    pub fn writes() -> Self {
        Self {
            methods: Some(vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE]),
            ..Self::default()
        }
    }

    /// Requests with this method.
    pub fn method(method: Method) -> Self {
        Self {
            methods: Some(vec![method]),
            ..Self::default()
        }
    }

    /// Whose path, without the query, fits the pattern. `*` stands for any run of characters, `/` included.
    #[must_use]
    pub fn path(mut self, pattern: impl Into<String>) -> Self {
        self.path = Some(pattern.into());
        self
    }

    /// One of whose query parameters fits the pattern: `watch=true`, `continue=*` or, for short, `continue=`.
    /// Values are compared as they are on the wire. May be asked for several times.
    #[must_use]
    pub fn query(mut self, pattern: impl Into<String>) -> Self {
        let mut pattern = pattern.into();
        if pattern.ends_with('=') {
            pattern.push('*');
        }
        self.query.push(pattern);
        self
    }

    /// Whose path names this resource (the plural, such as `widgets`), in whatever group and version.
    #[must_use]
    pub fn resource(mut self, plural: impl Into<String>) -> Self {
        self.resource = Some(plural.into());
        self
    }

    /// Whose path names this subresource, such as `status`; empty for the object itself only.
    #[must_use]
    pub fn subresource(mut self, subresource: impl Into<String>) -> Self {
        self.subresource = Some(subresource.into());
        self
    }

    /// About this object, its subresources included. The namespace of a cluster-scoped object is empty. The
    /// name of a create is read from its body.
    #[must_use]
    pub fn object(mut self, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        self.object = Some((namespace.into(), name.into()));
        self
    }

    /// Leaves out what this matches: writes, say, but not the renewals of a Lease. May be asked for several times.
    #[must_use]
    pub fn except(mut self, other: Self) -> Self {
        self.except.push(other);
        self
    }

    /// Whether this request is one of them.
    pub fn holds(&self, request: &Recorded) -> bool {
        let target = request.object();
        let holds = |asked: &Option<String>, piece: fn(ObjectPath<'_>) -> &str| {
            asked
                .as_ref()
                .is_none_or(|asked| target.is_some_and(|target| piece(target) == asked))
        };
        self.methods
            .as_ref()
            .is_none_or(|methods| methods.contains(&request.method))
            && self
                .path
                .as_ref()
                .is_none_or(|pattern| glob(pattern, &request.path))
            && self
                .query
                .iter()
                .all(|pattern| request.query.split('&').any(|pair| glob(pattern, pair)))
            && holds(&self.resource, |target| target.resource)
            && holds(&self.subresource, |target| target.subresource)
            && self.object.as_ref().is_none_or(|(namespace, name)| {
                target.is_some_and(|target| target.namespace == namespace) && named(request, target) == *name
            })
            && !self.except.iter().any(|other| other.holds(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::record::tests::request;

    const WIDGET: &str = "/apis/example.com/v1/namespaces/ns/widgets/w";

    fn write(path: &str) -> Recorded {
        Recorded {
            method: Method::PATCH,
            ..request(path)
        }
    }

    #[test]
    fn a_match_holds_when_all_that_it_asks_for_does() {
        let all = Match::writes()
            .path("/apis/*/widgets/*")
            .resource("widgets")
            .object("ns", "w");
        assert!(all.holds(&write(WIDGET)));
        assert!(all.holds(&write(&format!("{WIDGET}/status"))));
        assert!(
            !all.clone()
                .subresource("")
                .holds(&write(&format!("{WIDGET}/status")))
        );
        assert!(!all.clone().subresource("status").holds(&write(WIDGET)));
        assert!(!all.holds(&request(WIDGET)), "a read");
        assert!(!all.holds(&write(&format!("{WIDGET}2"))), "another name");
        assert!(
            !all.clone().object("", "w").holds(&write(WIDGET)),
            "another namespace"
        );
        assert!(!all.resource("gadgets").holds(&write(WIDGET)), "another resource");
    }

    #[test]
    fn what_is_left_out_does_not_match() {
        let patched_leases = Match::method(Method::PATCH).resource("leases");
        let match_ = Match::writes().except(patched_leases);
        assert!(match_.holds(&write(WIDGET)));
        let lease = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l";
        assert!(!match_.holds(&write(lease)));
        let made = Recorded {
            method: Method::POST,
            ..request("/apis/coordination.k8s.io/v1/namespaces/ns/leases")
        };
        assert!(match_.holds(&made), "left out are patches only");
    }

    #[test]
    fn the_name_of_a_create_is_in_its_body() {
        let path = "/apis/example.com/v1/namespaces/ns/widgets";
        let body = br#"{"metadata": {"name": "w"}}"#.as_slice();
        let create = Recorded {
            method: Method::POST,
            body: body.into(),
            ..request(path)
        };
        assert!(Match::any().object("ns", "w").holds(&create));
        assert!(!Match::any().object("ns", "v").holds(&create));
    }

    #[test]
    fn each_query_pattern_needs_a_parameter() {
        let list = Recorded {
            query: "limit=50&continue=abc%3D&watch=true".to_owned(),
            ..request("/api/v1/pods")
        };
        for pattern in ["watch=true", "continue=", "continue=a*", "limit=50"] {
            assert!(Match::any().query(pattern).holds(&list), "{pattern}");
        }
        for pattern in ["watch=false", "limit=5", "resourceVersion=", "tinue="] {
            assert!(
                !Match::any().query("watch=true").query(pattern).holds(&list),
                "{pattern}"
            );
        }
    }
}
