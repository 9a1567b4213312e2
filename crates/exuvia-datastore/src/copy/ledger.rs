//! What is known while targets are kept in step: which state of which source is in which targets, and what must be looked at
//! again. Pure: watches and workers write into it.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use exuvia_sweep::ResourceVersion;

use super::Problem;

/// An object's place, or a uid, as a number.
pub(super) type Key = u128;

/// Which object: the kind by its place in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) kind: usize,
    pub(super) namespace: Option<Box<str>>,
    pub(super) name: Box<str>,
}

/// A target as it was last read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) place: Key,
    pub(super) named: Named,
    /// `None`: not known, so every news of it counts.
    pub(super) version: Option<ResourceVersion>,
    pub(super) uid: Key,
    pub(super) mapping: usize,
    /// `false`: it was there already, and stays.
    pub(super) is_ours: bool,
    /// References to the source will name it.
    pub(super) is_successor: bool,
}

/// A source whose state is in its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InStep {
    pub(super) named: Named,
    pub(super) uid: Key,
    pub(super) version: Option<ResourceVersion>,
    /// The uids that its owner references name.
    pub(super) owners: Box<[Key]>,
    pub(super) targets: Vec<Made>,
}

/// A source that cannot be copied now.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) named: Named,
    pub(super) problem: Problem,
    pub(super) since: Instant,
}

/// Why a source must be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Always,
    /// It was seen in this state.
    Source(Key, Option<ResourceVersion>),
    /// This target of it was seen in this state.
    Target(Key, Option<ResourceVersion>),
}

/// Who a place belongs to.
#[derive(Clone, Copy, Debug)]
struct Claim {
    source: Key,
    /// The target's kind.
    kind: usize,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    in_step: HashMap<Key, InStep>,
    claims: HashMap<Key, Claim>,
    /// Claims of sources that are not in step yet.
    attempted: HashMap<Key, Vec<(Key, Named)>>,
    to_look_at: HashMap<Key, (Named, Why)>,
    in_work: HashMap<Key, Named>,
    held: HashMap<Key, Held>,
    /// Targets of ours that no source is known to want.
    strays: HashMap<Key, Named>,
}

impl Ledger {
    /// A source was listed, or a watch showed it.
    pub(super) fn source_seen(&mut self, key: Key, named: Named, uid: Key, version: Option<ResourceVersion>) {
        let why = Why::Source(uid, version);
        if !self.is_old_news(key, why) {
            self.look_at(key, named, why);
        }
    }

    /// A source is gone, or cannot be read.
    pub(super) fn source_lost(&mut self, key: Key, named: Named) {
        self.look_at(key, named, Why::Always);
    }

    /// A list of this kind is complete: what it did not show is gone.
    pub(super) fn sources_listed(&mut self, kind: usize, shown: &HashSet<Key>) {
        let known = self.in_step.iter().map(|(key, source)| (key, &source.named));
        let held = self.held.iter().map(|(key, held)| (key, &held.named));
        // One that is in work was perhaps read before it went.
        let known = known.chain(held).chain(&self.in_work);
        let gone = known.filter(|(key, named)| named.kind == kind && !shown.contains(key));
        let gone: Vec<(Key, Named)> = gone.map(|(key, named)| (*key, named.clone())).collect();
        for (key, named) in gone {
            self.look_at(key, named, Why::Always);
        }
    }

    /// A target was listed, or a watch showed it. `is_marked`: it has the mark of this migration.
    pub(super) fn target_seen(
        &mut self,
        place: Key,
        named: Named,
        version: Option<ResourceVersion>,
        is_marked: bool,
    ) {
        match self.claims.get(&place) {
            Some(claim) => self.look_at_source(claim.source, Why::Target(place, version)),
            None if is_marked => drop(self.strays.insert(place, named)),
            None => {}
        }
    }

    /// A target is gone.
    pub(super) fn target_lost(&mut self, place: Key) {
        self.strays.remove(&place);
        if let Some(claim) = self.claims.get(&place) {
            self.look_at_source(claim.source, Why::Always);
        }
    }

    /// A list of this target kind is complete.
    pub(super) fn targets_listed(&mut self, kind: usize, shown: &HashSet<Key>) {
        let claims = self.claims.iter();
        let gone = claims.filter(|(place, claim)| claim.kind == kind && !shown.contains(*place));
        let gone: Vec<Key> = gone.map(|(place, _)| *place).collect();
        for place in gone {
            self.target_lost(place);
        }
    }

    /// Something about the owner with this uid has changed: those that name it must follow.
    pub(super) fn owner_changed(&mut self, uid: Key) {
        let named_by = self
            .in_step
            .iter()
            .filter(|(_, source)| source.owners.contains(&uid));
        let named_by: Vec<Key> = named_by.map(|(key, _)| *key).collect();
        for key in named_by {
            self.look_at_source(key, Why::Always);
        }
    }

    /// Everything that must be looked at; the caller tells what came of each.
    pub(super) fn take(&mut self) -> Vec<(Key, Named)> {
        let mut taken: Vec<(Key, Named)> = Vec::new();
        for (key, (named, why)) in std::mem::take(&mut self.to_look_at) {
            if !self.is_old_news(key, why) {
                taken.push((key, named));
            }
        }
        let held = self.held.iter().map(|(key, held)| (*key, held.named.clone()));
        let listed: HashSet<Key> = taken.iter().map(|(key, _)| *key).collect();
        taken.extend(held.filter(|(key, _)| !listed.contains(key)).collect::<Vec<_>>());
        self.in_work.extend(taken.iter().cloned());
        taken
    }

