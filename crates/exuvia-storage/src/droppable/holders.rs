//! What holds a version, put into words: what was found, and what to do about it.

use exuvia_write::{Redacted, redacted};

use super::{Holder, Holds};
use crate::audience::Audience;
use crate::definition::Definition;
use crate::loss;
use crate::optin::exclusion;
use crate::ownership::Owners;
use crate::record::Record;
use crate::references::Unseen;
use crate::report::objects;
use crate::usage::{Counts, Unasked, Usage, still_writes};

/// How many resources that could not be listed are named.
const NAMED: usize = 5;

/// For whom holders are put into words.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words<'a> {
    pub(super) audience: Audience,
    /// Why the migration that was tried has not come to its end, if it was.
    pub(super) unproven: Option<&'a Redacted>,
}

/// The command that migrates the CRD, with these flags. An excluded CRD is migrated only if the command says so.
pub(super) fn migrate(definition: &Definition, flags: &str) -> String {
    let flags = if flags.is_empty() {
        String::new()
    } else {
        format!(" {flags}")
    };
    match exclusion(definition) {
        None => format!("run `exuvia storage migrate {}{flags}`", definition.name),
        Some(reason) => format!(
            "it is excluded from migration ({reason}), so ask its owner, then run `exuvia storage migrate {} \
             --include-excluded{flags}`",
            definition.name
        ),
    }
}

/// Bytes, as far as `storedVersions` tells. A version that it lists is held; one that it does not list may be held, too.
pub(super) fn stored(definition: &Definition, version: &str, words: Words<'_>) -> Option<Holder> {
    let name = &definition.name;
    let message = if version == definition.crd.storage {
        "it is the storage version: new objects are stored at it".to_owned()
    } else if definition.crd.stored.iter().any(|stored| stored == version) {
        let migrate = migrate(definition, "");
        let what_then = match (words.unproven, words.audience) {
            (Some(why), Audience::CommandLine) => format!(": {why}; remove the cause, then {migrate}"),
            (Some(why), Audience::StorageMigration) => format!(": {why}"),
            (None, Audience::CommandLine) => format!(": {migrate}"),
            (None, Audience::StorageMigration) => " until this migration has come to its end".to_owned(),
        };
        let unseen = loss::unseen(definition);
        let unserved = unseen.iter().find(|unseen| unseen.version == version);
        let loses = match unserved {
            Some(unseen) => format!("; {}", unseen.why),
            None if words.audience == Audience::CommandLine
                && words.unproven.is_none()
                && loss::may_lose(definition, version) =>
            {
                format!(
                    "; {} may not have every field of {version}: `exuvia storage migrate {name} --dry-run` shows what would be \
                     erased",
                    definition.crd.storage
                )
            }
            None => String::new(),
        };
        format!("objects may be stored at it, as status.storedVersions lists it{what_then}{loses}")
    } else {
        return None;
    };
    // Of what is in it only `unproven` is of others, and it is redacted.
    Some(Holder::new(Holds::Bytes, Redacted::ours(message)))
}

/// Each manager that owns fields at the version. The record says which entries a migration had to leave, and who has
/// written since.
pub(super) fn ownership<'a>(
    definition: &Definition,
    version: &str,
    owners: &'a Owners,
    audience: Audience,
    record: Option<&'a Record>,
) -> impl Iterator<Item = Holder> + use<'a> {
    let at: Vec<_> = owners.at(&definition.api_version(version)).collect();
    // A migration moves entries at a stored version by itself.
    let is_stored = definition.crd.stored.iter().any(|stored| stored == version);
    let cure = match audience {
        Audience::CommandLine if is_stored => migrate(definition, ""),
        Audience::CommandLine => migrate(definition, &format!("--shed {version}")),
        Audience::StorageMigration if is_stored => "this migration moves that".to_owned(),
        Audience::StorageMigration => format!("add {version} to spec.shed"),
    };
    let storage = definition.crd.storage.clone();
    let is_left = record.is_some_and(|record| record.left.iter().any(|left| left == version));
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
        if still_writes(owner, record) {
            message.push_str(", after the migration: it still writes at this version");
        }
        message.push_str(&format!("): let it write at {storage}, then {cure}{renamed}"));
        Holder::new(Holds::Ownership, Redacted::ours(message))
            .on(owner.objects, std::slice::from_ref(&owner.example))
    })
}

