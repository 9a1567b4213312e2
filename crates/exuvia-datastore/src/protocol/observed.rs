//! Everything that decides about the next step: what is on record, what is wanted, what is in the cluster, what was seen.

use std::time::Duration;

use exuvia_api::{CleanupSource, DatastorePhase};

use super::{MAX_RETREATS, Undo};

/// Everything that decides about the next step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Observed {
    /// What the `DatastoreMigration` says. It survives a crash.
    pub record: Record,
    /// What of its spec decides.
    pub wants: Wants,
    /// What is in the cluster now.
    pub locks: Locks,
    /// What this process has seen and done. A crash forgets it, so everything in here can be found out again.
    pub seen: Seen,
}

/// What the `DatastoreMigration` says, besides its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whether somebody deletes it.
    pub deletion: Deletion,
    /// Whether it has our finalizer.
    pub has_finalizer: bool,
    /// The phase.
    pub phase: DatastorePhase,
    /// Why everything is being undone.
    pub undo: Option<Undo>,
    /// Whether it was asked to leave `Failed`: its spec has changed since, or somebody said retry.
    pub retry_asked: bool,
    /// For how long the freeze has been on record.
    pub frozen_for: Option<Duration>,
    /// Whether it is on record that the source was frozen and drained.
    pub frozen: bool,
    /// Whether it is on record that the target CRDs answered for their group: from then on targets may exist, until an undo
    /// has found none of them left.
    pub routed: bool,
    /// Whether the values of the flags from before are on record. True if the spec has no flags.
    pub flags_saved: bool,
    /// Whether the APIService from before is on record.
    pub route_saved: bool,
    /// How often another APIService was there than the one on record: somebody put it back. It is counted, and the new one put
    /// on record, in one write before it is removed.
    pub route_returned: u8,
    /// How often everything was undone since somebody last asked it to begin.
    pub retreats: u8,
    /// Whether an undo has left copies of ours, since somebody keeps them from being deleted.
    pub copies_left: bool,
}

impl Record {
    /// The record after everything is undone, to be written at once. The next attempt saves the flags and the APIService as
    /// they are then, and only what is asked from now on counts as a wish to retry.
    #[must_use]
    pub fn undone(&self) -> Self {
        let retreats = self.retreats.saturating_add(1);
        let phase = match self.undo {
            // An abort: all that is left is the finalizer.
            None => DatastorePhase::Pending,
            Some(undo) if retreats < MAX_RETREATS && !self.copies_left => undo.then(),
            Some(_) => DatastorePhase::Failed,
        };
        Self {
            deletion: self.deletion,
            has_finalizer: self.has_finalizer,
            phase,
            retreats,
            copies_left: self.copies_left,
            ..Self::default()
        }
    }

    /// The record after our locks were found and it did not know of them: somebody removed the status. What else it knew is
    /// lost, so everything of ours is looked for.
    #[must_use]
    pub fn found_locked(&self, undo: Undo) -> Self {
        Self {
            phase: DatastorePhase::Migrating,
            undo: Some(undo),
            frozen_for: Some(Duration::ZERO),
            routed: true,
            ..self.clone()
        }
    }

    /// The record after somebody asked for another attempt.
    #[must_use]
    pub fn restarted(&self) -> Self {
        Self {
            phase: DatastorePhase::Pending,
            retry_asked: false,
            retreats: 0,
            ..self.clone()
        }
    }
}

/// Whether somebody deletes the `DatastoreMigration`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Deletion {
    /// Nobody does.
    #[default]
    No,
    /// It alone.
    Asked,
    /// Its CRD is being deleted, and it along with it: that is never a wish to clean up.
    WithItsCrd,
}

