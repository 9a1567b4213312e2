//! What a rewrite would erase or change, judged by the server: it shows each object at both versions, and we compare.
//!
//! Under conversion `None` the server prunes an object by the schema of every version that it passes through. Two schemas
//! alone can show that nothing is lost ([`certainly_keeps`]); everything else is compared, object by object ([`look`]). What
//! cannot be compared is reported, and stops the migration.

mod certain;
mod defaults;
mod difference;
mod look;
mod plan;
mod unfit;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use exuvia_api::counted;
use exuvia_write::{Redacted, redacted};
use serde::Serialize;

pub use certain::certainly_keeps;
pub use look::look;

use crate::audience::Audience;
use crate::definition::Definition;
use crate::report::objects;
use difference::Difference;

/// How many objects are named for each path.
const FIRST_OBJECTS: usize = 3;

/// How many more paths are told apart, to count them: 8 bytes each.
const MAX_COUNTED: usize = 100_000;

/// How many of them are in the sentence, which ends up in conditions and events.
const MAX_IN_A_SENTENCE: usize = 10;

/// How many are easy to read in a sentence; more of them need a list.
const WITH_EASE: usize = 3;

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
    /// Fields that only the old version shows, with the value of its own default: nobody wrote them, as far as is known.
    pub defaults_not_kept: BTreeMap<String, Count>,
    /// Fields that the rewrite sets to a default.
    pub added: BTreeMap<String, Count>,
    /// Fields with a value of a type that the storage version does not take: it stays, but every apply to the object answers
    /// 500, and no owner can be moved.
    pub unfit: BTreeMap<String, Count>,
    /// Paths beyond the first 200 of each class, which are the ones that are named. Objects are counted in any case.
    pub more_paths: u64,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
    /// Whether the caller accepts what is erased, changed or not looked at, so that the rewrite goes on.
    pub accepted: bool,
    /// Those paths, as far as they are told apart.
    #[serde(skip)]
    beyond: HashSet<u64>,
}

/// Whether the rewrite is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tense {
    /// It has not begun, and may never.
    Would,
    /// It goes on, or was cut off.
    Does,
    /// It is over.
    Did,
}

impl Tense {
    pub(crate) fn verbs(self) -> [&'static str; 2] {
        match self {
            Self::Would => ["would erase", "would change"],
            Self::Does => ["erases", "changes"],
            Self::Did => ["erased", "changed"],
        }
    }
}

/// Versions whose objects may lose something unseen, because they or the storage version are not served.
pub fn unseen(definition: &Definition) -> Vec<Unseen> {
    if definition.webhook_conversion {
        return Vec::new();
    }
    plan::Plan::of(definition).unseen
}

/// Whether objects stored at this version may lose something, so that a migration has to compare them first.
pub fn may_lose(definition: &Definition, version: &str) -> bool {
    let is_it = |compared: &&crate::definition::Version| compared.name == version;
    !definition.webhook_conversion && plan::Plan::of(definition).look.iter().any(is_it)
}

/// How many objects a path is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The number.
    pub objects: u64,
    /// The first three of them, `namespace/name`.
    pub first: Vec<String>,
}

/// Something that may be lost and cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Objects stored at this version.
    pub version: String,
    /// Why they cannot be looked at, and what would help.
    pub why: Redacted,
}

impl Losses {
    /// How many paths of each class are kept by name. A map whose keys are user data may have any number.
    pub const MAX_PATHS: usize = 200;

    /// Nothing could be compared.
    pub(crate) fn unknown(storage: &str, message: &Redacted) -> Self {
        Self {
            unseen: vec![Unseen {
                version: storage.to_owned(),
                why: redacted!("objects could not be compared: {}", message),
            }],
            ..Self::default()
        }
    }

    /// Whether a migration has to stop for it.
    pub fn holds(&self) -> bool {
        !(self.erased.is_empty()
            && self.changed.is_empty()
            && self.unfit.is_empty()
            && self.unseen.is_empty())
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        !self.holds() && self.defaults_not_kept.is_empty() && self.added.is_empty()
    }

