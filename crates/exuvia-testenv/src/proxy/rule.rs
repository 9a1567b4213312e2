//! Which requests a fault strikes: patterns, counting and callbacks.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use http::Method;

use super::{
    fault::{Fault, named},
    path::glob,
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
}

impl Match {
    /// Every request.
    pub fn any() -> Self {
        Self::default()
    }

    /// POST, PUT, PATCH and DELETE.
    pub fn writes() -> Self {
        Self { methods: Some(vec![Method::POST, Method::PUT, Method::PATCH, Method::DELETE]), ..Self::default() }
    }

    /// Requests with this method.
    pub fn method(method: Method) -> Self {
        Self { methods: Some(vec![method]), ..Self::default() }
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

    /// About this object, its subresources included. The namespace of a cluster-scoped object is empty. The name
    /// of a create is read from its body.
    #[must_use]
    pub fn object(mut self, namespace: impl Into<String>, name: impl Into<String>) -> Self {
        self.object = Some((namespace.into(), name.into()));
        self
    }

    fn holds(&self, request: &Recorded) -> bool {
        let target = request.object();
        let holds = |asked: &Option<String>, piece: fn(super::ObjectPath<'_>) -> &str| {
            asked.as_ref().is_none_or(|asked| target.is_some_and(|target| piece(target) == asked))
        };
        self.methods.as_ref().is_none_or(|methods| methods.contains(&request.method))
            && self.path.as_ref().is_none_or(|pattern| glob(pattern, &request.path))
            && self.query.iter().all(|pattern| request.query.split('&').any(|pair| glob(pattern, pair)))
            && holds(&self.resource, |target| target.resource)
            && holds(&self.subresource, |target| target.subresource)
            && self.object.as_ref().is_none_or(|(namespace, name)| {
                target.is_some_and(|target| target.namespace == namespace) && named(request, target) == *name
            })
    }
}

pub(crate) type Callback = Arc<dyn Fn(&Recorded) + Send + Sync>;

/// Which requests are struck, by what, and who is told.
///
/// Each rule counts the requests that match it. Without more it applies to all of them.
///
/// ```
/// use exuvia_testenv::proxy::{Fault, Match, Rule};
///
/// let third_write_is_lost_on_the_way_back =
///     Rule::on(Match::writes().path("/apis/*/widgets/*").object("ns", "name")).nth(3).then(Fault::DropAnswer);
/// let two_bad_lists = Rule::on(Match::any().query("continue=")).times(2).then(Fault::refuse(410));
/// let from_the_fifth_on = Rule::on(Match::writes()).nth(5).always().then(Fault::DropRequest);
/// ```
#[derive(Clone)]
pub struct Rule {
    about: Match,
    first: u64,
    count: Option<u64>,
    fault: Option<Fault>,
    on_request: Option<Callback>,
    on_commit: Option<Callback>,
}

impl Rule {
    /// A rule about the requests that match.
    pub fn on(about: Match) -> Self {
        Self { about, first: 1, count: None, fault: None, on_request: None, on_commit: None }
    }

    /// Applies to the n-th match only, counted from 1; with [`times`](Self::times) or [`always`](Self::always)
    /// after it, from the n-th on.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.first = n;
        self.count = Some(1);
        self
    }

    /// Applies to so many matches.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Applies until it is removed.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.count = None;
        self
    }

    /// What happens to the request. Without it, the request passes.
    #[must_use]
    pub fn then(mut self, fault: Fault) -> Self {
        self.fault = Some(fault);
        self
    }

    /// Calls `callback` when a request that the rule applies to has arrived and before anything is done with it.
    /// As long as it blocks, this request waits, and only this.
    #[must_use]
    pub fn on_request(mut self, callback: impl Fn(&Recorded) + Send + Sync + 'static) -> Self {
        self.on_request = Some(Arc::new(callback));
        self
    }

    /// Calls `callback` when the server has answered and before the client gets anything: a write is committed,
    /// if [`Recorded::upstream`] says so. As long as it blocks, this request waits, and only this.
    #[must_use]
    pub fn on_commit(mut self, callback: impl Fn(&Recorded) + Send + Sync + 'static) -> Self {
        self.on_commit = Some(Arc::new(callback));
        self
    }

    fn applies(&self, nth: u64) -> bool {
        nth >= self.first && self.count.is_none_or(|count| nth - self.first < count)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("about", &self.about)
            .field("first", &self.first)
            .field("count", &self.count)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

/// All rules in force, in the order in which they were injected.
#[derive(Default)]
pub(crate) struct Rules {
    active: Mutex<Vec<Active>>,
}

struct Active {
    rule: Rule,
    counts: Arc<Counts>,
}

#[derive(Default, Debug)]
struct Counts {
    matched: AtomicU64,
    applied: AtomicU64,
}

/// What the rules say about one request.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) fault: Option<Fault>,
    pub(crate) on_request: Vec<Callback>,
    pub(crate) on_commit: Vec<Callback>,
}

