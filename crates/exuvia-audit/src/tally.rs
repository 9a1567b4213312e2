//! Counts the objects of one resource: what is kept does not grow with their number.

use std::collections::BTreeMap;

use super::definition::{Crd, Definition};
use super::place::Place;
use super::report::{Offender, ResourceReport, Unreadable, Verdict};
use super::value::{self, Cause};

/// The counts of one resource.
#[derive(Debug)]
pub(super) struct Tally {
    place: Place,
    definition: Definition,
    /// How many keys of a kind to keep.
    kept: usize,
    objects: u64,
    versions: BTreeMap<String, u64>,
    unreadable: BTreeMap<Cause, (u64, Vec<String>)>,
    offending: u64,
    offenders: Vec<Offender>,
}

impl Tally {
    pub(super) fn new(place: Place, definition: Definition, kept: usize) -> Self {
        Self {
            place,
            definition,
            kept,
            objects: 0,
            versions: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            offending: 0,
            offenders: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        self.objects += 1;
        let key = String::from_utf8_lossy(key);
        match value::api_version(value) {
            Ok(api_version) => {
                if self.offends(&api_version) {
                    self.offending += 1;
                    if self.offenders.len() < self.kept {
                        self.offenders.push(Offender {
                            key: key.into_owned(),
                            api_version: api_version.clone(),
                        });
                    }
                }
                *self.versions.entry(api_version).or_default() += 1;
            }
            Err(cause) => {
                let (objects, keys) = self.unreadable.entry(cause).or_default();
                *objects += 1;
                if keys.len() < self.kept {
                    keys.push(key.into_owned());
                }
            }
        }
    }

    fn offends(&self, api_version: &str) -> bool {
        match &self.definition {
            Definition::Crd(crd) => self.version(api_version) != Some(crd.storage_version.as_str()),
            Definition::Missing => true,
            Definition::BuiltIn | Definition::Unreadable(_) => false,
        }
    }

    /// The version in an `apiVersion` of the resource's own group.
    fn version<'a>(&self, api_version: &'a str) -> Option<&'a str> {
        let (group, version) = api_version.split_once('/')?;
        (self.place.group.as_deref() == Some(group)).then_some(version)
    }

    pub(super) fn finish(self, prefix: &str) -> ResourceReport {
        let (empty_versions, unlisted_versions, undefined_versions) = match &self.definition {
            Definition::Crd(crd) => (
                self.empty_versions(crd),
                self.stored_outside(&crd.stored_versions),
                self.stored_outside(&crd.versions),
            ),
            _ => Default::default(),
        };
        let unreadable = |(cause, (objects, keys))| Unreadable { cause, objects, keys };
        ResourceReport {
            verdict: self.verdict(),
            key_prefix: format!("{prefix}/{}", String::from_utf8_lossy(&self.place.path)),
            name: self.place.name,
            definition: self.definition,
            objects: self.objects,
            versions: self.versions,
            unreadable: self.unreadable.into_iter().map(unreadable).collect(),
            offending: self.offending,
            offenders: self.offenders,
            empty_versions,
            unlisted_versions,
            undefined_versions,
        }
    }

    fn empty_versions(&self, crd: &Crd) -> Vec<String> {
        if !self.unreadable.is_empty() {
            return Vec::new(); // any version may be in there
        }
        let is_old_and_empty = |version: &&String| {
            **version != crd.storage_version && !self.stored_at().any(|stored| stored == version.as_str())
        };
        crd.stored_versions
            .iter()
            .filter(is_old_and_empty)
            .cloned()
            .collect()
    }

    /// The versions at which objects are stored and which are not in this list.
    fn stored_outside(&self, listed: &[String]) -> Vec<String> {
        let is_outside = |stored: &&str| !listed.iter().any(|version| version == stored);
        self.stored_at().filter(is_outside).map(str::to_owned).collect()
    }

    /// The versions at which objects are stored; the whole `apiVersion` where it is of another group.
    fn stored_at(&self) -> impl Iterator<Item = &str> {
        self.versions
            .keys()
            .map(|api_version| self.version(api_version).unwrap_or(api_version))
    }

    fn verdict(&self) -> Verdict {
        match &self.definition {
            Definition::Crd(crd) if !self.stored_outside(&crd.versions).is_empty() => Verdict::Stranded,
            Definition::Missing => Verdict::Orphaned,
            Definition::BuiltIn if self.unreadable.is_empty() => Verdict::NotJudged,
            Definition::BuiltIn => Verdict::Unreadable,
            _ if self.offending > 0 => Verdict::Behind,
            Definition::Unreadable(_) => Verdict::Unreadable,
            Definition::Crd(_) if !self.unreadable.is_empty() => Verdict::Unreadable,
            Definition::Crd(_) => Verdict::Current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(storage: &str, stored: &[&str], versions: &[&str]) -> Definition {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Definition::Crd(Crd {
            storage_version: storage.to_owned(),
            stored_versions: owned(stored),
            versions: owned(versions),
            scope: "Namespaced".to_owned(),
        })
    }

    fn report(definition: Definition, kept: usize, values: &[&str]) -> ResourceReport {
        let mut tally = Tally::new(Place::below_group("example.com", "widgets"), definition, kept);
        for (index, value) in values.iter().enumerate() {
            tally.add(
                format!("/registry/example.com/widgets/default/w{index}").as_bytes(),
                value.as_bytes(),
            );
        }
        tally.finish("/registry")
    }

    const OLD: &str = r#"{"apiVersion":"example.com/v1alpha1"}"#;
    const NEW: &str = r#"{"apiVersion":"example.com/v1"}"#;
    const FOREIGN: &str = r#"{"apiVersion":"example.org/v1"}"#;
    const SECRET: &str = "k8s:enc:secretbox:v1:key1:xyz";

    #[test]
    fn a_version_is_empty_only_if_no_object_can_be_stored_at_it() {
        let definition = || crd("v1", &["v1alpha1", "v1"], &["v1alpha1", "v1"]);
        let current = report(definition(), 5, &[NEW, NEW]);
        assert_eq!(current.verdict, Verdict::Current);
        assert_eq!(current.empty_versions, ["v1alpha1"]);

        let hidden = report(definition(), 5, &[NEW, SECRET]);
        assert_eq!(hidden.verdict, Verdict::Unreadable);
        assert!(hidden.empty_versions.is_empty(), "nobody knows what is in there");
        assert_eq!(hidden.unreadable[0].objects, 1);

        let behind = report(definition(), 5, &[NEW, OLD, SECRET]);
        assert_eq!(behind.verdict, Verdict::Behind);
        assert_eq!((behind.offending, behind.empty_versions.len()), (1, 0));

        let nothing = report(definition(), 5, &[]);
        assert_eq!(
            (nothing.verdict, nothing.empty_versions.len()),
            (Verdict::Current, 1)
        );
    }

    /// PITFALLS A3 and A26.
    #[test]
    fn a_wrong_trim_shows() {
        let trimmed = report(crd("v1", &["v1"], &["v1alpha1", "v1"]), 5, &[OLD, NEW]);
        assert_eq!(trimmed.verdict, Verdict::Behind);
        assert_eq!(trimmed.unlisted_versions, ["v1alpha1"]);
        assert!(trimmed.undefined_versions.is_empty());

        let dropped = report(crd("v1", &["v1"], &["v1"]), 5, &[OLD, NEW]);
        assert_eq!(dropped.verdict, Verdict::Stranded);
        assert_eq!(dropped.undefined_versions, ["v1alpha1"]);
    }

    #[test]
    fn another_groups_bytes_are_never_current() {
        let foreign = report(crd("v1", &["v1"], &["v1"]), 5, &[FOREIGN]);
        assert_eq!(foreign.verdict, Verdict::Stranded);
        assert_eq!(foreign.undefined_versions, ["example.org/v1"]);
        assert_eq!(foreign.offending, 1);
    }

    #[test]
    fn lists_of_keys_are_bounded_and_counts_are_not() {
        let behind = report(crd("v1", &["v1"], &["v1alpha1", "v1"]), 2, &[OLD; 5]);
        assert_eq!((behind.offending, behind.offenders.len()), (5, 2));
        let hidden = report(Definition::Missing, 2, &[SECRET; 5]);
        assert_eq!(
            (hidden.unreadable[0].objects, hidden.unreadable[0].keys.len()),
            (5, 2)
        );
        assert_eq!(hidden.verdict, Verdict::Orphaned);
    }

    #[test]
    fn without_a_crd_to_read_nothing_is_judged() {
        assert_eq!(
            report(Definition::BuiltIn, 5, &[OLD, NEW]).verdict,
            Verdict::NotJudged
        );
        assert_eq!(
            report(Definition::BuiltIn, 5, &[OLD, SECRET]).verdict,
            Verdict::Unreadable,
            "nobody knows what is in there"
        );
        assert_eq!(
            report(Definition::Unreadable(Cause::Cbor), 5, &[OLD]).verdict,
            Verdict::Unreadable
        );
        let orphan = report(Definition::Missing, 5, &[OLD]);
        assert_eq!((orphan.verdict, orphan.offending), (Verdict::Orphaned, 1));
    }
}
