//! `exuvia datastore cutover`, `abort`, `retry` and `thaw`: one write each, said in one sentence.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use exuvia_api::{
    CleanupSource, DatastoreMigration, DatastorePhase, MIGRATION_UID_ANNOTATION, RETRY_ANNOTATION,
    datastore_condition as condition,
};
use exuvia_datastore::freeze;
use exuvia_write::{Delete, Deleted, ErrorClass};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::args::{AbortArgs, OperatedArgs, SteerArgs};
use super::status::is_synced;
use super::{lease, migrations};
use crate::cli::cluster::Cluster;
use crate::cli::output::{remark, say, seconds};

/// How often a deletion is tried again when the operator wrote the status meanwhile.
const MAX_TRIES: usize = 20;

pub(super) async fn cutover(args: &OperatedArgs) -> anyhow::Result<ExitCode> {
    let given = args.steer.cluster();
    let cluster = Cluster::connect(&given).await?;
    let name = &args.steer.name;
    let migration = migrations::get(&cluster, name).await?;
    if migration.metadata.deletion_timestamp.is_some() {
        bail!("{name} is being deleted: there is nothing to cut over");
    }
    if migrations::phase(&migration) == DatastorePhase::Failed {
        bail!(
            "{name} has failed, and everything was undone: there is nothing to cut over; {} lets it begin again",
            given.in_commands(&format!("`exuvia datastore retry {name}`"))
        );
    }
    if !migration.spec.cutover.hold {
        say(&format!(
            "{name} does not hold (cutover.hold is not set): there is nothing to clear\n"
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_verified = holds(&migration, condition::VERIFIED);
    let clear = |migration: &mut DatastoreMigration| migration.spec.cutover.hold = false;
    cluster
        .writer
        .patch_with_retry(&migrations::api(&cluster), &migration, clear)
        .await?;
    let what = if is_verified {
        "everything is copied and verified, and it goes on to its commit"
    } else if is_synced(&migration) {
        "when everything is in step, it freezes the source and goes on to its commit"
    } else {
        "it is not verified yet; when it is, it goes on to its commit without a stop"
    };
    let follow = given.in_commands(&format!("`exuvia datastore status {name} --watch` shows it"));
    say(&format!("cutover.hold of {name} is cleared: {what}; {follow}\n"))?;
    lease::remark_if_nobody_runs(&cluster, &args.lease, &migration).await;
    Ok(ExitCode::SUCCESS)
}

fn holds(migration: &DatastoreMigration, type_: &str) -> bool {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.filter(|condition| condition.type_ == type_);
    conditions.any(|condition| condition.status == "True")
}

pub(super) async fn abort(args: &AbortArgs) -> anyhow::Result<ExitCode> {
    let given = args.steer.cluster();
    let cluster = Cluster::connect(&given).await?;
    let name = &args.steer.name;
    for _ in 0..MAX_TRIES {
        let migration = migrations::get(&cluster, name).await?;
        if let Some(since) = &migration.metadata.deletion_timestamp {
            let follow = given.in_commands(&format!(
                "`exuvia datastore status {name} --watch` shows how far it is"
            ));
            say(&format!(
                "{name} is being deleted since {}; {follow}\n",
                seconds(since.0)
            ))?;
            lease::remark_if_nobody_runs(&cluster, &args.lease, &migration).await;
            return Ok(ExitCode::SUCCESS);
        }
        let means = meaning(&migration, args.cleanup).map_err(|why| anyhow!(given.in_commands(&why)))?;
        // Only as it was looked at: it may converge meanwhile, and then an abort means something else.
        let delete = Delete::default().only_unchanged();
        match cluster
            .writer
            .delete(&migrations::api(&cluster), &migration, &delete)
            .await
        {
            Ok(Deleted::Gone) => {
                remark(&means);
                say(&format!("{name} is deleted\n"))?;
            }
            Ok(Deleted::Going(_)) => {
                remark(&means);
                let follow = given.in_commands(&format!(
                    "`exuvia datastore status {name} --watch` shows how far it is"
                ));
                say(&format!("{name} is being deleted; {follow}\n"))?;
                lease::remark_if_nobody_runs(&cluster, &args.lease, &migration).await;
            }
            Err(error) if error.class() == ErrorClass::Conflict => continue,
            Err(error) => return Err(error.into()),
        }
        return Ok(ExitCode::SUCCESS);
    }
    bail!("the operator writes the status of {name} all the time: run the command again")
}

/// What the deletion of a migration means now; otherwise why it is refused.
fn meaning(migration: &DatastoreMigration, cleanup: bool) -> Result<String, String> {
    let (name, spec) = (migration.name_any(), &migration.spec);
    let undoing = migration
        .status
        .as_ref()
        .is_some_and(|status| status.undo.is_some());
    let after = match spec.cleanup.source {
        CleanupSource::KeepFrozen => format!(
            "the source stays, and nobody can create or update its objects until `exuvia datastore thaw {name}` \
             (cleanup.source: KeepFrozen)"
        ),
        CleanupSource::Thaw => "the source stays, and can be written again (cleanup.source: Thaw)".to_owned(),
        CleanupSource::DeleteCrds => {
            "the CRDs of the source are deleted, and with them all objects of the source (cleanup.source: DeleteCRDs)".to_owned()
        }
    };
    let is_after = match migrations::phase(migration) {
        DatastorePhase::Pending | DatastorePhase::WaitingForConflictResolution | DatastorePhase::Failed => {
            return Ok(format!(
                "nothing of {name} is frozen or copied, so there is nothing to undo"
            ));
        }
        DatastorePhase::Migrating if undoing => {
            return Ok(format!(
                "{name} is being undone already; it is deleted when that is done"
            ));
        }
        DatastorePhase::Migrating => {
            let mut undone = vec!["its copies are deleted"];
            let route = format!("the APIService {} is put back", spec.cutover.api_service);
            if !spec.cutover.api_service.is_empty() {
                undone.push(&route);
            }
            if !spec.freeze.flags.is_empty() {
                undone.push("flags get their values from before");
            }
            undone.push("writers of the source are let go");
            return Ok(format!(
                "the operator undoes everything that {name} did: {}",
                undone.join(", ")
            ));
        }
        DatastorePhase::Converged => "goes on until it is complete; then ",
        DatastorePhase::Complete => "cannot be undone: ",
    };
    if cleanup {
        return Ok(format!("{name} {is_after}{after}"));
    }
    Err(format!(
        "{name} has converged: the targets are in use, and nothing is undone any more; `exuvia datastore abort {name} --cleanup` \
         deletes the migration, and then {after}"
    ))
}

pub(super) async fn retry(args: &OperatedArgs) -> anyhow::Result<ExitCode> {
    let given = args.steer.cluster();
    let cluster = Cluster::connect(&given).await?;
    let name = &args.steer.name;
    let migration = migrations::get(&cluster, name).await?;
    match migrations::phase(&migration) {
        DatastorePhase::Failed => {}
        DatastorePhase::Pending | DatastorePhase::WaitingForConflictResolution => bail!(
            "{name} has not failed, it is {}: it goes on by itself when nothing stands in the way; {}",
            migrations::phase(&migration).as_str(),
            given.in_commands(&format!("`exuvia datastore status {name}` shows what does"))
        ),
        phase => bail!(
            "{name} has not failed, it is {}: there is nothing to retry",
            phase.as_str()
        ),
    }
    let now = seconds(Timestamp::now()).to_string();
    let ask = |migration: &mut DatastoreMigration| {
        migration
            .annotations_mut()
            .insert(RETRY_ANNOTATION.to_owned(), now.clone());
    };
    cluster
        .writer
        .patch_with_retry(&migrations::api(&cluster), &migration, ask)
        .await?;
    let follow = given.in_commands(&format!("`exuvia datastore status {name} --watch` shows it"));
    say(&format!("{name} is asked to begin again; {follow}\n"))?;
    lease::remark_if_nobody_runs(&cluster, &args.lease, &migration).await;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn thaw(args: &SteerArgs) -> anyhow::Result<ExitCode> {
    let given = args.cluster();
    let cluster = Cluster::connect(&given).await?;
    let name = &args.name;
    let removed = freeze::thaw(&cluster.client, &cluster.writer, name).await?;
    let mut left_copies = None;
    let abandoned = freeze::abandoned(&cluster.client).await?;
    for left in abandoned.iter().filter(|left| &left.migration == name) {
        freeze::release(&cluster.client, &cluster.writer, left).await?;
        left_copies = Some(left);
    }
    if removed > 0 || left_copies.is_some() {
        say(&format!(
            "the source of {name} is thawed: within a few seconds its objects can be written again\n"
        ))?;
        if let Some(left) = left_copies.filter(|left| left.is_before_commit) {
            say(&format!(
                "the migration was removed under its freeze: flags may still have their frozen values, and copies with the \
                 annotation {MIGRATION_UID_ANNOTATION}: {} may be left in the target\n",
                left.uid
            ))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    match migrations::find(&cluster, name).await {
        Ok(Some(migration)) => {
            let phase = migrations::phase(&migration);
            let how = match phase {
                DatastorePhase::Converged | DatastorePhase::Complete => {
                    format!(
                        "`exuvia datastore abort {name} --cleanup` ends it, and then cleanup.source says what is thawed"
                    )
                }
                _ => format!("`exuvia datastore abort {name}` ends it, and lets writers of the source go"),
            };
            bail!(
                "nothing was thawed: {name} still exists, in phase {}, and its freeze ends with it; {}",
                phase.as_str(),
                given.in_commands(&how)
            )
        }
        _ => bail!("nothing was thawed: no migration {name:?} has left a frozen source behind"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn migration(phase: &str, cleanup: &str) -> DatastoreMigration {
        serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": "move"},
            "spec": {"mappings": [], "cleanup": {"source": cleanup}, "cutover": {"apiService": "v3.example.com"}},
            "status": {"phase": phase},
        }))
        .expect("a migration")
    }

    #[test]
    fn an_abort_says_what_it_means_in_each_phase() {
        for (phase, expected) in [
            ("Pending", "nothing to undo"),
            ("WaitingForConflictResolution", "nothing to undo"),
            ("Failed", "nothing to undo"),
            (
                "Migrating",
                "its copies are deleted, the APIService v3.example.com is put back, writers",
            ),
        ] {
            let said = meaning(&migration(phase, "Thaw"), false).expect("it is allowed");
            assert!(said.contains(expected), "{phase}: {said}");
        }
    }

    #[test]
    fn after_the_commit_an_abort_needs_to_be_told_that_nothing_is_undone() {
        for phase in ["Converged", "Complete"] {
            for (cleanup, expected) in [
                ("KeepFrozen", "exuvia datastore thaw move"),
                ("Thaw", "can be written again"),
                ("DeleteCRDs", "with them all objects of the source"),
            ] {
                let refused = meaning(&migration(phase, cleanup), false).expect_err("it is refused");
                assert!(
                    refused.contains("--cleanup") && refused.contains(expected),
                    "{refused}"
                );
                let said = meaning(&migration(phase, cleanup), true).expect("it is allowed");
                assert!(said.contains(expected), "{said}");
            }
        }
    }
}
