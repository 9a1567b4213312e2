//! What `storedVersions` and ownership say of a CRD's versions: a first look, which needs neither a sweep of the cluster
//! nor a record, and which is therefore not a verdict.

use exuvia_write::Redacted;
use kube::core::Version;

use super::holders::{Words, ownership, stored};
use super::{Answer, Holder, Holds, Unknown, Verdict};
use crate::audience::Audience;
use crate::definition::Definition;
use crate::ownership::Owners;

/// What may become of a CRD's versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlook {
    /// May be dropped.
    pub droppable: Vec<String>,
    /// What holds the others, but for the storage version.
    pub held: Vec<(String, Holder)>,
    /// What might hold them, and could not be seen.
    pub unknown: Vec<(String, Unknown)>,
}

impl Outlook {
    /// What holds versions, as far as the definition and these owners tell, if objects were looked at; `unproven` is why a
    /// migration has not come to its end, if one was tried. That is not enough to say which may be dropped.
    pub fn of(
        definition: &Definition,
        owners: Option<&Owners>,
        audience: Audience,
        unproven: Option<&Redacted>,
    ) -> Self {
        let words = Words { audience, unproven };
        let names = definition.versions.iter().map(|version| &version.name);
        let others = names.filter(|name| **name != definition.crd.storage);
        let held = others.flat_map(|name| {
            let bytes = stored(definition, name, words).into_iter();
            let owned = owners
                .into_iter()
                .flat_map(|owners| ownership(definition, name, owners, audience, None));
            let holders: Vec<Holder> = bytes.chain(owned).collect();
            holders.into_iter().map(|holder| (name.clone(), holder))
        });
        Self {
            held: held.collect(),
            ..Self::default()
        }
    }
}

impl From<Vec<Verdict>> for Outlook {
    /// Only a yes may be dropped. What holds the others is kept, and also what is not known of them.
    fn from(verdicts: Vec<Verdict>) -> Self {
        let mut outlook = Self::default();
        for verdict in verdicts {
            let version = verdict.version;
            let held = verdict.holders.into_iter();
            outlook.held.extend(held.map(|holder| (version.clone(), holder)));
            let unknown = verdict.unknown.into_iter();
            outlook
                .unknown
                .extend(unknown.map(|unknown| (version.clone(), unknown)));
            if verdict.answer == Answer::Yes {
                outlook.droppable.push(version);
            }
        }
        outlook
    }
}

/// Verdicts on versions of one CRD, each judged as if the others stayed: those that say yes must hold for all of them at once.
/// If nothing would be served then, the newest one has to stay.
pub fn together(definition: &Definition, verdicts: &mut [Verdict]) {
    let goes = |version: &str| {
        let mut droppable = verdicts.iter().filter(|verdict| verdict.answer == Answer::Yes);
        droppable.any(|verdict| verdict.version == version)
    };
    if definition.served().any(|version| !goes(version)) {
        return;
    }
    let newest = definition
        .served()
        .max_by_key(|version| Version::parse(version).priority());
    let of_newest = verdicts
        .iter_mut()
        .find(|verdict| Some(verdict.version.as_str()) == newest);
    if let Some(verdict) = of_newest {
        let message = "no other version would be served if all were dropped that may be: keep this one, or serve the storage \
                       version";
        verdict.clear.retain(|clear| clear.what != Holds::Served);
        verdict.holders.push(Holder::new(Holds::Served, message));
        verdict.answer = Answer::No;
    }
}

/// What `storedVersions` and ownership hold `version` by. Empty does not mean that it may be dropped: see
/// [`Seen::judge`](super::Seen::judge).
pub fn blockers(definition: &Definition, version: &str, owners: &Owners) -> Vec<Holder> {
    let words = Words::default();
    let mut blockers: Vec<Holder> = stored(definition, version, words).into_iter().collect();
    if version != definition.crd.storage {
        blockers.extend(ownership(definition, version, owners, words.audience, None));
    }
    blockers
}

