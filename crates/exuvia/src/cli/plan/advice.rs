//! The verdict on a CRD, and what to do next: decided from what was seen, without requests.

use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{droppable, older};
use exuvia_storage::loss;
use exuvia_storage::record::Record;
use exuvia_storage::usage::still_writes;
use exuvia_storage::{Owners, exclusion};
use exuvia_sweep::api_service::Hidden;

use super::ownership::{Misfits, Ownership};

/// The state of a CRD in a sentence, and one command that changes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) verdict: String,
    /// What has to be done by hand before the command is worth running.
    pub(super) first: Option<String>,
    /// The command; `None`: there is nothing to do.
    pub(super) command: Option<String>,
    /// What the command costs.
    pub(super) price: Option<String>,
}

impl Advice {
    fn new(verdict: impl Into<String>, command: impl Into<String>) -> Self {
        Self {
            verdict: verdict.into(),
            command: Some(command.into()),
            ..Self::default()
        }
    }

    fn nothing(verdict: impl Into<String>) -> Self {
        Self {
            verdict: verdict.into(),
            ..Self::default()
        }
    }

    /// What follows from the CRD, from what is on record about it, and from its objects' owners if they were looked at.
    pub(super) fn on(definition: &Definition, record: Option<&Record>, seen: Option<&Ownership>) -> Self {
        let held = seen.and_then(|seen| Held::by(definition, record, seen));
        let mut advice = match held {
            Some(held) => held.advice(definition),
            None => Self::without_owners(definition, record),
        };
        if let Some(reason) = exclusion(definition) {
            // Its owner said no, so no command is advised.
            advice.verdict.push_str(&format!("; excluded: {reason}"));
            (advice.first, advice.command, advice.price) = (None, None, None);
        }
        advice
    }

    /// Another server answers for some versions, so nothing that was seen there is the CRD's.
    pub(super) fn hide(&mut self, hidden: &[Hidden]) {
        let names: Vec<String> = hidden.iter().map(Hidden::api_service).collect();
        for hidden in hidden {
            self.verdict.push_str(&format!("; {hidden}"));
        }
        let delete = format!(
            "delete the APIService {}, or set `served: false` for that version in the CRD",
            names.join(", ")
        );
        self.first = Some(match self.first.take() {
            Some(first) => format!("{delete}; {first}"),
            None => delete,
        });
    }

    fn without_owners(definition: &Definition, record: Option<&Record>) -> Self {
        let old = definition.crd.old_versions();
        if definition.endpoint().is_none() {
            return Self::nothing("no version is served");
        }
        if definition.crd.stored.is_empty() {
            return Self {
                first: Some("look at the CRD's status".to_owned()),
                ..Self::nothing("storedVersions is empty")
            };
        }
        if old.is_empty() {
            return Self::on_clean(definition, record);
        }
        let verdict = format!("{} may still be stored", old.join(", "));
        let unseen = loss::unseen(definition);
        let unseen = unseen.iter().find(|unseen| old.contains(&unseen.version));
        Self {
            first: unseen.map(|unseen| unseen.why.to_string()),
            ..Self::new(verdict, format!("{} --patrol", migrate(definition)))
        }
    }

    /// `storedVersions` lists no old version. Whether that is true is on record, or has to be found out (PITFALLS A39);
    /// whether somebody still needs an old version is the next question.
    fn on_clean(definition: &Definition, record: Option<&Record>) -> Self {
        let name = &definition.name;
        if definition.versions.len() == 1 && record.is_none() {
            return Self::nothing("only one version: nothing to drop");
        }
        let old = droppable(definition, &Owners::default());
        let ask = (!old.is_empty()).then(|| format!("exuvia storage droppable {name} {}", old.join(" ")));
        match record {
            Some(record) if record.patrolled => Self {
                command: ask,
                ..Self::nothing(format!(
                    "nothing old is stored (proven at generation {})",
                    record.generation
                ))
            },
            Some(record) => Self::new(
                format!("migrated at generation {}, not patrolled", record.generation),
                format!("{} --patrol", migrate(definition)),
            ),
            None => Self::new(
                "storedVersions is clean, but no sweep has proven it",
                match ask {
                    Some(ask) => format!("{ask} --prove"),
                    None => format!("{} --verify full", migrate(definition)),
                },
            ),
        }
    }
}

fn migrate(definition: &Definition) -> String {
    format!("exuvia storage migrate {}", definition.name)
}

/// Versions that owners of fields hold, and why.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Versions that the CRD does not have any more: the next apply to such an object answers 500.
    gone: Vec<String>,
    /// Older versions that entries name although nothing is stored at them.
    older: Vec<String>,
    /// Who owns fields at these versions, with the largest number of objects of any of them.
    managers: Vec<String>,
    objects: u64,
    /// Those of them that have written since the migration on record.
    writers: Vec<String>,
    /// Of the entries, those that a migration has left behind: their managers, one of their fields.
    left: Option<(Vec<String>, String)>,
}

