//! When a fault strikes: counting and callbacks.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{fault::Fault, matching::Match, record::Recorded};

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
        Self {
            about,
            first: 1,
            count: None,
            fault: None,
            on_request: None,
            on_commit: None,
        }
    }

    /// Applies to the n-th match only, counted from 1; with [`times`](Self::times) or
    /// [`always`](Self::always) after it, from the n-th on.
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

    /// Calls `callback` when a request that the rule applies to has arrived and before anything is done with
    /// it. As long as it blocks, this request waits, and only this.
    #[must_use]
    pub fn on_request(mut self, callback: impl Fn(&Recorded) + Send + Sync + 'static) -> Self {
        self.on_request = Some(Arc::new(callback));
        self
    }

    /// Calls `callback` when the server has answered and before the client gets anything: a write is
    /// committed, if [`Recorded::upstream`] says so. As long as it blocks, this request waits, and only this.
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
        self.lock().push(Active {
            rule,
            counts: Arc::clone(&counts),
        });
        Injected {
            rules: Arc::clone(self),
            counts,
        }
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// Counts the request with every rule that it matches. One request suffers one fault: that of the rule
    /// injected first.
    pub(crate) fn judge(&self, request: &Recorded) -> Verdict {
        let mut verdict = Verdict::default();
        for Active { rule, counts } in self
            .lock()
            .iter()
            .filter(|active| active.rule.about.holds(request))
        {
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
        self.rules
            .lock()
            .retain(|active| !Arc::ptr_eq(&active.counts, &self.counts));
    }
}

impl fmt::Debug for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Injected").field(&self.counts).finish()
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::proxy::record::tests::request;

    const WIDGET: &str = "/apis/example.com/v1/namespaces/ns/widgets/w";

    fn write(path: &str) -> Recorded {
        Recorded {
            method: Method::PATCH,
            ..request(path)
        }
    }

    /// Which of five matching requests a rule applies to.
    fn applied(rule: Rule) -> Vec<usize> {
        let rules = Arc::new(Rules::default());
        rules.inject(rule.then(Fault::DropRequest));
        (1..=5)
            .filter(|_| rules.judge(&write(WIDGET)).fault.is_some())
            .collect()
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
        assert!(matches!(
            rules.judge(&write(WIDGET)).fault,
            Some(Fault::DropRequest)
        ));
        assert_eq!([first.matched(), second.matched(), told.matched()], [1, 2, 2]);
        rules.clear();
        assert!(rules.judge(&write(WIDGET)).fault.is_none());
    }
}
