//! `exuvia storage droppable` and `users`: what holds a version, as an exit code and by name.

use std::process::ExitCode;

use anyhow::bail;
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Blocker, blockers};
use exuvia_storage::{Owner, Survey};
use exuvia_sweep::Sweep;
use serde::Serialize;

use super::args::VersionArgs;
use super::cluster::Cluster;
use super::output::table;
use super::plan::definitions;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Verdict {
    crd: String,
    version: String,
    droppable: bool,
    blockers: Vec<Blocker>,
}

/// Exit code 0: yes; 1: no. Errors are the caller's, as 2.
pub(super) async fn run(args: &VersionArgs) -> anyhow::Result<ExitCode> {
    let (definition, survey) = look(args).await?;
    if definition.version(&args.version).is_none() {
        bail!(
            "{} has no version {}: it has {}",
            args.crd,
            args.version,
            versions(&definition)
        );
    }
    let blockers = blockers(&definition, &args.version, &survey.owners);
    let verdict = Verdict {
        crd: args.crd.clone(),
        version: args.version.clone(),
        droppable: blockers.is_empty(),
        blockers,
    };
    args.cluster.output.print(&verdict, || {
        if verdict.droppable {
            println!("yes: nothing holds {} of {}", args.version, args.crd);
        } else {
            println!("no: {} of {} is held by", args.version, args.crd);
            verdict
                .blockers
                .iter()
                .for_each(|blocker| println!("  {blocker}"));
        }
    })?;
    Ok(if verdict.droppable {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct User {
    manager: String,
    #[serde(flatten)]
    owner: Owner,
}

pub(super) async fn users(args: &VersionArgs) -> anyhow::Result<()> {
    let (definition, survey) = look(args).await?;
    let api_version = definition.api_version(&args.version);
    let users: Vec<User> = survey
        .owners
        .at(&api_version)
        .map(|(manager, owner)| User {
            manager: manager.to_owned(),
            owner: owner.clone(),
        })
        .collect();
    args.cluster.output.print(&users, || {
        if users.is_empty() {
            println!("nobody owns fields of {} at {}", args.crd, args.version);
            return;
        }
        let rows: Vec<Vec<String>> = users
            .iter()
            .map(|user| {
                let last = user.owner.last.map(|last| last.to_string()).unwrap_or_default();
                vec![
                    user.manager.clone(),
                    user.owner.objects.to_string(),
                    last,
                    user.owner.example.clone(),
                ]
            })
            .collect();
        print!(
            "{}",
            table(&["MANAGER", "OBJECTS", "LAST WRITE", "EXAMPLE"], &rows)
        );
    })
}

async fn look(args: &VersionArgs) -> anyhow::Result<(Definition, Survey)> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let all = definitions(&cluster).await?;
    let Some(definition) = all.into_iter().find(|definition| definition.name == args.crd) else {
        bail!(
            "there is no CRD named {}: see `exuvia plan` for what there is",
            args.crd
        );
    };
    let Some(endpoint) = definition.endpoint() else {
        bail!(
            "no version of {} is served, so its objects cannot be looked at: serve one",
            args.crd
        );
    };
    let survey = Survey::of(Sweep::of(cluster.client, &definition.resource(endpoint))).await?;
    Ok((definition, survey))
}

fn versions(definition: &Definition) -> String {
    let names: Vec<&str> = definition
        .versions
        .iter()
        .map(|version| version.name.as_str())
        .collect();
    names.join(", ")
}
