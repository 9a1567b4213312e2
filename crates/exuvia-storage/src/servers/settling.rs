//! Whether all API servers have understood a CRD's newest storage version: what each has shown, and the rule over it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::protocol::Settled;

/// Requests in flight keep the old codec for up to 34 s after a server has understood (PITFALLS A4).
pub(super) const IN_FLIGHT: Duration = Duration::from_secs(35);

/// What one server has shown since the flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The old version, or no answer after it had shown the old one.
    Old,
    /// The new version, first at this time.
    New(Instant),
    /// It never answered: from here it cannot be asked.
    Silent,
    /// It never answered although the user named it, so that it would be asked.
    GivenAndSilent,
    /// It was not seen to understand, and since this time the cluster does not list it any more.
    Left(Instant),
}

/// What is known about the servers and one CRD at one generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    pub(super) seen: &'a BTreeMap<String, Seen>,
    /// For how long the spec has been as it is.
    pub(super) since_change: Duration,
    pub(super) settle: Duration,
    pub(super) now: Instant,
    /// Those that were asked are all that there are.
    pub(super) are_all: bool,
}

impl Seen {
    /// What a server has shown, after it answered with the new hash (`true`), another one, or not at all.
    pub(super) fn after(
        self_before: Option<Self>,
        answer: Option<bool>,
        is_given: bool,
        now: Instant,
    ) -> Self {
        match (answer, self_before) {
            (Some(true), Some(Self::New(since))) => Self::New(since),
            (Some(true), _) => Self::New(now),
            (Some(false), _) => Self::Old,
            (None, Some(Self::Old | Self::Left(_))) => Self::Old,
            // It has shown the new version and is gone: nothing it could still do.
            (None, Some(Self::New(since))) => Self::New(since),
            (None, _) if is_given => Self::GivenAndSilent,
            (None, _) => Self::Silent,
        }
    }

    /// What becomes of it when the cluster no longer lists the server; `None`: it is forgotten.
    pub(super) fn after_leaving(self, now: Instant) -> Option<Self> {
        match self {
            Self::Old => Some(Self::Left(now)),
            Self::Left(since) => Some(Self::Left(since)),
            Self::New(_) | Self::Silent | Self::GivenAndSilent => None,
        }
    }
}

