//! Every source beside its targets: which are there, which are missing, which have changed since.

use std::sync::{Mutex, PoisonError};

use exuvia_api::SOURCE_HASH_ANNOTATION;
use exuvia_sweep::Verdict;
use kube::api::DynamicObject;

use super::{Look, failed};
use crate::Error;
use crate::copy::{Compared, annotation, hash_of};
use crate::lock::lock;

/// How many objects of each kind are named.
const MAX_NAMED: usize = 32;

/// The objects of one source kind beside their targets. Each object is counted once, in the first line that fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// The source kind with its group.
    pub kind: String,
    /// How many there are.
    pub sources: u64,
    /// Objects that no mapping takes.
    pub unmoved: u64,
    /// Objects that cannot be converted.
    pub unconvertible: u64,
    /// Objects without a target.
    pub without_target: u64,
    /// Objects that were written after they were copied.
    pub changed_since: u64,
    /// Objects whose target differs from what they would become now.
    pub differing: u64,
    /// Objects whose target is there, but the server would not say whether it is equal: a dry-run write is denied to the caller.
    pub not_compared: u64,
    /// Objects whose target is equal.
    pub equal: u64,
    /// Objects that are not equal to their targets: the first ones.
    pub unlike: Vec<Unlike>,
}

/// An object that is not equal to its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// Its namespace, if it has one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is the matter, without values.
    pub what: String,
}

/// What there is of one source.
enum Found {
    Unmoved,
    Unconvertible(String),
    WithoutTarget(String),
    ChangedSince,
    Differing(String),
    NotCompared,
    Equal,
}

impl Look {
    /// Reads every source and every target again, by source kind.
    ///
    /// # Errors
    ///
    /// Not every object could be looked at.
    pub async fn sides(&self) -> Result<Vec<Side>, Error> {
        let mut sides = Vec::new();
        for kind in self.kinds.sources() {
            let side = Mutex::new(Side {
                kind: kind.shown(),
                ..Side::default()
            });
            self.each(kind, async |source: DynamicObject| {
                match self.beside(&source).await {
                    Ok(found) => {
                        lock(&side).add(&source, found);
                        Verdict::unchanged()
                    }
                    Err(error) => failed(&error),
                }
            })
            .await?;
            sides.push(side.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(sides)
    }

    async fn beside(&self, source: &DynamicObject) -> Result<Found, Error> {
        let converted = match self.convert(source).await {
            Ok(converted) if converted.outputs.is_empty() => return Ok(Found::Unmoved),
            Ok(converted) => converted,
            Err(problem) => return Ok(Found::Unconvertible(problem.message.into_string())),
        };
        let (mut changed, mut differing, mut denied) = (false, None, false);
        for output in &converted.outputs {
            let Some(target) = self.kinds.target(&output.group, &output.kind) else {
                continue;
            };
            let live = self
                .read(target, output.namespace.as_deref(), &output.name)
                .await?;
            // One that is being deleted is as good as gone.
            let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
                return Ok(Found::WithoutTarget(target.shown()));
            };
            let copied = annotation(&live, SOURCE_HASH_ANNOTATION);
            changed |= copied.is_some_and(|hash| hash != hash_of(source));
            if differing.is_none() {
                match self.compared(target, &live, output).await? {
                    Compared::Equal => {}
                    Compared::Differs(found) => differing = found.into_iter().next().map(|(path, ..)| path),
                    Compared::AsTheyStand(found) => denied |= !found.is_empty(),
                }
            }
        }
        Ok(match differing {
            _ if changed => Found::ChangedSince,
            Some(path) => Found::Differing(path),
            None if denied => Found::NotCompared,
            None => Found::Equal,
        })
    }
}

impl Side {
    fn add(&mut self, source: &DynamicObject, found: Found) {
        self.sources += 1;
        let (count, what) = match found {
            Found::Unmoved => (&mut self.unmoved, None),
            Found::Equal => (&mut self.equal, None),
            Found::NotCompared => (&mut self.not_compared, None),
            Found::Unconvertible(why) => (&mut self.unconvertible, Some(why)),
            Found::WithoutTarget(kind) => (&mut self.without_target, Some(format!("it has no {kind}"))),
            Found::ChangedSince => (
                &mut self.changed_since,
                Some("it was written after it was copied".to_owned()),
            ),
            Found::Differing(path) => (&mut self.differing, Some(format!("its target's {path} differs"))),
        };
        *count += 1;
        if let Some(what) = what.filter(|_| self.unlike.len() < MAX_NAMED) {
            self.unlike.push(Unlike {
                namespace: source.metadata.namespace.clone().unwrap_or_default(),
                name: source.metadata.name.clone().unwrap_or_default(),
                what,
            });
        }
    }
}
