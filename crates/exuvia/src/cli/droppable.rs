//! `exuvia storage droppable` and `users`: what holds a version, as an exit code and by name.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Answer, Look, Question, Verdict, look};
use exuvia_storage::lint::{Input, manifests};
use exuvia_storage::servers::ApiServers;
use exuvia_storage::usage::{Counts, Usage};
use exuvia_storage::{End, Engine, Options, Owner, Survey, Verify, exclusion};
use exuvia_sweep::{Control, Sweep};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Client, ResourceExt};
use serde::Serialize;

use super::args::{DroppableArgs, VersionArgs};
use super::bars::{looking, show};
use super::cluster::{Cluster, shown};
use super::names::no_such_crd;
use super::output::{count, remark, table};
use super::plan::crds;
use super::stop::Stop;
use super::values::NO_SETTLE;

/// Exit code 0: yes; 1: no; 3: not known. Errors are the caller's, as 2.
pub(super) async fn run(args: &DroppableArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let all = crds(&cluster).await?;
    let mut questions = match (&args.crd, &args.version) {
        _ if !args.filename.is_empty() => about_manifests(all, &args.filename)?,
        (Some(crd), Some(version)) => vec![about(&all, crd, version)?],
        _ => bail!("name a CRD and a version, or give -f"),
    };
    if args.prove {
        questions = prove(&cluster, args, questions).await?;
    }
    let what = Look {
        references: !args.no_references,
        servers: servers(&cluster, &args.api_servers).await,
        watch: args.watch,
        ..Look::default()
    };
    let verdicts = if questions.is_empty() {
        Vec::new()
    } else {
        look(&cluster.client, &questions, &what, &looking()).await
    };
    args.cluster
        .output
        .print(&verdicts, || match verdicts.as_slice() {
            [] => "yes: the manifests drop no version\n".to_owned(),
            verdicts => verdicts.iter().map(Verdict::to_string).collect(),
        })?;
    let answer = Answer::of_all(verdicts.iter().map(|verdict| verdict.answer));
    Ok(ExitCode::from(match answer {
        Answer::Yes => 0,
        Answer::No => 1,
        Answer::NotKnown => 3,
    }))
}

/// The API servers that can be asked for their counters: those given and those that the cluster lists; the one that the
/// kubeconfig names if there is none.
pub(super) async fn servers(cluster: &Cluster, given: &[http::Uri]) -> Vec<(String, Client)> {
    let known = ApiServers::new(&cluster.config, given, &[]);
    let mut servers = known.clients(&cluster.client).await.unwrap_or_default();
    if servers.len() == given.len() {
        // The cluster lists none: the one that answers is asked as well.
        let url = shown(&cluster.config.cluster_url);
        if !given.iter().any(|uri| shown(uri) == url) {
            servers.push((url, cluster.client.clone()));
        }
    }
    servers
}

fn about(all: &[CustomResourceDefinition], crd: &str, version: &str) -> anyhow::Result<Question> {
    let Some(found) = all.iter().find(|found| found.name_any() == crd) else {
        bail!(no_such_crd(crd, all));
    };
    let definition = Definition::read(found);
    if definition.version(version).is_none() {
        bail!("{crd} has no version {version}: it has {}", versions(&definition));
    }
    Ok(Question::new(found.clone(), vec![version.to_owned()]))
}

/// What the cluster's CRDs have and the manifests' no longer do.
fn about_manifests(all: Vec<CustomResourceDefinition>, paths: &[PathBuf]) -> anyhow::Result<Vec<Question>> {
    let inputs: Vec<Input> = paths.iter().map(Input::from_argument).collect();
    let to_be = manifests(&inputs)?;
    if to_be.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        bail!("there is no CRD in {}: is the path right?", paths.join(", "));
    }
    for manifest in &to_be {
        if all.iter().all(|crd| crd.name_any() != manifest.name) {
            remark(&format!(
                "note: {} is not in this cluster, so nothing of it can be dropped; is it the right one?",
                manifest.name
            ));
        }
    }
    let mut questions = Vec::new();
    for found in all {
        let name = found.name_any();
        // Applied in this order, the last one of a name counts.
        let Some(manifest) = to_be.iter().rev().find(|manifest| manifest.name == name) else {
            continue;
        };
        let names = found.spec.versions.iter().map(|version| &version.name);
        let gone: Vec<String> = names
            .filter(|version| !manifest.versions.contains(version))
            .cloned()
            .collect();
        if !gone.is_empty() {
            questions.push(Question {
                served_after: Some(manifest.served.clone()),
                ..Question::new(found, gone)
            });
        }
    }
    Ok(questions)
}

