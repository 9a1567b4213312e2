//! What holds a version, put into words: what was found, and what to do about it.

use super::{Holder, Holds};
use crate::audience::Audience;
use crate::definition::Definition;
use crate::loss;
use crate::ownership::Owners;
use crate::references::Unseen;
use crate::report::objects;
use crate::usage::{Counts, Usage};

/// How many resources that could not be listed are named.
const NAMED: usize = 5;

/// For whom holders are put into words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words<'a> {
    pub(super) audience: Audience,
    /// Why the migration that was tried has not come to its end, if it was.
    pub(super) unproven: Option<&'a str>,
}

/// Bytes, as far as `storedVersions` tells: that it lists a version is reason enough, that it does not is none.
pub(super) fn stored(definition: &Definition, version: &str, words: Words<'_>) -> Option<Holder> {
    let name = &definition.name;
    let message = if version == definition.crd.storage {
        "it is the storage version: new objects are stored at it".to_owned()
    } else if definition.crd.stored.iter().any(|stored| stored == version) {
        let what_then = match (words.unproven, words.audience) {
            (Some(why), Audience::CommandLine) => {
                format!(": {why}; remove the cause, then run `exuvia storage migrate {name}`")
            }
            (Some(why), Audience::StorageMigration) => format!(": {why}"),
            (None, Audience::CommandLine) => format!(": run `exuvia storage migrate {name}`"),
            (None, Audience::StorageMigration) => " until this migration has come to its end".to_owned(),
        };
        let unseen = loss::unseen(definition);
        let unserved = unseen.iter().find(|unseen| unseen.version == version);
        let unserved = unserved
            .map(|unseen| format!("; {}", unseen.why))
            .unwrap_or_default();
        format!("objects may be stored at it, as status.storedVersions lists it{what_then}{unserved}")
    } else {
        return None;
    };
    Some(Holder::new(Holds::Bytes, message))
}

/// Each manager that owns fields at the version; `is_left`: a migration could not find out what they own at the storage version.
pub(super) fn ownership<'a>(
    definition: &Definition,
    version: &str,
    owners: &'a Owners,
    audience: Audience,
    is_left: bool,
) -> impl Iterator<Item = Holder> + use<'a> {
    let at: Vec<_> = owners.at(&definition.api_version(version)).collect();
    // A migration moves what is at a stored version by itself.
    let is_stored = definition.crd.stored.iter().any(|stored| stored == version);
    let cure = match audience {
        Audience::CommandLine => {
            let shed = if is_stored {
                String::new()
            } else {
                format!(" --shed {version}")
            };
            format!("run `exuvia storage migrate {}{shed}`", definition.name)
        }
        Audience::StorageMigration if is_stored => "this migration moves that".to_owned(),
        Audience::StorageMigration => format!("add {version} to spec.shed"),
    };
    let storage = definition.crd.storage.clone();
    let renamed = if is_left {
        let drop = audience.setting("--managed-fields drop", "spec.managedFields: Drop");
        format!(
            "; a migration could not find out what it owns at {storage}: with {drop} as well its fields lose this owner, until \
             it applies them again"
        )
    } else {
        String::new()
    };
    at.into_iter().map(move |(manager, owner)| {
        let mut message = format!(
            "{manager} owns fields at it on {} (such as {}",
            objects(owner.objects),
            owner.example
        );
        if let Some(last) = owner.last {
            message.push_str(&format!(", last written {last:.0}"));
        }
        message.push_str(&format!("): let it write at {storage}, then {cure}{renamed}"));
        Holder::new(Holds::Ownership, message).on(owner.objects, std::slice::from_ref(&owner.example))
    })
}

/// What one server counted, if it counted anything. Requests since its start say nothing about now.
///
/// The garbage collector watches each resource at its preferred version, and nobody can update it.
pub(super) fn used(server: &str, counts: &Counts, usage: &Usage, is_preferred: bool) -> Option<Holder> {
    let mut found = Vec::new();
    match counts.watches {
        0 => {}
        1 => found.push("1 watch is open".to_owned()),
        open => found.push(format!("{open} watches are open")),
    }
    if let Some(within) = usage.within.filter(|_| counts.total() > 0) {
        let by_verb: Vec<String> = counts
            .requests
            .iter()
            .map(|(verb, count)| format!("{count} {verb}"))
            .collect();
        found.push(format!(
            "it was asked for within {} s ({})",
            within.as_secs_f64(),
            by_verb.join(", ")
        ));
    }
    let cure = if is_preferred {
        "it is the preferred version, which the garbage collector watches itself: set `served: false` for it first, and ask \
         again"
    } else {
        "update the client that asks for it (`exuvia storage users` shows who writes, the API server's audit log who reads)"
    };
    let message = format!("{} on {server}: {cure}", found.join(", "));
    (!found.is_empty()).then(|| Holder::new(Holds::Usage, message))
}

/// What could not be listed, in words, and what to do about it.
pub(super) fn unlisted(unseen: &[Unseen]) -> (String, String) {
    let some = |of: &[&Unseen], show: &dyn Fn(&Unseen) -> String| {
        let mut shown: Vec<String> = of.iter().take(NAMED).map(|unseen| show(unseen)).collect();
        if of.len() > NAMED {
            shown.push(format!("and {} more", of.len() - NAMED));
        }
        shown.join(", ")
    };
    let all: Vec<&Unseen> = unseen.iter().collect();
    let (forbidden, down): (Vec<&Unseen>, Vec<&Unseen>) = unseen.iter().partition(|unseen| unseen.forbidden);
    let why = some(&all, &|unseen| {
        let why = if unseen.forbidden {
            "forbidden"
        } else {
            &unseen.why
        };
        format!("{} ({why})", unseen.what)
    });
    let mut ways = Vec::new();
    if !forbidden.is_empty() {
        let what = some(&forbidden, &|unseen| unseen.what.clone());
        ways.push(format!("allow `list` on {what}, or ask as somebody who may"));
    }
    if !down.is_empty() {
        let what = some(&down, &|unseen| unseen.what.clone());
        ways.push(format!("bring {what} to answer, then ask again"));
    }
    (format!("could not be listed: {why}"), ways.join("; "))
}