/// What one server counted, if it counted anything. Requests since its start say nothing about now, and counters do not
/// tell who asked.
///
/// The garbage collector watches each resource at its preferred version, and cannot be updated.
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
        "update the client that asks for it (`exuvia storage users` shows who writes; who reads is in the API server's audit \
         log only)"
    };
    let message = format!("{} on {server}: {cure}", found.join(", "));
    (!found.is_empty()).then(|| Holder::new(Holds::Usage, Redacted::ours(message)))
}

/// Why there may be API servers that were not asked, in words, and what to do about it. A version that is not served cannot
/// be asked for on any of them: that helps where they cannot be told apart, as behind a load balancer.
pub(super) fn unasked(
    unasked: Unasked,
    definition: &Definition,
    version: &str,
    audience: Audience,
) -> (Redacted, String) {
    let crd = &definition.name;
    let unserve = format!("set `served: false` for {version} in the CRD, then ask again");
    match unasked {
        Unasked::NotCounted => (
            "there may be API servers that were not asked: the identity Leases, by which they are counted, may not be listed"
                .into(),
            format!("allow `list` on leases.coordination.k8s.io in namespace kube-system, then ask again; or {unserve}"),
        ),
        Unasked::Missing { leases: 0, .. } => (
            "there may be API servers that were not asked: they cannot be counted, as kube-system has no identity Leases"
                .into(),
            unserve,
        ),
        Unasked::Missing { asked, leases } => {
            let name_each = match audience {
                Audience::CommandLine => {
                    format!("run `exuvia storage droppable {crd} {version} --apiserver URL`, with one --apiserver for each")
                }
                Audience::StorageMigration => "start the operator with one --apiserver URL for each".to_owned(),
            };
            (
                redacted!("not every API server was asked: kube-system has {} identity Leases, and {} answered", leases, asked),
                format!(
                    "{name_each}; if a server is gone for good, delete its Lease; if they cannot be reached one by one, \
                     {unserve}"
                ),
            )
        }
    }
}

/// The first few of them, and how many more there are.
fn some(of: &[&Unseen], show: &dyn Fn(&Unseen) -> String) -> String {
    let mut shown: Vec<String> = of.iter().take(NAMED).map(|unseen| show(unseen)).collect();
    if of.len() > NAMED {
        shown.push(format!("and {} more", of.len() - NAMED));
    }
    shown.join(", ")
}

/// CRDs whose objects no list shows, in words, and what to do about it.
pub(super) fn concealed(unseen: &[Unseen]) -> (Redacted, String) {
    let all: Vec<&Unseen> = unseen.iter().collect();
    let why = some(&all, &|unseen| format!("{} ({})", unseen.what, unseen.why));
    // Names, and what is redacted of each.
    let why = Redacted::ours(format!("objects of these cannot be listed by anybody: {why}"));
    let command = "serve a version of each, or delete the APIService that is in front of it, then ask again; a CRD that nobody \
                   needs can be deleted";
    (why, command.to_owned())
}

/// What could not be listed, in words, and what to do about it.
pub(super) fn unlisted(unseen: &[Unseen]) -> (Redacted, String) {
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
        ways.push(format!("allow `list` on {what}, or ask as a user who may"));
    }
    if !down.is_empty() {
        let what = some(&down, &|unseen| unseen.what.clone());
        ways.push(format!("repair {what}, then ask again"));
    }
    // Names, and what is redacted of each.
    let why = Redacted::ours(format!("could not be listed: {why}"));
    (why, ways.join("; "))
}
