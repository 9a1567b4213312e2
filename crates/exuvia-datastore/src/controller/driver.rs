//! Which operator carries a migration out: it marks it with its name, and leaves alone what bears another one's.

use exuvia_api::{DatastoreMigration, OPERATOR_ANNOTATION};
use exuvia_runtime::EventKind;
use exuvia_write::{ErrorClass, Name, redacted};
use kube::ResourceExt;

use super::DatastoreController;
use crate::Error;
use crate::lock::lock;

impl DatastoreController {
    /// The other operator whose name the migration bears, if it bears one.
    ///
    /// Whether that operator still runs cannot be known from here: its Lease is in a namespace that we may not read. So a
    /// migration changes hands only when somebody takes the name away.
    pub(super) fn other_driver(&self, migration: &DatastoreMigration) -> Option<String> {
        another(migration, &self.settings.operator).map(str::to_owned)
    }

    /// Gives it our name before the first step; `None`: somebody wrote to it since it was read. Of two operators that try at the
    /// same time the server lets one succeed.
    pub(super) async fn mark(
        &self,
        migration: DatastoreMigration,
    ) -> Result<Option<DatastoreMigration>, Error> {
        let ours = &self.settings.operator;
        let marked = migration.annotations().get(OPERATOR_ANNOTATION);
        if ours.is_empty() || marked.is_some_and(|marked| !marked.is_empty()) {
            return Ok(Some(migration));
        }
        let marking = self
            .writer
            .patch(&self.migrations(), &migration, |migration| {
                migration
                    .annotations_mut()
                    .insert(OPERATOR_ANNOTATION.to_owned(), ours.clone());
            })
            .await;
        match marking {
            Ok(written) => Ok(Some(written.object)),
            Err(error) if matches!(error.class(), ErrorClass::Conflict | ErrorClass::Gone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Says once that another operator carries it out, and forgets what was done about it here. The status is the other's to
    /// write.
    pub(super) async fn leave_to(&self, migration: &DatastoreMigration, other: &str) {
        let name = migration.name_any();
        let told = lock(&self.left).get(&name).is_some_and(|told| told == other);
        if told {
            return;
        }
        self.forget_migration(&name);
        lock(&self.left).insert(name.clone(), other.to_owned());
        let ours = &self.settings.operator;
        tracing::warn!(
            migration = name,
            operator = other,
            "left alone: another operator carries this migration out; if that one is gone for good, hand it over: kubectl annotate \
             datastoremigration {name} {OPERATOR_ANNOTATION}-"
        );
        let note = redacted!(
            "the operator {} carries this migration out, and the operator {} leaves it alone. If the first is gone for good: \
             kubectl annotate datastoremigration {} {}-",
            Name(other),
            Name(ours),
            Name(&name),
            Name(OPERATOR_ANNOTATION)
        );
        self.publisher
            .event(migration, None, EventKind::Warning, "OtherOperator", &note)
            .await;
    }
}

fn another<'a>(migration: &'a DatastoreMigration, ours: &str) -> Option<&'a str> {
    let marked = migration.annotations().get(OPERATOR_ANNOTATION)?;
    (!ours.is_empty() && !marked.is_empty() && marked != ours).then_some(marked.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_mark_with_another_name_makes_it_anothers() {
        let migration = |annotations| {
            serde_json::from_value(json!({
                "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
                "metadata": {"name": "a", "annotations": annotations}, "spec": {"mappings": []},
            }))
            .expect("a migration")
        };
        let marked: DatastoreMigration = migration(json!({OPERATOR_ANNOTATION: "a/exuvia"}));
        assert_eq!(another(&marked, "b/exuvia"), Some("a/exuvia"));
        assert_eq!(another(&marked, "a/exuvia"), None);
        assert_eq!(another(&marked, ""), None, "an operator without a name is alone");
        assert_eq!(another(&migration(json!({})), "b/exuvia"), None);
        assert_eq!(
            another(&migration(json!({OPERATOR_ANNOTATION: ""})), "b/exuvia"),
            None
        );
    }
}
