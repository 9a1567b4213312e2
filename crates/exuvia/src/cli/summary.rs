//! How a migration ended, for people and for machines, and what to do next.

use exuvia_storage::definition::Definition;
use exuvia_storage::droppable::{Answer, Verdict, left_behind};
use exuvia_storage::loss::Tense;
use exuvia_storage::record::Record;
use exuvia_storage::references::Moved;
use exuvia_storage::{
    Audience, End, Losses, MigrationReport, Obstacle, Owners, Verified, VerifiedBy, counted,
};
use exuvia_write::Redacted;
use serde::Serialize;

use super::args::ClusterArgs;
use super::output::seconds;
use super::references;
use super::verdicts;

/// How many objects that were not done are shown to people.
const FAILURES_SHOWN: usize = 10;

/// A report, and what to do next.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) report: MigrationReport,
    /// What is on record in the CRD about its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<Record>,
    /// Each old version: whether it may be dropped, and what holds it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) old_versions: Vec<Verdict>,
    /// Versions that managedFields entries were to be moved away from, and that entries still name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unshed: Vec<String>,
    /// Commands that answer the next question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) next: Vec<String>,
    /// What became of ownerReferences at old versions, if they were to be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner_references: Option<Moved>,
    /// The CRD as it was last read; `None`: a built-in resource.
    #[serde(skip)]
    pub(super) definition: Option<Definition>,
    /// Who owns fields at which version, if a sweep has looked since the rewrite.
    #[serde(skip)]
    pub(super) owners: Option<Owners>,
    /// An etcd that was to be read before the trim, and was not, because there was nothing to trim.
    #[serde(skip)]
    pub(super) unread_etcd: Option<String>,
}

impl Summary {
    pub(super) fn of(report: MigrationReport, record: Option<&Record>) -> Self {
        Self {
            record: record.cloned(),
            report,
            old_versions: Vec::new(),
            unshed: Vec::new(),
            next: Vec::new(),
            owner_references: None,
            definition: None,
            owners: None,
            unread_etcd: None,
        }
    }

    /// Finds versions that should be shed, or that the CRD no longer has, and that entries still name. None if the caller
    /// `keeps` entries.
    pub(super) fn unshed(mut self, keeps: bool) -> Self {
        let (Some(definition), Some(owners)) = (&self.definition, &self.owners) else {
            return self;
        };
        if keeps || !matches!(self.report.end, End::Migrated | End::Clean) {
            return self;
        }
        let named = owners
            .versions()
            .filter_map(|api_version| api_version.rsplit_once('/'));
        let ours = named.filter(|(group, _)| *group == definition.group);
        let versions = ours.map(|(_, version)| version.to_owned());
        // What was stored is moved along with the objects; what is left of that is in the verdict.
        let is_asked = |version: &String| {
            *version != definition.crd.storage
                && (definition.shed.contains(version) || definition.version(version).is_none())
        };
        self.unshed = versions.filter(is_asked).collect();
        self
    }

    /// Whether every old version was judged, and may be dropped.
    pub(super) fn is_droppable(&self) -> bool {
        let definition = self.definition.as_ref();
        let old = definition.map(|definition| left_behind(definition, &self.report.stored_before));
        let answers = self.old_versions.iter().map(|verdict| verdict.answer);
        old.unwrap_or_default().len() == self.old_versions.len() && Answer::of_all(answers) == Answer::Yes
    }

    /// Says what to do next, on the cluster that was named.
    pub(super) fn conclude(&mut self, cluster: &ClusterArgs) {
        self.find_next();
        for command in &mut self.next {
            *command = cluster.in_commands(command);
        }
        for verdict in &mut self.old_versions {
            cluster.in_verdict(verdict);
        }
        if let End::Stalled { message, .. } = &mut self.report.end {
            *message = Redacted::ours(cluster.in_commands(message));
        }
    }

    fn find_next(&mut self) {
        let name = &self.report.resource;
        let unknown = self
            .old_versions
            .iter()
            .filter(|verdict| verdict.answer == Answer::NotKnown);
        let ask = unknown.map(|verdict| format!("exuvia storage droppable {name} {}", verdict.version));
        self.next = match (&self.report.end, &self.record) {
            (End::Clean, None) if !self.report.storage_version.is_empty() => {
                vec![format!("exuvia storage migrate {name} --verify full --patrol")]
            }
            (End::Migrated | End::Clean, Some(record)) if !record.patrolled => {
                vec![format!("exuvia storage migrate {name} --patrol")]
            }
            (End::Migrated | End::Clean, Some(_)) => ask.collect(),
            (End::Cancelled, _) if self.report.stored_before != self.report.stored_after => {
                vec![format!("exuvia storage migrate {name} --patrol")]
            }
            _ => Vec::new(),
        };
    }

