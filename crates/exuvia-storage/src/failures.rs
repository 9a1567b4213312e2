//! Failures as they may be shown: in an order that does not change, and without what the objects hold.

use exuvia_sweep::Failures;
use exuvia_write::ErrorClass;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

use crate::forbidden::MissingRule;
use crate::redact::mask;

/// Said instead of a text that may quote an object which cannot be looked at.
const UNSHOWN: &str =
    "refused; what was said is not shown, for it may quote the object, and that could not be read";

/// Sorts failures by name, or each try would tell of the same ones in other words, and takes values out of their messages.
///
/// At most as many reads as failures are kept by name: 100.
pub(crate) async fn presentable(client: &Client, resource: &ApiResource, mut failures: Failures) -> Failures {
    failures
        .first
        .sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    for failure in &mut failures.first {
        let named = (failure.namespace.as_deref(), failure.name.as_str());
        let message = std::mem::take(&mut failure.message);
        failure.message = without_values(client, resource, named, failure.class, message).await;
    }
    failures
}

/// What was said about one object, without what that object holds.
///
/// The author of a policy, a rule or a webhook may quote whatever it sees (PITFALLS B27). Nothing tells a quotation from
/// the rest, so the object is read and the two are compared.
pub(crate) async fn without_values(
    client: &Client,
    resource: &ApiResource,
    (namespace, name): (Option<&str>, &str),
    class: &str,
    message: String,
) -> String {
    if !is_authored(class, &message) {
        return message;
    }
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    match api.get(name).await {
        Ok(object) => mask(&message, &object),
        Err(_) => UNSHOWN.to_owned(),
    }
}

/// Whether somebody else than the server itself may have put it into words. A webhook denies with any code it likes.
fn is_authored(class: &str, message: &str) -> bool {
    let authored = [
        ErrorClass::Denied,
        ErrorClass::Invalid,
        ErrorClass::Conflict,
        ErrorClass::Fatal,
    ];
    let by_class = authored.iter().any(|authored| authored.as_str() == class);
    (by_class || message.contains(" denied ")) && MissingRule::named_in(message).is_none()
}
