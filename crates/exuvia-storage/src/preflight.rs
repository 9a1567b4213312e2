//! Before anything is written: does everybody answer? What else may stand in the way has a name here, too.

use exuvia_sweep::Control;
use exuvia_sweep::api_service::Hidden;
use exuvia_write::{ErrorClass, Redacted, Writer};
use kube::Client;
use kube::api::ObjectMeta;
use serde::Serialize;

use crate::definition::Definition;
use crate::failures::without_values;
use crate::forbidden::MissingRule;
use crate::loss::{self, Losses};
use crate::ownership::object_name;
use crate::probe::{Unanswered, unanswered};
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
        /// What the server said.
        message: Redacted,
    },
    /// The objects cannot even be listed: a conversion webhook is down, and the server's cache is cold.
    NoList {
        /// What the server said.
        message: Redacted,
    },
    /// The rewrite would erase or change fields, or may do so where nobody can look.
    Pruning(Box<Losses>),
    /// We may not do what we would have to: better to know before 10,000 objects are rewritten.
    Forbidden {
        /// What the server said.
        message: Redacted,
        /// The rule that is missing.
        missing: Option<MissingRule>,
    },
    /// No version is served: nothing can be asked for.
    NothingServed,
    /// Another server answers for versions that are served: what it shows says nothing about what the CRD stores.
    Hidden(Vec<Hidden>),
    /// Whether that is so cannot be found out.
    MayBeHidden {
        /// What the server said.
        message: Redacted,
    },
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
            Self::Pruning(losses) => losses.fmt(f),
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
            Self::Hidden(hidden) => write!(f, "{}", answered_by_others(hidden)),
            Self::MayBeHidden { message } => write!(
                f,
                "it is not known whether the CRD itself answers, since its APIServices cannot be read: {message}"
            ),
        }
    }
}

impl Obstacle {
    /// A right that is missing, as the server says so.
    pub(crate) fn forbidden(message: &str) -> Self {
        Self::Forbidden {
            message: Redacted::from_server(message),
            missing: MissingRule::named_in(message),
        }
    }
}

/// What to say of a CRD that does not answer for all of its versions itself, and what to do about it.
pub(crate) fn answered_by_others(hidden: &[Hidden]) -> String {
    let each: Vec<String> = hidden.iter().map(ToString::to_string).collect();
    let names: Vec<String> = hidden.iter().map(Hidden::api_service).collect();
    format!(
        "{}; what is stored cannot be seen through another server: delete the APIService {} until the migration is done, or \
         set `served: false` for that version in the CRD",
        each.join(", "),
        names.join(", ")
    )
}

/// Whether the CRD itself answers for each of its versions that are served; why not, if it does not.
pub(crate) async fn hidden(client: &Client, definition: &Definition) -> Option<Obstacle> {
    match Hidden::among(client, &definition.group, definition.served()).await {
        Ok(hidden) if hidden.is_empty() => None,
        Ok(hidden) => Some(Obstacle::Hidden(hidden)),
        Err(error) => {
            let text = exuvia_write::brief(&error);
            Some(match MissingRule::named_in(&text) {
                Some(_) => Obstacle::forbidden(&text),
                None => Obstacle::MayBeHidden {
                    message: Redacted::from_server(&text),
                },
            })
        }
    }
}

/// Dry-runs the samples at every served version.
pub(crate) async fn answers(
    client: &Client,
    writer: &Writer,
    definition: &Definition,
    survey: &Survey,
) -> Option<Obstacle> {
    let mut samples: Vec<&ObjectMeta> = survey.samples.values().collect();
    samples.sort_by_key(|metadata| (&metadata.namespace, &metadata.name));
    samples.dedup_by_key(|metadata| (&metadata.namespace, &metadata.name));
    for metadata in samples {
        let Some(Unanswered { version, error }) = unanswered(client, writer, definition, metadata).await
        else {
            continue;
        };
        let text = error.to_string();
        if error.class() == ErrorClass::Denied {
            return Some(Obstacle::forbidden(&text));
        }
        let named = (
            metadata.namespace.as_deref(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        let resource = definition.resource(&version);
        let class = error.class().as_str();
        return Some(Obstacle::NoAnswer {
            object: object_name(metadata),
            message: without_values(
                client,
                &resource,
                Some(definition),
                named,
                class,
                Redacted::from_server(&text),
            )
            .await,
            version,
        });
    }
    None
}

/// What the rewrite would do to the objects' content; `None`: that is not for us to judge, or it was cancelled.
///
/// If it cannot be found out, then that is an obstacle, unless every loss is `accepted`.
pub(crate) async fn losses(
    client: &Client,
    definition: &Definition,
    survey: &Survey,
    control: &Control,
    accepted: bool,
) -> Result<Option<Losses>, Obstacle> {
    if survey.objects == 0 || definition.webhook_conversion {
        return Ok(None); // nothing to lose, or the webhook's own promise
    }
    let error = match loss::look(client, definition, control).await {
        Ok(losses) => return Ok(losses),
        Err(error) => exuvia_write::brief(&error),
    };
    match MissingRule::named_in(&error) {
        Some(_) => Err(Obstacle::forbidden(&error)),
        None if accepted => Ok(Some(Losses::unknown(
            &definition.crd.storage,
            &Redacted::from_server(&error),
        ))),
        None => Err(Obstacle::NoList {
            message: Redacted::from_server(&error),
        }),
    }
}