/// What of the spec decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wants {
    /// Copy everything while writers go on, before the freeze.
    pub sync: bool,
    /// Begin no further step.
    pub suspend: bool,
    /// Stop before the commit.
    pub hold: bool,
    /// How long the freeze may last.
    pub max_duration: Option<Duration>,
    /// Whether an APIService is to be removed: the spec names one, and it is there or on record. Without one there is nothing
    /// to remove and nothing to restore.
    pub route: bool,
    /// Whether objects are tried at clones of the target CRDs: another API server answers for these, or statuses are copied,
    /// which no dry run at the target itself looks at.
    pub clones: bool,
    /// Whether targets are reached through a second version of their CRDs until the commit: they are copied while an
    /// APIService may hide them.
    pub second: bool,
    /// What becomes of the source in the end.
    pub cleanup: CleanupSource,
}

/// What is in the cluster now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locks {
    /// Our policies.
    pub policy: Policy,
    /// The flags of the spec.
    pub flags: Flags,
    /// What counts writes that are under way.
    pub guard: Guard,
    /// Whether the policy is there that keeps the garbage collector away from dependents.
    pub shield: bool,
    /// Who answers for the target group.
    pub route: Route,
    /// Copies of the target CRDs, for trying.
    pub clones: Clones,
    /// The second version of the target CRDs.
    pub second: Second,
    /// Whether a CRD of the source is left.
    pub source: bool,
}

/// Our policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// None of them is there.
    #[default]
    Absent,
    /// The spec wants none, and none is there.
    NotWanted,
    /// Some are there and some not, or somebody changed one.
    Partial,
    /// They refuse writes to the source and to the targets.
    Frozen,
    /// They refuse writes to the source, and leave the targets alone.
    Committed,
    /// They refuse to create or update sources, and leave the targets alone.
    Converged,
}

/// The flags of the spec. A flag that somebody had frozen before is frozen, and is not held: two facts, so two fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Some flag does not have its frozen value.
    pub to_set: bool,
    /// Some flag has neither its frozen value nor the one on record: somebody changed it.
    pub changed: bool,
    /// Some flag of the source is frozen and was not before.
    pub source_held: bool,
    /// Some flag of the target is frozen and was not before.
    pub target_held: bool,
}

/// Copies of the target CRDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clones {
    /// There are none.
    #[default]
    Absent,
    /// Some are missing, not established yet, or being deleted.
    Partial,
    /// All of them answer.
    Ready,
}

/// The second version of the target CRDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Second {
    /// No CRD has one of ours.
    #[default]
    Absent,
    /// Some CRD lacks it, or some API server may not serve it, or nobody has looked.
    Partial,
    /// Every API server serves it for every target.
    Ready,
}

/// What counts writes that are under way: it must be there for some time before the freeze.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Guard {
    /// Nothing counts them: the wait is for a time.
    #[default]
    NotNeeded,
    /// It is to be made.
    Absent,
    /// It must be older by this.
    Young(Duration),
    /// It counts every write.
    Ready,
}

/// Who answers for the target group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Route {
    /// The target CRDs: no APIService is to be removed.
    #[default]
    Crds,
    /// Another API server, by the APIService of the spec.
    Backend,
}