impl Held {
    /// `None`: no entry holds anything, or a migration moves them by itself.
    fn by(definition: &Definition, record: Option<&Record>, seen: &Ownership) -> Option<Self> {
        let mut held = Self::default();
        let candidates: Vec<&str> = older(definition).collect();
        for version in seen.versions(definition) {
            if definition.version(version).is_none() {
                held.gone.push(version.to_owned());
            } else if candidates.contains(&version) {
                held.older.push(version.to_owned());
            }
        }
        // What is stored is migrated first, and that moves entries, too.
        if !definition.crd.old_versions().is_empty() {
            held.older.clear();
        }
        // An apply that is broken comes first.
        if !held.gone.is_empty() {
            held.older.clear();
        }
        let versions = [&held.gone[..], &held.older[..]].concat();
        for version in &versions {
            for (manager, owner) in seen.owners.at(&definition.api_version(version)) {
                let manager = manager.to_owned();
                held.objects = held.objects.max(owner.objects);
                if still_writes(owner, record) && !held.writers.contains(&manager) {
                    held.writers.push(manager.clone());
                }
                if !held.managers.contains(&manager) {
                    held.managers.push(manager);
                }
            }
            // A migration has tried since they were written, and could not tell what they own: nor can the next one.
            let is_left = |misfits: &&Misfits| {
                record
                    .is_some_and(|record| record.left.contains(version) && misfits.oldest <= Some(record.at))
            };
            let misfits = seen.misfits.get(version).filter(is_left);
            if let Some(misfits) = misfits {
                let left = held
                    .left
                    .get_or_insert_with(|| (Vec::new(), misfits.field.clone()));
                let unnamed = misfits
                    .managers
                    .iter()
                    .filter(|manager| !left.0.contains(manager));
                let unnamed: Vec<String> = unnamed.cloned().collect();
                left.0.extend(unnamed);
            }
        }
        (!versions.is_empty()).then_some(held)
    }

    fn advice(self, definition: &Definition) -> Advice {
        let by = format!(
            "{} ({})",
            self.managers.join(", "),
            exuvia_storage::counted(self.objects, "object")
        );
        let storage = &definition.crd.storage;
        let mut verdict = if self.gone.is_empty() {
            format!("{} is held by fields of {by}", self.older.join(", "))
        } else {
            format!(
                "apply is broken: managedFields of {by} name {}",
                self.gone.join(", ")
            )
        };
        let mut command = format!("{} --patrol", migrate(definition));
        for version in &self.older {
            command.push_str(&format!(" --shed {version}"));
        }
        let mut price = None;
        if let Some((managers, field)) = &self.left {
            verdict.push_str(&format!(
                "; the migration left entries that do not fit {storage}, such as {field}, which the conversion webhook renames or drops"
            ));
            command.push_str(" --managed-fields drop");
            let (who, forget, their) = match managers.as_slice() {
                [one] => (one.clone(), "forgets", "its"),
                all => (all.join(" and "), "forget", "their"),
            };
            price = Some(format!(
                "{who} {forget} {their} fields: {their} next apply may conflict, and does not remove what it leaves out"
            ));
        }
        let first = (!self.writers.is_empty()).then(|| {
            let versions = [&self.gone[..], &self.older[..]].concat().join(", ");
            let write = if self.writers.len() == 1 {
                "writes"
            } else {
                "write"
            };
            let writers = self.writers.join(" and ");
            format!("update {writers}, which still {write} at {versions}")
        });
        Advice {
            verdict,
            first,
            command: Some(command),
            price,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use exuvia_storage::Verified;
    use serde_json::{Value, json};

    use super::*;

    const MIGRATED: &str = "2026-11-16T12:00:00.5Z";
    const BEFORE: &str = "2026-11-16T11:59:00Z";
    const AFTER: &str = "2026-11-16T12:01:00Z";

    fn definition(stored: &[&str], change: impl FnOnce(&mut Value)) -> Definition {
        let mut crd = json!({
            "metadata": {"name": "widgets.example.com", "uid": "u", "generation": 2},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1alpha1", "served": true, "storage": false},
                             {"name": "v1", "served": true, "storage": true},
                             {"name": "v2", "served": true, "storage": false}],
            },
            "status": {"storedVersions": stored},
        });
        change(&mut crd);
        Definition::read(&serde_json::from_value(crd).unwrap())
    }

    fn record() -> Record {
        Record {
            uid: "u".into(),
            generation: 2,
            storage_version: "v1".into(),
            verified: Verified::Full,
            r1: None,
            at: MIGRATED.parse().unwrap(),
            patrolled: true,
            patrolled_at: None,
            left: vec!["v1alpha1".into()],
        }
    }

