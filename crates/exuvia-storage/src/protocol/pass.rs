//! What is remembered of a pass, and what becomes of it after each sweep.

use exuvia_api::{PassSpec, reason};
use exuvia_sweep::ResourceVersion;
use k8s_openapi::jiff::Timestamp;

use super::Crd;

/// What is remembered of a pass. Worth nothing for another CRD uid or generation (PITFALLS B1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pass {
    /// The CRD's uid when the pass began; empty for a built-in resource.
    pub uid: String,
    /// The CRD's generation when the pass began.
    pub generation: i64,
    /// `storedVersions` when the pass began: what is put back if it must be.
    pub stored_before: Vec<String>,
    /// Whether there is something to do although `storedVersions` is clean: nothing is on record that proves it,
    /// managedFields name a version that is gone, or the caller insists.
    pub wanted: bool,
    /// An earlier pass of this CRD was trimmed and not patrolled since, or a version had to be put back: no
    /// resourceVersion proves anything until this pass has been through, however clean everything looks.
    pub patrol_owed: bool,
    /// What the preflight found; `None`: not looked yet.
    pub preflight: Option<Preflight>,
    /// The resourceVersion of a consistent list, taken after settling: what is above it was written by a settled server.
    pub r0: Option<ResourceVersion>,
    /// When R0 was taken, by the server's clock.
    pub r0_at: Option<Timestamp>,
    /// The rewrite sweep, once it went through to its end.
    pub rewrite: Option<SweepEnd>,
    /// How many verify sweeps found objects that moved although nothing explains it.
    pub unexplained: u8,
    /// The last of them saw an object come back old after it had been rewritten: some API server is behind.
    pub came_back: bool,
    /// Every object at or below this resourceVersion was patched by a verify sweep of this pass and came back unchanged.
    pub verified_up_to: Option<ResourceVersion>,
    /// The verify sweep, once it went through to its end and nothing moved that is not explained.
    pub verify: Option<SweepEnd>,
    /// The smallest resourceVersion of the lists that the verify sweep read: what is above it was not looked at.
    pub r1: Option<ResourceVersion>,
    /// Whether the verify sweep trusted no resourceVersion.
    pub verified_in_full: bool,
    /// The trim was made, or there was nothing to trim; either is on record in the CRD.
    pub trimmed: bool,
    /// When that was, by the server's clock. No rule asks for it: the observer turns it into `Observed::patrol_in`.
    pub trimmed_at: Option<Timestamp>,
    /// The patrol after the trim found nothing.
    pub patrolled: bool,
    /// The spec of the `StorageMigration` that the pass carries out. No rule asks for it: the controller does, before it goes
    /// on with the pass.
    pub spec: Option<PassSpec>,
}

impl Pass {
    /// A new pass for the CRD as it is now, after what is remembered of an earlier one.
    pub fn begin(crd: &Crd, earlier: Option<&Self>) -> Self {
        // A pass that was verified may have been trimmed: a crash can hide that.
        let owing = earlier.filter(|pass| {
            let may_be_trimmed = pass.trimmed || pass.patrol_owed || pass.verify.is_some();
            pass.uid == crd.uid && may_be_trimmed && !pass.patrolled
        });
        let mut stored_before = crd.stored.clone();
        for version in owing.iter().flat_map(|pass| &pass.stored_before) {
            if !stored_before.contains(version) {
                stored_before.push(version.clone());
            }
        }
        Self {
            uid: crd.uid.clone(),
            generation: crd.generation,
            stored_before,
            // Whether there is something to do can only be told by looking.
            wanted: true,
            patrol_owed: owing.is_some(),
            ..Self::default()
        }
    }

    /// Takes note of what the preflight found out; `false`: there is nothing to do after all.
    pub fn surveyed(&mut self, crd: &Crd, why: Wanted) -> bool {
        self.wanted =
            why.insisted || why.has_old_owners || self.patrol_owed || !crd.old_versions().is_empty();
        self.wanted
    }