    /// Whether the sentence (see `Display`) names everything that holds, and is easy to read.
    pub fn fits_a_sentence(&self) -> bool {
        self.more_paths == 0
            && self.erased.len() + self.changed.len() + self.unfit.len() <= WITH_EASE
            && self.unseen.len() <= WITH_EASE
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

    /// Everything that was found, one line for each path; `most` of each class at the most.
    ///
    /// ```
    /// use exuvia_storage::loss::{Count, Losses, Tense};
    ///
    /// let mut losses = Losses::default();
    /// losses.erased.insert("spec.legacy".into(), Count { objects: 1, first: vec!["default/a".into()] });
    /// assert_eq!(losses.lines(Tense::Did, 10), ["the rewrite erased spec.legacy (1 object: default/a)"]);
    /// assert!(losses.holds());
    /// ```
    pub fn lines(&self, tense: Tense, most: usize) -> Vec<String> {
        let [erases, changes] = tense.verbs().map(|verb| format!("the rewrite {verb}"));
        let classes = [
            (erases.as_str(), &self.erased),
            (&changes, &self.changed),
            ("applies answer 500 because of", &self.unfit),
            (
                "a default of the old version is not kept:",
                &self.defaults_not_kept,
            ),
            ("the storage version adds a default:", &self.added),
        ];
        let mut lines = Vec::new();
        for (what, paths) in classes {
            lines.extend(
                named(paths, FIRST_OBJECTS)
                    .take(most)
                    .map(|path| format!("{what} {path}")),
            );
            if paths.len() > most {
                let more = u64::try_from(paths.len() - most).unwrap_or(u64::MAX);
                lines.push(format!("{what} {}", counted(more, "more field")));
            }
        }
        if self.more_paths > 0 {
            let at_least = if self.beyond.len() < MAX_COUNTED {
                ""
            } else {
                "at least "
            };
            lines.push(format!(
                "and {at_least}{} without a name: only the first {} of each kind are named",
                counted(self.more_paths, "more field"),
                Self::MAX_PATHS
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
            (&mut self.unfit, &found.unfit),
            (&mut self.defaults_not_kept, &found.defaults_not_kept),
            (&mut self.added, &found.added),
        ];
        for (class, (counts, paths)) in classes.into_iter().enumerate() {
            for path in paths {
                let is_full = counts.len() >= Self::MAX_PATHS;
                if is_full && !counts.contains_key(path) {
                    count_beyond(&mut self.beyond, class, path);
                    continue;
                }
                let count = counts.entry(path.clone()).or_default();
                count.objects += 1;
                if count.first.len() < FIRST_OBJECTS {
                    count.first.push(object.to_owned());
                }
            }
        }
        self.more_paths = self.beyond.len() as u64;
    }

    /// What stops the migration, in a sentence with the ways out: paths and names, never values.
    pub fn sentence(&self, audience: Audience) -> Redacted {
        let mut said = Vec::new();
        let [erase, change] = Tense::Would.verbs().map(|verb| format!("the rewrite {verb}"));
        let no_apply = "applies would answer 500 because of".to_owned();
        for (what, paths) in [
            (erase, &self.erased),
            (change, &self.changed),
            (no_apply, &self.unfit),
        ] {
            if paths.is_empty() {
                continue;
            }
            let mut list: Vec<String> = named(paths, 1).take(MAX_IN_A_SENTENCE).collect();
            if paths.len() > list.len() {
                list.push(format!("{} more", paths.len() - list.len()));
            }
            said.push(format!("{what} {}", list.join(", ")));
        }
        said.extend(
            self.unseen
                .iter()
                .take(MAX_IN_A_SENTENCE)
                .map(|unseen| unseen.why.to_string()),
        );
        said.push(self.ways_out(audience));
        Redacted::ours(said.join("; "))
    }

    /// As [`sentence`](Self::sentence), above the list of what it is about.
    pub fn sentence_above_list(&self, audience: Audience) -> String {
        let [erase, change] = Tense::Would.verbs();
        let mut said = Vec::new();
        for (verb, paths) in [(erase, &self.erased), (change, &self.changed)] {
            match paths.len() {
                0 => {}
                1 => said.push(format!("{verb} 1 field")),
                many => said.push(format!("{verb} {many} fields")),
            }
        }
        let mut parts = Vec::new();
        if !said.is_empty() {
            let more = if self.more_paths > 0 { " and more" } else { "" };
            let (what, on) = (said.join(" and "), objects(self.objects));
            parts.push(format!("on {on} the rewrite {what}{more}, as listed below"));
        }
        if !self.unfit.is_empty() {
            parts.push("applies would answer 500, as listed below".to_owned());
        }
        if !self.unseen.is_empty() {
            parts.push("not everything could be looked at, as listed below".to_owned());
        }
        parts.push(self.ways_out(audience));
        parts.join("; ")
    }

    fn ways_out(&self, audience: Audience) -> String {
        let accept = audience.setting("--accept-pruning", "spec.acceptPruning: true");
        let accept = if self.erased.is_empty() && self.changed.is_empty() && self.unfit.is_empty() {
            format!("go on without a look with {accept}")
        } else {
            format!("accept the loss with {accept}")
        };
        let mut ways = Vec::new();
        if !(self.erased.is_empty() && self.changed.is_empty()) {
            ways.push("let the storage version's schema keep these fields".to_owned());
        }
        if !self.unfit.is_empty() {
            ways.push(
                "let the storage version's schema take these values, or convert by a webhook".to_owned(),
            );
        }
        ways.push(format!("or {accept}"));
        ways.join(", ")
    }
}

fn count_beyond(beyond: &mut HashSet<u64>, class: usize, path: &str) {
    if beyond.len() < MAX_COUNTED {
        let mut hasher = DefaultHasher::new();
        (class, path).hash(&mut hasher);
        beyond.insert(hasher.finish());
    }
}

/// Each path with its count and the first objects.
fn named(paths: &BTreeMap<String, Count>, first: usize) -> impl Iterator<Item = String> {
    paths.iter().map(move |(path, count)| {
        let names: Vec<&str> = count.first.iter().take(first).map(String::as_str).collect();
        let (names, on) = (names.join(", "), objects(count.objects));
        let such_as = if count.objects == 1 { ": " } else { ", such as " };
        format!("{path} ({on}{such_as}{names})")
    })
}

/// For the command line: see [`Losses::sentence`].
impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence(Audience::CommandLine))
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
    fn objects_are_counted_by_path_and_the_first_three_are_named() {
        let mut losses = Losses::default();
        losses.add("default/a", &lost("spec.x"));
        losses.add("default/b", &lost("spec.x"));
        losses.add("default/c", &Difference::default());
        assert_eq!((losses.looked_at, losses.objects), (3, 2));
        let mut more = losses.clone();
        more.add("default/d", &lost("spec.x"));
        more.add("default/e", &lost("spec.x"));
        assert_eq!(more.erased["spec.x"].objects, 4);
        assert_eq!(
            more.erased["spec.x"].first,
            ["default/a", "default/b", "default/d"]
        );
        let said = losses.to_string();
        assert!(
            said.contains("would erase spec.x (2 objects, such as default/a)"),
            "{said}"
        );
    }

    #[test]
    fn the_way_out_is_a_flag_at_a_command_line_and_a_field_in_a_status() {
        let mut losses = Losses::default();
        losses.add("default/a", &lost("spec.x"));
        let (command, status) = (
            losses.sentence(Audience::CommandLine),
            losses.sentence(Audience::StorageMigration),
        );
        assert!(
            command.contains("--accept-pruning") && !command.contains("spec.acceptPruning"),
            "{command}"
        );
        assert!(
            status.contains("spec.acceptPruning: true") && !status.contains("--"),
            "{status}"
        );
    }

    #[test]
    fn paths_are_bounded_and_the_sentence_is_short() {
        let mut losses = Losses::default();
        for object in ["default/a", "default/b"] {
            for number in 0..300 {
                losses.add(object, &lost(&format!("spec.map.{number}")));
            }
        }
        assert_eq!(
            (losses.erased.len(), losses.more_paths, losses.objects),
            (200, 100, 600),
            "each path counts once, on however many objects it is"
        );
        assert!(losses.to_string().len() < 1_000, "{losses}");
        assert!(!losses.fits_a_sentence());
        let above = losses.sentence_above_list(Audience::CommandLine);
        assert!(
            above.starts_with(
                "on 600 objects the rewrite would erase 200 fields and more, as listed below; let"
            ),
            "{above}"
        );
        assert!(losses.to_string().contains("190 more"), "{losses}");
        assert_eq!(losses.lines(Tense::Would, 10).len(), 12);
        let all = losses.lines(Tense::Would, Losses::MAX_PATHS);
        assert_eq!(all.len(), 201, "each that is kept has a line");
        assert_eq!(
            all[200],
            "and 100 more fields without a name: only the first 200 of each kind are named"
        );
    }
}
