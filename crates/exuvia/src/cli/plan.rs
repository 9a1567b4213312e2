//! `exuvia plan`: every CRD, what it still stores, and what to do next.

use std::collections::BTreeMap;

use anyhow::Context;
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::droppable;
use exuvia_storage::record::Record;
use exuvia_storage::{Owner, Owners, Survey, exclusion, is_in_groups, redact_uncut};
use exuvia_sweep::Sweep;
use exuvia_write::RetryPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::args::{PlanArgs, StatusArgs};
use super::cluster::Cluster;
use super::output::table;

/// One CRD's line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    crd: String,
    storage_version: String,
    stored_versions: Vec<String>,
    /// `None`: it cannot be counted.
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opted_in: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excluded: Option<String>,
    verdict: String,
    next: String,
    /// What a sweep of ours has proven about the CRD as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    proven: Option<Record>,
    /// By version, who owns fields at it; only where every object was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners: Option<BTreeMap<String, BTreeMap<String, Owner>>>,
}

pub(super) async fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let opt_in = args.opt_in.to_opt_in();
    let mut lines = Vec::new();
    for crd in crds(&cluster).await? {
        let definition = Definition::read(&crd);
        if is_in_groups(&definition.group, &opt_in.groups) {
            let mut line = line(&cluster, &crd, args.ownership).await;
            line.opted_in = Some(opt_in.includes(&definition));
            line.excluded = exclusion(&definition).map(str::to_owned);
            if line.excluded.is_some() {
                "-".clone_into(&mut line.next); // somebody has said no, and `migrate` would not do it
            }
            lines.push(line);
        }
    }
    args.cluster.output.print(&lines, || {
        if lines.is_empty() {
            return no_crds(&opt_in.groups) + "\n";
        }
        let mut head = vec!["CRD", "STORAGE", "STORED", "OBJECTS", "OPTED IN"];
        if args.ownership {
            head.push("OWNERS AT");
        }
        head.extend(["VERDICT", "NEXT"]);
        let rows: Vec<Vec<String>> = lines.iter().map(Line::row).collect();
        table(&head, &rows)
    })
}

/// Why a selection of CRDs is empty.
pub(super) fn no_crds(groups: &[String]) -> String {
    match groups {
        [] => "there is no CRD in this cluster".to_owned(),
        groups => format!("there is no CRD in group {}", groups.join(", ")),
    }
}

pub(super) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let all = crds(&cluster).await?;
    if let Some(unknown) = args
        .names
        .iter()
        .find(|name| all.iter().all(|crd| crd.name_any() != **name))
    {
        anyhow::bail!(super::names::no_such_crd(unknown, &all));
    }
    let mut lines = Vec::new();
    for crd in all
        .iter()
        .filter(|crd| args.names.is_empty() || args.names.contains(&crd.name_any()))
    {
        lines.push(line(&cluster, crd, true).await);
    }
    args.cluster.output.print(&lines, || {
        let row = |line: &Line| {
            vec![
                line.crd.clone(),
                line.storage_version.clone(),
                line.stored_versions.join(","),
                line.objects(),
                line.verdict.clone(),
                line.next.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = lines.iter().map(row).collect();
        table(&["CRD", "STORAGE", "STORED", "OBJECTS", "VERDICT", "NEXT"], &rows)
    })
}

/// All CRDs, by name.
pub(super) async fn crds(cluster: &Cluster) -> anyhow::Result<Vec<CustomResourceDefinition>> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let all = kube::api::ListParams::default();
    let list = RetryPolicy::default()
        .read(|| crds.list(&all))
        .await
        .context("the CRDs cannot be listed")?;
    Ok(list.items)
}

/// All CRDs, by name, as far as migration is concerned.
pub(super) async fn definitions(cluster: &Cluster) -> anyhow::Result<Vec<Definition>> {
    Ok(crds(cluster).await?.iter().map(Definition::read).collect())
}

