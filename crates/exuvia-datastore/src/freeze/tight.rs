//! Whether `freeze.maxDuration` leaves time for the drain: where it cannot, everything would be frozen and undone for nothing. Pure.

use exuvia_api::{Freeze, format_duration, parse_duration};

use super::drain::{Drain, WRITE_ENDS_WITHIN, WithoutCount};

/// How little time a freeze has, in a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tight {
    /// It is over before anything can be copied.
    Never(String),
    /// It is, where the writes under way cannot be counted.
    Perhaps(String),
}

/// What is wrong with the times of a freeze; `None`: nothing, or one of them cannot be read, which is said elsewhere.
///
/// ```
/// use exuvia_api::Freeze;
/// use exuvia_datastore::freeze::{Tight, tight};
///
/// assert_eq!(tight(&Freeze::default()), None);
/// let freeze = Freeze { drain: "30s".into(), max_duration: "20s".into(), ..Freeze::default() };
/// assert!(matches!(tight(&freeze), Some(Tight::Never(_))));
/// ```
pub fn tight(freeze: &Freeze) -> Option<Tight> {
    let most = parse_duration(&freeze.max_duration)
        .ok()
        .filter(|most| !most.is_zero())?;
    let shown = &freeze.max_duration;
    match Drain::parse(&freeze.drain).ok()? {
        Drain::Fixed(drain) if most <= drain => Some(Tight::Never(format!(
            "freeze.maxDuration ({shown}) is not longer than freeze.drain ({}): everything would be frozen, and undone before an \
             object is copied; expected more than the drain and the copy take",
            freeze.drain
        ))),
        Drain::Auto if !freeze.admission && most <= WRITE_ENDS_WITHIN => Some(Tight::Never(
            within_the_drain(shown, "without admission policies the drain takes"),
        )),
        Drain::Auto if most <= WRITE_ENDS_WITHIN => Some(Tight::Perhaps(within_the_drain(
            shown,
            "where the API servers cannot be asked for the writes under way, the drain alone takes",
        ))),
        _ => None,
    }
}

/// The same where it is known that writes under way cannot be counted: then the drain takes its time. `None`: there is enough of it.
pub fn tight_without_count(freeze: &Freeze, without: WithoutCount) -> Option<String> {
    let most = parse_duration(&freeze.max_duration)
        .ok()
        .filter(|most| !most.is_zero())?;
    let is_auto = freeze.admission && Drain::parse(&freeze.drain) == Ok(Drain::Auto);
    (is_auto && most <= without.takes()).then(|| {
        format!(
            "freeze.maxDuration ({}) is too short: {}, so writes under way cannot be counted and the drain takes {}; everything \
             would be frozen, and undone before an object is copied; expected more than the drain and the copy take",
            freeze.max_duration,
            without.as_str(),
            format_duration(without.takes())
        )
    })
}

fn within_the_drain(most: &str, when: &str) -> String {
    format!(
        "freeze.maxDuration ({most}) is short: {when} {}, and everything would be undone before an object is copied; expected more \
         than that and the copy take",
        format_duration(WRITE_ENDS_WITHIN)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_that_ends_before_its_drain_does_is_told() {
        let tight = |admission, drain: &str, most: &str| {
            super::tight(&Freeze {
                admission,
                drain: drain.to_owned(),
                max_duration: most.to_owned(),
                ..Freeze::default()
            })
        };
        for (admission, drain, most) in [
            (true, "Auto", "15m"),
            (true, "Auto", "0s"),
            (true, "Auto", "35s"),
            (true, "60s", "0s"),
            (true, "1s", "2s"),
            (false, "Auto", "35s"),
            (true, "x", "1s"),
        ] {
            assert_eq!(tight(admission, drain, most), None, "{drain} {most}");
        }
        assert!(matches!(tight(true, "1m", "60s"), Some(Tight::Never(_))));
        assert!(matches!(tight(true, "2s", "1s"), Some(Tight::Never(_))));
        assert!(matches!(tight(false, "Auto", "34s"), Some(Tight::Never(_))));
        assert!(
            matches!(tight(true, "Auto", "30s"), Some(Tight::Perhaps(why)) if why.contains("the drain alone takes 34s"))
        );
    }

    #[test]
    fn where_writes_cannot_be_counted_the_drain_takes_its_time() {
        let tight = |drain: &str, most: &str, without| {
            let freeze = Freeze {
                drain: drain.to_owned(),
                max_duration: most.to_owned(),
                ..Freeze::default()
            };
            tight_without_count(&freeze, without)
        };
        for (drain, most, without) in [
            ("Auto", "35s", WithoutCount::Exempt),
            ("Auto", "45s", WithoutCount::UnknownServers),
            ("Auto", "0s", WithoutCount::UnknownServers),
            ("1s", "2s", WithoutCount::UnknownServers),
        ] {
            assert_eq!(tight(drain, most, without), None, "{drain} {most}");
        }
        assert!(tight("Auto", "34s", WithoutCount::Exempt).is_some());
        let why = tight("Auto", "40s", WithoutCount::UnknownServers);
        assert!(why.is_some_and(|why| why.contains("the drain takes 44s")));
    }
}
