//! Before anything is written: does everybody answer, and would the rewrite erase something?

use exuvia_write::{ErrorClass, Writer};
use kube::api::{DynamicObject, ListParams, ObjectMeta};
use kube::{Api, Client};
use serde::Serialize;

use crate::Error;
use crate::definition::Definition;
use crate::failures::without_values;
use crate::forbidden::MissingRule;
use crate::ownership::object_name;
use crate::redact::redact;
use crate::schema;
use crate::survey::Survey;

/// Why the preflight does not pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Obstacle {
    /// The server does not answer a dry-run write: a conversion or admission webhook is down, or the endpoint is.
    NoAnswer {
        /// The object that was tried.
        object: String,
        /// The endpoint's version.
        version: String,
        /// What the server said, redacted.
        message: String,
    },
    /// The objects cannot even be listed: a conversion webhook is down, and the server's cache is cold.
    NoList {
        /// What the server said, redacted.
        message: String,
    },
    /// The rewrite would erase these fields.
    Pruning {
        /// How many objects hold one.
        objects: u64,
        /// The first of them, with the field.
        examples: Vec<Pruned>,
    },
    /// A version that may hold such fields cannot be read.
    Unreadable {
        /// The version.
        version: String,
        /// The fields that only it knows.
        fields: Vec<String>,
    },
    /// We may not do what we would have to: better to know before 10,000 objects are rewritten.
    Forbidden {
        /// What the server said, redacted.
        message: String,
        /// The rule that is missing.
        missing: Option<MissingRule>,
    },
    /// No version is served: nothing can be asked for.
    NothingServed,
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoAnswer {
                object,
                version,
                message,
            } => {
                write!(
                    f,
                    "a dry-run write of {object} at {version} was not answered: {message}"
                )
            }
            Self::NoList { message } => write!(f, "the objects cannot be listed: {message}"),
            Self::Pruning { objects, examples } => {
                write!(f, "the rewrite would erase fields of {objects} objects")?;
                if let Some(Pruned {
                    object,
                    field,
                    version,
                }) = examples.first()
                {
                    write!(f, " ({object} holds {field}, which only {version} knows)")?;
                }
                f.write_str(
                    ": add the field to the storage version, or accept the loss with --accept-pruning (spec.acceptPruning)",
                )
            }
            Self::Unreadable { version, fields } => write!(
                f,
                "{version} is not served, and only it knows {}: serve it so that objects can be looked at, or accept the \
                 loss with --accept-pruning (spec.acceptPruning)",
                fields.join(", ")
            ),
            Self::Forbidden {
                message,
                missing: None,
            } => write!(f, "not allowed: {message}"),
            Self::Forbidden {
                missing: Some(rule), ..
            } => write!(f, "not allowed; add this rule to the role: {rule}"),
            Self::NothingServed => {
                f.write_str("no version is served, so no object can be asked for: serve one")
            }
        }
    }
}

impl Obstacle {
    /// A right that is missing, as the server says so.
    pub(crate) fn forbidden(message: &str) -> Self {
        Self::Forbidden {
            message: redact(message),
            missing: MissingRule::named_in(message),
        }
    }
}

/// A field that the rewrite would erase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// `namespace/name`.
    pub object: String,
    /// The version whose schema knows the field.
    pub version: String,
    /// The field, such as `spec.legacy`.
    pub field: String,
}

/// Dry-runs the samples at every served version. A list proves nothing: it comes from the watch cache (PITFALLS A24).
///
/// A sample that is refused is that object's own trouble, and reported when its turn comes; no answer is everybody's.
pub(crate) async fn answers(
    client: &Client,
    writer: &Writer,
    definition: &Definition,
    survey: &Survey,
) -> Option<Obstacle> {
    let mut samples: Vec<&ObjectMeta> = survey.samples.values().collect();
    samples.sort_by_key(|metadata| (&metadata.namespace, &metadata.name));
    samples.dedup_by_key(|metadata| (&metadata.namespace, &metadata.name));
    for version in definition.served() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &definition.resource(version));
        for metadata in &samples {
            let Err(error) = writer.dry_run().rewrite(&api, metadata).await else {
                continue;
            };
            match error.class() {
                // No object's own trouble: it is the same for all of them.
                ErrorClass::Denied if MissingRule::named_in(&error.to_string()).is_some() => {
                    return Some(Obstacle::forbidden(&error.to_string()));
                }
                ErrorClass::Denied | ErrorClass::Invalid | ErrorClass::Conflict => {}
                ErrorClass::Gone => {}
                _ => {
                    return Some(Obstacle::NoAnswer {
                        object: object_name(metadata),
                        version: version.to_owned(),
                        message: without_values(
                            client,
                            &definition.resource(version),
                            (
                                metadata.namespace.as_deref(),
                                metadata.name.as_deref().unwrap_or_default(),
                            ),
                            error.class().as_str(),
                            redact(&error.to_string()),
                        )
                        .await,
                    });
                }
            }
        }
    }
    None
}

/// Looks for objects that hold a field which only an old version knows (PITFALLS A23).
pub(crate) async fn pruning(client: &Client, definition: &Definition) -> Result<Option<Obstacle>, Error> {
    if definition.webhook_conversion {
        return Ok(None); // what a webhook carries over is its own business, and it sees every field
    }
    let Some(storage) = definition.version(&definition.crd.storage) else {
        return Ok(None);
    };
    let mut objects = 0;
    let mut examples = Vec::new();
    for old in definition.crd.old_versions() {
        let Some(old) = definition.version(&old) else {
            continue;
        };
        let paths = schema::only_in(&old.schema, &storage.schema);
        if paths.is_empty() {
            continue;
        }
        if !old.served {
            let fields = paths.iter().map(|path| path.join(".")).collect();
            return Ok(Some(Obstacle::Unreadable {
                version: old.name.clone(),
                fields,
            }));
        }
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &definition.resource(&old.name));
        each_object(&api, |object| {
            if let Some(path) = schema::first_held(&object.data, &paths, &storage.schema) {
                objects += 1;
                if examples.len() < 100 {
                    examples.push(Pruned {
                        object: object_name(&object.metadata),
                        version: old.name.clone(),
                        field: path.join("."),
                    });
                }
            }
        })
        .await?;
    }
    Ok((objects > 0).then_some(Obstacle::Pruning { objects, examples }))
}

/// Whole objects, page by page: small pages, for there may be 1 MiB in each.
async fn each_object(api: &Api<DynamicObject>, mut look: impl FnMut(&DynamicObject)) -> Result<(), Error> {
    let mut token: Option<String> = None;
    loop {
        let mut params = ListParams::default().limit(100);
        params.continue_token = token.take();
        let page = match api.list(&params).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 410 => {
                // The token has expired; the answer holds one to go on with (PITFALLS A8).
                token = status.metadata.as_ref().and_then(|meta| meta.continue_.clone());
                if token.is_some() {
                    continue;
                }
                return Err(kube::Error::Api(status).into());
            }
            Err(error) => return Err(error.into()),
        };
        page.items.iter().for_each(&mut look);
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(());
        }
    }
}
