//! What is copied before what: wave by wave, and inside a wave owners before their dependents.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// A moved object.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// Its uid, and others under which references may name it.
    pub uids: &'a [&'a str],
    /// The wave in which it is copied.
    pub wave: i32,
    /// What it is called: `widgets.example.dev shop/till`.
    pub name: &'a str,
}

/// Who owns whom among moved objects, gathered object by object.
///
/// Only objects that have owners, and the uids of these owners, are kept: memory grows with the number of references.
///
/// ```
/// use exuvia_datastore::owners::{Edges, Member};
///
/// let mut edges = Edges::default();
/// edges.add(Member { uids: &["leaf"], wave: 0, name: "leaf" }, ["branch"]);
/// edges.add(Member { uids: &["branch"], wave: 0, name: "branch" }, ["root"]);
/// edges.add(Member { uids: &["root"], wave: 0, name: "root" }, []);
/// let order = edges.order().unwrap();
/// assert_eq!(["root", "branch", "leaf", "another"].map(|uid| order.depth(uid)), [0, 1, 2, 0]);
/// assert_eq!(order.passes(0), 3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Edges {
    members: Vec<Dependent>,
    by_uid: HashMap<Box<str>, usize>,
    /// The waves of owners, as far as they are known.
    owners: HashMap<Box<str>, Option<i32>>,
}

#[derive(Clone, Debug)]
struct Dependent {
    name: Box<str>,
    wave: i32,
    owners: Vec<Box<str>>,
}

/// Why an order is not possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// These objects own each other in a circle: each is owned by the next one, and the last one by the first.
    Cycle(Vec<String>),
    /// An owner is copied in a later wave than its dependent.
    LaterWave {
        /// The dependent.
        dependent: String,
        /// Its wave.
        wave: i32,
        /// The owner: its name, or its uid where nothing else is known.
        owner: String,
        /// The owner's wave.
        owners_wave: i32,
    },
}

impl fmt::Display for Disorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle(names) => {
                let round: Vec<&str> = names.iter().chain(names.first()).map(String::as_str).collect();
                write!(
                    f,
                    "{}: objects that own each other in a circle cannot be copied owner first; remove one of these references",
                    round.join(", which is owned by ").replacen(", which", "", 1)
                )
            }
            Self::LaterWave {
                dependent,
                wave,
                owner,
                owners_wave,
            } => write!(
                f,
                "{dependent} is in wave {wave} and its owner {owner} in wave {owners_wave}: expected the owner in the same wave \
                 or an earlier one"
            ),
        }
    }
}

