//! `exuvia storage migrate --owner-references`: what follows a migration that ended well.

use exuvia_storage::counted;
use exuvia_storage::definition::Definition;
use exuvia_storage::references::{Moved, move_to_storage};
use exuvia_write::Writer;

use super::args::MigrateArgs;
use super::bars::walking;
use super::cluster::Cluster;
use super::summary::Summary;

/// How many failures are shown.
const SHOWN: usize = 10;

/// Moves the references to these CRDs' objects, with one look at the whole cluster.
pub(super) async fn run(
    cluster: &Cluster,
    writer: &Writer,
    args: &MigrateArgs,
    crds: Vec<(&Definition, &mut Summary)>,
) -> anyhow::Result<()> {
    if crds.is_empty() {
        return Ok(());
    }
    let definitions: Vec<Definition> = crds
        .iter()
        .map(|(definition, _)| Definition {
            shed: args.shed.clone(),
            ..(*definition).clone()
        })
        .collect();
    let progress = walking("moving ownerReferences");
    let moved = move_to_storage(&cluster.client, writer, &definitions, args.dry_run, &progress).await?;
    for ((_, summary), moved) in crds.into_iter().zip(moved) {
        summary.owner_references = Some(moved);
    }
    Ok(())
}

/// What became of them, line by line.
pub(super) fn lines(moved: &Moved) -> Vec<String> {
    let dependents = counted(moved.moved, "dependent");
    let mut lines = vec![if moved.dry_run {
        format!("ownerReferences at old versions: {dependents} would be moved")
    } else {
        let (gone, failed) = (moved.gone, moved.failed);
        format!("ownerReferences at old versions: {dependents} moved, {gone} gone, {failed} failed")
    }];
    let failures = moved.failures.iter().take(SHOWN);
    lines.extend(failures.map(|failure| format!("not moved: {failure}")));
    let unseen = moved.unseen.iter();
    lines.extend(unseen.map(|unseen| format!("not looked at: {} ({})", unseen.what, unseen.why)));
    lines
}
