//! `exuvia storage droppable` and `users`: what holds a version, as an exit code and by name.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use exuvia_lint::{Input, Manifest, manifests};
use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Answer, Look, Question, Verdict, look};
use exuvia_storage::servers::ApiServers;
use exuvia_storage::usage::{Manager, ServerCounts, Users};
use exuvia_storage::{End, Engine, Options, Verify, counted, exclusion};
use exuvia_sweep::Control;
use exuvia_write::{RetryPolicy, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};

use super::args::{DroppableArgs, VersionArgs};
use super::bars::{looking, show};
use super::cluster::Cluster;
use super::output::{remark, table};
use super::plan::{crd, crds};
use super::stop::Stop;
use super::values::{NO_SETTLE, existing, once};

/// Exit code 0: yes; 1: no; 3: not known. Errors are the caller's, as 2.
pub(super) async fn run(args: &DroppableArgs) -> anyhow::Result<ExitCode> {
    once("version", &args.versions)?;
    // A file that cannot be read is a reason to ask nothing of a cluster.
    let manifests = read_manifests(&args.filename)?;
    let cluster = Cluster::connect(&args.cluster).await?;
    let mut questions = match &args.crd {
        _ if !args.filename.is_empty() => about_manifests(crds(&cluster).await?, &manifests),
        Some(name) => vec![about(crd(&cluster, name).await?, &args.versions)?],
        None => bail!("missing CRD and VERSION: name both, or give -f"),
    };
    if args.prove {
        questions = prove(&cluster, args, questions).await?;
    }
    let what = Look {
        references: !args.no_references,
        servers: Some(servers(&cluster, &args.api_servers)),
        watch: args.watch,
        ..Look::default()
    };
    let mut verdicts = if questions.is_empty() {
        Vec::new()
    } else {
        look(&cluster.client, &questions, &what, &looking()).await
    };
    for verdict in &mut verdicts {
        args.cluster.in_verdict(verdict);
    }
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

/// The API servers that are asked for their counters.
pub(super) fn servers(cluster: &Cluster, given: &[http::Uri]) -> ApiServers {
    ApiServers::new(&cluster.config, given, &[])
}

fn about(crd: CustomResourceDefinition, versions: &[String]) -> anyhow::Result<Question> {
    let definition = Definition::read(&crd);
    let is_unknown = |version: &&String| definition.version(version).is_none();
    if let Some(version) = versions.iter().find(is_unknown) {
        bail!(no_such_version(&definition, version));
    }
    Ok(Question::new(crd, versions.to_vec()))
}

fn no_such_version(definition: &Definition, version: &str) -> String {
    let (crd, versions) = (&definition.name, versions(definition));
    format!("invalid version {version:?} of {crd}: expected one of {versions}")
}

/// The CRDs in these files, at least one.
fn read_manifests(paths: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    existing("--filename", paths)?;
    let inputs: Vec<Input> = paths.iter().map(Input::from_argument).collect();
    let found = manifests(&inputs)?;
    if found.is_empty() {
        let named: Vec<String> = paths
            .iter()
            .map(|path| format!("\"{}\"", path.display()))
            .collect();
        bail!(
            "invalid --filename {}: expected manifests of CRDs, but found none",
            named.join(", ")
        );
    }
    if let Some((first, second)) = contradiction(&found) {
        bail!(
            "{} is defined twice, with different versions: in {}:{} and in {}:{}; only one of them will be applied, so give only \
             that one",
            first.name,
            first.file,
            first.line,
            second.file,
            second.line
        );
    }
    Ok(found)
}

/// Two manifests of one CRD that do not drop the same. Which one is applied last is not known, and a yes about one of them
/// would be taken for a yes about the other.
fn contradiction(found: &[Manifest]) -> Option<(&Manifest, &Manifest)> {
    let same_set = |one: &[String], other: &[String]| {
        one.iter().all(|version| other.contains(version)) && other.iter().all(|version| one.contains(version))
    };
    found.iter().enumerate().find_map(|(index, first)| {
        let differs = |second: &&Manifest| {
            second.name == first.name
                && !(same_set(&first.versions, &second.versions) && same_set(&first.served, &second.served))
        };
        Some((first, found[index + 1..].iter().find(differs)?))
    })
}

/// The versions that the cluster's CRDs have and the manifests do not.
fn about_manifests(all: Vec<CustomResourceDefinition>, to_be: &[Manifest]) -> Vec<Question> {
    for manifest in to_be {
        if all.iter().all(|crd| crd.name_any() != manifest.name) {
            remark(&format!(
                "note: {} is not in this cluster, so none of its versions can be dropped; is it the right cluster?",
                manifest.name
            ));
        }
    }
    let mut questions = Vec::new();
    for found in all {
        let name = found.name_any();
        // If there are several, they drop the same.
        let Some(manifest) = to_be.iter().find(|manifest| manifest.name == name) else {
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
    questions
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
            End::Stalled { reason, message } => {
                Some(redacted!("the sweep stalled ({}): {}", reason, message))
            }
            End::Unfinished | End::WouldMigrate => Some("the sweep did not come to an end".into()),
            End::Cancelled => Some("the sweep was stopped".into()),
            End::Gone => bail!("the CRD {name} is gone"),
        };
        if let Some(why) = &unproven {
            remark(&format!("{name} could not be proven: {why}"));
        }
        proven.push(Question { unproven, ..question });
    }
    // The record is in the status, as it is now.
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    for question in &mut proven {
        let name = question.crd.name_any();
        question.crd = RetryPolicy::default().read(|| api.get(&name)).await?;
    }
    Ok(proven)
}

pub(super) async fn users(args: &VersionArgs) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let definition = Definition::read(&crd(&cluster, &args.crd).await?);
    let servers = servers(&cluster, &args.api_servers);
    let users = Users::look(&cluster.client, &definition, &args.version, &servers)
        .await
        .map_err(|why| anyhow!(why))?;
    // A version that was dropped may still have users; one that nobody uses is a slip.
    if definition.version(&args.version).is_none() && users.is_unused() {
        bail!(no_such_version(&definition, &args.version));
    }
    args.cluster.output.print(&users, || {
        let mut text: String = users.servers.iter().map(line).collect();
        if definition.version(&args.version).is_none() {
            let (crd, versions) = (&args.crd, versions(&definition));
            text.push_str(&format!(
                "{crd} does not have the version {}: it has {versions}\n",
                args.version
            ));
        }
        if users.writers.is_empty() {
            return text + &format!("nobody owns fields of {} at {}\n", args.crd, args.version);
        }
        let row = |user: &Manager| {
            let last = user.owner.last.map(|last| last.to_string()).unwrap_or_default();
            vec![
                user.manager.clone(),
                user.owner.objects.to_string(),
                last,
                user.owner.example.clone(),
            ]
        };
        let rows: Vec<Vec<String>> = users.writers.iter().map(row).collect();
        text + &table(&["MANAGER", "OBJECTS", "LAST WRITE", "EXAMPLE"], &rows)
    })
}

/// What an API server counted. Its counters have no names, so they do not tell who asked.
fn line(of_server: &ServerCounts) -> String {
    let server = &of_server.server;
    let Some(counts) = &of_server.counts else {
        let why = of_server.unreadable.as_deref().unwrap_or_default();
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
        total => format!("{} ({})", counted(total, "request"), by_verb.join(", ")),
    };
    format!("{server}: {open}, {since} since it started\n")
}

pub(super) fn versions(definition: &Definition) -> String {
    let names: Vec<&str> = definition
        .versions
        .iter()
        .map(|version| version.name.as_str())
        .collect();
    names.join(", ")
}
