//! What a gate decided, and what its caller does then: words for logs, events, metrics and status.

use kube::api::DynamicObject;

use crate::{Generation, Token};

/// Exit codes of a helper pod that must not go on.
pub mod exit {
    /// The run config is not the one that the pod was made for.
    pub const TORN: u8 = 3;
    /// Somebody with a token applied the target, and we have none, or nobody knows whose the target is.
    pub const UNVERSIONED: u8 = 4;
    /// The owner is gone or being deleted.
    pub const ORPHAN: u8 = 5;
    /// Others were faster each time, or the server could not be asked: to be started again is the cure (`EX_TEMPFAIL`).
    pub const TRY_AGAIN: u8 = 75;
    /// The write was refused for good, such as an invalid object or a missing right.
    pub const FAILED: u8 = 1;
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Nothing is known, so nothing is applied.
    Error,
    /// Make the target, unless somebody else is faster.
    Create,
    /// Apply with stamps.
    Apply,
    /// Apply without stamps.
    ApplyUnstamped,
    /// All is as it should be: not one request.
    Nothing,
    /// Wait until the target is gone, then decide again.
    WaitGone,
    /// We are older than the target: leave it alone, go on serving.
    SkipStale,
    /// The owner is gone or being deleted.
    RefuseOrphan,
    /// The run config is torn.
    RefuseTorn,
    /// It cannot be told who is newer.
    RefuseUnversioned,
}

impl Action {
    /// All of them: every value of the metric's label `decision`.
    pub const ALL: [Self; 10] = [
        Self::Error,
        Self::Create,
        Self::Apply,
        Self::ApplyUnstamped,
        Self::Nothing,
        Self::WaitGone,
        Self::SkipStale,
        Self::RefuseOrphan,
        Self::RefuseTorn,
        Self::RefuseUnversioned,
    ];

    /// A bounded name for logs, `status.runtime.gate` and the label of `exuvia_rollout_decisions_total{decision}`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Create => "create",
            Self::Apply => "apply",
            Self::ApplyUnstamped => "apply-unstamped",
            Self::Nothing => "nothing",
            Self::WaitGone => "wait",
            Self::SkipStale => "skip",
            Self::RefuseOrphan => "refuse-orphan",
            Self::RefuseTorn => "refuse-torn",
            Self::RefuseUnversioned => "refuse-unversioned",
        }
    }

    /// A bounded `CamelCase` name for events and conditions.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Error => "GateError",
            Self::Create => "Create",
            Self::Apply => "Apply",
            Self::ApplyUnstamped => "ApplyUnstamped",
            Self::Nothing => "Current",
            Self::WaitGone => "WaitGone",
            Self::SkipStale => "SkipStale",
            Self::RefuseOrphan => "RefuseOrphan",
            Self::RefuseTorn => "RefuseTorn",
            Self::RefuseUnversioned => "RefuseUnversioned",
        }
    }

    /// What the caller does then.
    pub fn next(self) -> Next {
        match self {
            Self::Create | Self::Apply | Self::ApplyUnstamped | Self::Nothing => {
                Next::Serve { is_current: true }
            }
            Self::SkipStale => Next::Serve { is_current: false },
            Self::Error | Self::WaitGone => Next::NotReady {
                exit: exit::TRY_AGAIN,
            },
            Self::RefuseOrphan => Next::NotReady { exit: exit::ORPHAN },
            Self::RefuseTorn => Next::NotReady { exit: exit::TORN },
            Self::RefuseUnversioned => Next::NotReady {
                exit: exit::UNVERSIONED,
            },
        }
    }
}

/// What a caller does after the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Serve.
    Serve {
        /// Whether the target is what we want: then wait for its pods and keep its Services. If not, we are old: neither wait
        /// for pods that are not ours, nor touch Services.
        is_current: bool,
    },
    /// Say that we are not ready, and end with this exit code.
    NotReady {
        /// One of [`exit`].
        exit: u8,
    },
}

/// An action, and the row of the table that asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The row, from 1.
    pub row: u8,
    /// What to do.
    pub action: Action,
    /// Whether it is worth a warning although it is carried out.
    pub is_warned: bool,
}

impl Decision {
    /// An action asked for by a row.
    pub const fn new(row: u8, action: Action) -> Self {
        Self {
            row,
            action,
            is_warned: false,
        }
    }

    /// The same, with a warning.
    #[must_use]
    pub const fn warned(mut self) -> Self {
        self.is_warned = true;
        self
    }
}

/// What came of a gate.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What was decided, and carried out.
    pub decision: Decision,
    /// Our stamp: a token, or a generation in compat.
    pub ours: Option<String>,
    /// The target's stamp before.
    pub theirs: Option<String>,
    /// Our generation, and where it is from.
    pub generation: Generation,
    /// The target as the server has it now; `None` if it does not exist or was not read.
    pub object: Option<DynamicObject>,
    /// How often it was decided: 1 if nobody else was faster.
    pub rounds: u32,
}

