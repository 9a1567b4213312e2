//! Looks whether a spec can be carried out here: kinds, other migrations, policies, rights. Nothing is written.

use exuvia_api::{
    Blocker, DatastoreMigration, DatastoreMigrationSpec, DatastorePhase, Flag, FlagSide, Mapping, Phase,
    RewriteScope, StorageMigration, datastore_reason as reason,
};
use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::{Control, Pages};
use exuvia_write::{Redacted, Writer};
use kube::api::GroupVersionKind;
use kube::{Api, Client, ResourceExt};

use crate::Error;
use crate::engine::{Work, is_gone, second_version};
use crate::freeze::{Freeze, Tight, WithoutCount, read_flag, tight, tight_without_count};
use crate::kinds::Kinds;
use crate::waits::find;
use crate::{rights, versions};

/// What stands in the way; and, if nothing does, what works on the spec.
pub(crate) async fn check(
    client: &Client,
    writer: &Writer,
    servers: &ApiServers,
    control: &Control,
    migration: &DatastoreMigration,
) -> Result<(Vec<Blocker>, Option<Work>), Error> {
    let work = match Work::new(client, writer, servers, control, migration).await? {
        Ok(work) if work.missing.is_empty() => work,
        Ok(work) => return Ok((work.missing, None)),
        Err(blockers) => return Ok((blockers, None)),
    };
    let mut blockers = overlaps(client, migration, &work.mover.kinds).await?;
    let needs_policies = migration.spec.freeze.admission || !migration.spec.cutover.api_service.is_empty();
    if needs_policies && !has_policies(client).await? {
        blockers.push(blocker(
            reason::NO_POLICY_API,
            "this API server has no ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1): upgrade it to Kubernetes 1.30 \
             or newer, or freeze by flags",
        ));
    }
    // On the way it would leave the source frozen for nothing. Once the freeze has begun, the rule about maxDuration decides.
    if let Some(Tight::Never(why)) = tight(&migration.spec.freeze) {
        blockers.push(blocker(reason::INVALID_SPEC, &why));
    }
    blockers.extend(rights::missing(client, migration, &work.mover.kinds).await?);
    for rule in &migration.spec.references.rewrite {
        let RewriteScope {
            group, version, kind, ..
        } = &rule.within;
        // After the commit it would be too late to say so.
        if find(client, &GroupVersionKind::gvk(group, version, kind))
            .await?
            .is_none()
        {
            blockers.push(Blocker {
                kind: format!("{kind}.{group}"),
                ..blocker(
                    reason::NOT_SERVED,
                    &format!(
                        "references.rewrite names this kind, which is not served at {version}: install it, or leave the rule out"
                    ),
                )
            });
        }
    }
    for flag in &migration.spec.freeze.flags {
        let is_hidden = !migration.spec.cutover.api_service.is_empty();
        if is_hidden && is_on_target(flag, &migration.spec) && flag.thawed.is_null() {
            blockers.push(Blocker {
                kind: flag.kind.clone(),
                namespace: flag.namespace.clone(),
                name: flag.name.clone(),
                ..blocker(
                    reason::INVALID_SPEC,
                    "a flag of a target has no value from before: expected its value after the commit in `thawed`",
                )
            });
            continue;
        }
        if let Err(error) = read_flag(client, flag).await {
            // The copy makes it, and the commit gives it its value.
            if is_on_target(flag, &migration.spec) && is_gone(&error) && !flag.thawed.is_null() {
                continue;
            }
            blockers.push(Blocker {
                kind: flag.kind.clone(),
                namespace: flag.namespace.clone(),
                name: flag.name.clone(),
                ..blocker(reason::NOT_SERVED, &Redacted::from_error(&error).into_string())
            });
        }
    }
    // Rights first: without them nothing can be compared.
    if blockers.is_empty()
        && let Some(second) = second_version(client, writer, servers, migration)
    {
        let targets = work.mover.kinds.targets().into_iter();
        let targets: Vec<_> = targets.map(|kind| kind.resource.clone()).collect();
        let obstacles = Box::pin(second.obstacles(&targets)).await?.into_iter();
        blockers.extend(obstacles.map(|(crd, why)| Blocker {
            kind: crd,
            ..blocker(reason::SECOND_VERSION, why.as_str())
        }));
    }
    if blockers.is_empty() {
        blockers.extend(versions::hidden_content(client, &work.mover).await?);
    }
    Ok((blockers, Some(work)))
}

