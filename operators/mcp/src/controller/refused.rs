//! What it means for people that the API server refuses a child: which one, which field, then the server's words without values. Pure.

use exuvia_write::{Error, ErrorClass, Name, Redacted, redacted};
use k8s_openapi::api::core::v1::EnvVar;
use kube::api::{DynamicObject, ObjectMeta};
use kube::core::Status;
use serde_json::{Value, json};

use super::validate::{NAME_TAKEN, Rejection};
use crate::api::MCPServer;

/// So many fields are named. A spec may be wrong in a hundred.
const MAX_FIELDS: usize = 3;

/// What an error says about the spec of this server, if it does.
pub(super) fn rejection(server: &MCPServer, error: &super::Error) -> Option<Rejection> {
    let (reason, message) = match error {
        super::Error::Refused(error) => (
            "BackendRefused",
            refused(server, error, ", so nothing is rolled out"),
        ),
        super::Error::Write(error) if error.class() == ErrorClass::Invalid => {
            ("InvalidChild", refused(server, error, ""))
        }
        super::Error::Write(Error::Foreign { target }) => (
            NAME_TAKEN,
            redacted!(
                "{} {} has other content than this server's run config, or is being deleted; remove it, with its finalizers",
                Name(&target.resource),
                Name(&target.name)
            ),
        ),
        _ => return None,
    };
    Some(Rejection {
        reason,
        message: message.into_string(),
    })
}

/// Says that the API server refuses a child of this server; `then` is what follows from it, with a comma before it.
///
/// Nobody knows what a policy quotes, so what may be a secret in the spec is taken out of its words, too.
fn refused(server: &MCPServer, error: &Error, then: &'static str) -> Redacted {
    let Error::Server { target, .. } = error else {
        return Redacted::from_error(error);
    };
    let Some(status) = error.status() else {
        return Redacted::from_error(error);
    };
    let fields = fields(status);
    let said = said(status, &fields).without_values_of(&secrets(server), &[]);
    let (resource, name) = (Name(&target.resource), Name(&target.name));
    if fields.is_empty() {
        return redacted!("the API server refuses {} {}{}: {}", resource, name, then, said);
    }
    let more = fields.len().saturating_sub(MAX_FIELDS);
    let mut named = fields[..fields.len().min(MAX_FIELDS)].join(", ");
    if more > 0 {
        named = format!("{named} and {more} more fields");
    }
    redacted!(
        "the API server refuses {} {} for {}{}: {}",
        resource,
        name,
        Name(&named),
        then,
        said
    )
}

/// The fields that the server names, each once.
fn fields(status: &Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut fields = Vec::new();
    for cause in causes.filter(|cause| !cause.field.is_empty()) {
        if !fields.contains(&cause.field) {
            fields.push(cause.field.clone());
        }
    }
    fields
}

/// The server's words, without what was said already.
fn said(status: &Status, fields: &[String]) -> Redacted {
    let message = status.message.as_str();
    let rest = message
        .split_once(" is invalid: ")
        .map_or(message, |(_, rest)| rest);
    let rest = match fields {
        [only] => rest.strip_prefix(&format!("{only}: ")).unwrap_or(rest),
        _ => rest,
    };
    Redacted::from_server(rest)
}

/// What may be a secret in a spec: values of variables, and arguments.
fn secrets(server: &MCPServer) -> DynamicObject {
    let spec = &server.spec;
    let overrides = spec.resource_overrides.as_ref();
    let overrides = overrides.and_then(|overrides| overrides.proxy_deployment.as_ref());
    let values =
        |env: &[EnvVar]| -> Vec<Value> { env.iter().map(|variable| json!(variable.value)).collect() };
    DynamicObject {
        types: None,
        metadata: ObjectMeta::default(),
        data: json!({
            "args": spec.args,
            "env": values(&spec.env),
            "proxy": overrides.map(|overrides| values(&overrides.env)),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use exuvia_write::{Target, Verb};

    use super::*;

    fn server() -> MCPServer {
        serde_json::from_value(json!({
            "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPServer", "metadata": {"name": "a"},
            "spec": {
                "image": "example.com/image", "args": ["--token=s3cret-arg"],
                "env": [{"name": "NAME", "value": "s3cret-value"}],
                "resourceOverrides": {"proxyDeployment": {"env": [{"name": "P", "value": "s3cret-of-proxy"}]}},
            },
        }))
        .unwrap()
    }

    fn error(message: &str, fields: &[&str]) -> Error {
        let causes: Vec<_> = fields.iter().map(|field| json!({"field": field})).collect();
        let status: Status = serde_json::from_value(json!({
            "status": "Failure", "message": message, "reason": "Invalid", "code": 422, "details": {"causes": causes},
        }))
        .unwrap();
        Error::Server {
            verb: Verb::Create,
            target: Box::new(Target {
                resource: "statefulsets.apps".to_owned(),
                version: "v1".to_owned(),
                namespace: Some("ns".to_owned()),
                name: "a-backend".to_owned(),
            }),
            class: ErrorClass::Invalid,
            source: Box::new(kube::Error::Api(Box::new(status))),
        }
    }

    fn said(message: &str, fields: &[&str]) -> Redacted {
        refused(&server(), &error(message, fields), ", so nothing is rolled out")
    }

    #[test]
    fn child_and_field_are_named_before_the_servers_words() {
        let field = "spec.template.spec.containers[0].env[0].name";
        assert_eq!(
            said(
                &format!("StatefulSet.apps \"a-backend\" is invalid: {field}: Invalid value: \"a=b\": a valid name must …"),
                &[field]
            ),
            format!(
                "the API server refuses statefulsets.apps a-backend for {field}, so nothing is rolled out: Invalid value: …: a \
                 valid name must …"
            )
            .as_str()
        );
        assert_eq!(
            said("exceeded quota: few", &[]),
            "the API server refuses statefulsets.apps a-backend, so nothing is rolled out: exceeded quota: few"
        );
        let many = said("x", &["a", "b", "a", "c", "d", "e"]);
        assert!(many.contains(" for a, b, c and 2 more fields, so "), "{many}");
    }

    #[test]
    fn a_refused_value_is_not_logged() {
        let error = || error("spec.a: Invalid value: \"s3cret\": too short", &["spec.a"]);
        for error in [
            crate::controller::Error::Write(error()),
            crate::controller::Error::Refused(error()),
        ] {
            let said = error.to_string();
            assert!(said.contains("spec.a: Invalid value: …: too short"), "{said}");
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        let text = said(
            "policy says: s3cret-value and --token=s3cret-arg and s3cret-of-proxy in example.com/image",
            &[],
        );
        assert!(
            !text.contains("s3cret") && text.contains("example.com/image"),
            "{text}"
        );
    }
}
