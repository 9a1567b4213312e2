//! The verdicts at the end of `exuvia storage migrate`: each old version is droppable, held, or not known.

use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Holds, Look, Looked, Question, Seen, Verdict, left_behind, look, together};
use exuvia_storage::record::Record;
use exuvia_storage::{Audience, End};
use exuvia_write::{Redacted, RetryPolicy, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;

use super::args::MigrateArgs;
use super::bars::looking;
use super::cluster::Cluster;
use super::droppable::servers;
use super::summary::Summary;

/// Why references are not looked at unless asked for.
const NO_REFERENCES: &str = "not looked at (that takes a list of every object in the cluster)";

/// Judges the old versions of everything that was migrated, with one look for all.
///
/// Owners of fields are those that the sweep has just seen. References are looked at if `--owner-references` or
/// `--require-droppable` asks for it.
pub(super) async fn run(cluster: &Cluster, args: &MigrateArgs, summaries: &mut [Summary]) {
    let mut questions = Vec::new();
    let mut asked = Vec::new();
    for (index, summary) in summaries.iter_mut().enumerate() {
        let Some(definition) = summary.definition.clone() else {
            continue; // a built-in resource has no versions to drop
        };
        let versions = left_behind(&definition, &summary.report.stored_before);
        if versions.is_empty() {
            continue;
        }
        let why_not = match &summary.report.end {
            End::Migrated | End::Clean => None,
            End::Stalled { reason, .. } => Some(redacted!("this run stalled ({})", *reason)),
            End::Unfinished | End::WouldMigrate | End::Gone | End::Cancelled => continue,
        };
        let crd = match why_not {
            Some(why) => Err(why),
            None => read(cluster, &definition.name).await,
        };
        match crd {
            // Each by itself, and then all that may go.
            Ok(crd) => questions.extend(versions.into_iter().map(|version| {
                asked.push(index);
                Question {
                    owners: summary.owners.clone(),
                    ..Question::new(crd.clone(), vec![version])
                }
            })),
            Err(why) => {
                let record = summary.record.clone();
                let judge = |version: &String| unlooked(&definition, record.as_ref(), version, &why);
                summary.old_versions = versions.iter().map(judge).collect();
            }
        }
    }
    if questions.is_empty() {
        return;
    }
    let references = args.owner_references || args.require_droppable;
    let what = Look {
        references,
        servers: Some(servers(cluster, &args.api_servers)),
        ..Look::default()
    };
    let verdicts = look(&cluster.client, &questions, &what, &looking()).await;
    for (index, mut verdict) in asked.into_iter().zip(verdicts) {
        if !references {
            verdict.without_references(NO_REFERENCES);
        }
        summaries[index].old_versions.push(verdict);
    }
    for summary in summaries {
        if let Some(definition) = &summary.definition {
            together(definition, &mut summary.old_versions);
        }
    }
}

async fn read(cluster: &Cluster, name: &str) -> Result<CustomResourceDefinition, Redacted> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let read = RetryPolicy::default().read(|| crds.get(name)).await;
    read.map_err(|error| {
        let why = Redacted::from_server(&exuvia_write::brief(&error));
        redacted!("the CRD cannot be read again: {}", why)
    })
}

/// The verdict on a version of a CRD whose migration did not finish: the server is not asked again.
fn unlooked(definition: &Definition, record: Option<&Record>, version: &str, why: &Redacted) -> Verdict {
    let stays = |served: &&str| *served != version;
    let served_after: Vec<String> = definition.served().filter(stays).map(str::to_owned).collect();
    let seen = Seen {
        definition,
        record,
        unproven: Some(why),
        owners: Looked::No,
        references: Looked::No,
        usage: Looked::No,
        migrations: Looked::No,
        hidden: Looked::No,
        served_after: &served_after,
        audience: Audience::CommandLine,
    };
    let mut verdict = seen.judge(version);
    verdict.without_references(NO_REFERENCES);
    verdict
}

/// For people: a line that says whether the version may be dropped, and if it has several reasons not to, one for each.
pub(super) fn lines(verdict: &Verdict) -> Vec<String> {
    let version = &verdict.version;
    let is_stored = verdict.holders.iter().any(|holder| holder.holds == Holds::Bytes);
    let is_unproven = verdict.unknown.iter().any(|unknown| unknown.what == Holds::Bytes);
    // Nothing else matters until it is known where the objects are.
    let of_bytes = |what: Holds| what == Holds::Bytes || !(is_stored || is_unproven);
    let holders: Vec<String> = verdict
        .holders
        .iter()
        .filter(|holder| of_bytes(holder.holds))
        .map(ToString::to_string)
        .collect();
    let unknown: Vec<String> = verdict
        .unknown
        .iter()
        .filter(|unknown| of_bytes(unknown.what))
        .map(|unknown| format!("not known, {unknown}"))
        .collect();
    match (holders.as_slice(), unknown.as_slice()) {
        ([], []) => vec![format!("{version}: droppable, nothing holds it")],
        ([holder], []) => vec![format!("{version}: held by {holder}")],
        ([], [unknown]) => vec![format!("{version}: {unknown}")],
        (holders, unknown) => {
            let answer = match holders {
                [] => "not known whether it may be dropped",
                _ => "held by",
            };
            let reasons = holders.iter().chain(unknown).map(|reason| format!("  {reason}"));
            [format!("{version}: {answer}")]
                .into_iter()
                .chain(reasons)
                .collect()
        }
    }
}
