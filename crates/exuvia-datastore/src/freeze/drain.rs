//! Whether a write that passed before the freeze may still be under way: the pure rules, from what each server has shown.
//!
//! A policy runs before the validating webhooks do, so a write may pass it and commit many seconds later (PITFALLS D12).
//! The API server gives up on a write 34 s after it began to work on it (D13). So there are two ways to know:
//!
//! - *Time*: 34 s after the last server was seen to deny. Always right where all servers are known, and slow.
//! - *Gauges*: each server counts the requests that it works on, by priority level. A level of our own counts the writes
//!   to the source, once the server has had its schema for so long that nothing older is left. Whatever is at zero after
//!   the server denied has nothing left that could commit: later writes are refused.
//!
//! Members of `system:masters` bypass our level: their requests are counted at the level `exempt`, together with the
//! server's own. Nothing says which of them are writes, so `exempt` must be seen at zero, too. That is a matter of a
//! moment, since nobody keeps it busy all the time; if somebody does, time decides. A schema that somebody placed before ours
//! is treated the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exuvia_api::{InvalidDuration, counted, parse_duration};

use super::gauges::Gauges;

/// An API server works on a write for 34 s at most, whatever its `--request-timeout` is.
pub const WRITE_ENDS_WITHIN: Duration = Duration::from_secs(34);

/// How long a server must have had our schema until nothing is left that was sorted without it: a request waits up to a
/// minute in a queue (a quarter of `--request-timeout`, 15 s by default, and never more than 60 s), and is then worked on
/// for 34 s.
pub const SCHEMA_COUNTS_AFTER: Duration = Duration::from_secs(94);

/// A server that cannot be asked denies about a second after the others (PITFALLS D10), and shows that it is awake every 10 s.
const UNASKED_DENIES_WITHIN: Duration = Duration::from_secs(10);

/// How to know that no write is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// By gauges where they can be read, else by time.
    Auto,
    /// So long after the last server denied.
    Fixed(Duration),
}

impl Drain {
    /// Reads `spec.freeze.drain`: `Auto`, or a duration.
    pub fn parse(text: &str) -> Result<Self, InvalidDuration> {
        match text {
            "Auto" => Ok(Self::Auto),
            duration => parse_duration(duration).map(Self::Fixed),
        }
    }
}

/// Whether a write from before the freeze may still be under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No: every server was seen with nothing under way after it denied.
    ProvenByGauges,
    /// No: every server denied so long ago that nothing from before is left.
    WaitedOut,
    /// Perhaps, until then at the latest.
    WaitUntil {
        /// When it is over.
        at: Instant,
        /// Why it is not proven by gauges, in one sentence.
        why: String,
    },
    /// Perhaps: not every server that cannot be asked has shown that it is awake.
    WaitForLeases {
        /// Which one has not, in one sentence.
        why: String,
    },
    /// Perhaps: a server was not seen to deny, so all of them must be probed again.
    NotYet {
        /// What is missing, in one sentence.
        why: String,
    },
}

impl Drained {
    /// Whether no write from before the freeze is under way.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::ProvenByGauges | Self::WaitedOut)
    }
}

/// Why writes under way cannot be counted, so that time decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutCount {
    /// Not every API server can be asked itself.
    UnknownServers,
    /// Our own requests bypass flow control.
    Exempt,
}

impl WithoutCount {
    /// How long the drain takes at least.
    pub fn takes(self) -> Duration {
        match self {
            Self::UnknownServers => WRITE_ENDS_WITHIN + UNASKED_DENIES_WITHIN,
            Self::Exempt => WRITE_ENDS_WITHIN,
        }
    }

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownServers => "not every API server can be asked itself",
            Self::Exempt => "the operator is a member of system:masters",
        }
    }
}

/// What a probe found of one server, the worst of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    /// It denies everything that it must.
    Denies,
    /// It answered, and somebody else refused.
    Unclear,
    /// It did not answer.
    Silent,
    /// A write that must be denied would have passed.
    LetsPass,
}

/// What one server has shown so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Since when it denies everything that it must, without a break.
    pub(super) denying_since: Option<Instant>,
    /// Since when it is known to sort requests by our schema.
    pub(super) schema_since: Option<Instant>,
    /// Whether it was seen with nothing under way after it denied.
    pub(super) is_empty: bool,
    /// Why not, in words that follow the server's name.
    pub(super) why_not_empty: String,
    process: String,
    /// When it was no longer among the servers.
    left: Option<Instant>,
}

impl Seen {
    /// What the probe found.
    pub(super) fn probed(&mut self, found: Found, now: Instant) {
        self.left = None;
        match found {
            Found::Denies => {
                self.denying_since.get_or_insert(now);
            }
            // It is awake, and says nothing about it: a 429 does not mean that it lets writes pass.
            Found::Unclear => {}
            // One that was silent may have stood still, and what it worked on with it.
            Found::LetsPass | Found::Silent => {
                self.denying_since = None;
                self.is_empty = false;
            }
        }
    }