impl Rules {
    pub(crate) fn inject(self: &Arc<Self>, rule: Rule) -> Injected {
        let counts = Arc::new(Counts::default());
        self.lock().push(Active { rule, counts: Arc::clone(&counts) });
        Injected { rules: Arc::clone(self), counts }
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Counts the request with every rule that it matches. One request suffers one fault: that of the rule
    /// injected first.
    pub(crate) fn judge(&self, request: &Recorded) -> Verdict {
        let mut verdict = Verdict::default();
        for Active { rule, counts } in self.lock().iter().filter(|active| active.rule.about.holds(request)) {
            let nth = counts.matched.fetch_add(1, Ordering::AcqRel) + 1;
            if !rule.applies(nth) || rule.fault.is_some() && verdict.fault.is_some() {
                continue;
            }
            counts.applied.fetch_add(1, Ordering::AcqRel);
            verdict.fault = verdict.fault.or_else(|| rule.fault.clone());
            verdict.on_request.extend(rule.on_request.clone());
            verdict.on_commit.extend(rule.on_commit.clone());
        }
        verdict
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Active>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rule in force. Dropping this leaves it in force.
#[derive(Clone)]
pub struct Injected {
    rules: Arc<Rules>,
    counts: Arc<Counts>,
}

impl Injected {
    /// How many requests matched so far.
    pub fn matched(&self) -> u64 {
        self.counts.matched.load(Ordering::Acquire)
    }

    /// To how many requests it applied so far.
    pub fn applied(&self) -> u64 {
        self.counts.applied.load(Ordering::Acquire)
    }

    /// Takes the rule out of force. Requests that it stalls stay stalled.
    pub fn remove(&self) {
        self.rules.lock().retain(|active| !Arc::ptr_eq(&active.counts, &self.counts));
    }
}

impl fmt::Debug for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Injected").field(&self.counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::record::tests::request;

    const WIDGET: &str = "/apis/example.com/v1/namespaces/ns/widgets/w";

    fn write(path: &str) -> Recorded {
        Recorded { method: Method::PATCH, ..request(path) }
    }

    #[test]
    fn a_match_holds_when_all_that_it_asks_for_does() {
        let all = Match::writes().path("/apis/*/widgets/*").resource("widgets").object("ns", "w");
        assert!(all.holds(&write(WIDGET)));
        assert!(all.holds(&write(&format!("{WIDGET}/status"))));
        assert!(!all.clone().subresource("").holds(&write(&format!("{WIDGET}/status"))));
        assert!(!all.clone().subresource("status").holds(&write(WIDGET)));
        assert!(!all.holds(&request(WIDGET)), "a read");
        assert!(!all.holds(&write(&format!("{WIDGET}2"))), "another name");
        assert!(!all.clone().object("", "w").holds(&write(WIDGET)), "another namespace");
        assert!(!all.resource("gadgets").holds(&write(WIDGET)), "another resource");
    }

    #[test]
    fn the_name_of_a_create_is_in_its_body() {
        let path = "/apis/example.com/v1/namespaces/ns/widgets";
        let body = br#"{"metadata": {"name": "w"}}"#.as_slice();
        let create = Recorded { method: Method::POST, body: body.into(), ..request(path) };
        assert!(Match::any().object("ns", "w").holds(&create));
        assert!(!Match::any().object("ns", "v").holds(&create));
    }

    #[test]
    fn each_query_pattern_needs_a_parameter() {
        let list = Recorded { query: "limit=50&continue=abc%3D&watch=true".to_owned(), ..request("/api/v1/pods") };
        for pattern in ["watch=true", "continue=", "continue=a*", "limit=50"] {
            assert!(Match::any().query(pattern).holds(&list), "{pattern}");
        }
        for pattern in ["watch=false", "limit=5", "resourceVersion=", "tinue="] {
            assert!(!Match::any().query("watch=true").query(pattern).holds(&list), "{pattern}");
        }
    }

    /// Which of five matching requests a rule applies to.
    fn applied(rule: Rule) -> Vec<usize> {
        let rules = Arc::new(Rules::default());
        rules.inject(rule.then(Fault::DropRequest));
        (1..=5).filter(|_| rules.judge(&write(WIDGET)).fault.is_some()).collect()
    }

    #[test]
    fn a_rule_counts_its_own_matches_from_one() {
        let rule = || Rule::on(Match::writes());
        assert_eq!(applied(rule()), [1, 2, 3, 4, 5]);
        assert_eq!(applied(rule().nth(3)), [3]);
        assert_eq!(applied(rule().times(2)), [1, 2]);
        assert_eq!(applied(rule().nth(2).times(3)), [2, 3, 4]);
        assert_eq!(applied(rule().nth(4).always()), [4, 5]);
        assert_eq!(applied(Rule::on(Match::method(Method::GET))), [] as [usize; 0]);
    }

    #[test]
    fn a_request_suffers_the_fault_that_was_injected_first() {
        let rules = Arc::new(Rules::default());
        let first = rules.inject(Rule::on(Match::writes()).then(Fault::DropAnswer));
        let second = rules.inject(Rule::on(Match::writes()).then(Fault::DropRequest));
        let told = rules.inject(Rule::on(Match::any()).on_commit(|_| {}));
        let verdict = rules.judge(&write(WIDGET));
        assert!(matches!(verdict.fault, Some(Fault::DropAnswer)));
        assert_eq!(verdict.on_commit.len(), 1);
        assert_eq!([first.applied(), second.applied(), told.applied()], [1, 0, 1]);

        first.remove();
        assert!(matches!(rules.judge(&write(WIDGET)).fault, Some(Fault::DropRequest)));
        assert_eq!([first.matched(), second.matched(), told.matched()], [1, 2, 2]);
        rules.clear();
        assert!(rules.judge(&write(WIDGET)).fault.is_none());
    }
}