    fn seen(version: &str, manager: &str, last: &str, misfit: bool) -> Ownership {
        let object = serde_json::from_value(json!({"name": "a", "managedFields": [
            {"manager": manager, "operation": "Update", "apiVersion": format!("example.com/{version}"), "time": last,
             "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:color": {}}}}]}))
        .unwrap();
        let mut seen = Ownership::default();
        seen.owners.add(&object);
        if misfit {
            let misfits = Misfits {
                managers: [manager.to_owned()].into(),
                objects: 1,
                field: "spec.color".into(),
                oldest: Some(last.parse().unwrap()),
            };
            seen.misfits.insert(version.to_owned(), misfits);
        }
        seen
    }

    #[test]
    fn an_entry_that_was_never_tried_to_be_moved_is_shed() {
        let clean = definition(&["v1"], |_| {});
        let advice = Advice::on(
            &clean,
            Some(&record()),
            Some(&seen("v1alpha1", "old", BEFORE, false)),
        );
        assert_eq!(
            advice.command.as_deref(),
            Some("exuvia storage migrate widgets.example.com --patrol --shed v1alpha1")
        );
        assert_eq!((advice.price, advice.first), (None, None));
        assert_eq!(advice.verdict, "v1alpha1 is held by fields of old (1 object)");
    }

    /// The same command would do nothing again.
    #[test]
    fn what_a_migration_left_is_dropped_and_the_price_is_named() {
        let clean = definition(&["v1"], |_| {});
        let left = seen("v1alpha1", "painter", BEFORE, true);
        let advice = Advice::on(&clean, Some(&record()), Some(&left));
        assert_eq!(
            advice.command.as_deref(),
            Some("exuvia storage migrate widgets.example.com --patrol --shed v1alpha1 --managed-fields drop")
        );
        assert!(advice.verdict.contains("spec.color"), "{}", advice.verdict);
        let price = advice.price.unwrap();
        assert!(price.starts_with("painter forgets its fields"), "{price}");
        // Nobody has tried yet, so the cheaper command comes first.
        for record in [
            None,
            Some(Record {
                at: BEFORE.parse().unwrap(),
                ..record()
            }),
            Some(Record {
                left: vec!["v1beta1".into()],
                ..record()
            }),
        ] {
            let advice = Advice::on(
                &clean,
                record.as_ref(),
                Some(&seen("v1alpha1", "painter", AFTER, true)),
            );
            assert_eq!(advice.price, None);
            assert!(advice.command.unwrap().ends_with("--shed v1alpha1"));
        }
    }

    #[test]
    fn who_still_writes_at_the_version_has_to_be_updated_first() {
        let clean = definition(&["v1"], |_| {});
        let advice = Advice::on(
            &clean,
            Some(&record()),
            Some(&seen("v1alpha1", "laggard", AFTER, false)),
        );
        assert_eq!(
            advice.first.as_deref(),
            Some("update laggard, which still writes at v1alpha1")
        );
    }

    #[test]
    fn a_newer_version_that_is_in_use_is_not_shed() {
        let clean = definition(&["v1"], |_| {});
        let advice = Advice::on(&clean, Some(&record()), Some(&seen("v2", "early", AFTER, false)));
        assert_eq!(
            advice.command.as_deref(),
            Some("exuvia storage droppable widgets.example.com v1alpha1")
        );
    }

    #[test]
    fn all_old_versions_are_asked_about_at_once() {
        let crd = definition(&["v1"], |crd| {
            let beta = json!({"name": "v1beta1", "served": true, "storage": false});
            crd["spec"]["versions"].as_array_mut().unwrap().push(beta);
        });
        let advice = Advice::on(&crd, Some(&record()), None);
        assert_eq!(
            advice.command.as_deref(),
            Some("exuvia storage droppable widgets.example.com v1alpha1 v1beta1")
        );
    }

    #[test]
    fn a_version_that_is_gone_breaks_apply_and_comes_first() {
        for stored in [&["v1"][..], &["v1alpha1", "v1"]] {
            let crd = definition(stored, |_| {});
            let advice = Advice::on(&crd, None, Some(&seen("v1alpha0", "old", BEFORE, false)));
            assert_eq!(
                advice.verdict,
                "apply is broken: managedFields of old (1 object) name v1alpha0"
            );
            assert_eq!(
                advice.command.as_deref(),
                Some("exuvia storage migrate widgets.example.com --patrol")
            );
        }
    }

    #[test]
    fn a_migration_comes_before_what_it_moves_by_itself() {
        let crd = definition(&["v1alpha1", "v1"], |_| {});
        let advice = Advice::on(&crd, None, Some(&seen("v1alpha1", "old", BEFORE, true)));
        assert_eq!(advice.verdict, "v1alpha1 may still be stored");
        assert_eq!(
            advice.command.as_deref(),
            Some("exuvia storage migrate widgets.example.com --patrol")
        );
    }

    #[test]
    fn nothing_is_advised_against_an_exclusion() {
        let crd = definition(&["v1alpha1", "v1"], |crd| {
            crd["metadata"]["annotations"] =
                json!({"exuvia.dev/exclude-storage-version-migration": "not ours"});
        });
        let advice = Advice::on(&crd, None, None);
        assert_eq!(advice.command, None);
        assert_eq!(advice.verdict, "v1alpha1 may still be stored; excluded: not ours");
    }
}
