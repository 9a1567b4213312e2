//! Restarts that people ask for by an annotation: which one counts, and whether it was carried out. Pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::api::{RESTART, RESTART_MARK, RESTART_STRATEGY, STRATEGY_IMMEDIATE, STRATEGY_ROLLING};

/// What the annotations of a server say about restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restart {
    /// The time that belongs into the templates, as it was written by the person who asked. It is the time that was
    /// *requested*: a reconcile that is repeated, because its mark met a 409, gives the same template, and nothing restarts
    /// a second time.
    pub(crate) stamped: Option<String>,
    /// The restart that is still to be marked as carried out.
    pub(crate) pending: Option<Pending>,
    /// What is wrong with the annotations, for a warning.
    pub(crate) problem: Option<String>,
}

/// A restart that was asked for and is not marked as carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    /// As it was written by the person who asked.
    pub(crate) at: String,
    /// All old pods go at once.
    pub(crate) immediate: bool,
}

/// How far ahead of our clock a time may be: clocks differ a little.
const AHEAD: SignedDuration = SignedDuration::from_mins(5);

/// Reads the annotations. A time that is far ahead of `now` does not count, be it asked for or marked: it would swallow every request that
/// comes after it.
pub(crate) fn read(annotations: &BTreeMap<String, String>, now: Timestamp) -> Restart {
    let text = |key: &str| annotations.get(key).map(String::as_str);
    let mark = text(RESTART_MARK).and_then(|mark| Some((mark, time(mark)?)));
    let done = || Restart {
        stamped: mark.map(|(mark, _)| mark.to_owned()),
        ..Restart::default()
    };
    let Some(asked) = text(RESTART) else { return done() };
    let Some(at) = time(asked) else {
        return Restart {
            problem: Some(format!(
                "invalid {RESTART} {asked:?}: expected a time such as 2026-01-31T12:00:00Z; it is ignored"
            )),
            ..done()
        };
    };
    let is_far_ahead = |time: Timestamp| time.duration_since(now) > AHEAD;
    if mark.is_some_and(|(_, mark)| at == mark || (at < mark && !is_far_ahead(mark))) {
        return done();
    }
    if is_far_ahead(at) {
        return Restart {
            problem: Some(format!(
                "invalid {RESTART} {asked:?}: expected a time that is not ahead of the clock; it is ignored until then"
            )),
            ..done()
        };
    }
    let strategy = text(RESTART_STRATEGY).unwrap_or(STRATEGY_ROLLING);
    let problem = (![STRATEGY_ROLLING, STRATEGY_IMMEDIATE].contains(&strategy)).then(|| {
        format!(
            "invalid {RESTART_STRATEGY} {strategy:?}: expected {STRATEGY_ROLLING} or {STRATEGY_IMMEDIATE}; \
             {STRATEGY_ROLLING} is used"
        )
    });
    Restart {
        stamped: Some(asked.to_owned()),
        pending: Some(Pending {
            at: asked.to_owned(),
            immediate: strategy == STRATEGY_IMMEDIATE,
        }),
        problem,
    }
}

/// RFC 3339 only: jiff also takes hours alone, the basic format, and names of zones.
fn time(text: &str) -> Option<Timestamp> {
    let text = text.to_ascii_uppercase();
    is_rfc_3339(text.as_bytes()).then(|| text.parse().ok()).flatten()
}

