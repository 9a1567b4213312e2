//! Where the walk through the pages stands, and what follows from each answer: pure.

use std::time::Duration;

use exuvia_write::{ErrorClass, RetryPolicy};
use kube::{api::ListParams, core::ListMeta};

use crate::ResourceVersion;

/// How often a sweep begins anew because its place was lost. Each time costs a whole sweep, and three whole sweeps that
/// all lose their place will not be helped by a fourth.
const RESTARTS: u32 = 3;

/// How often in a row the server may hand back a fresh token and then not take it.
const RESUMES_IN_A_ROW: u32 = 5;

/// What the lists of a sweep told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lists {
    pub(crate) requests: u64,
    pub(crate) pages: u64,
    /// Objects in all pages.
    pub(crate) listed: u64,
    /// How many objects there will have been in the end, as far as the server tells.
    pub(crate) total: Option<u64>,
    pub(crate) first: Option<ResourceVersion>,
    pub(crate) smallest: Option<ResourceVersion>,
    /// A list came without a version that can be compared, so the smallest is not known.
    incomparable: bool,
    pub(crate) resumed: u32,
    pub(crate) restarts: u32,
}

pub(crate) struct Cursor {
    page_size: u32,
    retry: RetryPolicy,
    token: Option<String>,
    at_end: bool,
    failed_in_a_row: u32,
    resumed_in_a_row: u32,
    lists: Lists,
}

/// What to do after a list that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The same again, after a while.
    Retry(Duration),
    /// Go on at once, with the token that the server handed back.
    Resume,
    /// Begin anew, at once.
    Restart,
    /// It will not work.
    GiveUp,
}

impl Cursor {
    pub(crate) fn new(page_size: u32, retry: RetryPolicy) -> Self {
        Self {
            page_size,
            retry,
            token: None,
            at_end: false,
            failed_in_a_row: 0,
            resumed_in_a_row: 0,
            lists: Lists::default(),
        }
    }

    /// The list to ask for next; `None`: all pages are there.
    ///
    /// Without a resourceVersion, which makes the first page consistent; `0` would ignore the limit and may be behind
    /// (PITFALLS A8).
    pub(crate) fn next(&self) -> Option<ListParams> {
        (!self.at_end).then(|| ListParams {
            limit: Some(self.page_size),
            continue_token: self.token.clone(),
            ..ListParams::default()
        })
    }

    pub(crate) fn lists(&self) -> Lists {
        self.lists
    }

    /// A page came.
    pub(crate) fn on_page(&mut self, list: ListMeta, items: usize) {
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
        self.token = list.continue_.filter(|token| !token.is_empty());
        self.at_end = self.token.is_none();
        let remaining = list
            .remaining_item_count
            .and_then(|remaining| u64::try_from(remaining).ok());
        lists.total = match remaining {
            _ if self.at_end => Some(lists.listed),
            Some(remaining) => Some(lists.listed + remaining),
            // More to come, and nobody says how much: the last estimate, as long as it can be true.
            None => lists.total.filter(|total| *total > lists.listed),
        };
    }

    /// The list failed; `fresh` is the token that came with the failure.
    pub(crate) fn on_error(&mut self, class: ErrorClass, fresh: Option<String>) -> Next {
        self.lists.requests += 1;
        if class != ErrorClass::Expired {
            self.failed_in_a_row += 1;
            let delay = self.retry.after(self.failed_in_a_row, class);
            return delay.map_or(Next::GiveUp, Next::Retry);
        }
        // PITFALLS A8: the place in the list is kept, its moment is not.
        if let Some(fresh) = fresh.filter(|token| !token.is_empty())
            && self.resumed_in_a_row < RESUMES_IN_A_ROW
        {
            self.resumed_in_a_row += 1;
            self.lists.resumed += 1;
            self.token = Some(fresh);
            return Next::Resume;
        }
        if self.token.take().is_some() && self.lists.restarts < RESTARTS {
            self.resumed_in_a_row = 0;
            self.lists.restarts += 1;
            self.lists.total = None;
            return Next::Restart;
        }
        Next::GiveUp
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor() -> Cursor {
        Cursor::new(500, RetryPolicy::default())
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
    fn no_request_ever_names_a_resource_version() {
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
        assert_eq!(next, Next::Resume);
        assert_eq!(token(&cursor).as_deref(), Some("fresh"));
        cursor.on_page(list("9", "", None), 1);
        let lists = cursor.lists();
        assert_eq!((lists.resumed, lists.restarts, lists.requests), (1, 0, 3));
        assert_eq!((lists.first, lists.smallest), (version(7), version(7)));
    }

    #[test]
    fn without_a_token_the_sweep_begins_anew_so_often_and_no_more() {
        let mut cursor = cursor();
        for restart in 1..=3 {
            cursor.on_page(list("7", "old", Some(10)), 5);
            assert_eq!(cursor.on_error(ErrorClass::Expired, None), Next::Restart);
            assert_eq!(token(&cursor), None);
            assert_eq!(cursor.lists().restarts, restart);
        }
        cursor.on_page(list("8", "old", Some(10)), 5);
        assert_eq!(
            cursor.lists().total,
            Some(30),
            "those seen twice are counted twice"
        );
        assert_eq!(cursor.on_error(ErrorClass::Expired, None), Next::GiveUp);
    }

    #[test]
    fn tokens_that_are_never_taken_do_not_go_on_for_ever() {
        let mut cursor = cursor();
        let mut steps = 0;
        while cursor.on_error(ErrorClass::Expired, Some("fresh".to_owned())) != Next::GiveUp {
            steps += 1;
            assert!(steps < 100);
        }
        assert_eq!(cursor.lists().restarts, 3);
        assert_eq!(cursor.lists().resumed, 20);
    }

    #[test]
    fn a_first_page_that_expires_is_an_error() {
        assert_eq!(cursor().on_error(ErrorClass::Expired, None), Next::GiveUp);
    }

    #[test]
    fn retries_are_bounded_and_counted_anew_after_a_page() {
        let mut cursor = cursor();
        for _ in 0..2 {
            for _ in 0..3 {
                let next = cursor.on_error(ErrorClass::Transient(None), None);
                assert!(matches!(next, Next::Retry(_)), "{next:?}");
            }
            cursor.on_page(list("7", "a", None), 1);
        }
        for _ in 0..3 {
            cursor.on_error(ErrorClass::Throttled(None), None);
        }
        assert_eq!(cursor.on_error(ErrorClass::Throttled(None), None), Next::GiveUp);
        assert_eq!(cursor.on_error(ErrorClass::Denied, None), Next::GiveUp);
        assert_eq!(cursor.lists().requests, 13);
    }
}
