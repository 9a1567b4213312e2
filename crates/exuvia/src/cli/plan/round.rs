//! One look at all clusters that were asked for: a line per CRD, and notes.

use std::collections::BTreeSet;
use std::process::ExitCode;

use exuvia_storage::definition::Definition;
use exuvia_storage::{OptIn, counted, is_in_groups};
use exuvia_usage::nearest;
use kube::ResourceExt;
use serde::Serialize;

use super::line::{Line, Shown};
use super::rights::{Wanted, rules};
use super::{PlanArgs, PlanFormat, Target, crds_for, lines, migrations_among, no_crds};

use crate::cli::bars::CrdProgress;
use crate::cli::cluster::Cluster;
use crate::cli::table::{Column, Row, Table};

/// How many CRDs are named in a note.
const NAMED: usize = 5;

/// One cluster, or one CRD of it.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Entry {
    /// A CRD.
    Crd(Box<Line>),
    /// A cluster that could not be looked at.
    Failed {
        /// Its context, if one was chosen.
        #[serde(skip_serializing_if = "Option::is_none")]
        context: Option<String>,
        /// Why.
        error: String,
    },
    /// A cluster without CRDs to look at. Machines see an empty list.
    Empty {
        /// Its context.
        context: String,
        /// In words.
        why: String,
    },
}

/// The result of one look at all clusters.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) entries: Vec<Entry>,
    pub(super) notes: Vec<String>,
    /// The groups of all CRDs that were seen.
    pub(super) groups: BTreeSet<String>,
}

impl Round {
    /// Looks at all clusters at the same time. One that fails is an entry if `tolerant`, and otherwise an error.
    pub(super) async fn look(
        targets: &[Target],
        args: &PlanArgs,
        tolerant: bool,
        progress: &CrdProgress,
    ) -> anyhow::Result<Self> {
        let looks = targets.iter().map(|target| target.look(args, progress));
        let found = futures::future::join_all(looks).await;
        let mut round = Self::default();
        let mut looked = false;
        for (target, found) in targets.iter().zip(found) {
            let context = target.context.clone();
            let found = match found {
                Ok(found) => found,
                Err(error) if tolerant => {
                    let error = crate::cli::sentence(&error);
                    round.entries.push(Entry::Failed { context, error });
                    continue;
                }
                Err(error) => return Err(error),
            };
            round.notes.extend(found.notes);
            round.groups.extend(found.groups);
            looked = true;
            if let (true, true, Some(context)) = (found.entries.is_empty(), args.several(), context) {
                let why = no_crds(&args.opt_in.groups);
                round.entries.push(Entry::Empty { context, why });
            }
            round
                .entries
                .extend(found.entries.into_iter().map(|entry| match entry {
                    Entry::Crd(line) => Entry::Crd(Box::new(line.on(&target.args))),
                    other => other,
                }));
        }
        if looked {
            let note = note_on_groups(&args.opt_in.groups, &round.groups);
            round.notes.extend(note);
        }
        Ok(round)
    }

    /// The answer for machines.
    pub(super) fn answers(&self) -> Vec<&Entry> {
        let told = |entry: &&Entry| !matches!(entry, Entry::Empty { .. });
        self.entries.iter().filter(told).collect()
    }

    /// Not success if a cluster could not be looked at.
    pub(super) fn exit_code(&self) -> ExitCode {
        if self
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Failed { .. }))
        {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }

    /// The answer for people, without notes.
    pub(super) fn text(&self, args: &PlanArgs, screen: Option<usize>) -> String {
        if self.entries.is_empty() {
            return no_crds(&args.opt_in.groups) + "\n";
        }
        let entries: Vec<&Entry> = self.entries.iter().collect();
        table(&entries, args).render(screen)
    }
}

/// Rows of a plan.
pub(super) fn table(entries: &[&Entry], args: &PlanArgs) -> Table {
    let shown = Shown {
        context: args.several(),
        opted_in: true,
        owners: args.ownership,
        blockers: args.output == PlanFormat::Wide,
    };
    let columns = columns(shown);
    let rows = entries.iter().map(|entry| entry.row(shown, &columns)).collect();
    Table { columns, rows }
}

/// The columns of a plan.
pub(super) fn columns(shown: Shown) -> Vec<Column> {
    let context = shown.context.then_some(Column::Group("CONTEXT"));
    let facts = ["CRD", "STORAGE", "STORED", "OBJECTS"].map(Column::Fact);
    let opted_in = shown.opted_in.then_some(Column::Fact("OPTED IN"));
    let owners = shown.owners.then_some(Column::Prose("OWNERS AT", "owners at"));
    let prose = [Column::Prose("VERDICT", ""), Column::Prose("NEXT", "next")];
    context
        .into_iter()
        .chain(facts)
        .chain(opted_in)
        .chain(owners)
        .chain(prose)
        .collect()
}

impl Entry {
    fn row(&self, shown: Shown, columns: &[Column]) -> Row {
        let instead = |context: Option<&str>, said: &str| {
            Row::of(columns.iter().map(|column| match column {
                Column::Group(_) => context.unwrap_or_default(),
                Column::Prose("VERDICT", _) => said,
                _ => "-",
            }))
        };
        match self {
            Self::Crd(line) => line.row(shown),
            Self::Failed { context, error } => instead(context.as_deref(), &format!("error: {error}")),
            Self::Empty { context, why } => instead(Some(context), why),
        }
    }
}

