//! Which tools clients see and may call: a list of names, what it makes of requests, and what it makes of answers.
//!
//! A request is read whole before any byte of it is sent on, because its last byte can change what it means. Of answers, only lists
//! of tools are held.

mod answer;
mod events;
mod json;
mod request;
mod scan;

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

pub(crate) use self::{
    answer::{Unreadable, error, filtered},
    events::EventFilter,
    request::{Verdict, judge},
    scan::Scan,
};

/// A larger list of tools is not passed on: with 512 tools, each may have 16 KiB.
pub(crate) const MAX_LIST: usize = 8 * 1024 * 1024;

/// What clients get for a list that cannot be passed on.
pub(crate) const WITHHELD: &str =
    "the list of tools cannot be filtered: it is too large, not JSON, or too much is held for others";
pub(crate) const WITHHELD_CODE: i32 = -32603;

/// Which tools clients see and may call. By default all of them, and then no message is looked at.
///
/// ```
/// use mcp_proxy::Tools;
///
/// let tools = Tools::new(["add", "subtract"]);
/// assert!(tools.allow("add"));
/// assert!(!tools.allow("Add"));
/// assert!(Tools::default().allow("anything"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tools(Option<Allowed>);

/// The names that are allowed.
pub(crate) type Allowed = Arc<HashSet<String>>;

impl Tools {
    /// Only these. Without any name: all of them, as for a server without a `toolConfigRef`.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let names: HashSet<String> = names.into_iter().map(Into::into).collect();
        Self((!names.is_empty()).then(|| Arc::new(names)))
    }

    /// Whether clients see a tool of this name. Names are compared byte by byte.
    pub fn allow(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|names| names.contains(name))
    }

    /// The names, if not all tools are allowed.
    pub(crate) fn names(&self) -> Option<&Allowed> {
        self.0.as_ref()
    }
}

/// A list of tools that cannot be filtered, or that nobody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withheld;

/// What stands between a backend's answer and the client if tools are filtered.
pub(crate) enum AnswerFilter {
    /// Lists in events are filtered, wherever they come: an answer may come on another stream than its request's.
    Events(EventFilter),
    /// Anything that answers another request passes as it comes, unless a list of tools is in it.
    Guard(Scan),
}

impl AnswerFilter {
    /// Whether what passes stays as it is.
    pub(crate) fn changes_nothing(&self) -> bool {
        matches!(self, Self::Guard(_))
    }

    /// Whether an event of our own may be put in now.
    pub(crate) fn is_between_events(&self) -> bool {
        matches!(self, Self::Events(events) if events.is_between_events())
    }

    pub(crate) fn pass(&mut self, piece: Bytes) -> Result<Bytes, Withheld> {
        match self {
            Self::Events(events) => {
                let mut out = Vec::with_capacity(piece.len());
                events.pass(&piece, &mut out)?;
                Ok(out.into())
            }
            Self::Guard(scan) => {
                scan.feed(&piece);
                if scan.has_list() { Err(Withheld) } else { Ok(piece) }
            }
        }
    }

    /// What is held when the answer ends.
    pub(crate) fn rest(&mut self) -> Result<Bytes, Withheld> {
        let mut out = Vec::new();
        if let Self::Events(events) = self {
            events.rest(&mut out)?;
        }
        Ok(out.into())
    }
}
