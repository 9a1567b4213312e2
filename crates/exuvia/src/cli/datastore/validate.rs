//! `exuvia datastore validate`: everything that is wrong with manifests, with file, line and column.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use exuvia_lint::{Input, streams};
use exuvia_storage::counted;
use serde::Serialize;
use serde_json::Value;

use super::args::ValidateArgs;
use super::crd_paths::Schemas;
use super::manifest::{self, Fault};
use crate::cli::cluster::Cluster;
use crate::cli::output::remark;
use crate::cli::values::existing;

/// What was found.
#[derive(Debug, Serialize)]
struct Validation {
    valid: bool,
    migrations: Vec<String>,
    faults: Vec<Fault>,
    notes: Vec<String>,
}

pub(super) fn offline(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let schemas = if args.crds.is_empty() {
        None
    } else {
        Some(Schemas::new(given(&args.crds)?, false))
    };
    report(args, schemas.as_ref())
}

pub(super) async fn with_cluster(args: &ValidateArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.connection).await?;
    let crds = crate::cli::plan::crds(&cluster).await?;
    let crds: Result<Vec<Value>, _> = crds
        .iter()
        .map(|crd| {
            let mut value = serde_json::to_value(crd)?;
            value["kind"] = "CustomResourceDefinition".into();
            Ok::<_, serde_json::Error>(value)
        })
        .collect();
    report(args, Some(&Schemas::new(crds?, true)))
}

/// The CRDs in these files.
fn given(paths: &[PathBuf]) -> anyhow::Result<Vec<Value>> {
    existing("--crds", paths)?;
    let inputs: Vec<Input> = paths.iter().map(Input::from_argument).collect();
    let mut crds = Vec::new();
    for stream in streams(&inputs)? {
        for document in stream.pieces.iter().flat_map(|piece| &piece.documents) {
            let value = document
                .value()
                .map_err(|error| anyhow::anyhow!("{}: {error}", stream.file))?;
            if Schemas::is_crd(&value) {
                crds.push(value);
            }
        }
    }
    if crds.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!("invalid --crds \"{}\": it holds no CRD", paths.join(", "));
    }
    Ok(crds)
}

fn report(args: &ValidateArgs, schemas: Option<&Schemas>) -> anyhow::Result<ExitCode> {
    let (manifests, mut faults) = manifest::read(&args.filename)?;
    if manifests.is_empty() && faults.is_empty() {
        let paths: Vec<String> = args
            .filename
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        bail!(
            "invalid --filename \"{}\": it holds no DatastoreMigration",
            paths.join(", ")
        );
    }
    let mut notes = Vec::new();
    for manifest in &manifests {
        let checked = manifest.check();
        faults.extend(checked.faults);
        notes.extend(checked.notes);
        if let (Some((migration, mappings)), Some(schemas)) = (checked.valid, schemas) {
            let answer = schemas.check(manifest, &migration, &mappings);
            faults.extend(answer.faults);
            notes.extend(answer.notes);
        }
    }
    let validation = Validation {
        valid: faults.is_empty(),
        migrations: manifests.iter().map(|manifest| manifest.name.clone()).collect(),
        faults,
        notes,
    };
    for note in &validation.notes {
        remark(&format!("note: {note}"));
    }
    args.connection.output.print(&validation, || {
        let mut text = String::new();
        for fault in &validation.faults {
            text.push_str(&format!(
                "{fault}
"
            ));
        }
        let migrations = counted(validation.migrations.len() as u64, "DatastoreMigration");
        text.push_str(&match validation.faults.len() as u64 {
            0 => format!("{migrations}: valid\n"),
            faults => format!("{migrations}: {}\n", counted(faults, "fault")),
        });
        text
    })?;
    Ok(if validation.valid {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
