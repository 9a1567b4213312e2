//! Rights that a migration lacks: asked for one by one, told rule by rule, with the command that binds all of them.

use std::collections::BTreeMap;

use exuvia_api::{Blocker, DatastoreMigration, datastore_reason as reason};
use kube::Client;

use super::{is_allowed, of_migration, questions, said};
use crate::Error;
use crate::kinds::Kinds;

/// Rights that a migration lacks: first how to bind all of them, then one line for each rule, with its reason.
pub(crate) async fn missing(
    client: &Client,
    migration: &DatastoreMigration,
    kinds: &Kinds,
) -> Result<Vec<Blocker>, Error> {
    let mut missing = Vec::new();
    for rule in of_migration(migration, kinds) {
        let mut denied = Vec::new();
        for question in questions(&rule) {
            if !is_allowed(client, &question).await? {
                denied.push(said(&question));
            }
        }
        if !denied.is_empty() {
            missing.push(forbidden(lacking(&denied, &rule.why)));
        }
    }
    missing.dedup();
    if !missing.is_empty() {
        // Without an answer the command names the operator's usual account.
        let user = crate::freeze::whoami(client).await;
        let user = user.map(|user| user.username).unwrap_or_default();
        let name = migration.metadata.name.as_deref().unwrap_or_default();
        missing.insert(0, forbidden(how_to_bind(name, &user)));
    }
    Ok(missing)
}

fn forbidden(message: String) -> Blocker {
    Blocker {
        reason: reason::FORBIDDEN.to_owned(),
        message,
        ..Blocker::default()
    }
}

/// One rule's missing rights in a sentence. Resources that lack the same verbs are told together.
fn lacking(denied: &[(String, String)], why: &str) -> String {
    let mut verbs_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (verb, resource) in denied {
        verbs_of.entry(resource).or_default().push(verb);
    }
    let mut resources_by: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
    for (resource, verbs) in verbs_of {
        resources_by.entry(verbs).or_default().push(resource);
    }
    let parts: Vec<String> = resources_by
        .into_iter()
        .map(|(verbs, resources)| format!("{} {}", verbs.join(", "), resources.join(", ")))
        .collect();
    let mut letters = why.trim_end_matches('.').chars();
    let first: String = letters
        .next()
        .map(|first| first.to_lowercase().collect())
        .unwrap_or_default();
    format!(
        "the right to {} is missing, which is needed to {first}{}",
        parts.join(" and to "),
        letters.as_str()
    )
}

/// The command that binds everything that a migration needs to the account that asks.
fn how_to_bind(name: &str, user: &str) -> String {
    let account = user
        .strip_prefix("system:serviceaccount:")
        .and_then(|account| account.split_once(':'));
    let options = match account {
        None | Some(("exuvia-system", "exuvia")) => String::new(),
        Some((namespace, account)) => format!(" --namespace {namespace} --name {account}"),
    };
    let name = if name.is_empty() { "NAME" } else { name };
    format!(
        "the operator lacks rights that this migration needs; this binds all of them: kubectl get datastoremigration {name} -o \
         yaml | exuvia rbac -f -{options} | kubectl apply --server-side -f -"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_rights_of_a_rule_are_one_line_with_its_reason() {
        let denied = |all: &[(&str, &str)]| {
            let all: Vec<(String, String)> = all
                .iter()
                .map(|(verb, resource)| ((*verb).to_owned(), (*resource).to_owned()))
                .collect();
            lacking(&all, "Copy their status, once.")
        };
        assert_eq!(
            denied(&[
                ("get", "a.dev"),
                ("get", "b.dev"),
                ("patch", "a.dev"),
                ("patch", "b.dev")
            ]),
            "the right to get, patch a.dev, b.dev is missing, which is needed to copy their status, once"
        );
        assert_eq!(
            denied(&[("get", "a.dev"), ("patch", "b.dev")]),
            "the right to get a.dev and to patch b.dev is missing, which is needed to copy their status, once"
        );
    }

    #[test]
    fn the_command_binds_to_the_account_that_asks() {
        let usual = how_to_bind("move", "system:serviceaccount:exuvia-system:exuvia");
        assert!(
            usual.ends_with("kubectl get datastoremigration move -o yaml | exuvia rbac -f - | kubectl apply --server-side -f -"),
            "{usual}"
        );
        assert_eq!(how_to_bind("move", "system:admin"), usual);
        let other = how_to_bind("move", "system:serviceaccount:shop:till");
        assert!(
            other.contains("exuvia rbac -f - --namespace shop --name till |"),
            "{other}"
        );
    }
}