/// An event on the owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventText {
    /// `Normal` or `Warning`.
    pub kind: &'static str,
    /// From [`Action::reason`].
    pub reason: &'static str,
    /// One sentence, without values of objects.
    pub message: String,
}

impl Outcome {
    /// What the caller does now.
    pub fn next(&self) -> Next {
        self.decision.action.next()
    }

    /// A bounded `CamelCase` name.
    pub fn reason(&self) -> &'static str {
        self.decision.action.reason()
    }

    /// One line for the log: `decision=skip ours=2 theirs=3 env=2 file=3`.
    ///
    /// Epochs of one owner are shown as numbers, those of two owners with their uids.
    pub fn log_line(&self) -> String {
        let (ours, theirs) = shown(self.ours.as_deref(), self.theirs.as_deref());
        let number = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
        format!(
            "decision={} ours={ours} theirs={theirs} env={} file={}",
            self.decision.action.as_str(),
            number(self.generation.env),
            number(self.generation.file),
        )
    }

    /// The event on the owner: one per decision that is not an apply, and for each warning. An apply and "nothing" have none, so
    /// that a converged program writes nothing at all.
    pub fn event(&self) -> Option<EventText> {
        let (ours, theirs) = shown(self.ours.as_deref(), self.theirs.as_deref());
        let message = match self.decision.action {
            Action::Create | Action::Apply | Action::Nothing if !self.decision.is_warned => return None,
            Action::Create | Action::Apply | Action::Nothing => {
                format!("the target had a stamp that cannot be read; it was replaced by {ours}")
            }
            Action::ApplyUnstamped if self.decision.is_warned => {
                "applied without a stamp, because this pod has no token: the operator that made it issues none".to_owned()
            }
            Action::ApplyUnstamped => "applied without a stamp, because this pod has no generation".to_owned(),
            Action::SkipStale => format!(
                "{} (ours {ours}, theirs {theirs}): nothing is applied, and this pod goes on serving",
                self.why_skipped()
            ),
            Action::RefuseOrphan => "the owner is gone or being deleted: nothing is applied".to_owned(),
            Action::RefuseTorn => {
                "the run config is not the one that this pod was made for: nothing is applied".to_owned()
            }
            Action::RefuseUnversioned => format!(
                "{} (ours {ours}, theirs {theirs}): nothing is applied",
                self.why_unversioned()
            ),
            Action::WaitGone => "the target is being deleted: waited until it is gone".to_owned(),
            Action::Error if self.decision.row == 12 => {
                "the Deployment that decides between two pods of one epoch could not be read: nothing is applied".to_owned()
            }
            Action::Error => "target or owner could not be read: nothing is applied".to_owned(),
        };
        let kind = match self.decision.action {
            Action::SkipStale | Action::WaitGone => "Normal",
            _ => "Warning",
        };
        Some(EventText {
            kind,
            reason: self.reason(),
            message,
        })
    }

    /// By the row of the strict gate. That of the compat gate, the fifth, knows newer ones only.
    fn why_skipped(&self) -> &'static str {
        match self.decision.row {
            7 => {
                "the target does not exist, and it is for the pods of another owner to make it: ours was replaced"
            }
            8 => {
                "the target has no stamp, and it is for the pods of another owner to apply it: ours was replaced"
            }
            12 => {
                "the target was applied by another pod of the same epoch, and the Deployment's template is not ours"
            }
            15 => "the target was applied by a pod of another owner, and ours was replaced",
            _ => "the target was applied by a newer pod",
        }
    }

    fn why_unversioned(&self) -> &'static str {
        match self.decision.row {
            5 => "the target has a stamp, and this pod has none to compare it with",
            8 => "the target has no stamp, and another owner controls it",
            9 => "the target has a stamp that cannot be read, and the owner of this pod is not the live one",
            _ => "it cannot be told whether this pod is newer than the target",
        }
    }

    /// Writes the log line: at info level, or as a warning where [`event`](Self::event) is one.
    pub fn log(&self) {
        let line = self.log_line();
        let row = self.decision.row;
        match self.event() {
            Some(event) if event.kind == "Warning" => tracing::warn!(row, "{line}: {}", event.message),
            Some(event) => tracing::info!(row, "{line}: {}", event.message),
            None => tracing::info!(row, "{line}"),
        }
    }
}