    /// Takes note that another server answers for the CRD, or that this could not be found out. If one does, nobody knows whose
    /// objects were swept. After the trim only the patrol is left, and it is due once more.
    pub fn hide(&mut self, why: Blocked, is_certain: bool) {
        if self.trimmed {
            return;
        }
        self.preflight = Some(Preflight::Blocked(why));
        if !is_certain {
            return;
        }
        (self.r0, self.r0_at) = (None, None);
        (self.rewrite, self.verify) = (None, None);
        (self.verified_up_to, self.r1) = (None, None);
    }

    /// A new pass for a built-in resource.
    pub fn begin_built_in() -> Self {
        Self {
            wanted: true,
            ..Self::default()
        }
    }

    /// What is left of it when it must begin again: for a CRD, whether a patrol is owed. No CRD has the generation 0, so the rules
    /// begin a new pass.
    pub fn begin_again(self) -> Option<Self> {
        (!self.is_built_in()).then_some(Self {
            generation: 0,
            ..self
        })
    }

    /// Whether it is about a built-in resource, which has no CRD.
    pub fn is_built_in(&self) -> bool {
        self.uid.is_empty()
    }

    /// Whether every object is proven to be stored as it should be, and `storedVersions` is trimmed where there is one.
    pub fn is_migrated(&self) -> bool {
        self.trimmed || self.is_built_in() && self.verify == Some(SweepEnd::default())
    }

    /// Whether nothing of it is left to do: the patrol is over, or there was nothing to do at all.
    pub fn is_over(&self) -> bool {
        self.patrolled || !self.wanted || self.is_built_in() && self.is_migrated()
    }

    /// Takes note of a verify sweep. `crd` is read after it: under another generation than the pass's own it is expected
    /// that objects moved.
    pub fn verified(&mut self, crd: &Crd, sweep: &Verification) {
        if crd.uid == self.uid && crd.generation == self.generation {
            self.note_verification(sweep);
        }
    }

    /// Takes note of a verify sweep over the very resource that the pass is about.
    pub fn note_verification(&mut self, sweep: &Verification) {
        self.came_back = sweep.came_back;
        let settled = sweep.unfinished == 0;
        if sweep.unexplained || sweep.came_back {
            self.unexplained = self.unexplained.saturating_add(1);
            self.verify = None;
            // What did not move is proven by its own answer, and shows by its resourceVersion if it is written again.
            self.verified_up_to = sweep
                .smallest_list
                .filter(|_| sweep.full && settled && sweep.complete);
        } else if sweep.complete {
            self.verify = Some(SweepEnd {
                unfinished: sweep.unfinished,
            });
            self.verified_in_full = sweep.full;
            self.r1 = sweep.smallest_list;
        }
    }
}

/// Why there may be something to do although `storedVersions` is clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The caller insists, or nothing is on record that proves what `storedVersions` says (PITFALLS A39).
    pub insisted: bool,
    /// managedFields name a version that should be shed or is gone.
    pub has_old_owners: bool,
}

/// What a verify sweep came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Every object was patched, but for those that an earlier sweep of the pass has verified.
    pub full: bool,
    /// It went through to its end.
    pub complete: bool,
    /// Objects that failed or were in conflict.
    pub unfinished: u64,
    /// An object moved, and nothing explains it.
    pub unexplained: bool,
    /// An object moved, and moved again when it was patched once more, with nothing changed that a webhook could have
    /// changed: two servers store it in two forms.
    pub came_back: bool,
    /// The smallest resourceVersion of its lists.
    pub smallest_list: Option<ResourceVersion>,
}

/// What the preflight found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Preflight {
    /// Conversion and admission answer, nothing would be pruned.
    Passed,
    /// Something stands in the way.
    Blocked(Blocked),
}

/// Why the preflight does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blocked {
    /// A dry-run write was refused or not answered.
    Preflight,
    /// The rewrite would erase fields.
    Pruning,
    /// We may not do what we would have to.
    Forbidden,
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SweepEnd {
    /// Objects that failed or were in conflict: not done, whatever else was.
    pub unfinished: u64,
}

impl Blocked {
    /// The reason that a condition or a report gives.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Preflight => reason::PREFLIGHT,
            Self::Pruning => reason::PRUNING,
            Self::Forbidden => reason::FORBIDDEN,
        }
    }
}