impl Target {
    async fn look(&self, args: &PlanArgs, progress: &CrdProgress) -> anyhow::Result<Round> {
        let cluster = self
            .connected
            .get_or_try_init(|| Cluster::connect(&self.args))
            .await?;
        let (client, opt_in) = (&cluster.client, args.opt_in.to_opt_in());
        let wanted = Wanted {
            groups: &opt_in.groups,
            migrations: args.looks(),
            ..Wanted::default()
        };
        let all = crds_for(client, &wanted).await?;
        let definitions: Vec<Definition> = all.iter().map(Definition::read).collect();
        let (migrations, mut notes) = migrations_among(client, &all, args.looks()).await;
        notes.extend(left_out(&definitions, &opt_in));
        let in_groups = |name: &str| {
            let group = name.split_once('.').map_or("", |(_, group)| group);
            is_in_groups(group, &opt_in.groups)
        };
        let chosen = all.into_iter().filter(|crd| in_groups(&crd.name_any())).collect();
        let chosen_definitions = definitions
            .iter()
            .filter(|definition| in_groups(&definition.name));
        let lines = lines(client, chosen, args.looks(), &migrations, progress).await;
        let lines: Vec<Line> = lines
            .into_iter()
            .zip(chosen_definitions)
            .map(|(line, definition)| line.judged_by(&opt_in, definition).of(self.context.clone()))
            .collect();
        let on_lines = lines
            .iter()
            .filter_map(|line| Some(format!("{}: {}", line.crd, line.note.as_ref()?)));
        notes.extend(on_lines.chain(notes_on_rights(&lines)));
        if let Some(context) = self.context.as_ref().filter(|_| args.several()) {
            for note in &mut notes {
                *note = format!("{context}: {note}");
            }
        }
        Ok(Round {
            entries: lines.into_iter().map(|line| Entry::Crd(Box::new(line))).collect(),
            notes,
            groups: definitions
                .into_iter()
                .map(|definition| definition.group)
                .collect(),
        })
    }
}

/// CRDs that carry the label, but are outside of the groups: without a note they would seem to take part.
fn left_out(definitions: &[Definition], opt_in: &OptIn) -> Option<String> {
    let anywhere = OptIn {
        groups: Vec::new(),
        ..opt_in.clone()
    };
    let outside: Vec<&str> = definitions
        .iter()
        .filter(|definition| {
            anywhere.includes(definition) && !is_in_groups(&definition.group, &opt_in.groups)
        })
        .map(|definition| definition.name.as_str())
        .collect();
    let number = outside.len() as u64;
    (number > 0).then(|| {
        let carry = if number == 1 { "carries" } else { "carry" };
        format!(
            "{} {carry} the label {}, but outside of --groups {}: {}",
            counted(number, "CRD"),
            opt_in.label,
            opt_in.groups.join(","),
            some(&outside)
        )
    })
}

/// Groups of `--groups` that no CRD is in.
fn unmatched(groups: &[String], known: &BTreeSet<String>) -> BTreeSet<String> {
    let is_unmatched = |group: &&String| {
        let only = std::slice::from_ref(*group);
        !known.iter().any(|known| is_in_groups(known, only))
    };
    groups.iter().filter(is_unmatched).cloned().collect()
}

/// A group that no CRD of any cluster is in is a slip, which would pass unseen beside one that matches.
pub(in crate::cli) fn note_on_groups(groups: &[String], known: &BTreeSet<String>) -> Option<String> {
    let unmatched: Vec<String> = unmatched(groups, known).into_iter().collect();
    let near = unmatched
        .iter()
        .flat_map(|group| nearest(group, known.iter().map(String::as_str)));
    let near: BTreeSet<&str> = near.collect();
    let meant = match near.into_iter().collect::<Vec<_>>().as_slice() {
        [] => String::new(),
        near => format!("; did you mean {}?", near.join(" or ")),
    };
    let groups = unmatched.join(",");
    (!unmatched.is_empty()).then(|| format!("--groups {groups} matches no CRD{meant}"))
}

/// The rights that are missing to list objects, of all CRDs at once.
pub(super) fn notes_on_rights(lines: &[Line]) -> Option<String> {
    let missing = lines.iter().filter_map(|line| line.missing_rule.as_ref());
    let number = missing.clone().count() as u64;
    (number > 0).then(|| {
        format!(
            "not allowed to list the objects of {}; add to the role: {}",
            counted(number, "CRD"),
            rules(missing)
        )
    })
}

fn some(names: &[&str]) -> String {
    let mut shown: Vec<String> = names.iter().take(NAMED).map(|name| (*name).to_owned()).collect();
    if names.len() > NAMED {
        shown.push(format!("and {} more", names.len() - NAMED));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_matches_nothing_is_named_beside_one_that_does() {
        let known: BTreeSet<String> = ["a.example.com", "other.io"].map(str::to_owned).into();
        let note = |groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            note_on_groups(&groups, &known)
        };
        for fine in [&[][..], &["example.com"], &["other.io", "a.example.com"]] {
            assert_eq!(note(fine), None);
        }
        assert_eq!(
            note(&["other.io", "exmple.com"]).as_deref(),
            Some("--groups exmple.com matches no CRD")
        );
        assert_eq!(
            note(&["othr.io"]).as_deref(),
            Some("--groups othr.io matches no CRD; did you mean other.io?")
        );
    }
}