fn shown(ours: Option<&str>, theirs: Option<&str>) -> (String, String) {
    let token = |text: Option<&str>| text.and_then(|text| text.parse::<Token>().ok());
    let same_owner = match (token(ours), token(theirs)) {
        (Some(ours), Some(theirs)) => ours.uid == theirs.uid,
        _ => true,
    };
    let show = |text: Option<&str>| match (text, token(text)) {
        (None, _) => "-".to_owned(),
        (Some(_), Some(token)) if same_owner => token.epoch.to_string(),
        (Some(text), _) => text.to_owned(),
    };
    (show(ours), show(theirs))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn outcome(action: Action, ours: Option<&str>, theirs: Option<&str>) -> Outcome {
        Outcome {
            decision: Decision::new(1, action),
            ours: ours.map(str::to_owned),
            theirs: theirs.map(str::to_owned),
            generation: Generation::choose(Some("2"), Some(3)),
            object: None,
            rounds: 1,
        }
    }

    #[test]
    fn the_log_line_tells_both_sides() {
        let line = "decision=skip ours=2 theirs=3 env=2 file=3";
        assert_eq!(outcome(Action::SkipStale, Some("2"), Some("3")).log_line(), line);
        assert_eq!(
            outcome(Action::SkipStale, Some("a/2"), Some("a/3")).log_line(),
            line
        );
        assert_eq!(
            outcome(Action::SkipStale, Some("a/2"), Some("b/3")).log_line(),
            "decision=skip ours=a/2 theirs=b/3 env=2 file=3"
        );
        assert_eq!(
            outcome(Action::RefuseTorn, Some("a/2"), None).log_line(),
            "decision=refuse-torn ours=2 theirs=- env=2 file=3"
        );
    }

    #[test]
    fn each_row_says_its_own_cause() {
        let said = |row, action, ours, theirs| {
            let mut outcome = outcome(action, ours, theirs);
            outcome.decision = Decision::new(row, action);
            outcome.event().unwrap().message
        };
        let (skip, refuse) = (Action::SkipStale, Action::RefuseUnversioned);
        for (row, action, ours, theirs, words) in [
            (
                10,
                skip,
                Some("a/2"),
                Some("a/3"),
                "applied by a newer pod (ours 2, theirs 3)",
            ),
            (
                5,
                skip,
                Some("2"),
                Some("3"),
                "applied by a newer pod (ours 2, theirs 3)",
            ),
            (
                7,
                skip,
                Some("a/2"),
                None,
                "does not exist, and it is for the pods of another owner",
            ),
            (
                8,
                skip,
                Some("a/2"),
                None,
                "has no stamp, and it is for the pods of another owner",
            ),
            (
                12,
                skip,
                Some("a/2"),
                Some("a/2"),
                "another pod of the same epoch",
            ),
            (
                15,
                skip,
                Some("a/2"),
                Some("b/1"),
                "a pod of another owner, and ours was replaced (ours a/2, theirs b/1)",
            ),
            (5, refuse, None, Some("a/2"), "has a stamp, and this pod has none"),
            (
                8,
                refuse,
                Some("a/2"),
                None,
                "has no stamp, and another owner controls it",
            ),
            (
                9,
                refuse,
                Some("a/2"),
                None,
                "cannot be read, and the owner of this pod is not the live one",
            ),
            (
                12,
                Action::Error,
                Some("a/2"),
                Some("a/2"),
                "the Deployment that decides",
            ),
        ] {
            let said = said(row, action, ours, theirs);
            assert!(said.contains(words), "row {row}: {said}");
            assert_eq!(
                said.contains("newer pod"),
                words.contains("newer pod"),
                "row {row}: {said}"
            );
        }
    }

    #[test]
    fn a_converged_program_has_no_event_and_every_other_decision_has_one() {
        for action in Action::ALL {
            let silent = matches!(action, Action::Apply | Action::Create | Action::Nothing);
            let event = outcome(action, Some("a/2"), Some("a/3")).event();
            assert_eq!(event.is_none(), silent, "{action:?}");
            assert!(event.is_none_or(|event| event.message.len() < 1024));
        }
        let mut warned = outcome(Action::Apply, Some("a/2"), None);
        warned.decision = warned.decision.warned();
        assert_eq!(warned.event().unwrap().kind, "Warning");
    }

    #[test]
    fn what_the_caller_does_follows_from_the_action() {
        let exit = |action: Action| match action.next() {
            Next::NotReady { exit } => Some(exit),
            Next::Serve { .. } => None,
        };
        assert_eq!(exit(Action::RefuseTorn), Some(3));
        assert_eq!(exit(Action::RefuseUnversioned), Some(4));
        assert_eq!(exit(Action::RefuseOrphan), Some(5));
        assert_eq!(exit(Action::WaitGone), Some(75));
        assert_eq!(exit(Action::SkipStale), None);
        assert_eq!(Action::SkipStale.next(), Next::Serve { is_current: false });
        assert_eq!(Action::Nothing.next(), Next::Serve { is_current: true });
        let names: std::collections::BTreeSet<_> = Action::ALL.map(Action::as_str).into();
        assert_eq!(names.len(), Action::ALL.len());
    }
}