    /// A target is about to be written for this source; `false`: another source has that place.
    pub(super) fn claim(&mut self, place: Key, named: &Named, source: Key) -> bool {
        self.strays.remove(&place);
        if let Some(claim) = self.claims.get(&place) {
            return claim.source == source;
        }
        let kind = named.kind;
        self.claims.insert(place, Claim { source, kind });
        let attempted = self.attempted.entry(source).or_default();
        attempted.push((place, named.clone()));
        true
    }

    /// What a source was when its targets were last in step.
    pub(super) fn before(&self, key: Key) -> Option<InStep> {
        self.in_step.get(&key).cloned()
    }

    /// The targets of a source are in step; `None`: it does not exist.
    pub(super) fn settled(&mut self, key: Key, now: Option<InStep>) {
        self.in_work.remove(&key);
        self.held.remove(&key);
        let kept: Vec<Key> = now
            .iter()
            .flat_map(|now| &now.targets)
            .map(|made| made.place)
            .collect();
        let before = match now {
            Some(now) => self.in_step.insert(key, now),
            None => self.in_step.remove(&key),
        };
        let before = before.into_iter().flat_map(|before| before.targets);
        let before = before.map(|made| (made.place, None));
        let attempted = self.attempted.remove(&key).unwrap_or_default();
        let attempted = attempted.into_iter().map(|(place, named)| (place, Some(named)));
        for (place, attempted) in before.chain(attempted) {
            if !kept.contains(&place) {
                self.claims.remove(&place);
                // It may have been written for a former state of the source.
                self.strays.extend(attempted.map(|named| (place, named)));
            }
        }
    }

    /// It could not be found out, or written: it is looked at again.
    pub(super) fn put_back(&mut self, key: Key, named: Named) {
        self.in_work.remove(&key);
        self.look_at(key, named, Why::Always);
    }

    /// It cannot be copied now.
    pub(super) fn hold(&mut self, key: Key, named: Named, problem: Problem) {
        self.in_work.remove(&key);
        let since = self.held.get(&key).map_or_else(Instant::now, |held| held.since);
        self.held.insert(
            key,
            Held {
                named,
                problem,
                since,
            },
        );
    }

    /// Sources that cannot be copied now.
    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// Targets of ours that no source wants.
    pub(super) fn take_strays(&mut self) -> Vec<(Key, Named)> {
        let strays = std::mem::take(&mut self.strays);
        let unwanted = strays
            .into_iter()
            .filter(|(place, _)| !self.claims.contains_key(place));
        unwanted.collect()
    }

    /// It is still there: it is looked at again.
    pub(super) fn put_back_stray(&mut self, place: Key, named: Named) {
        self.strays.insert(place, named);
    }

    /// How many sources and targets must be looked at. What is held counts by itself.
    pub(super) fn backlog(&self) -> usize {
        let news = self.to_look_at.iter();
        let news = news
            .filter(|(key, (_, why))| !self.is_old_news(**key, *why))
            .count();
        let strays = self.strays.keys();
        news + strays.filter(|place| !self.claims.contains_key(*place)).count()
    }

    /// As [`backlog`](Self::backlog), without news of targets that are not ours: nobody is kept from writing those.
    pub(super) fn backlog_of_ours(&self) -> usize {
        let is_foreign = |key: &Key, place: Key| {
            let source = self.in_step.get(key);
            let mut targets = source.into_iter().flat_map(|source| &source.targets);
            targets.any(|made| made.place == place && !made.is_ours)
        };
        let news = self.to_look_at.iter();
        let foreign = news.filter(|(key, (_, why))| {
            matches!(why, Why::Target(place, _) if is_foreign(key, *place)) && !self.is_old_news(**key, *why)
        });
        self.backlog() - foreign.count()
    }

    /// All sources in step.
    pub(super) fn in_step(&self) -> impl Iterator<Item = &InStep> {
        self.in_step.values()
    }

    fn look_at_source(&mut self, key: Key, why: Why) {
        let in_step = self.in_step.get(&key).map(|source| &source.named);
        let held = || self.held.get(&key).map(|held| &held.named);
        let Some(named) = in_step.or_else(|| self.in_work.get(&key)).or_else(held).cloned() else {
            return; // it is to be looked at already
        };
        if !self.is_old_news(key, why) {
            self.look_at(key, named, why);
        }
    }

    fn look_at(&mut self, key: Key, named: Named, why: Why) {
        let merged = self.to_look_at.entry(key).or_insert((named, why));
        if merged.1 != why {
            merged.1 = Why::Always;
        }
    }

    /// Whether the state that was seen is not newer than the one that is known to be right. The news of our own writes are.
    fn is_old_news(&self, key: Key, why: Why) -> bool {
        let Some(known) = self.in_step.get(&key) else {
            return false;
        };
        let covers = |known: Option<ResourceVersion>, seen: Option<ResourceVersion>| {
            known.zip(seen).is_some_and(|(known, seen)| known >= seen)
        };
        match why {
            Why::Always => false,
            Why::Source(uid, version) => known.uid == uid && covers(known.version, version),
            Why::Target(place, version) => {
                let mut targets = known.targets.iter();
                let made = targets.find(|made| made.place == place);
                made.is_some_and(|made| covers(made.version, version))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
