//! The list of steps: phases, step names in the status, metrics and progress bars are all made from it.

use exuvia_api::DatastorePhase;

use super::Undo;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Look whether the spec can be carried out: kinds, rights, other migrations. Nothing is written.
    Check,
    /// Put our finalizer on the migration.
    AddFinalizer,
    /// Copy the target CRDs into a group of our own, where objects can be tried.
    MakeClones,
    /// Convert every object and try to create it. Nothing is stored.
    Try,
    /// Remove the copies of the target CRDs.
    RemoveClones,
    /// Leave `Failed`.
    Restart,
    /// Put on record that the migration has begun.
    Start,
    /// Make what counts writes that are under way.
    Guard,
    /// Copy and verify everything while writers go on, and follow what changes.
    Sync,
    /// Give the target CRDs a second version, through which targets are reached even if another server answers for their own.
    AddVersion,
    /// Put on record that the freeze begins.
    MarkFreeze,
    /// Create the policies.
    Lock,
    /// Put the flags' values on record.
    SaveFlags,
    /// Set the flags.
    SetFlags,
    /// Ask every API server whether it refuses writes.
    Probe,
    /// Look whether writes are under way.
    Drain,
    /// Put on record that the source is frozen.
    RecordFrozen,
    /// Put the APIService on record, and read the uids that its server shows.
    SaveRoute,
    /// Keep the garbage collector away from dependents.
    Shield,
    /// Remove the APIService.
    RemoveRoute,
    /// Ask every API server whether the target CRDs answer.
    AwaitRoute,
    /// As `Try`, after the switch.
    TryAgain,
    /// Put on record that targets may exist from now on.
    RecordRouted,
    /// Copy every object.
    Copy,
    /// Read every source and every target again.
    Verify,
    /// Copy and verify what has changed since everything was in step, up to the freeze.
    CatchUp,
    /// Put on record that everything is copied: nothing is undone from here on.
    Commit,
    /// Let writers of the target go.
    Thaw,
    /// Write every target once, so that it names its own version, and take the second version away.
    RetireVersion,
    /// Let dependents and references name the targets.
    RewriteReferences,
    /// Let people delete sources.
    ReleaseSource,
    /// Let the garbage collector go.
    LiftShield,
    /// Look whether everything is as `cutover.waitFor` wants it.
    LookAtWaits,
    /// Take our marks off the targets.
    DropStamps,
    /// Put on record that nothing is left to do.
    Complete,
    /// Put on record that everything is to be undone.
    Undo(Undo),
    /// Delete our targets, and put on record that none is left.
    UndoTargets,
    /// Take the second version away.
    UndoVersion,
    /// Put the APIService back.
    UndoRoute,
    /// Ask every API server whether the old backend answers again.
    AwaitBackend,
    /// Put the flags back.
    UndoFlags,
    /// Remove the policies that lock people out.
    UndoLocks,
    /// Let dependents name their sources too: the garbage collector may remember that the owners they name do not exist.
    AnchorDependents,
    /// Let the garbage collector go.
    UndoShield,
    /// Put on record that everything is undone.
    EndUndo,
    /// Do with the source what the spec wants in the end.
    CleanUp,
    /// Take our finalizer off the migration.
    RemoveFinalizer,
}

/// A kind of step, as people see it in `status.step` and in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// Nothing is locked; what stands in the way is looked for.
    Checking,
    /// Objects are tried.
    Trying,
    /// Objects are copied while writers go on.
    Syncing,
    /// Locks are being set.
    Freezing,
    /// Writes that are under way are waited for.
    Draining,
    /// The target CRDs take over.
    Routing,
    /// Objects are copied.
    Copying,
    /// Objects are read again.
    Verifying,
    /// The switch.
    CuttingOver,
    /// References follow.
    Rewriting,
    /// Others are waited for.
    Waiting,
    /// Our marks are removed.
    Finishing,
    /// Everything is being undone.
    Undoing,
    /// The source is being cleaned up.
    CleaningUp,
}