/// Whether the freeze would be over before its drain is, here and for us: another account, or one that knows other API servers, may
/// count the writes under way, so this is not asked for others.
pub(crate) async fn too_tight(freeze: &Freeze, spec: &exuvia_api::Freeze) -> Result<Option<Blocker>, Error> {
    // Nobody is asked where even the slowest drain leaves time.
    if tight_without_count(spec, WithoutCount::UnknownServers).is_none() {
        return Ok(None);
    }
    let without = freeze.without_count().await?;
    let why = without.and_then(|without| tight_without_count(spec, without));
    Ok(why.map(|why| blocker(reason::INVALID_SPEC, &why)))
}

/// Whether a flag is on an object of a target kind: the copy may be what makes that object, with the value of its source.
pub(crate) fn is_on_target(flag: &Flag, spec: &DatastoreMigrationSpec) -> bool {
    let makes = |mapping: &Mapping| {
        let to = &mapping.to;
        to.group == flag.group
            && (to.kind == flag.kind || (to.kind.is_empty() && mapping.from.kinds.contains(&flag.kind)))
    };
    flag.side == FlagSide::Target && spec.mappings.iter().any(makes)
}

fn blocker(reason: &str, message: &str) -> Blocker {
    Blocker {
        reason: reason.to_owned(),
        message: message.to_owned(),
        ..Blocker::default()
    }
}