    /// For people: one line on how it ended, and details below it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.report.resource, self.end());
        let verdicts: Vec<String> = self.old_versions.iter().flat_map(verdicts::lines).collect();
        let is_said = |command: &&String| verdicts.iter().any(|line| line.contains(command.as_str()));
        let next = self.next.iter().filter(|command| !is_said(command));
        let next: Vec<String> = next.map(|command| format!("next: {command}")).collect();
        let lines = self
            .losses()
            .into_iter()
            .chain(self.swept())
            .chain(self.found())
            .chain(self.not_done())
            .chain(self.trimmed())
            .chain(self.etcd_unread())
            .chain(self.owner_references.iter().flat_map(references::lines))
            .chain(verdicts)
            .chain(next);
        for line in lines {
            text.push_str(&format!("  {line}\n"));
        }
        text
    }

    fn end(&self) -> String {
        let Self { report, record, .. } = self;
        match &report.end {
            End::Clean => match record {
                Some(record) => format!(
                    "clean: every object is stored at {}, as a sweep has proven{}",
                    record.storage_version,
                    self.nothing_written()
                ),
                None => format!(
                    "storedVersions is clean, but anybody can trim it: not proven{}",
                    self.nothing_written()
                ),
            },
            End::Gone => "the CRD is gone".to_owned(),
            End::Cancelled if report.stored_before != report.stored_after => format!(
                "stopped after storedVersions was trimmed to {}, before the patrol",
                report.stored_after.join(", ")
            ),
            End::Cancelled => "stopped, nothing was trimmed".to_owned(),
            End::Unfinished => "not finished".to_owned(),
            End::WouldMigrate if report.stored_before.is_empty() => {
                "would rewrite its objects and verify that".to_owned()
            }
            End::WouldMigrate => {
                let is_old = |version: &&String| **version != report.storage_version;
                let old: Vec<String> = report.stored_before.iter().filter(is_old).cloned().collect();
                let trim = match old.as_slice() {
                    [] => "put on record what it proves".to_owned(),
                    old => format!("remove {} from storedVersions", old.join(", ")),
                };
                format!(
                    "can be migrated, as far as a dry run can tell (one object for each version that owners name was tried): \
                     would rewrite its objects at {}, verify that, and {trim}",
                    report.storage_version
                )
            }
            End::Stalled { reason, message } => match &report.obstacle {
                Some(Obstacle::Pruning(losses)) if !losses.fits_a_sentence() => {
                    let message = losses.sentence_above_list(Audience::CommandLine);
                    format!("stalled ({reason}): {message}")
                }
                _ => format!("stalled ({reason}): {message}"),
            },
            End::Migrated => "migrated".to_owned(),
        }
    }

    /// Unless ownerReferences were moved.
    fn nothing_written(&self) -> &'static str {
        let moved = self.owner_references.as_ref();
        if moved.is_some_and(|moved| !moved.dry_run && moved.moved > 0) {
            ""
        } else {
            "; nothing was written"
        }
    }

    /// Every field that the rewrite takes away or adds.
    fn losses(&self) -> Vec<String> {
        let Some(losses) = &self.report.losses else {
            let converts = |definition: &Definition| definition.webhook_conversion;
            let is_unseen =
                self.report.end == End::WouldMigrate && self.definition.as_ref().is_some_and(converts);
            let said = "contents were not compared: a conversion webhook converts them, and only its author knows what it drops";
            return if is_unseen {
                vec![said.to_owned()]
            } else {
                Vec::new()
            };
        };
        let tense = match &self.report.end {
            End::Migrated | End::Clean => Tense::Did,
            End::WouldMigrate => Tense::Would,
            _ if self.report.obstacle.is_some() => Tense::Would,
            _ => Tense::Does,
        };
        let mut lines = Vec::new();
        if losses.accepted && losses.objects > 0 {
            let (losing, all) = (losses.objects, counted(losses.looked_at, "object"));
            let verb = match tense {
                Tense::Would => "would lose",
                Tense::Does => "lose",
                Tense::Did => "lost",
            };
            lines.push(format!(
                "{losing} of {all} {verb} something, as --accept-pruning allows:"
            ));
        }
        // What holds it is in the sentence above already, unless that had to be cut.
        let is_said =
            matches!(&self.report.obstacle, Some(Obstacle::Pruning(held)) if held.fits_a_sentence());
        let named = if is_said {
            losses.harmless().lines(tense, Losses::MAX_PATHS)
        } else {
            losses.lines(tense, Losses::MAX_PATHS)
        };
        let indent = if lines.is_empty() { "" } else { "  " };
        lines.extend(named.into_iter().map(|line| format!("{indent}{line}")));
        lines
    }

    fn swept(&self) -> Vec<String> {
        let report = &self.report;
        let mut lines = Vec::new();
        let tally = report.rewrite;
        if tally.done() > 0 {
            let others = [
                (tally.gone, "gone"),
                (tally.skipped, "written meanwhile"),
                (tally.conflict, "in conflict"),
                (tally.failed, "failed"),
            ];
            let mut counts = vec![
                format!("{} rewritten", tally.rewritten),
                format!("{} already current", tally.current),
            ];
            let others = others.iter().filter(|(number, _)| *number > 0);
            counts.extend(others.map(|(number, what)| format!("{number} {what}")));
            lines.push(counts.join(", "));
        } else if report.end == End::Migrated && report.verify.done() == 0 {
            lines.push("there are no objects".to_owned());
        }
        let changed = report.explained + report.mutated + report.unexplained > 0;
        let why = report.why_full.as_ref();
        let why = why
            .map(|why| format!("; in full, because {why}"))
            .unwrap_or_default();
        match report.verified.filter(|_| report.verify.done() > 0) {
            Some(Verified::Proof) => {
                let VerifiedBy {
                    resource_version,
                    patch,
                    api_servers,
                } = report.verified_by;
                let servers = match api_servers {
                    1 => "the only API server confirmed".to_owned(),
                    servers => format!("all {servers} API servers confirmed"),
                };
                lines.push(format!(
                    "verified: {resource_version} by resourceVersion ({servers}), {patch} by re-patching"
                ));
            }
            Some(Verified::Full) => {
                let none = if changed { "" } else { ", none changed" };
                let patched = report.verified_by.patch;
                lines.push(format!("verified: {patched} by re-patching{none}{why}"));
            }
            None => {}
        }
        lines
    }

    /// What was unusual.
    fn found(&self) -> Vec<String> {
        let report = &self.report;
        let mut lines = Vec::new();
        let mut say = |number: u64, line: String| {
            if number > 0 {
                lines.push(line);
            }
        };
        let objects = |number: u64| counted(number, "object");
        say(
            report.explained,
            format!(
                "{} changed once more and proven since: written at another version meanwhile, or by a default of the server",
                objects(report.explained)
            ),
        );
        say(
            report.stored_otherwise,
            format!(
                "{} stored in another form although storedVersions did not say so: it was listed again until proven",
                objects(report.stored_otherwise)
            ),
        );
        say(
            report.lost_owners,
            format!(
                "warning: {} lost owners of fields in the rewrite, such as {}: compare managedFields",
                objects(report.lost_owners),
                report.lost_owners_example.as_deref().unwrap_or_default()
            ),
        );
        say(
            report.unmoved,
            format!(
                "warning: {} kept managedFields entries at an old version, such as {}; --managed-fields drop removes \
                 them, and their fields have no owner then",
                objects(report.unmoved),
                report.unmoved_example.as_deref().unwrap_or_default()
            ),
        );
        say(
            report.owned,
            format!(
                "warning: the managedFields entry of exuvia itself could not be removed from {}, such as {}: run it again",
                objects(report.owned),
                report.owned_example.as_deref().unwrap_or_default()
            ),
        );
        if !self.unshed.is_empty() {
            let versions = self.unshed.join(", ");
            say(
                1,
                format!(
                    "not shed: managedFields entries still name {versions}, for their fields have no place at {} or they were \
                     written meanwhile",
                    report.storage_version
                ),
            );
        }
        say(
            report.put_back.into(),
            "a patrol found objects that had changed without an explanation: what was trimmed was listed again".to_owned(),
        );
        say(
            report.mutated,
            format!(
                "{} changed with every write: a webhook stamps them",
                objects(report.mutated)
            ),
        );
        lines
    }

    fn not_done(&self) -> Vec<String> {
        let failures = &self.report.failures;
        let shown = failures.first.iter().take(FAILURES_SHOWN);
        let mut lines: Vec<String> = shown
            .map(|failure| {
                format!(
                    "not done: {} [{}] {}",
                    failure.object(),
                    failure.class,
                    failure.message
                )
            })
            .collect();
        let more = failures.count().saturating_sub(FAILURES_SHOWN as u64);
        if more > 0 {
            lines.push(format!("and {more} more; -o json shows up to 100"));
        }
        lines
    }

    /// People who give an etcd expect an answer from it.
    fn etcd_unread(&self) -> Option<String> {
        let (etcd, name) = (self.unread_etcd.as_ref()?, &self.report.resource);
        let etcd = exuvia_usage::without_passwords(etcd);
        Some(format!(
            "etcd was not read, because there is nothing to trim; `exuvia storage audit {name} --etcd-endpoint {etcd}` reads it"
        ))
    }

    fn trimmed(&self) -> Vec<String> {
        let Self { report, record, .. } = self;
        let mut lines = Vec::new();
        if report.end != End::Migrated {
            return lines;
        }
        if report.stored_before != report.stored_after {
            let (before, after) = (report.stored_before.join(", "), report.stored_after.join(", "));
            lines.push(format!("storedVersions: {before} -> {after}"));
        }
        if report.audit.is_some() {
            lines.push("etcd itself was read right before the trim, and holds nothing old".to_owned());
        }
        match record {
            Some(record) if record.patrolled => lines.push(match record.patrolled_before() {
                Some(at) => format!(
                    "patrolled at {} by an earlier run, not by this one: no late write of an old version was found then",
                    seconds(at)
                ),
                None => "patrolled: no late write of an old version was found".to_owned(),
            }),
            Some(_) => {
                lines.push(
                    "not patrolled yet: an API server that was late may have written an old version"
                        .to_owned(),
                );
            }
            None => {}
        }
        lines
    }
}
