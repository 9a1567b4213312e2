//! Restarts that people ask for by an annotation: which one counts, and whether it was carried out. Pure.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

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
    /// Delete old pods at once.
    pub(crate) immediate: bool,
}

/// Reads the annotations.
pub(crate) fn read(annotations: &BTreeMap<String, String>) -> Restart {
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
    if mark.is_some_and(|(_, mark)| at <= mark) {
        return done();
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

/// RFC 3339 only: jiff would also take a space instead of the `T`.
fn time(text: &str) -> Option<Timestamp> {
    let has_t = text.as_bytes().get(10).is_some_and(|byte| *byte == b'T');
    text.parse().ok().filter(|_| has_t)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-02T00:00:00+02:00";

    fn read_from(pairs: &[(&str, &str)]) -> Restart {
        let pairs = pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        read(&pairs.collect())
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
    fn an_unknown_strategy_is_named_and_rolling_is_used() {
        let restart = read_from(&[(RESTART, LATE), (RESTART_STRATEGY, "quick")]);
        assert!(restart.problem.is_some());
        assert!(restart.pending.is_some_and(|pending| !pending.immediate));
        let restart = read_from(&[(RESTART, LATE), (RESTART_STRATEGY, STRATEGY_IMMEDIATE)]);
        assert!(restart.pending.is_some_and(|pending| pending.immediate));
    }
}
