//! Failures as they may be shown: in an order that does not change, and without what the objects hold.

use exuvia_sweep::Failures;
use exuvia_write::{ErrorClass, Redacted, redacted, shows_values};
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::Value;

use crate::definition::Definition;
use crate::forbidden::MissingRule;

/// Said after the causes of a refusal that may quote an object which cannot be looked at.
const UNSHOWN: &str = "[the rest is not shown: it may quote the object, which could not be read]";

/// Sorts failures by name, or each try would tell of the same ones in other words, and takes values out of their messages.
///
/// At most as many reads as failures are kept by name: 100.
pub(crate) async fn presentable(
    client: &Client,
    resource: &ApiResource,
    definition: Option<&Definition>,
    mut failures: Failures,
) -> Failures {
    failures
        .first
        .sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    for failure in &mut failures.first {
        let named = (failure.namespace.as_deref(), failure.name.as_str());
        let message = std::mem::take(&mut failure.message);
        failure.message = without_values(client, resource, definition, named, failure.class, message).await;
    }
    failures
}

/// What was said about one object, without what that object holds.
///
/// The author of a policy, a rule or a webhook may quote whatever it sees (PITFALLS B27). Nothing tells a quotation from
/// the rest, so the object is read and the two are compared. What the CRD says is not secret, and stays.
pub(crate) async fn without_values(
    client: &Client,
    resource: &ApiResource,
    definition: Option<&Definition>,
    (namespace, name): (Option<&str>, &str),
    class: &str,
    message: Redacted,
) -> Redacted {
    if shows_values() || !is_authored(class, &message) {
        return message;
    }
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let public = definition.map(rules).unwrap_or_default();
    match api.get(name).await {
        Ok(object) => message.without_values_of(&object, &public),
        Err(_) => match message.only_causes(&public) {
            causes if causes == message => causes,
            causes => redacted!("{} {}", causes, UNSHOWN),
        },
    }
}

/// Whether somebody other than the server itself may have written it. A webhook denies with any code it likes.
fn is_authored(class: &str, message: &str) -> bool {
    let authored = [
        ErrorClass::Denied,
        ErrorClass::Invalid,
        ErrorClass::Conflict,
        ErrorClass::Fatal,
    ];
    let by_class = authored.iter().any(|authored| authored.as_str() == class);
    // Of an answer that is not 200 the server repeats the body: `an error on the server ("…")`.
    let by_words = [" denied ", "webhook", "an error on the server"];
    let by_words = by_words.iter().any(|words| message.contains(words));
    (by_class || by_words) && MissingRule::named_in(message).is_none()
}

/// The rules in a CRD's schemas and what they say when they are broken, on one line each.
fn rules(definition: &Definition) -> Vec<String> {
    let mut found = Vec::new();
    for version in &definition.versions {
        collect_rules(&version.schema, &mut found);
    }
    found.sort();
    found.dedup();
    found
}

fn collect_rules(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            let own = schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten();
            let texts = own.flat_map(|rule| [&rule["message"], &rule["rule"]]);
            let texts = texts.filter_map(Value::as_str);
            found.extend(texts.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")));
            members.values().for_each(|member| collect_rules(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_rules(item, found)),
        _ => {}
    }
}
