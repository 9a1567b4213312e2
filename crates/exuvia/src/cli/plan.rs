//! `exuvia plan`: every CRD, what it still stores, and what to do next.

use exuvia_storage::definition::Definition;
use exuvia_storage::{Survey, excluded, is_in_groups};
use exuvia_sweep::Sweep;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
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
    opted_in: String,
    verdict: String,
    next: String,
    /// Versions that nothing holds; only where every object was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    droppable: Option<Vec<String>>,
}

pub(super) async fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let opt_in = args.opt_in.to_opt_in();
    let mut lines = Vec::new();
    for definition in definitions(&cluster).await? {
        if !is_in_groups(&definition.group, &opt_in.groups) {
            continue;
        }
        let opted_in = match excluded(&definition) {
            Some(reason) => format!("excluded: {reason}"),
            None if opt_in.includes(&definition) => "yes".to_owned(),
            None => "no".to_owned(),
        };
        lines.push(Line {
            opted_in,
            ..line(&cluster, &definition, args.ownership).await?
        });
    }
    args.cluster.output.print(&lines, || {
        if lines.is_empty() {
            println!("There is no CRD in this cluster.");
            return;
        }
        let rows: Vec<Vec<String>> = lines.iter().map(Line::row).collect();
        print!(
            "{}",
            table(
                &[
                    "CRD", "STORAGE", "STORED", "OBJECTS", "OPTED IN", "VERDICT", "NEXT"
                ],
                &rows
            )
        );
    })
}

pub(super) async fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let all = definitions(&cluster).await?;
    if let Some(unknown) = args
        .names
        .iter()
        .find(|name| all.iter().all(|d| d.name != **name))
    {
        anyhow::bail!("there is no CRD named {unknown}: see `exuvia plan` for what there is");
    }
    let mut lines = Vec::new();
    for definition in all
        .iter()
        .filter(|d| args.names.is_empty() || args.names.contains(&d.name))
    {
        lines.push(line(&cluster, definition, true).await?);
    }
    args.cluster.output.print(&lines, || {
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|line| {
                let droppable = line.droppable.as_deref().unwrap_or_default();
                vec![
                    line.crd.clone(),
                    line.storage_version.clone(),
                    line.stored_versions.join(","),
                    line.objects(),
                    if droppable.is_empty() {
                        "-".into()
                    } else {
                        droppable.join(",")
                    },
                    line.verdict.clone(),
                ]
            })
            .collect();
        print!(
            "{}",
            table(
                &["CRD", "STORAGE", "STORED", "OBJECTS", "DROPPABLE", "VERDICT"],
                &rows
            )
        );
    })
}

/// All CRDs, by name.
pub(super) async fn definitions(cluster: &Cluster) -> anyhow::Result<Vec<Definition>> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let list = crds.list(&kube::api::ListParams::default()).await?;
    Ok(list.items.iter().map(Definition::read).collect())
}

async fn line(cluster: &Cluster, definition: &Definition, ownership: bool) -> anyhow::Result<Line> {
    let old = definition.crd.old_versions();
    let mut line = Line {
        crd: definition.name.clone(),
        storage_version: definition.crd.storage.clone(),
        stored_versions: definition.crd.stored.clone(),
        objects: None,
        opted_in: "no".to_owned(),
        verdict: String::new(),
        next: String::new(),
        droppable: None,
    };
    let migrate = format!("exuvia storage migrate {}", definition.name);
    (line.verdict, line.next) = if definition.crd.stored.is_empty() {
        (
            "storedVersions is empty".into(),
            "look at the CRD's status".into(),
        )
    } else if old.is_empty() {
        ("clean".into(), "nothing".into())
    } else {
        (format!("{} may still be stored", old.join(", ")), migrate.clone())
    };
    let Some(endpoint) = definition.endpoint() else {
        line.verdict = "no version is served".into();
        return Ok(line);
    };
    let sweep = Sweep::of(cluster.client.clone(), &definition.resource(endpoint));
    if !ownership {
        line.objects = sweep.count().await.ok().and_then(|count| count.objects);
        return Ok(line);
    }
    let survey = Survey::of(sweep).await?;
    line.objects = Some(survey.objects);
    line.droppable = Some(exuvia_storage::droppable::droppable(definition, &survey.owners));
    // An entry at a version that the CRD does not have any more: the next apply to that object answers 500.
    let gone: Vec<String> = definition
        .old_among(survey.owners.versions())
        .into_iter()
        .filter(|api_version| {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            definition.version(version).is_none()
        })
        .collect();
    if !gone.is_empty() {
        line.verdict = format!("apply is broken: managedFields name {}", gone.join(", "));
        line.next = migrate;
    }
    Ok(line)
}

impl Line {
    fn objects(&self) -> String {
        self.objects
            .map_or_else(|| "?".to_owned(), |objects| objects.to_string())
    }

    fn row(&self) -> Vec<String> {
        vec![
            self.crd.clone(),
            self.storage_version.clone(),
            self.stored_versions.join(","),
            self.objects(),
            self.opted_in.clone(),
            self.verdict.clone(),
            self.next.clone(),
        ]
    }
}
