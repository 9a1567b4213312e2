//! Asks, before objects are written, whether everybody who must answer for such a write does.

use std::collections::BTreeSet;
use std::sync::Arc;

use exuvia_write::{Error, ErrorClass, Name, Redacted, Writer, redacted};
use kube::api::{DynamicObject, ObjectMeta};
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::definition::Definition;
use crate::forbidden::MissingRule;
use crate::ownership::object_name;

/// Dry-runs one object for each version that managedFields name, at every served version, before the first such object is
/// written. A list proves nothing, it comes from the watch cache (PITFALLS A24); and a write while a conversion webhook is
/// down may lose all managedFields (A6).
pub(crate) struct Prober {
    client: Client,
    writer: Writer,
    definition: Arc<Definition>,
    /// Versions that were answered for.
    answered: Mutex<BTreeSet<String>>,
}

/// What did not answer.
#[derive(Debug)]
pub(crate) struct Unanswered {
    pub(crate) version: String,
    pub(crate) error: Error,
}

impl Prober {
    pub(crate) fn new(client: Client, writer: Writer, definition: Arc<Definition>) -> Self {
        Self {
            client,
            writer,
            definition,
            answered: Mutex::default(),
        }
    }

    /// Whether an object can be asked for at every served version; a sentence if not. Asks once per version that entries
    /// name.
    pub(crate) async fn probe(&self, metadata: &ObjectMeta) -> Option<Redacted> {
        let named: BTreeSet<String> = versions_named(metadata).map(str::to_owned).collect();
        let mut answered = self.answered.lock().await;
        if named.is_subset(&answered) {
            return None;
        }
        if let Some(Unanswered { version, error }) =
            unanswered(&self.client, &self.writer, &self.definition, metadata).await
        {
            let object = object_name(metadata);
            return Some(redacted!(
                "a dry-run write of {} at {} was not answered, so it was not written: {}",
                Name(&object),
                Name(&version),
                Redacted::from_error(&error)
            ));
        }
        answered.extend(named);
        None
    }
}

/// The versions that an object's entries name, and an empty one for an object without entries.
pub(crate) fn versions_named(metadata: &ObjectMeta) -> impl Iterator<Item = &str> {
    let entries = metadata.managed_fields.iter().flatten();
    entries
        .filter_map(|entry| entry.api_version.as_deref())
        .chain([""])
}

/// Dry-runs the object at every served version. A refusal is about this object alone, and is reported when it is written.
/// No answer concerns every object, and so does a right that is missing.
pub(crate) async fn unanswered(
    client: &Client,
    writer: &Writer,
    definition: &Definition,
    metadata: &ObjectMeta,
) -> Option<Unanswered> {
    for version in definition.served() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &definition.resource(version));
        let Err(error) = writer.dry_run().rewrite(&api, metadata).await else {
            continue;
        };
        let own_trouble = match error.class() {
            ErrorClass::Denied => MissingRule::named_in(&error.to_string()).is_none(),
            ErrorClass::Invalid | ErrorClass::Conflict | ErrorClass::Gone => true,
            ErrorClass::Missing => !error.is_unserved(),
            _ => false,
        };
        if !own_trouble {
            let version = version.to_owned();
            return Some(Unanswered { version, error });
        }
    }
    None
}
