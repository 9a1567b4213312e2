//! How far the walk through the pages is, and what follows from each answer: pure.

use std::{mem, time::Duration};

use exuvia_write::{ErrorClass, RetryPolicy};
use kube::{
    api::{ListParams, VersionMatch},
    core::ListMeta,
};

use crate::ResourceVersion;

/// How often a list starts over because its place was lost. Each time costs a whole list, and after three whole lists
/// that all lost their place a fourth will not help.
const MAX_RESTARTS: u32 = 3;

/// How often in a row the server may hand back a fresh token and then not take it.
const MAX_RESUMES_IN_A_ROW: u32 = 5;

/// What the lists of a sweep told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) requests: u64,
    pub(crate) pages: u64,
    /// Objects in all pages.
    pub(crate) listed: u64,
    /// All pages are there.
    pub(crate) complete: bool,
    /// How many objects there will have been in the end, as far as the server tells.
    pub(crate) total: Option<u64>,
    pub(crate) first: Option<ResourceVersion>,
    pub(crate) smallest: Option<ResourceVersion>,
    /// A list came without a version that can be compared, so the smallest is not known.
    incomparable: bool,
    pub(crate) resumed: u32,
    pub(crate) restarts: u32,
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the first object, as of now.
    Start,
    /// At the first object, as of this resourceVersion.
    Exactly(String),
    /// After the page that this token came with.
    Token(String),
}

pub(crate) struct Cursor {
    /// Limit and selectors.
    pub(crate) params: ListParams,
    pub(crate) retry: RetryPolicy,
    pub(crate) place: Place,
    /// No page came since the list started.
    at_start: bool,
    failed_in_a_row: u32,
    resumed_in_a_row: u32,
    lists: Lists,
}

/// What follows from a list that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The same again, after this time.
    Retry(Duration),
    /// Go on at once, with the token that the server handed back.
    Resume,
    /// Start over, at once: the place in the list is lost.
    Restart,
    /// Repeating it does not help, or was tried often enough.
    GiveUp,
}

impl Cursor {
    /// At the start of a list. Ten tries, half a minute in all: a walk may take an hour, and one page that cannot be read
    /// ends it.
    pub(crate) fn new() -> Self {
        Self {
            params: ListParams::default(),
            retry: RetryPolicy {
                attempts: 10,
                base: Duration::from_millis(200),
                ..RetryPolicy::default()
            },
            place: Place::Start,
            at_start: true,
            failed_in_a_row: 0,
            resumed_in_a_row: 0,
            lists: Lists::default(),
        }
    }

    /// The list to ask for next; `None`: all pages are there.
    ///
    /// As a rule without a resourceVersion, which makes the first page consistent; `0` would ignore the limit and may be
    /// behind (PITFALLS A8).
    pub(crate) fn next(&self) -> Option<ListParams> {
        if self.lists.complete {
            return None;
        }
        let mut params = self.params.clone();
        match &self.place {
            Place::Start => {}
            Place::Exactly(version) => {
                params.resource_version = Some(version.clone());
                params.version_match = Some(VersionMatch::Exact);
            }
            Place::Token(token) => params.continue_token = Some(token.clone()),
        }
        Some(params)
    }

    pub(crate) fn lists(&self) -> Lists {
        self.lists
    }

    /// A page came; returns whether it is the first since the list started.
    pub(crate) fn on_page(&mut self, list: ListMeta, items: usize) -> bool {
        self.failed_in_a_row = 0;
        self.resumed_in_a_row = 0;
        let version = list.resource_version.and_then(|version| version.parse().ok());
        let lists = &mut self.lists;
        if lists.pages == 0 {
            lists.first = version;
        }
        lists.incomparable |= version.is_none();
        lists.smallest = match (lists.smallest, version) {
            _ if lists.incomparable => None,
            (Some(smallest), Some(version)) => Some(smallest.min(version)),
            (None, version) => version,
            (smallest, None) => smallest,
        };
        lists.requests += 1;
        lists.pages += 1;
        lists.listed += items as u64;
        match list.continue_.filter(|token| !token.is_empty()) {
            Some(token) => self.place = Place::Token(token),
            None => lists.complete = true,
        }
        let remaining = list
            .remaining_item_count
            .and_then(|remaining| u64::try_from(remaining).ok());
        lists.total = match remaining {
            _ if lists.complete => Some(lists.listed),
            Some(remaining) => Some(lists.listed + remaining),
            // More to come, and the server does not say how much: the last estimate, as long as it can be true.
            None => lists.total.filter(|total| *total > lists.listed),
        };
        mem::replace(&mut self.at_start, false)
    }