    /// It told its gauges to a question that was sent at `asked`.
    pub(super) fn told(&mut self, gauges: &Gauges, asked: Instant, now: Instant, counts_after: Duration) {
        if self.process != gauges.process {
            // A new process knows nothing of what the old one was asked.
            self.process.clone_from(&gauges.process);
            self.schema_since = None;
        }
        if !gauges.has_our_schema {
            self.schema_since = None;
            "is not known to count the writes to the source".clone_into(&mut self.why_not_empty);
            return;
        }
        let since = *self.schema_since.get_or_insert(now);
        let counts = asked.saturating_duration_since(since) >= counts_after;
        let denied_before = self.denying_since.is_some_and(|since| since <= asked);
        self.why_not_empty = if !counts {
            let age = counts_after.as_secs();
            format!("has counted the writes to the source for less than {age} s")
        } else if gauges.ours > 0 {
            format!("works on {} to the source", counted(gauges.ours, "write"))
        } else if gauges.earlier > 0 {
            format!(
                "works on {} besides those that are counted",
                counted(gauges.earlier, "request")
            )
        } else {
            String::new()
        };
        if denied_before && self.why_not_empty.is_empty() {
            self.is_empty = true;
        }
    }

    /// It did not tell its gauges.
    pub(super) fn told_nothing(&mut self, why: String) {
        self.why_not_empty = why;
    }

    /// The schema is another one: what was sorted meanwhile may not have been counted.
    pub(super) fn schema_changed(&mut self) {
        self.schema_since = None;
    }

    /// The policy is another one: what passed meanwhile may be under way.
    pub(super) fn freeze_changed(&mut self) {
        self.denying_since = None;
        self.is_empty = false;
    }

    /// It is no longer among the servers. `false`: it can be forgotten.
    pub(super) fn leave(&mut self, now: Instant) -> bool {
        let left = *self.left.get_or_insert(now);
        !self.is_empty && now.saturating_duration_since(left) < WRITE_ENDS_WITHIN
    }
}

/// Whether servers that cannot be asked are awake: one that sleeps may let writes pass when it wakes (PITFALLS D11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// There are none, or each is awake.
    Awake,
    /// Not all of them have shown it since all others deny.
    NotKnown(String),
}

/// Everything that the answer depends on.
pub(super) struct Situation<'a> {
    pub(super) servers: &'a BTreeMap<String, Seen>,
    /// Why they may not be all.
    pub(super) why_not_all: Option<&'a str>,
    pub(super) unasked: &'a Unasked,
    /// Why nobody can tell by gauges, if so.
    pub(super) why_no_gauges: Option<&'a str>,
    pub(super) how: Drain,
    /// How long a write may be under way after its server denied.
    pub(super) writes_end_within: Duration,
    pub(super) now: Instant,
}

/// When the last server was seen to deny; `Err`: one does not.
pub(super) fn all_deny_since(servers: &BTreeMap<String, Seen>) -> Result<Instant, String> {
    let mut last = None;
    for (name, seen) in servers {
        let Some(since) = seen.left.or(seen.denying_since) else {
            return Err(format!("API server {name} was not seen to deny"));
        };
        last = last.max(Some(since));
    }
    last.ok_or_else(|| "no API server was asked".to_owned())
}

/// The rule.
pub(super) fn drained(situation: &Situation<'_>) -> Drained {
    let last = match all_deny_since(situation.servers) {
        Ok(last) => last,
        Err(why) => return Drained::NotYet { why },
    };
    if let Unasked::NotKnown(why) = situation.unasked {
        return Drained::WaitForLeases { why: why.clone() };
    }
    let (wait, why) = match (situation.how, why_not_proven(situation)) {
        (Drain::Fixed(duration), _) => (duration, "freeze.drain is a duration".to_owned()),
        (Drain::Auto, None) => return Drained::ProvenByGauges,
        (Drain::Auto, Some(why)) if situation.why_not_all.is_some() => {
            (situation.writes_end_within + UNASKED_DENIES_WITHIN, why)
        }
        (Drain::Auto, Some(why)) => (situation.writes_end_within, why),
    };
    let at = last + wait;
    if situation.now >= at {
        Drained::WaitedOut
    } else {
        Drained::WaitUntil { at, why }
    }
}

fn why_not_proven(situation: &Situation<'_>) -> Option<String> {
    if let Some(why) = situation.why_not_all {
        return Some(why.to_owned());
    }
    if let Some(why) = situation.why_no_gauges {
        return Some(why.to_owned());
    }
    let mut servers = situation.servers.iter();
    let (name, seen) = servers.find(|(_, seen)| !seen.is_empty)?;
    if seen.left.is_some() {
        return Some(format!("API server {name} left before it was seen idle"));
    }
    Some(format!("API server {name} {}", seen.why_not_empty))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