/// What one CRD comes to. A CRD whose objects cannot be listed has a line like any other.
async fn line(cluster: &Cluster, crd: &CustomResourceDefinition, ownership: bool) -> Line {
    let definition = &Definition::read(crd);
    let proven = Record::read(crd);
    let old = definition.crd.old_versions();
    let migrate = format!("exuvia storage migrate {}", definition.name);
    let (verdict, next) = if definition.crd.stored.is_empty() {
        (
            "storedVersions is empty".into(),
            "look at the CRD's status".into(),
        )
    } else if old.is_empty() {
        clean(definition, proven.as_ref())
    } else {
        (format!("{} may still be stored", old.join(", ")), migrate.clone())
    };
    let mut line = Line {
        crd: definition.name.clone(),
        storage_version: definition.crd.storage.clone(),
        stored_versions: definition.crd.stored.clone(),
        objects: None,
        opted_in: None,
        excluded: None,
        verdict,
        next,
        proven,
        owners: ownership.then(BTreeMap::new),
    };
    let Some(endpoint) = definition.endpoint() else {
        line.verdict = "no version is served".into();
        return line;
    };
    let sweep = Sweep::of(cluster.client.clone(), &definition.resource(endpoint));
    if ownership {
        match Survey::of(sweep).await {
            Ok(survey) => line.add(definition, survey, &migrate),
            Err(error) => line.verdict = redact_uncut(&format!("cannot be listed: {error}")),
        }
    } else {
        line.objects = sweep.count().await.ok().and_then(|count| count.objects);
    }
    line
}

/// `storedVersions` lists no old version. Whether that is true is on record, or has to be found out (PITFALLS A39); whether
/// somebody still needs an old version is the next question.
fn clean(definition: &Definition, proven: Option<&Record>) -> (String, String) {
    let name = &definition.name;
    if definition.versions.len() == 1 && proven.is_none() {
        return ("it has one version only".to_owned(), "-".to_owned());
    }
    let old = droppable(definition, &Owners::default());
    let ask = old
        .first()
        .map(|version| format!("exuvia storage droppable {name} {version}"));
    match proven {
        Some(record) if record.patrolled => (
            format!("proven at generation {}", record.generation),
            ask.unwrap_or_else(|| "-".to_owned()),
        ),
        Some(record) => (
            format!("migrated at generation {}, not patrolled", record.generation),
            format!("exuvia storage migrate {name} --patrol"),
        ),
        None => (
            "storedVersions is clean, not proven".to_owned(),
            match ask {
                Some(ask) => format!("{ask} --prove"),
                None => format!("exuvia storage migrate {name} --verify full"),
            },
        ),
    }
}

impl Line {
    /// What the metadata of all objects adds to what the CRD says.
    fn add(&mut self, definition: &Definition, survey: Survey, migrate: &str) {
        self.objects = Some(survey.objects);
        let version_of = |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
        let named: Vec<String> = survey.owners.versions().map(version_of).collect();
        let list = |versions: Vec<&String>| versions.into_iter().cloned().collect::<Vec<_>>().join(", ");
        // An entry at a version that the CRD does not have any more: the next apply to that object answers 500.
        let gone: Vec<&String> = named
            .iter()
            .filter(|version| definition.version(version).is_none())
            .collect();
        let elsewhere: Vec<&String> = named
            .iter()
            .filter(|version| **version != definition.crd.storage && !gone.contains(version))
            .collect();
        if !gone.is_empty() {
            self.verdict = format!("apply is broken: managedFields name {}", list(gone));
            migrate.clone_into(&mut self.next);
        } else if !elsewhere.is_empty() && definition.crd.old_versions().is_empty() {
            self.verdict = format!("fields are owned at {}", list(elsewhere.clone()));
            let shed: Vec<String> = elsewhere
                .iter()
                .map(|version| format!("--shed {version}"))
                .collect();
            self.next = format!("to drop it: {migrate} {}", shed.join(" "));
        }
        self.owners = Some(survey.owners.by_version);
    }

    fn objects(&self) -> String {
        self.objects
            .map_or_else(|| "?".to_owned(), |objects| objects.to_string())
    }

    fn row(&self) -> Vec<String> {
        let opted_in = match (&self.excluded, self.opted_in) {
            (Some(reason), _) => format!("excluded: {reason}"),
            (None, Some(true)) => "yes".to_owned(),
            (None, _) => "no".to_owned(),
        };
        let mut row = vec![
            self.crd.clone(),
            self.storage_version.clone(),
            self.stored_versions.join(","),
            self.objects(),
            opted_in,
        ];
        if let Some(owners) = &self.owners {
            let at = |(version, managers): (&String, &BTreeMap<String, Owner>)| {
                let version = version.rsplit('/').next().unwrap_or_default();
                format!(
                    "{version}: {}",
                    managers.keys().cloned().collect::<Vec<_>>().join(" ")
                )
            };
            row.push(owners.iter().map(at).collect::<Vec<_>>().join("; "));
        }
        row.extend([self.verdict.clone(), self.next.clone()]);
        row
    }
}