impl Edges {
    /// One moved object and the uids of its owners. Owners that are not moved do no harm.
    pub fn add<'a>(&mut self, object: Member<'_>, owners: impl IntoIterator<Item = &'a str>) {
        let owners: Vec<Box<str>> = owners.into_iter().map(Into::into).collect();
        if owners.is_empty() {
            for uid in object.uids {
                self.place(uid, object.wave);
            }
            return;
        }
        for owner in &owners {
            self.owners.entry(owner.clone()).or_default();
        }
        let member = Dependent {
            name: object.name.into(),
            wave: object.wave,
            owners,
        };
        // A list that starts over shows an object twice.
        let known = object.uids.iter().find_map(|uid| self.by_uid.get(*uid).copied());
        let index = known.unwrap_or(self.members.len());
        for uid in object.uids {
            self.by_uid.insert((*uid).into(), index);
        }
        match self.members.get_mut(index) {
            Some(known) => *known = member,
            None => self.members.push(member),
        }
    }

    /// Tells the wave of an object that may be somebody's owner. Nothing is kept if it is not.
    pub fn place(&mut self, uid: &str, wave: i32) {
        if let Some(known) = self.owners.get_mut(uid) {
            *known = Some(wave);
        }
    }

    /// Owners whose wave is not known, because they have no owners and came before their dependents. They count as copied
    /// first. Where mappings have different waves, [`place`](Self::place) those that are moved in a second look.
    pub fn unplaced(&self) -> impl Iterator<Item = &str> {
        self.owners
            .iter()
            .filter(|(uid, wave)| wave.is_none() && !self.by_uid.contains_key(*uid))
            .map(|(uid, _)| uid.as_ref())
    }

    /// The order; or every circle and every wave that makes it impossible.
    ///
    /// # Errors
    ///
    /// An order is not possible.
    pub fn order(&self) -> Result<Order, Vec<Disorder>> {
        let mut faults = Vec::new();
        // Inside a wave: the owners of each member, and its dependents.
        let mut owners: Vec<Vec<usize>> = vec![Vec::new(); self.members.len()];
        let mut dependents: Vec<Vec<usize>> = vec![Vec::new(); self.members.len()];
        // Members that have an owner in their own wave which has no owners itself.
        let mut depth: Vec<u32> = vec![0; self.members.len()];
        for (index, member) in self.members.iter().enumerate() {
            for uid in &member.owners {
                let (wave, owner) = match self.by_uid.get(uid) {
                    Some(owner) => (Some(self.members[*owner].wave), Some(*owner)),
                    None => (self.owners.get(uid).copied().flatten(), None),
                };
                match wave {
                    Some(wave) if wave > member.wave => faults.push(Disorder::LaterWave {
                        dependent: member.name.to_string(),
                        wave: member.wave,
                        owner: owner
                            .map_or(uid.as_ref(), |owner| &self.members[owner].name)
                            .to_owned(),
                        owners_wave: wave,
                    }),
                    Some(wave) if wave < member.wave => {}
                    _ => match owner {
                        Some(owner) => {
                            owners[index].push(owner);
                            dependents[owner].push(index);
                        }
                        None => depth[index] = 1,
                    },
                }
            }
        }
        let mut left: Vec<usize> = owners.iter().map(Vec::len).collect();
        let mut ready: Vec<usize> = (0..left.len()).filter(|index| left[*index] == 0).collect();
        while let Some(owner) = ready.pop() {
            for dependent in &dependents[owner] {
                depth[*dependent] = depth[*dependent].max(depth[owner] + 1);
                left[*dependent] -= 1;
                if left[*dependent] == 0 {
                    ready.push(*dependent);
                }
            }
        }
        faults.extend(self.cycles(&owners, &left));
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut passes: BTreeMap<i32, u32> = BTreeMap::new();
        for (member, depth) in self.members.iter().zip(&depth) {
            let passes = passes.entry(member.wave).or_insert(1);
            *passes = (*passes).max(depth + 1);
        }
        let depths = self
            .by_uid
            .iter()
            .map(|(uid, index)| (uid.clone(), depth[*index]));
        Ok(Order {
            depths: depths.filter(|(_, depth)| *depth > 0).collect(),
            passes,
        })
    }

    /// Each circle once. Members with owners `left` are in one, or owned by one: who follows owners from any of them comes
    /// round.
    fn cycles(&self, owners: &[Vec<usize>], left: &[usize]) -> Vec<Disorder> {
        let mut cycles = Vec::new();
        let mut walked: Vec<Option<usize>> = vec![None; left.len()];
        for start in (0..left.len()).filter(|index| left[*index] > 0) {
            let mut path = Vec::new();
            let mut next = Some(start);
            while let Some(here) = next.filter(|here| walked[*here].is_none()) {
                walked[here] = Some(start);
                path.push(here);
                next = owners[here].iter().copied().find(|owner| left[*owner] > 0);
            }
            // A member of this very path: a circle. One of a path before: its circle is known.
            let circle = next.and_then(|here| path.iter().position(|member| *member == here));
            if let Some(from) = circle {
                let names = path[from..]
                    .iter()
                    .map(|member| self.members[*member].name.to_string());
                cycles.push(Disorder::Cycle(names.collect()));
            }
        }
        cycles
    }
}

/// What is copied before what.
///
/// A wave is copied in as many [`passes`](Self::passes) as it is deep: first all objects of depth 0, then those of depth 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    depths: HashMap<Box<str>, u32>,
    passes: BTreeMap<i32, u32>,
}

impl Order {
    /// In which pass of its wave an object is copied, counted from 0: after all its owners.
    pub fn depth(&self, uid: &str) -> u32 {
        self.depths.get(uid).copied().unwrap_or_default()
    }

    /// How many passes a wave takes, at least one.
    pub fn passes(&self, wave: i32) -> u32 {
        self.passes.get(&wave).copied().unwrap_or(1)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
