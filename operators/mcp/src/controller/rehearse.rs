//! Before a roll-out: whether the API server would take the backend that the runner is going to apply. A dry run, under the runner's name.
//!
//! It needs no right that the operator does not have anyway: it gives the rights to create and to apply the backend to runners.

use exuvia_rollout::names::FIELD_MANAGER;
use exuvia_rollout::{FoundStamps, Names, Stamps};
use exuvia_write::{Apply, ErrorClass, Redacted, Writer};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{ApiResource, DynamicObject};
use kube::core::Status;
use kube::{Api, Client};
use serde_json::Value;

use super::Error;
use super::build::Prepared;
use super::rolled_out::is_ahead;

/// How the backend is rehearsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rehearsal {
    /// No roll-out begins, or the runner would not apply now.
    NotDue,
    /// It is absent.
    Create,
    /// It is there.
    Apply,
}

/// Asks the server, if a roll-out is about to begin. [`Error::Refused`] says that it would refuse.
pub(crate) async fn rehearse(client: &Client, writer: &Writer, prepared: &Prepared) -> Result<(), Error> {
    let rehearsal = due(prepared);
    if rehearsal == Rehearsal::NotDue {
        return Ok(());
    }
    let runner = writer.acting_as(FIELD_MANAGER).dry_run();
    let resource = ApiResource::erase::<StatefulSet>(&());
    let namespace = &prepared.accepted.namespace;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let intent = &prepared.backend;
    let body = intent.stamped(&stamps(prepared), &Names::default());
    let rehearsed = if rehearsal == Rehearsal::Create {
        runner.create(&api, &intent.object(&body)).await
    } else {
        runner.apply(&api, &body, &Apply::default().force()).await
    };
    let Err(error) = rehearsed else { return Ok(()) };
    match error.status().map(judge) {
        Some(Answer::Refused) => Err(Error::Refused(error)),
        Some(Answer::Unknown) => {
            let error = Redacted::from_error(&error);
            tracing::warn!(%error, "cannot tell whether the API server would take the backend: the runner will find out");
            Ok(())
        }
        Some(Answer::Later) | None => Err(error.into()),
    }
}

/// What the server's answer to a dry run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// It would refuse the object.
    Refused,
    /// Nothing about the object: a right is missing, or a webhook has no dry runs.
    Unknown,
    /// Nothing yet.
    Later,
}

fn judge(status: &Status) -> Answer {
    let says = |text: &str| status.message.contains(text);
    let is_missing_right = says(" cannot create resource ") || says(" cannot patch resource ");
    match ErrorClass::of_status(status) {
        ErrorClass::Denied if is_missing_right || status.code == 401 => Answer::Unknown,
        ErrorClass::Invalid if says("does not support dry run") => Answer::Unknown,
        ErrorClass::Denied | ErrorClass::Invalid => Answer::Refused,
        _ => Answer::Later,
    }
}

/// The stamps that the runner will put on it: a fence refuses to take them away.
fn stamps(prepared: &Prepared) -> Stamps {
    Stamps {
        token: Some(prepared.token.clone()),
        generation: prepared.accepted.found.server.metadata.generation,
        config_hash: Some(prepared.config.hash().to_owned()),
        ..Stamps::default()
    }
}

fn due(prepared: &Prepared) -> Rehearsal {
    let found = &prepared.accepted.found;
    let names = Names::default();
    let value = |object: Option<Value>| object.unwrap_or_default();
    let deployment = found.deployment.as_ref();
    let deployment = value(deployment.and_then(|object| serde_json::to_value(object).ok()));
    if FoundStamps::of_template(&deployment, &names).token.found() == Some(&prepared.token) {
        return Rehearsal::NotDue;
    }
    let Some(backend) = &found.backend else {
        return Rehearsal::Create;
    };
    let stamped = value(serde_json::to_value(backend).ok());
    let stamped = FoundStamps::of_object(&stamped, &names);
    let is_left_alone = stamped
        .token
        .found()
        .is_some_and(|stamped| is_ahead(stamped, &prepared.token));
    if backend.metadata.deletion_timestamp.is_some() || is_left_alone {
        Rehearsal::NotDue
    } else {
        Rehearsal::Apply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: u16, reason: &str, message: &str) -> Answer {
        judge(&Status::failure(message, reason).with_code(code))
    }

    #[test]
    fn only_what_is_said_about_the_object_is_a_refusal() {
        for (code, reason, message, expected) in [
            (
                422,
                "Invalid",
                "StatefulSet.apps \"a-backend\" is invalid: spec.template.spec.containers[0].env[0].name: Invalid value",
                Answer::Refused,
            ),
            (
                400,
                "BadRequest",
                "quantities must match the regular expression",
                Answer::Refused,
            ),
            (
                403,
                "Forbidden",
                "statefulsets.apps \"a-backend\" is forbidden: exceeded quota: few",
                Answer::Refused,
            ),
            (
                403,
                "Forbidden",
                "statefulsets.apps is forbidden: User \"u\" cannot create resource \"statefulsets\" in API group \"apps\"",
                Answer::Unknown,
            ),
            (401, "Unauthorized", "Unauthorized", Answer::Unknown),
            (
                400,
                "BadRequest",
                "admission webhook \"w.example.dev\" does not support dry run",
                Answer::Unknown,
            ),
            (409, "AlreadyExists", "already exists", Answer::Later),
            (503, "ServiceUnavailable", "later", Answer::Later),
        ] {
            assert_eq!(judged(code, reason, message), expected, "{message}");
        }
    }
}