/// The versions of the CRD that are older than its storage version: those that one may ask about. A newer one that is not
/// in use yet could be dropped as well, but nobody asks for that.
pub fn older(definition: &Definition) -> impl Iterator<Item = &str> {
    let names = definition.versions.iter().map(|version| version.name.as_str());
    let priority = |version: &str| Version::parse(version).priority();
    let storage = priority(&definition.crd.storage);
    names.filter(move |version| priority(version) < storage)
}

/// The versions that a migration leaves behind: [`older`] ones, and those that it was to move objects or entries away from,
/// as far as the CRD still has them.
pub fn left_behind(definition: &Definition, stored_before: &[String]) -> Vec<String> {
    let older: Vec<&str> = older(definition).collect();
    let is_left = |version: &str| {
        let named = |versions: &[String]| versions.iter().any(|named| named == version);
        older.contains(&version) || named(stored_before) || named(&definition.shed)
    };
    let names = definition.versions.iter().map(|version| version.name.as_str());
    names
        .filter(|version| *version != definition.crd.storage && is_left(version))
        .map(str::to_owned)
        .collect()
}

/// Those of the [`older`] versions that neither `storedVersions` nor these owners hold.
pub fn droppable(definition: &Definition, owners: &Owners) -> Vec<String> {
    older(definition)
        .filter(|version| blockers(definition, version, owners).is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Clear;
    use super::*;

    fn crd(served: &[&str]) -> Definition {
        let version = |name: &str| serde_json::json!({"name": name, "served": served.contains(&name), "storage": name == "v1"});
        let crd = serde_json::json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [version("v1beta1"), version("v1alpha1"), version("v1")],
            },
        });
        Definition::read(&serde_json::from_value(crd).unwrap())
    }

    #[test]
    fn all_that_may_be_dropped_leave_something_served() {
        use Answer::{No, NotKnown, Yes};
        let answers = |served: &[&str], said: [Answer; 2]| {
            let verdict = |(version, answer): (&str, Answer)| Verdict {
                crd: "widgets.example.com".into(),
                version: version.into(),
                answer,
                holders: Vec::new(),
                unknown: Vec::new(),
                clear: Vec::new(),
            };
            let versions = ["v1alpha1", "v1beta1"].into_iter();
            let mut verdicts: Vec<Verdict> = versions.zip(said).map(verdict).collect();
            together(&crd(served), &mut verdicts);
            verdicts
                .into_iter()
                .map(|verdict| verdict.answer)
                .collect::<Vec<_>>()
        };
        let unserved_storage = &["v1alpha1", "v1beta1"];
        assert_eq!(
            answers(unserved_storage, [Yes, Yes]),
            [Yes, No],
            "the newest stays"
        );
        assert_eq!(answers(unserved_storage, [Yes, NotKnown]), [Yes, NotKnown]);
        assert_eq!(answers(unserved_storage, [No, Yes]), [No, Yes]);
        assert_eq!(answers(&["v1alpha1", "v1beta1", "v1"], [Yes, Yes]), [Yes, Yes]);
    }

    #[test]
    fn only_a_yes_may_be_dropped_and_nothing_that_was_found_is_forgotten() {
        let verdict = |version: &str, answer, holders, unknown| Verdict {
            crd: "widgets.example.com".into(),
            version: version.into(),
            answer,
            holders,
            unknown,
            clear: vec![Clear {
                what: Holds::Served,
                because: "v1 stays served".into(),
            }],
        };
        let holder = Holder::new(Holds::Usage, "1 watch is open");
        let unknown = Unknown {
            what: Holds::References,
            why: "not looked at".into(),
            command: "look".into(),
        };
        let outlook = Outlook::from(vec![
            verdict("v1alpha1", Answer::Yes, vec![], vec![]),
            verdict(
                "v1alpha2",
                Answer::No,
                vec![holder.clone()],
                vec![unknown.clone()],
            ),
            verdict("v1beta1", Answer::NotKnown, vec![], vec![unknown.clone()]),
        ]);
        assert_eq!(outlook.droppable, ["v1alpha1"]);
        assert_eq!(outlook.held, [("v1alpha2".to_owned(), holder)]);
        let both = ["v1alpha2", "v1beta1"].map(|version| (version.to_owned(), unknown.clone()));
        assert_eq!(outlook.unknown, both);
    }
}