/// What this process has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Whether the spec can be carried out.
    pub checked: Checked,
    /// Whether every object can be copied, as far as a dry run tells.
    pub tried: Tried,
    /// Whether the targets are kept in step with their sources while writers go on.
    pub synced: Synced,
    /// Whether somebody keeps the second version away from a target CRD.
    pub second_refused: bool,
    /// Whether every API server refuses writes to the source.
    pub denies: Denies,
    /// Whether a write that began before that may still be under way.
    pub drained: Drained,
    /// Whether the uids that the other API server shows are known.
    pub aliases: bool,
    /// Whether every API server keeps the garbage collector away from dependents.
    pub shielded: bool,
    /// Whether every API server lets the target CRDs answer.
    pub routed_everywhere: bool,
    /// Whether every API server lets the old backend answer again.
    pub backend_everywhere: bool,
    /// Whether dependents that name the other API server's uids name their sources, too.
    pub anchored: bool,
    /// As `tried`, after the switch.
    pub tried_again: Tried,
    /// Whether every object is copied.
    pub copied: Copied,
    /// Whether every target was read again.
    pub verified: Verified,
    /// Whether it was tried, since the locks are off, to delete the copies that are left.
    pub tried_copies_left: bool,
    /// How often everything was copied again because a source had moved.
    pub copies: u8,
    /// Whether no target names the second version any more.
    pub retired: bool,
    /// Whether dependents and references name the targets.
    pub references: bool,
    /// Whether everything is as `cutover.waitFor` wants it.
    pub waits: Waits,
    /// Whether our marks are off the targets.
    pub stamps_dropped: bool,
    /// Whether the source was cleaned up; `Some(false)`: it cannot be.
    pub cleaned: Option<bool>,
    /// For how long a write of ours may still take effect that nobody waits for any more: its answer was lost, or a former
    /// process sent it. A request dies after 34 s (D13), so this is set when a process begins and when an answer is lost.
    pub unsettled: Option<Duration>,
}

impl Seen {
    /// Every API server was asked and refuses. What was read or written before that proves nothing. Targets that are kept in
    /// step still are: what has changed since is told by the watches.
    pub fn probed(&mut self) {
        *self = Self {
            denies: Denies::All,
            drained: Drained::NotYet,
            tried_again: Tried::Unknown,
            copied: Copied::No,
            verified: Verified::No,
            ..self.clone()
        };
    }

    /// Every API server was asked and lets the target CRDs answer. What was read or written before may have been the old
    /// backend's, unless it went through a second version.
    pub fn routed(&mut self, wants: &Wants) {
        (self.routed_everywhere, self.backend_everywhere) = (true, false);
        if wants.second {
            return;
        }
        *self = Self {
            tried_again: Tried::Unknown,
            copied: Copied::No,
            verified: Verified::No,
            ..self.clone()
        };
    }

    /// Everything was undone: the next attempt looks at everything again.
    #[must_use]
    pub fn undone(&self) -> Self {
        Self {
            unsettled: self.unsettled,
            ..Self::default()
        }
    }
}

/// Whether the spec can be carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Checked {
    /// Not looked at.
    #[default]
    Unknown,
    /// Something stands in the way.
    Blocked,
    /// It can.
    Passed,
}

/// Whether every object can be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tried {
    /// Not looked at.
    #[default]
    Unknown,
    /// Some cannot.
    Blocked,
    /// Some targets exist and differ.
    Conflicts,
    /// All of them can.
    Clean,
}

/// Whether the targets are kept in step with their sources while writers go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Synced {
    /// Not yet, or not any more.
    #[default]
    No,
    /// Some targets exist and differ.
    Conflicts,
    /// Some were refused.
    Refused,
    /// Targets are not as they were written.
    Failed,
    /// Everything was copied and verified, what changes is told by watches, and little of it is left to do.
    Yes,
}

/// Whether every API server refuses writes to the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Denies {
    /// Not known, or not yet.
    #[default]
    NotYet,
    /// It does, and our policies are still those that were probed.
    All,
}

/// Whether a write that began before the freeze may still be under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drained {
    /// It may, and must be looked at.
    #[default]
    NotYet,
    /// It may not.
    Yes,
}

/// Whether every object is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Copied {
    /// Not yet.
    #[default]
    No,
    /// Some targets exist and differ.
    Conflicts,
    /// Some were refused.
    Refused,
    /// Yes.
    Yes,
}

/// Whether every target was read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verified {
    /// Not yet.
    #[default]
    No,
    /// Sources have moved since they were copied.
    SourceMoved,
    /// Targets are not as they were written.
    Failed,
    /// Yes, and every one is right.
    Yes,
}

/// Whether everything is as `cutover.waitFor` wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waits {
    /// Not looked at.
    #[default]
    Unknown,
    /// Not yet.
    NotMet,
    /// It is.
    Met,
}