/// The decision, apart from the asking. A shorter `settle` shortens both waits.
pub(super) fn settled(situation: &Situation<'_>) -> Settled {
    let Situation {
        seen, settle, now, ..
    } = *situation;
    let answering = seen.values().any(|seen| matches!(seen, Seen::New(_) | Seen::Old));
    let trouble = |seen: &Seen| match seen {
        Seen::Old => Some("shows the old storage version"),
        Seen::GivenAndSilent => Some("does not answer"),
        Seen::Silent if answering => Some("does not answer"),
        Seen::Silent | Seen::New(_) | Seen::Left(_) => None,
    };
    let behind: Vec<String> = seen
        .iter()
        .filter_map(|(name, seen)| trouble(seen).map(|what| format!("{name} {what}")))
        .collect();
    let after_change = settle.saturating_sub(situation.since_change);
    if !behind.is_empty() {
        // Right after the flip that is nothing to complain about.
        return match after_change {
            Duration::ZERO => Settled::Behind(behind),
            left => Settled::Wait(left),
        };
    }
    let in_flight = seen
        .values()
        .filter_map(|seen| match seen {
            Seen::New(first) => Some(settle.min(IN_FLIGHT).saturating_sub(now.duration_since(*first))),
            Seen::Left(at) => Some(settle.saturating_sub(now.duration_since(*at))),
            _ => None,
        })
        .max();
    match after_change.max(in_flight.unwrap_or_default()) {
        Duration::ZERO => Settled::Yes {
            // One that left without a word, or that does not answer, proves nothing: time alone is left for it.
            accounted: situation.are_all
                && !seen.is_empty()
                && seen.values().all(|seen| matches!(seen, Seen::New(_))),
        },
        left => Settled::Wait(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(60);

    fn decide(seen: &[(&str, Seen)], since_change: u64, now: Instant) -> Settled {
        let seen = seen
            .iter()
            .map(|(name, seen)| ((*name).to_owned(), *seen))
            .collect();
        settled(&Situation {
            seen: &seen,
            since_change: Duration::from_secs(since_change),
            settle: SETTLE,
            now,
            are_all: true,
        })
    }

    #[test]
    fn a_server_that_shows_the_old_version_is_named() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Old)];
        let named = "b shows the old storage version".to_owned();
        assert_eq!(decide(&seen, 1000, now), Settled::Behind(vec![named]));
    }

    #[test]
    fn a_listed_server_that_does_not_answer_while_others_do_is_named() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Silent)];
        assert_eq!(
            decide(&seen, 1000, now),
            Settled::Behind(vec!["b does not answer".into()])
        );
    }

    #[test]
    fn where_none_can_be_asked_time_alone_counts() {
        let now = Instant::now();
        assert_eq!(decide(&[], 20, now), Settled::Wait(Duration::from_secs(40)));
        assert_eq!(
            decide(&[("a", Seen::Silent)], 60, now),
            Settled::Yes { accounted: false }
        );
    }

    #[test]
    fn a_server_that_the_user_named_must_answer() {
        let now = Instant::now();
        let seen = [("a", Seen::GivenAndSilent)];
        assert_eq!(
            decide(&seen, 1000, now),
            Settled::Behind(vec!["a does not answer".into()])
        );
    }

    #[test]
    fn nobody_is_accused_right_after_the_flip() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Old)];
        assert_eq!(decide(&seen, 20, now), Settled::Wait(Duration::from_secs(40)));
    }

    #[test]
    fn one_that_left_without_having_understood_is_waited_out_and_then_nothing_counts_as_proven() {
        let left = Instant::now();
        let seen = [("a", Seen::New(left)), ("b", Seen::Left(left))];
        let later = left + Duration::from_secs(50);
        assert_eq!(decide(&seen, 1000, later), Settled::Wait(Duration::from_secs(10)));
        assert_eq!(
            decide(&seen, 1000, left + SETTLE),
            Settled::Yes { accounted: false }
        );
    }

    #[test]
    fn requests_in_flight_are_waited_for_after_the_last_server_has_understood() {
        let first = Instant::now();
        let now = first + Duration::from_secs(10);
        let seen = [("a", Seen::New(first)), ("b", Seen::New(now))];
        assert_eq!(decide(&seen, 1000, now), Settled::Wait(IN_FLIGHT));
        assert_eq!(
            decide(&seen, 1000, now + IN_FLIGHT),
            Settled::Yes { accounted: true }
        );
    }

    #[test]
    fn servers_that_are_not_all_there_are_prove_nothing() {
        let now = Instant::now();
        let seen = [("a".to_owned(), Seen::New(now))].into();
        let situation = Situation {
            seen: &seen,
            since_change: SETTLE,
            settle: Duration::from_secs(2),
            now: now + Duration::from_secs(2),
            are_all: false,
        };
        assert_eq!(settled(&situation), Settled::Yes { accounted: false });
    }

    #[test]
    fn a_shorter_settle_shortens_both_waits() {
        let now = Instant::now();
        let seen = [("a".to_owned(), Seen::New(now))].into();
        let settle = Duration::from_secs(2);
        let right_after = Situation {
            seen: &seen,
            since_change: Duration::ZERO,
            settle,
            now,
            are_all: true,
        };
        assert_eq!(settled(&right_after), Settled::Wait(settle));
        let later = Situation {
            since_change: settle,
            now: now + settle,
            ..right_after
        };
        assert_eq!(settled(&later), Settled::Yes { accounted: true });
    }
}
