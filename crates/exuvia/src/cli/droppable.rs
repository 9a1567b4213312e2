//! `exuvia storage droppable` and `users`: what holds a version, as an exit code and by name.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Blocker, blockers};
use exuvia_storage::{Owner, Survey};
use exuvia_sweep::Sweep;
use serde::Serialize;

use super::args::{DroppableArgs, VersionArgs};
use super::cluster::Cluster;
use super::output::{count, table};
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
pub(super) async fn run(args: &DroppableArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let questions = match (&args.filename, &args.crd, &args.version) {
        (Some(path), ..) => removed_versions(&cluster, path).await?,
        (None, Some(crd), Some(version)) => vec![(crd.clone(), version.clone())],
        _ => bail!("name a CRD and a version, or give -f"),
    };
    let mut verdicts = Vec::new();
    for (crd, version) in questions {
        let (definition, survey) = look(&cluster, &crd).await?;
        if definition.version(&version).is_none() {
            bail!("{crd} has no version {version}: it has {}", versions(&definition));
        }
        let mut blockers = blockers(&definition, &version, &survey.owners);
        blockers.extend(usage(&cluster, &definition, &version, args.watch).await?);
        verdicts.push(Verdict {
            crd,
            version,
            droppable: blockers.is_empty(),
            blockers,
        });
    }
    args.cluster.output.print(&verdicts, || {
        let mut text = String::new();
        if verdicts.is_empty() {
            text.push_str("yes: the manifests drop no version\n");
        }
        for Verdict {
            crd,
            version,
            droppable,
            blockers,
        } in &verdicts
        {
            if *droppable {
                text.push_str(&format!("yes: nothing holds {version} of {crd}\n"));
            } else {
                text.push_str(&format!("no: {version} of {crd} is held by\n"));
                text.extend(blockers.iter().map(|blocker| format!("  {blocker}\n")));
            }
        }
        text
    })?;
    let all = verdicts.iter().all(|verdict| verdict.droppable);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What the cluster's CRDs have and the manifests' no longer do.
async fn removed_versions(cluster: &Cluster, path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the manifests {}", path.display()))?;
    let documents: Vec<serde_json::Value> =
        serde_saphyr::from_multiple(&text).map_err(|e| anyhow!("{} is no YAML: {e}", path.display()))?;
    let current = definitions(cluster).await?;
    let mut removed = Vec::new();
    let mut crds = 0;
    for document in documents
        .iter()
        .filter(|d| d["kind"] == "CustomResourceDefinition")
    {
        crds += 1;
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let kept: Vec<&str> = document["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|v| v["name"].as_str())
            .collect();
        let Some(definition) = current.iter().find(|definition| definition.name == name) else {
            continue;
        };
        let gone = definition
            .versions
            .iter()
            .filter(|version| !kept.contains(&version.name.as_str()));
        removed.extend(gone.map(|version| (name.to_owned(), version.name.clone())));
    }
    if crds == 0 {
        bail!("there is no CRD in {}: is the path right?", path.display());
    }
    Ok(removed)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct User {
    manager: String,
    #[serde(flatten)]
    owner: Owner,
}

pub(super) async fn users(args: &VersionArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let (definition, survey) = look(&cluster, &args.crd).await?;
    let api_version = definition.api_version(&args.version);
    let users: Vec<User> = survey
        .owners
        .at(&api_version)
        .map(|(manager, owner)| User {
            manager: manager.to_owned(),
            owner: owner.clone(),
        })
        .collect();
    let requests = requests(&cluster, &definition, &args.version).await;
    let answer = serde_json::json!({"writers": users, "requestsSinceServerStart": requests});
    args.cluster.output.print(&answer, || {
        let mut text = match &requests {
            Some(requests) if requests.is_empty() => {
                "no request for it since the API server started\n".to_owned()
            }
            Some(requests) => {
                let counts: Vec<String> = requests
                    .iter()
                    .map(|(verb, count)| format!("{count} {verb}"))
                    .collect();
                format!(
                    "requests for it since the API server started: {}\n",
                    counts.join(", ")
                )
            }
            None => "requests for it: not known, /metrics of the API server may not be read\n".to_owned(),
        };
        if definition.version(&args.version).is_none() {
            let (crd, versions) = (&args.crd, versions(&definition));
            text.push_str(&format!(
                "{crd} has no version {} (any more): it has {versions}\n",
                args.version
            ));
        }
        if users.is_empty() {
            return text + &format!("nobody owns fields of {} at {}\n", args.crd, args.version);
        }
        let row = |user: &User| {
            let last = user.owner.last.map(|last| last.to_string()).unwrap_or_default();
            vec![
                user.manager.clone(),
                user.owner.objects.to_string(),
                last,
                user.owner.example.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = users.iter().map(row).collect();
        text + &table(&["MANAGER", "OBJECTS", "LAST WRITE", "EXAMPLE"], &rows)
    })
}

/// Watches the API server's request counter for a while: whether anybody asks for the version, reading included.
async fn usage(
    cluster: &Cluster,
    definition: &Definition,
    version: &str,
    watch: Option<Duration>,
) -> anyhow::Result<Option<Blocker>> {
    let Some(watch) = watch else { return Ok(None) };
    let total = async || {
        let counts = requests(cluster, definition, version).await;
        counts.map(|counts| counts.values().sum::<u64>())
    };
    let unreadable = "--watch needs to read /metrics of the API server: allow `get` on the path /metrics";
    let before = total().await.context(unreadable)?;
    tokio::time::sleep(watch).await;
    let asked = total().await.context(unreadable)?.saturating_sub(before);
    let message = format!(
        "{} for it within {} s",
        count(asked, "request"),
        watch.as_secs_f64()
    );
    Ok((asked > 0).then_some(Blocker::Usage { message }))
}

/// Requests for this version by verb, from the metrics of the API server that answers; dry-runs are not counted.
/// A counter since that server's start: compare two calls to see whether it still grows.
#[expect(clippy::disallowed_methods, reason = "it only reads: GET /metrics")]
async fn requests(
    cluster: &Cluster,
    definition: &Definition,
    version: &str,
) -> Option<BTreeMap<String, u64>> {
    let request = http::Request::get("/metrics").body(Vec::new()).ok()?;
    let metrics = cluster.client.request_text(request).await.ok()?;
    let mut counts = BTreeMap::new();
    for line in metrics
        .lines()
        .filter_map(|line| line.strip_prefix("apiserver_request_total{"))
    {
        let Some((labels, count)) = line.rsplit_once("} ") else {
            continue;
        };
        let has = |name: &str, value: &str| labels.contains(&format!("{name}=\"{value}\""));
        let ours = has("group", &definition.group)
            && has("version", version)
            && has("resource", &definition.plural)
            && has("dry_run", "");
        let verb = labels
            .split("verb=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        if let (true, Some(verb), Ok(count)) = (ours, verb, count.trim().parse::<f64>()) {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a counter
            let count = count as u64;
            *counts.entry(verb.to_owned()).or_default() += count;
        }
    }
    Some(counts)
}

async fn look(cluster: &Cluster, crd: &str) -> anyhow::Result<(Definition, Survey)> {
    let all = definitions(cluster).await?;
    let Some(definition) = all.into_iter().find(|definition| definition.name == crd) else {
        bail!("there is no CRD named {crd}: see `exuvia plan` for what there is");
    };
    let Some(endpoint) = definition.endpoint() else {
        bail!("no version of {crd} is served, so its objects cannot be looked at: serve one");
    };
    let survey = Survey::of(Sweep::of(cluster.client.clone(), &definition.resource(endpoint))).await?;
    Ok((definition, survey))
}

pub(super) fn versions(definition: &Definition) -> String {
    let names: Vec<&str> = definition
        .versions
        .iter()
        .map(|version| version.name.as_str())
        .collect();
    names.join(", ")
}
