//! The strict gate's rules, from what was observed to what to do: the first row that fits.
//!
//! | # | case | decision |
//! |---|---|---|
//! | 1 | the read of target or owner failed | error |
//! | 2 | owner gone or being deleted | refuse: orphan |
//! | 3 | the config's hash is not that of the pod | refuse: torn |
//! | 4 | no token of ours, target absent or unstamped | apply unstamped, with a warning |
//! | 5 | no token of ours, target stamped | refuse: unversioned |
//! | 6 | target is being deleted | wait, decide again |
//! | 7 | target absent | our owner is the live one: create; else skip |
//! | 8 | target unstamped, and somebody else's | refuse: unversioned |
//! | 8 | target unstamped, and its controller is our owner or nobody | our owner is the live one: apply; else skip |
//! | 9 | stamp unparsable | our owner is the live one: apply with a warning; else refuse: unversioned |
//! | 10 | same owner, theirs is newer | skip |
//! | 11 | same owner, same epoch, same intent | nothing; apply if somebody edited it |
//! | 12 | same owner, same epoch, another intent | apply if the Deployment's template has our stamps, else skip |
//! | 13 | same owner, theirs is older | apply |
//! | 14 | another owner, and ours is the live one | apply |
//! | 15 | another owner, and ours is not the live one | skip |
//!
//! Every apply is a compare-and-swap by uid and resourceVersion.

use crate::{Stamp, Token};

use super::{Action, Decision};

/// All that the decision depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Our token; `None` if the pod was made by an operator that issues none.
    pub ours: Option<Token>,
    /// The run config that was read.
    pub config: Config,
    /// The owner.
    pub owner: Owner,
    /// The target.
    pub target: Target,
    /// The template of the Deployment that the helper pods are of; only row 12 looks at it, see [`Observed::needs_template`].
    pub template: Template,
}

/// Whether the run config that was read is the one that the pod was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Config {
    /// The hashes are equal, or nothing says which one it should be.
    Whole,
    /// The file has another hash than the pod was made for, and it stayed so.
    Torn,
}

impl Config {
    /// From the hash of the file and the one that the pod was made for. Without the latter nothing can be said.
    pub fn from_hashes(file: &str, frozen: Option<&str>) -> Self {
        match frozen {
            Some(frozen) if frozen != file => Self::Torn,
            _ => Self::Whole,
        }
    }
}

/// The owner, read by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The read failed, and not with a 404 that names it.
    Unread,
    /// No object has that name.
    Gone,
    /// It is being deleted.
    Deleting,
    /// It lives, with this uid: perhaps another one than in our token.
    Live(String),
}

/// The target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The read failed, and not with a 404 that names it.
    Unread,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(Present),
}

/// A target that exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Its token.
    pub token: Stamp<Token>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// The uid of the owner reference that is its controller, if any.
    pub controller: Option<String>,
    /// Whether its intent hash is that of our intent.
    pub same_intent: bool,
    /// Whether it differs from our intent although the hash is the same: somebody edited it.
    pub is_edited: bool,
}

/// What the template of the Deployment says, in its stamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// Nobody looked, or the read failed.
    Unread,
    /// The Deployment does not exist.
    Absent,
    /// Its token and its config hash are ours.
    Ours,
    /// They are not.
    Other,
}

impl Observed {
    /// Whether the decision needs the template: row 12.
    pub fn needs_template(&self) -> bool {
        self.template == Template::Unread && decide(self).row == 12
    }
}

/// Decides: the first row of the table above that fits.
///
/// ```
/// use exuvia_rollout::{Action, Stamp, Token};
/// use exuvia_rollout::gate::strict::{Config, Observed, Owner, Present, Target, Template, decide};
///
/// let observed = Observed {
///     ours: Some(Token::new("0a1b", 2)),
///     config: Config::Whole,
///     owner: Owner::Live("0a1b".to_owned()),
///     target: Target::Present(Present {
///         token: Stamp::Found(Token::new("0a1b", 3)),
///         ..Present::default()
///     }),
///     template: Template::Unread,
/// };
/// let decision = decide(&observed);
/// assert_eq!((decision.row, decision.action), (10, Action::SkipStale));
/// ```
pub fn decide(observed: &Observed) -> Decision {
    let live = match &observed.owner {
        Owner::Unread => return Decision::new(1, Action::Error),
        _ if observed.target == Target::Unread => return Decision::new(1, Action::Error),
        Owner::Gone | Owner::Deleting => return Decision::new(2, Action::RefuseOrphan),
        Owner::Live(uid) => uid,
    };
    if observed.config == Config::Torn {
        return Decision::new(3, Action::RefuseTorn);
    }
    let target = match &observed.target {
        Target::Present(present) => Some(present),
        Target::Absent | Target::Unread => None,
    };
    let Some(ours) = &observed.ours else {
        let is_stamped = target.is_some_and(|target| target.token != Stamp::Absent);
        return if is_stamped {
            Decision::new(5, Action::RefuseUnversioned)
        } else {
            Decision::new(4, Action::ApplyUnstamped).warned()
        };
    };
    // Pods of an owner that another one replaced make nothing: the garbage collector would take it away, and so on for ever.
    let is_live = ours.uid == *live;
    let unless_replaced = |action| if is_live { action } else { Action::SkipStale };
    let Some(target) = target else {
        return Decision::new(7, unless_replaced(Action::Create));
    };
    if target.is_deleting {
        return Decision::new(6, Action::WaitGone);
    }
    match &target.token {
        Stamp::Absent => {
            let is_foreign = target.controller.as_ref().is_some_and(|uid| *uid != ours.uid);
            Decision::new(
                8,
                if is_foreign {
                    Action::RefuseUnversioned
                } else {
                    unless_replaced(Action::Apply)
                },
            )
        }
        Stamp::Unparsable if is_live => Decision::new(9, Action::Apply).warned(),
        Stamp::Unparsable => Decision::new(9, Action::RefuseUnversioned),
        Stamp::Found(theirs) if theirs.uid == ours.uid => {
            same_owner(observed, target, ours.epoch, theirs.epoch)
        }
        Stamp::Found(_) if is_live => Decision::new(14, Action::Apply),
        Stamp::Found(_) => Decision::new(15, Action::SkipStale),
    }
}

fn same_owner(observed: &Observed, target: &Present, ours: u64, theirs: u64) -> Decision {
    if theirs > ours {
        return Decision::new(10, Action::SkipStale);
    }
    if theirs < ours {
        return Decision::new(13, Action::Apply);
    }
    if target.same_intent {
        let action = if target.is_edited {
            Action::Apply
        } else {
            Action::Nothing
        };
        return Decision::new(11, action);
    }
    match observed.template {
        Template::Unread => Decision::new(12, Action::Error),
        Template::Ours => Decision::new(12, Action::Apply),
        Template::Other | Template::Absent => Decision::new(12, Action::SkipStale),
    }
}

#[cfg(test)]
#[path = "strict_tests.rs"]
mod tests;