/// Sweeps now, so that what is on record is about the CRDs as they are.
async fn prove(
    cluster: &Cluster,
    args: &DroppableArgs,
    questions: Vec<Question>,
) -> anyhow::Result<Vec<Question>> {
    for question in &questions {
        let definition = Definition::read(&question.crd);
        if let Some(reason) = exclusion(&definition).filter(|_| !args.include_excluded) {
            bail!(
                "{} is excluded from migration ({reason}), so --prove does not sweep it: leave --prove out, or add \
                 --include-excluded",
                definition.name
            );
        }
    }
    if args.settle.is_zero() {
        remark(&format!("warning: {NO_SETTLE}"));
    }
    let options = Options {
        settle: args.settle,
        api_servers: args.api_servers.clone(),
        verify: Verify::Full,
        always: true,
        patrol: true,
        ..Options::default()
    };
    let control = Control::new();
    let stop = Stop::when_signalled(&control)?;
    let mut proven = Vec::new();
    for question in questions {
        let name = question.crd.name_any();
        let (client, writer) = (cluster.client.clone(), cluster.writer.clone());
        let engine = Engine::new(&cluster.config, client, writer, &name, options.clone());
        let report = engine
            .controlled_by(control.clone())
            .watched_by(show(name.clone(), &indicatif::MultiProgress::new()))
            .run()
            .await?;
        stop.check()?;
        let unproven = match report.end {
            End::Migrated | End::Clean => None,
            End::Stalled { reason, message } => Some(format!("the sweep stalled ({reason}): {message}")),
            End::Unfinished | End::WouldMigrate => Some("the sweep did not come to an end".to_owned()),
            End::Cancelled => Some("the sweep was stopped".to_owned()),
            End::Gone => bail!("the CRD {name} is gone"),
        };
        if let Some(why) = &unproven {
            remark(&format!("{name} could not be proven: {why}"));
        }
        proven.push(Question { unproven, ..question });
    }
    // The record is in the status, as it is now.
    let all = crds(cluster).await?;
    for question in &mut proven {
        let name = question.crd.name_any();
        match all.iter().find(|crd| crd.name_any() == name) {
            Some(crd) => question.crd = crd.clone(),
            None => bail!("the CRD {name} is gone"),
        }
    }
    Ok(proven)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct User {
    manager: String,
    #[serde(flatten)]
    owner: Owner,
}

/// What one API server says of a version.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServersCounts {
    server: String,
    /// Why it does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(flatten)]
    counts: Option<Counts>,
}

pub(super) async fn users(args: &VersionArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let all = crds(&cluster).await?;
    let Some(definition) = all.iter().find(|crd| crd.name_any() == args.crd) else {
        bail!(no_such_crd(&args.crd, &all));
    };
    let definition = Definition::read(definition);
    let Some(endpoint) = definition.endpoint() else {
        bail!(
            "no version of {} is served, so its objects cannot be looked at: serve one",
            args.crd
        );
    };
    let (group, plural) = (definition.group.as_str(), definition.plural.as_str());
    // Before we ask for objects ourselves.
    let usage = Usage::observe(
        &servers(&cluster, &args.api_servers).await,
        &[(group, plural)],
        None,
    )
    .await;
    let survey = Survey::of(Sweep::of(cluster.client.clone(), &definition.resource(endpoint)))
        .await
        .map_err(|error| anyhow!("{}", exuvia_storage::redact(&error.to_string())))?;
    let users: Vec<User> = survey
        .owners
        .at(&definition.api_version(&args.version))
        .map(|(manager, owner)| User {
            manager: manager.to_owned(),
            owner: owner.clone(),
        })
        .collect();
    let readers: Vec<ServersCounts> = usage
        .at(group, plural, &args.version)
        .map(|(server, counts)| ServersCounts {
            server: server.to_owned(),
            unreadable: counts.as_ref().err().map(|unread| unread.why.clone()),
            counts: counts.ok(),
        })
        .collect();
    let answer = serde_json::json!({"writers": users, "servers": readers});
    args.cluster.output.print(&answer, || {
        let mut text: String = readers.iter().map(ServersCounts::line).collect();
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

impl ServersCounts {
    fn line(&self) -> String {
        let server = &self.server;
        let Some(counts) = &self.counts else {
            let why = self.unreadable.as_deref().unwrap_or_default();
            return format!("{server}: not known, /metrics cannot be read: {why}\n");
        };
        let open = match counts.watches {
            1 => "1 open watch".to_owned(),
            0 => "no open watch".to_owned(),
            open => format!("{open} open watches"),
        };
        let by_verb: Vec<String> = counts
            .requests
            .iter()
            .map(|(verb, count)| format!("{count} {verb}"))
            .collect();
        let since = match counts.total() {
            0 => "no request".to_owned(),
            total => format!("{} ({})", count(total, "request"), by_verb.join(", ")),
        };
        format!("{server}: {open}, {since} since it started\n")
    }
}

pub(super) fn versions(definition: &Definition) -> String {
    let names: Vec<&str> = definition
        .versions
        .iter()
        .map(|version| version.name.as_str())
        .collect();
    names.join(", ")
}