/// Whether it has the form `2026-01-31T12:00:00`, perhaps a fraction, then `Z` or an offset such as `+01:00`.
fn is_rfc_3339(text: &[u8]) -> bool {
    let has_form = |text: &[u8], form: &[u8]| {
        let fits = |(byte, form): (&u8, &u8)| {
            if *form == b'0' {
                byte.is_ascii_digit()
            } else {
                byte == form
            }
        };
        text.len() == form.len() && text.iter().zip(form).all(fits)
    };
    let Some((start, mut rest)) = text.split_at_checked(19) else {
        return false;
    };
    if let Some(fraction) = rest.strip_prefix(b".") {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        rest = &fraction[digits..];
        if digits == 0 {
            return false;
        }
    }
    let is_offset = rest == b"Z" || has_form(rest, b"+00:00") || has_form(rest, b"-00:00");
    has_form(start, b"0000-00-00T00:00:00") && is_offset
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T00:00:00+02:00";

    fn read_from(pairs: &[(&str, &str)]) -> Restart {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        read(&pairs.collect(), "2026-02-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_first_request_is_pending_and_stamped_as_requested() {
        let restart = read_from(&[(RESTART, LATE)]);
        assert_eq!(restart.stamped.as_deref(), Some(LATE));
        let pending = Pending {
            at: LATE.to_owned(),
            immediate: false,
        };
        assert_eq!(restart.pending, Some(pending));
    }

    #[test]
    fn the_stamp_is_the_same_before_and_after_the_mark() {
        let before = read_from(&[(RESTART, LATE), (RESTART_MARK, EARLY)]);
        let after = read_from(&[(RESTART, LATE), (RESTART_MARK, LATE)]);
        assert_eq!(before.stamped, after.stamped);
        assert!(before.pending.is_some() && after.pending.is_none());
    }

    #[test]
    fn what_is_not_after_the_mark_is_ignored() {
        // The same instant in another zone, and one before it.
        for asked in ["2026-01-01T22:00:00Z", EARLY] {
            let restart = read_from(&[(RESTART, asked), (RESTART_MARK, LATE)]);
            assert_eq!((restart.stamped.as_deref(), restart.pending), (Some(LATE), None));
        }
    }

    #[test]
    fn a_bad_time_is_ignored_and_named() {
        for bad in [
            "",
            "now",
            "2026-01-01",
            "2026-01-01 00:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T12Z",
            "2026-01-01T000000Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00Z[UTC]",
            "2026-01-01T00:00:00+01:00[Europe/Berlin]",
            "2026-01-01T00:00:00+01",
            "2026-13-01T00:00:00Z",
        ] {
            let restart = read_from(&[(RESTART, bad), (RESTART_MARK, EARLY)]);
            assert_eq!((restart.stamped.as_deref(), restart.pending), (Some(EARLY), None));
            assert!(
                restart
                    .problem
                    .is_some_and(|problem| problem.contains("expected a time"))
            );
        }
    }

    #[test]
    fn small_letters_and_fractions_are_rfc_3339_too() {
        for good in ["2026-01-01t00:00:00z", "2026-01-01T00:00:00.25-01:30"] {
            assert_eq!(read_from(&[(RESTART, good)]).stamped.as_deref(), Some(good));
        }
    }

    #[test]
    fn a_time_far_ahead_neither_counts_nor_swallows_what_comes_after_it() {
        const AHEAD: &str = "2999-01-01T00:00:00Z";
        let asked = read_from(&[(RESTART, AHEAD), (RESTART_MARK, EARLY)]);
        assert_eq!((asked.stamped.as_deref(), asked.pending), (Some(EARLY), None));
        assert!(
            asked
                .problem
                .is_some_and(|problem| problem.contains("ahead of the clock"))
        );
        // One that an operator took that did not look at the clock.
        let marked = read_from(&[(RESTART, LATE), (RESTART_MARK, AHEAD)]);
        assert!(marked.pending.is_some());
        let same = read_from(&[(RESTART, AHEAD), (RESTART_MARK, AHEAD)]);
        assert_eq!((same.stamped.as_deref(), same.pending), (Some(AHEAD), None));
        // A clock that is a little behind.
        assert!(read_from(&[(RESTART, "2026-02-01T00:04:00Z")]).pending.is_some());
    }

    #[test]
    fn an_unknown_strategy_is_named_and_rolling_is_used() {
        let restart = read_from(&[(RESTART, LATE), (RESTART_STRATEGY, "quick")]);
        assert!(restart.problem.is_some());
        assert!(restart.pending.is_some_and(|pending| !pending.immediate));
        let restart = read_from(&[(RESTART, LATE), (RESTART_STRATEGY, STRATEGY_IMMEDIATE)]);
        assert!(restart.pending.is_some_and(|pending| pending.immediate));
    }
}