async fn has_policies(client: &Client) -> Result<bool, Error> {
    match client
        .list_api_group_resources("admissionregistration.k8s.io/v1")
        .await
    {
        Ok(resources) => Ok(resources
            .resources
            .iter()
            .any(|resource| resource.name == "validatingadmissionpolicies")),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Migrations of the same kinds that run. Asked once more when this one is on record as running: of two that begin at the same
/// time at least the later one sees the other.
pub(crate) async fn rivals(client: &Client, migration: &DatastoreMigration) -> Result<Vec<Blocker>, Error> {
    let ours = kinds_of(migration);
    let runs = |other: &DatastoreMigration| {
        let phase = other.status.as_ref().and_then(|status| status.phase);
        matches!(phase, Some(DatastorePhase::Migrating | DatastorePhase::Converged))
    };
    let others: Vec<DatastoreMigration> = all(&Api::all(client.clone())).await?;
    let others = others.iter().filter(|other| other.uid() != migration.uid());
    Ok(others
        .filter(|other| runs(other))
        .filter_map(|other| overlap(&ours, other))
        .collect())
}

/// A kind that another migration moves, too.
fn overlap(ours: &[(String, String)], other: &DatastoreMigration) -> Option<Blocker> {
    let mut theirs = kinds_of(other).into_iter();
    let (group, kind) = theirs.find(|kind| ours.contains(kind))?;
    Some(Blocker {
        kind: format!("{kind}.{group}"),
        ..blocker(
            reason::OVERLAP,
            &format!(
                "DatastoreMigration {} also moves this kind: wait for its end",
                other.name_any()
            ),
        )
    })
}

/// Other migrations that work on the same kinds.
async fn overlaps(
    client: &Client,
    migration: &DatastoreMigration,
    kinds: &Kinds,
) -> Result<Vec<Blocker>, Error> {
    let mut blockers = Vec::new();
    let ours = kinds_of(migration);
    let others: Vec<DatastoreMigration> = all(&Api::all(client.clone())).await?;
    for other in others {
        if other.uid() == migration.uid() || !is_first(&other, migration) {
            continue;
        }
        blockers.extend(overlap(&ours, &other));
    }
    let resources: Vec<String> = kinds
        .sources()
        .into_iter()
        .chain(kinds.targets())
        .map(crate::Kind::name)
        .collect();
    let storage: Vec<StorageMigration> = match all(&Api::all(client.clone())).await {
        Ok(storage) => storage,
        // Its CRD need not be installed.
        Err(error) if error.class.as_str() == "missing" => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    for other in storage
        .iter()
        .filter(|other| resources.contains(&other.spec.resource))
    {
        let phase = other.status.as_ref().and_then(|status| status.phase);
        if matches!(
            phase,
            Some(Phase::Rewriting | Phase::Verifying | Phase::Trimming | Phase::Patrolling)
        ) {
            blockers.push(blocker(
                reason::OVERLAP,
                &format!(
                    "StorageMigration {} is working on {}: wait for its end",
                    other.name_any(),
                    other.spec.resource
                ),
            ));
        }
    }
    Ok(blockers)
}

pub(crate) async fn all<K>(api: &Api<K>) -> Result<Vec<K>, exuvia_sweep::ListError>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned,
{
    let (mut pages, mut objects) = (Pages::of(api), Vec::new());
    while let Some(page) = pages.next().await? {
        if page.is_first {
            objects.clear();
        }
        // One that does not fit its type cannot be carried out by us.
        objects.extend(page.items.iter().filter_map(|item| item.read::<K>().ok()));
    }
    Ok(objects)
}

/// Each source and target kind: group and kind.
fn kinds_of(migration: &DatastoreMigration) -> Vec<(String, String)> {
    let mut kinds = Vec::new();
    for mapping in &migration.spec.mappings {
        for kind in &mapping.from.kinds {
            kinds.push((mapping.from.group.clone(), kind.clone()));
            let to = if mapping.to.kind.is_empty() {
                kind
            } else {
                &mapping.to.kind
            };
            kinds.push((mapping.to.group.clone(), to.clone()));
        }
    }
    kinds
}

/// Whether the other one comes first: it runs already, or it is older. One that has come to its end holds nobody back.
fn is_first(other: &DatastoreMigration, migration: &DatastoreMigration) -> bool {
    let phase = |migration: &DatastoreMigration| {
        migration
            .status
            .as_ref()
            .and_then(|status| status.phase)
            .unwrap_or_default()
    };
    match phase(other) {
        DatastorePhase::Migrating | DatastorePhase::Converged => true,
        DatastorePhase::Complete | DatastorePhase::Failed => false,
        DatastorePhase::Pending | DatastorePhase::WaitingForConflictResolution => {
            let age = |migration: &DatastoreMigration| {
                (
                    migration.metadata.creation_timestamp.clone().map(|at| at.0),
                    migration.name_any(),
                )
            };
            other.metadata.deletion_timestamp.is_none() && age(other) < age(migration)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(name: &str, phase: &str, created: &str) -> DatastoreMigration {
        serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": {"name": name, "uid": name, "creationTimestamp": created},
            "spec": {"mappings": []}, "status": {"phase": phase},
        }))
        .expect("a migration")
    }

    #[test]
    fn one_that_runs_comes_first_and_one_that_ended_holds_nobody_back() {
        let ours = migration("b", "Pending", "2026-01-02T00:00:00Z");
        for (phase, created, expected) in [
            ("Migrating", "2026-01-03T00:00:00Z", true),
            ("Pending", "2026-01-01T00:00:00Z", true),
            ("Pending", "2026-01-03T00:00:00Z", false),
            ("Complete", "2026-01-01T00:00:00Z", false),
            ("Failed", "2026-01-01T00:00:00Z", false),
        ] {
            assert_eq!(
                is_first(&migration("a", phase, created), &ours),
                expected,
                "{phase} {created}"
            );
        }
    }
}
