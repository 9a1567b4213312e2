//! How a migration ended, for people and for machines, and what there is to do next.

use exuvia_storage::record::Record;
use exuvia_storage::references::Moved;
use exuvia_storage::{End, Obstacle, Report, Verified};
use serde::Serialize;

use super::output::count;
use super::references;

/// So many paths of each class are shown to people; `-o json` has them all.
const LOSSES_SHOWN: usize = 20;

/// So many objects that were not done are shown to people.
const FAILURES_SHOWN: usize = 10;

/// A report with what there is to do next.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    #[serde(flatten)]
    pub(super) report: Report,
    /// What is on record in the CRD about its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<Record>,
    /// Commands that answer the next question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) next: Vec<String>,
    /// What became of ownerReferences at old versions, if they were to be moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) owner_references: Option<Moved>,
}

impl Summary {
    pub(super) fn of(report: Report, record: Option<&Record>) -> Self {
        let name = &report.resource;
        let is_old = |version: &&String| **version != report.storage_version;
        let old = report.stored_before.iter().filter(is_old);
        let next = match (&report.end, record) {
            (End::Clean, None) if !report.storage_version.is_empty() => {
                vec![format!("exuvia storage migrate {name} --verify full --patrol")]
            }
            (End::Migrated | End::Clean, Some(record)) => {
                let patrol = format!("exuvia storage migrate {name} --patrol");
                let ask = old.map(|version| format!("exuvia storage droppable {name} {version}"));
                let patrol = (!record.patrolled).then_some(patrol);
                patrol.into_iter().chain(ask).collect()
            }
            _ => Vec::new(),
        };
        Self {
            next,
            record: record.cloned(),
            report,
            owner_references: None,
        }
    }

    /// For people: one line on how it ended, and what there is to know below it.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.report.resource, self.end());
        let lines = self
            .losses()
            .into_iter()
            .chain(self.swept())
            .chain(self.found())
            .chain(self.not_done())
            .chain(self.trimmed())
            .chain(self.owner_references.iter().flat_map(references::lines))
            .chain(self.next.iter().map(|command| format!("next: {command}")));
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
                    "clean: every object is stored at {}, as a sweep has proven; nothing was written",
                    record.storage_version
                ),
                None => "storedVersions is clean, but anybody can trim it: not proven; nothing was written"
                    .to_owned(),
            },
            End::Gone => "the CRD is gone".to_owned(),
            End::Cancelled => "stopped, nothing was trimmed".to_owned(),
            End::Unfinished if report.stored_before.is_empty() => {
                "would rewrite its objects and verify that".to_owned()
            }
            End::Unfinished => {
                let is_old = |version: &&String| **version != report.storage_version;
                let old: Vec<String> = report.stored_before.iter().filter(is_old).cloned().collect();
                let trim = match old.as_slice() {
                    [] => "put on record what it proves".to_owned(),
                    old => format!("trim {}", old.join(", ")),
                };
                format!(
                    "nothing was found that stands in the way (one object of each kind was tried, not all); would rewrite its \
                     objects at {}, verify that, and {trim}",
                    report.storage_version
                )
            }
            End::Stalled { reason, message } => format!("stalled ({reason}): {message}"),
            End::Migrated => "migrated".to_owned(),
        }
    }

    fn losses(&self) -> Vec<String> {
        let Some(losses) = &self.report.losses else {
            return Vec::new();
        };
        // What holds it is in the sentence above already, unless that had to be cut.
        let is_said =
            matches!(&self.report.obstacle, Some(Obstacle::Pruning(held)) if held.fits_a_sentence());
        if is_said {
            losses.harmless().lines(LOSSES_SHOWN)
        } else {
            losses.lines(LOSSES_SHOWN)
        }
    }

    fn swept(&self) -> Vec<String> {
        let report = &self.report;
        let mut lines = Vec::new();
        let tally = report.rewrite;
        if tally.done() > 0 {
            lines.push(format!(
                "{} rewritten, {} current, {} gone, {} written meanwhile, {} in conflict, {} failed",
                tally.rewritten, tally.current, tally.gone, tally.skipped, tally.conflict, tally.failed
            ));
        }
        let changed = report.explained + report.mutated + report.unexplained > 0;
        match report.verified.filter(|_| report.verify.done() > 0) {
            Some(Verified::Proof) => lines.push(
                "verified: by resourceVersions, as every API server was asked itself, and by patching the rest and a sample"
                    .to_owned(),
            ),
            Some(Verified::Full) if changed => {
                lines.push("verified: every object was patched once more".to_owned());
            }
            Some(Verified::Full) => {
                lines.push("verified: every object was patched once more and came back unchanged".to_owned());
            }
            None => {}
        }
        if let Some(why) = &report.why_full {
            lines.push(format!("in full, because {why}"));
        }
        lines
    }

    /// What was out of the ordinary.
    fn found(&self) -> Vec<String> {
        let report = &self.report;
        let mut lines = Vec::new();
        let mut say = |number: u64, line: String| {
            if number > 0 {
                lines.push(line);
            }
        };
        let objects = |number: u64| count(number, "object");
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
            Some(record) if record.patrolled => {
                lines.push("patrolled: nothing was written behind it".to_owned());
            }
            Some(_) => {
                lines.push(
                    "not patrolled yet: an API server that was behind may still have written".to_owned(),
                );
            }
            None => {}
        }
        lines
    }
}
