//! What a rewrite would erase or change, judged by the server: it shows each object at both versions, and we compare.
//!
//! Under conversion `None` the server prunes an object by the schema of every version that it passes through. Two schemas
//! alone tell when that certainly loses nothing ([`certainly_keeps`]); everything else is looked at, object by object
//! ([`look`]). What cannot be looked at is said, and holds.

mod certain;
mod defaults;
mod difference;
mod look;
mod plan;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

pub use certain::certainly_keeps;
pub use look::look;

use crate::report::objects;
use difference::Difference;

/// So many paths of each class are kept by name. A map whose keys are user data may have any number.
const MOST_PATHS: usize = 200;

/// So many of them are in the sentence, which ends up in conditions and events.
const MOST_IN_A_SENTENCE: usize = 10;

/// What a rewrite does to the content of the objects. Paths and names of objects, never values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Losses {
    /// How many objects were compared; none where the schemas alone tell.
    pub looked_at: u64,
    /// How many of them lose something: a field is erased or changed.
    pub objects: u64,
    /// Fields that the rewrite erases.
    pub erased: BTreeMap<String, Count>,
    /// Fields that the rewrite gives another value.
    pub changed: BTreeMap<String, Count>,
    /// Fields that only the old version shows, with the value of its own default. Nobody's data, as far as can be told.
    pub defaults_not_kept: BTreeMap<String, Count>,
    /// Fields that the rewrite sets to a default.
    pub added: BTreeMap<String, Count>,
    /// Paths beyond the 200 of each class that are kept by name. Objects are counted all the same.
    pub more_paths: u64,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
}

/// How many objects a path is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// So many.
    pub objects: u64,
    /// The first of them, `namespace/name`.
    pub example: String,
}

/// Something that may be lost and cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Objects stored at this version.
    pub version: String,
    /// Why they cannot be looked at, and what would help.
    pub why: String,
}

impl Losses {
    /// Nothing could be compared.
    pub(crate) fn unknown(storage: &str, message: &str) -> Self {
        Self {
            unseen: vec![Unseen {
                version: storage.to_owned(),
                why: format!("objects could not be compared: {message}"),
            }],
            ..Self::default()
        }
    }

    /// Whether a migration has to stop for it.
    pub fn holds(&self) -> bool {
        !(self.erased.is_empty() && self.changed.is_empty() && self.unseen.is_empty())
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        !self.holds() && self.defaults_not_kept.is_empty() && self.added.is_empty()
    }

    /// Whether the sentence (see `Display`) names every path that is erased or changed.
    pub fn fits_a_sentence(&self) -> bool {
        self.more_paths == 0
            && [self.erased.len(), self.changed.len(), self.unseen.len()]
                .iter()
                .all(|number| *number <= MOST_IN_A_SENTENCE)
    }

    /// Only what does not hold a migration.
    #[must_use]
    pub fn harmless(&self) -> Self {
        Self {
            looked_at: self.looked_at,
            defaults_not_kept: self.defaults_not_kept.clone(),
            added: self.added.clone(),
            ..Self::default()
        }
    }

    /// Everything there is to tell, one line for each path; `most` of each class at the most.
    ///
    /// ```
    /// use exuvia_storage::loss::{Count, Losses};
    ///
    /// let mut losses = Losses::default();
    /// losses.erased.insert("spec.legacy".into(), Count { objects: 3, example: "default/a".into() });
    /// assert_eq!(losses.lines(10), ["the rewrite erases spec.legacy (3 objects, such as default/a)"]);
    /// assert!(losses.holds());
    /// ```
    pub fn lines(&self, most: usize) -> Vec<String> {
        let classes = [
            ("the rewrite erases", &self.erased),
            ("the rewrite changes", &self.changed),
            ("not kept, a default of the old version:", &self.defaults_not_kept),
            ("added, a default of the storage version:", &self.added),
        ];
        let mut lines = Vec::new();
        for (what, paths) in classes {
            lines.extend(named(paths).take(most).map(|path| format!("{what} {path}")));
            if paths.len() > most {
                lines.push(format!(
                    "{what} {} more paths; -o json shows them",
                    paths.len() - most
                ));
            }
        }
        if self.more_paths > 0 {
            lines.push(format!(
                "and {} more paths that are not kept by name",
                self.more_paths
            ));
        }
        lines.extend(
            self.unseen
                .iter()
                .map(|unseen| format!("not looked at: {}", unseen.why)),
        );
        lines
    }

    fn add(&mut self, object: &str, found: &Difference) {
        self.looked_at += 1;
        self.objects += u64::from(found.is_loss());
        let classes = [
            (&mut self.erased, &found.erased),
            (&mut self.changed, &found.changed),
            (&mut self.defaults_not_kept, &found.defaults_not_kept),
            (&mut self.added, &found.added),
        ];
        for (counts, paths) in classes {
            for path in paths {
                if let Some(count) = counts.get_mut(path) {
                    count.objects += 1;
                } else if counts.len() < MOST_PATHS {
                    let (objects, example) = (1, object.to_owned());
                    counts.insert(path.clone(), Count { objects, example });
                } else {
                    self.more_paths += 1;
                }
            }
        }
    }
}

fn named(paths: &BTreeMap<String, Count>) -> impl Iterator<Item = String> {
    paths.iter().map(|(path, count)| match count.objects {
        1 => format!("{path} (1 object, {})", count.example),
        many => format!("{path} ({}, such as {})", objects(many), count.example),
    })
}

/// What holds, in a sentence with the ways out.
impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = Vec::new();
        for (verb, paths) in [("erase", &self.erased), ("change", &self.changed)] {
            if paths.is_empty() {
                continue;
            }
            let mut list: Vec<String> = named(paths).take(MOST_IN_A_SENTENCE).collect();
            if paths.len() > list.len() {
                list.push(format!("{} more", paths.len() - list.len()));
            }
            said.push(format!("the rewrite would {verb} {}", list.join(", ")));
        }
        said.extend(
            self.unseen
                .iter()
                .take(MOST_IN_A_SENTENCE)
                .map(|unseen| unseen.why.clone()),
        );
        f.write_str(&said.join("; "))?;
        if !(self.erased.is_empty() && self.changed.is_empty()) {
            f.write_str("; let the storage version's schema keep these fields")?;
        }
        f.write_str("; or accept the loss with --accept-pruning (spec.acceptPruning)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(path: &str) -> Difference {
        Difference {
            erased: [path.to_owned()].into(),
            ..Difference::default()
        }
    }

    #[test]
    fn objects_are_counted_by_path_with_the_first_as_example() {
        let mut losses = Losses::default();
        losses.add("default/a", &lost("spec.x"));
        losses.add("default/b", &lost("spec.x"));
        losses.add("default/c", &Difference::default());
        assert_eq!((losses.looked_at, losses.objects), (3, 2));
        let said = losses.to_string();
        assert!(
            said.contains("would erase spec.x (2 objects, such as default/a)"),
            "{said}"
        );
        assert!(said.contains("--accept-pruning (spec.acceptPruning)"), "{said}");
    }

    #[test]
    fn paths_are_bounded_and_the_sentence_is_short() {
        let mut losses = Losses::default();
        for number in 0..300 {
            losses.add("default/a", &lost(&format!("spec.map.{number}")));
        }
        assert_eq!(
            (losses.erased.len(), losses.more_paths, losses.objects),
            (200, 100, 300)
        );
        assert!(losses.to_string().len() < 1_000, "{losses}");
        assert!(losses.to_string().contains("190 more"), "{losses}");
        assert!(losses.lines(10).len() == 12);
    }
}