    /// The list failed; `fresh` is the token that came with the failure.
    pub(crate) fn on_error(&mut self, class: ErrorClass, fresh: Option<String>) -> Recovery {
        self.lists.requests += 1;
        if class != ErrorClass::Expired {
            self.failed_in_a_row += 1;
            let delay = self.retry.after(self.failed_in_a_row, class);
            return delay.map_or(Recovery::GiveUp, Recovery::Retry);
        }
        // PITFALLS A8: the place in the list is kept, its moment is not.
        if let Some(fresh) = fresh.filter(|token| !token.is_empty())
            && self.resumed_in_a_row < MAX_RESUMES_IN_A_ROW
        {
            self.resumed_in_a_row += 1;
            self.lists.resumed += 1;
            self.place = Place::Token(fresh);
            return Recovery::Resume;
        }
        let lost = mem::replace(&mut self.place, Place::Start);
        self.at_start = true;
        if lost != Place::Start && self.lists.restarts < MAX_RESTARTS {
            self.resumed_in_a_row = 0;
            self.lists.restarts += 1;
            self.lists.total = None;
            return Recovery::Restart;
        }
        Recovery::GiveUp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor() -> Cursor {
        Cursor {
            params: ListParams::default().limit(500),
            retry: RetryPolicy::default(),
            ..Cursor::new()
        }
    }

    fn list(version: &str, token: &str, remaining: Option<i64>) -> ListMeta {
        ListMeta {
            resource_version: Some(version.to_owned()),
            continue_: Some(token.to_owned()),
            remaining_item_count: remaining,
            ..ListMeta::default()
        }
    }

    fn token(cursor: &Cursor) -> Option<String> {
        cursor.next().and_then(|params| params.continue_token)
    }

    fn version(number: u64) -> Option<ResourceVersion> {
        number.to_string().parse().ok()
    }

    #[test]
    fn no_request_of_a_plain_list_names_a_resource_version() {
        let mut cursor = cursor();
        for _ in 0..3 {
            let params = cursor.next().expect("a page");
            assert_eq!((params.limit, params.resource_version), (Some(500), None));
            assert_eq!(params.version_match, None);
            cursor.on_page(list("7", "t", None), 500);
        }
    }

    #[test]
    fn the_total_is_revised_with_every_page_and_exact_in_the_end() {
        let mut cursor = cursor();
        assert_eq!(cursor.lists().total, None);
        cursor.on_page(list("7", "a", Some(700)), 500);
        assert_eq!(cursor.lists().total, Some(1200));
        cursor.on_page(list("7", "b", None), 500);
        assert_eq!(cursor.lists().total, Some(1200), "the last estimate holds");
        cursor.on_page(list("7", "c", None), 500);
        assert_eq!(cursor.lists().total, None, "there are more than it said");
        cursor.on_page(list("7", "", None), 3);
        assert_eq!(cursor.lists().total, Some(1503));
        assert!(cursor.next().is_none());
    }

    #[test]
    fn first_and_smallest_version_are_kept() {
        let mut cursor = cursor();
        cursor.on_page(list("100", "a", None), 1);
        cursor.on_page(list("99", "b", None), 1);
        cursor.on_page(list("101", "c", None), 1);
        let lists = cursor.lists();
        assert_eq!((lists.first, lists.smallest), (version(100), version(99)));
    }

    #[test]
    fn the_smallest_version_is_unknown_if_any_is() {
        for incomparable in ["", "0", "abc"] {
            let mut cursor = cursor();
            cursor.on_page(list("100", "a", None), 1);
            cursor.on_page(list(incomparable, "b", None), 1);
            cursor.on_page(list("101", "c", None), 1);
            let lists = cursor.lists();
            assert_eq!((lists.first, lists.smallest), (version(100), None));
        }
    }

    /// PITFALLS A8.
    #[test]
    fn an_expired_token_goes_on_with_the_one_handed_back() {
        let mut cursor = cursor();
        cursor.on_page(list("7", "old", None), 1);
        let next = cursor.on_error(ErrorClass::Expired, Some("fresh".to_owned()));
        assert_eq!(next, Recovery::Resume);
        assert_eq!(token(&cursor).as_deref(), Some("fresh"));
        cursor.on_page(list("9", "", None), 1);
        let lists = cursor.lists();
        assert_eq!((lists.resumed, lists.restarts, lists.requests), (1, 0, 3));
        assert_eq!((lists.first, lists.smallest), (version(7), version(7)));
    }

    #[test]
    fn without_a_token_the_list_starts_over_a_limited_number_of_times() {
        let mut cursor = cursor();
        for restart in 1..=3 {
            cursor.on_page(list("7", "old", Some(10)), 5);
            assert_eq!(cursor.on_error(ErrorClass::Expired, None), Recovery::Restart);
            assert_eq!(token(&cursor), None);
            assert_eq!(cursor.lists().restarts, restart);
        }
        cursor.on_page(list("8", "old", Some(10)), 5);
        assert_eq!(
            cursor.lists().total,
            Some(30),
            "those seen twice are counted twice"
        );
        assert_eq!(cursor.on_error(ErrorClass::Expired, None), Recovery::GiveUp);
    }

    #[test]
    fn tokens_that_are_never_taken_do_not_go_on_for_ever() {
        let mut cursor = cursor();
        let mut steps = 0;
        while cursor.on_error(ErrorClass::Expired, Some("fresh".to_owned())) != Recovery::GiveUp {
            steps += 1;
            assert!(steps < 100);
        }
        assert_eq!(cursor.lists().restarts, 3);
        assert_eq!(cursor.lists().resumed, 20);
    }

    #[test]
    fn a_first_page_that_expires_is_an_error() {
        assert_eq!(cursor().on_error(ErrorClass::Expired, None), Recovery::GiveUp);
    }

    #[test]
    fn retries_are_bounded_and_each_page_has_its_own() {
        let mut cursor = cursor();
        for _ in 0..2 {
            for _ in 0..3 {
                let next = cursor.on_error(ErrorClass::Transient(None), None);
                assert!(matches!(next, Recovery::Retry(_)), "{next:?}");
            }
            cursor.on_page(list("7", "a", None), 1);
        }
        for _ in 0..3 {
            cursor.on_error(ErrorClass::Throttled(None), None);
        }
        assert_eq!(
            cursor.on_error(ErrorClass::Throttled(None), None),
            Recovery::GiveUp
        );
        assert_eq!(cursor.on_error(ErrorClass::Denied, None), Recovery::GiveUp);
        assert_eq!(cursor.lists().requests, 13);
    }

    #[test]
    fn the_first_page_is_told_apart_also_after_a_restart() {
        let mut cursor = cursor();
        assert!(cursor.on_page(list("7", "a", None), 1));
        assert!(!cursor.on_page(list("7", "b", None), 1));
        assert_eq!(
            cursor.on_error(ErrorClass::Expired, Some("fresh".to_owned())),
            Recovery::Resume
        );
        assert!(!cursor.on_page(list("8", "c", None), 1), "the place was kept");
        assert_eq!(cursor.on_error(ErrorClass::Expired, None), Recovery::Restart);
        assert!(cursor.on_page(list("9", "", None), 1), "the place was lost");
    }

    #[test]
    fn an_exact_moment_that_is_gone_makes_way_for_now() {
        let mut cursor = Cursor {
            place: Place::Exactly("7".to_owned()),
            ..cursor()
        };
        let params = cursor.next().expect("a page");
        assert_eq!(params.resource_version.as_deref(), Some("7"));
        assert_eq!(params.version_match, Some(VersionMatch::Exact));
        assert_eq!(cursor.on_error(ErrorClass::Expired, None), Recovery::Restart);
        let params = cursor.next().expect("a page");
        assert_eq!((params.resource_version, params.version_match), (None, None));
        assert_eq!(cursor.on_error(ErrorClass::Expired, None), Recovery::GiveUp);
    }

    #[test]
    fn selectors_are_in_every_request() {
        let mut cursor = cursor();
        cursor.params = cursor.params.labels("a=b").fields("metadata.name=c");
        for _ in 0..2 {
            let params = cursor.next().expect("a page");
            assert_eq!(params.label_selector.as_deref(), Some("a=b"));
            assert_eq!(params.field_selector.as_deref(), Some("metadata.name=c"));
            cursor.on_page(list("7", "t", None), 1);
        }
    }
}