impl Step {
    /// Which line of the list it is.
    pub fn kind(self) -> StepKind {
        match self {
            Self::Check | Self::AddFinalizer | Self::Restart | Self::Start => StepKind::Checking,
            Self::MakeClones | Self::Try | Self::RemoveClones => StepKind::Trying,
            Self::AddVersion | Self::Sync => StepKind::Syncing,
            Self::Guard | Self::MarkFreeze | Self::Lock | Self::SaveFlags | Self::SetFlags | Self::Probe => {
                StepKind::Freezing
            }
            Self::Drain | Self::RecordFrozen => StepKind::Draining,
            Self::SaveRoute | Self::Shield | Self::RemoveRoute | Self::AwaitRoute | Self::TryAgain => {
                StepKind::Routing
            }
            // It is the last one before the copy, with an APIService or without.
            Self::RecordRouted | Self::Copy | Self::CatchUp => StepKind::Copying,
            Self::Verify => StepKind::Verifying,
            Self::Commit | Self::Thaw | Self::RetireVersion => StepKind::CuttingOver,
            Self::RewriteReferences | Self::ReleaseSource | Self::LiftShield => StepKind::Rewriting,
            Self::LookAtWaits => StepKind::Waiting,
            Self::DropStamps | Self::Complete => StepKind::Finishing,
            Self::Undo(_)
            | Self::UndoTargets
            | Self::UndoVersion
            | Self::UndoRoute
            | Self::AwaitBackend
            | Self::UndoFlags
            | Self::UndoLocks
            | Self::AnchorDependents
            | Self::UndoShield
            | Self::EndUndo => StepKind::Undoing,
            Self::CleanUp | Self::RemoveFinalizer => StepKind::CleaningUp,
        }
    }
}

impl StepKind {
    /// All of them, in their order.
    pub const ALL: [Self; 14] = [
        Self::Checking,
        Self::Trying,
        Self::Syncing,
        Self::Freezing,
        Self::Draining,
        Self::Routing,
        Self::Copying,
        Self::Verifying,
        Self::CuttingOver,
        Self::Rewriting,
        Self::Waiting,
        Self::Finishing,
        Self::Undoing,
        Self::CleaningUp,
    ];

    /// The name in `status.step`, what people read while it is done, and the phase in which it usually is.
    const fn line(self) -> (&'static str, &'static str, DatastorePhase) {
        match self {
            Self::Checking => (
                "Checking",
                "checking kinds, rights and other migrations",
                DatastorePhase::Pending,
            ),
            Self::Trying => (
                "Trying",
                "trying every object, nothing is written yet",
                DatastorePhase::Pending,
            ),
            Self::Syncing => (
                "Syncing",
                "copying while writers go on",
                DatastorePhase::Migrating,
            ),
            Self::Freezing => (
                "Freezing",
                "freezing the source on every API server",
                DatastorePhase::Migrating,
            ),
            Self::Draining => (
                "Draining",
                "waiting for writes that are under way",
                DatastorePhase::Migrating,
            ),
            Self::Routing => (
                "Routing",
                "letting the target CRDs answer on every API server",
                DatastorePhase::Migrating,
            ),
            Self::Copying => ("Copying", "copying", DatastorePhase::Migrating),
            Self::Verifying => (
                "Verifying",
                "reading every source and target again",
                DatastorePhase::Migrating,
            ),
            Self::CuttingOver => (
                "CuttingOver",
                "letting writers of the target go",
                DatastorePhase::Converged,
            ),
            Self::Rewriting => (
                "Rewriting",
                "letting dependents name the targets",
                DatastorePhase::Converged,
            ),
            Self::Waiting => (
                "Waiting",
                "waiting for cutover.waitFor",
                DatastorePhase::Converged,
            ),
            Self::Finishing => (
                "Finishing",
                "removing marks from the targets",
                DatastorePhase::Converged,
            ),
            Self::Undoing => ("Undoing", "undoing everything", DatastorePhase::Migrating),
            Self::CleaningUp => ("CleaningUp", "cleaning up", DatastorePhase::Complete),
        }
    }

    /// The name in `status.step`.
    pub const fn as_str(self) -> &'static str {
        self.line().0
    }

    /// What people read while it is done.
    pub const fn doing(self) -> &'static str {
        self.line().1
    }

    /// The phase in which it usually is.
    pub const fn phase(self) -> DatastorePhase {
        self.line().2
    }
}
