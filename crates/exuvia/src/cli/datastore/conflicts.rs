//! `exuvia datastore conflicts`: every target that exists and differs, field by field. Values are shown to those who ask.

use std::process::ExitCode;

use exuvia_api::ConflictPolicy;
use exuvia_datastore::plan::{Difference, Differing};
use exuvia_storage::counted;
use serde::Serialize;
use serde_json::Value;

use super::args::NamedArgs;
use super::migrations;
use super::plan::object;
use crate::cli::cluster::Cluster;
use crate::cli::output::{remark, table};

/// How many characters of a value are shown in a table.
const SHOWN: usize = 60;

/// A conflict, as it is shown.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Conflict {
    kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    name: String,
    /// Empty if it is gone.
    source: String,
    /// This migration made it, and somebody else has edited it since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    edited_copy: bool,
    differences: Vec<Shown>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Shown {
    path: String,
    /// What the source would become.
    source: Value,
    /// What the target is.
    target: Value,
}

pub(super) async fn run(args: &NamedArgs) -> anyhow::Result<ExitCode> {
    let cluster = Cluster::connect(&args.cluster).await?;
    let migration = migrations::get(&cluster, &args.name).await?;
    if let Some(service) = migrations::hidden_by(&cluster, &migration).await? {
        let known = migration
            .status
            .as_ref()
            .map_or(0, |status| status.conflicts.len());
        anyhow::bail!(
            "the APIService {service} is in front of the targets, so they cannot be looked at; the last run found {}, which `exuvia \
             datastore status {}` lists",
            counted(known as u64, "conflict"),
            args.name
        );
    }
    let look = migrations::look(&cluster, &migration).await?;
    let with_values = args.cluster.show_values;
    let conflicts: Vec<Conflict> = look
        .differences()
        .await?
        .into_iter()
        .map(|differing| Conflict::new(differing, with_values))
        .collect();
    if migration.spec.conflicts.policy == ConflictPolicy::PreferTarget && !conflicts.is_empty() {
        remark("note: these targets stay as they are, because conflicts.policy is PreferTarget");
    }
    args.cluster
        .output
        .print(&conflicts, || text(&args.name, &conflicts))?;
    Ok(if conflicts.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn text(name: &str, conflicts: &[Conflict]) -> String {
    let mut text = String::new();
    for conflict in conflicts {
        let target = object(&conflict.kind, &conflict.namespace, &conflict.name);
        let from = match conflict.source.as_str() {
            "" => "its source is gone".to_owned(),
            source => format!("from {source}"),
        };
        text.push_str(&format!("{target} ({from})\n"));
        if conflict.edited_copy {
            text.push_str("  this migration made it, and somebody else has edited it since\n");
        }
        if !conflict.differences.is_empty() {
            let rows: Vec<Vec<String>> = conflict.differences.iter().map(Shown::row).collect();
            let rows = table(&["FIELD", "SOURCE WOULD BECOME", "TARGET IS"], &rows);
            text.extend(rows.lines().map(|line| format!("  {line}\n")));
        }
        text.push('\n');
    }
    let edited = conflicts.iter().filter(|conflict| conflict.edited_copy).count();
    let advice = match (edited, conflicts.len() - edited) {
        (0, _) => "change or delete the target, change the source, or set conflicts.policy: PreferTarget",
        (_, 0) => "delete the edited copy, and it is made again if it still has a source",
        _ => {
            "change or delete the target, change the source, or set conflicts.policy: PreferTarget; delete edited copies, which are \
             made again if they still have a source"
        }
    };
    text.push_str(&match conflicts.len() as u64 {
        0 => format!("{name}: no target differs\n"),
        found => format!(
            "{name}: {}; {advice}, and the migration goes on by itself\n",
            counted(found, "conflict")
        ),
    });
    text
}

impl Conflict {
    fn new(differing: Differing, with_values: bool) -> Self {
        Self {
            source: object(
                &differing.source_kind,
                &differing.source_namespace,
                &differing.source_name,
            ),
            kind: differing.kind,
            namespace: differing.namespace,
            name: differing.name,
            edited_copy: differing.is_edited_copy,
            differences: differing
                .differences
                .into_iter()
                .map(|difference| Shown::new(difference, with_values))
                .collect(),
        }
    }
}

impl Shown {
    fn new(difference: Difference, with_values: bool) -> Self {
        let Difference { path, source, target } = difference;
        if with_values {
            return Self { path, source, target };
        }
        Self {
            path,
            source: what(&source).into(),
            target: what(&target).into(),
        }
    }

    fn row(&self) -> Vec<String> {
        let cell = |value: &Value| {
            let text = match value {
                Value::Null => "absent".to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let mut shown: String = text.chars().take(SHOWN).collect();
            if shown.len() < text.len() {
                shown.push('…');
            }
            shown
        };
        vec![self.path.clone(), cell(&self.source), cell(&self.target)]
    }
}

/// What a value is, without what it says: not even how long a text is.
fn what(value: &Value) -> String {
    match value {
        Value::Null => "absent".to_owned(),
        Value::Bool(_) => "true or false".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(items) => format!("list of {}", items.len()),
        Value::Object(_) => "mapping".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_shown_only_if_asked_for() {
        let differing = Differing {
            kind: "Widget.new.dev".into(),
            namespace: "shop".into(),
            name: "a".into(),
            source_kind: "Widget.old.dev".into(),
            source_namespace: "shop".into(),
            source_name: "a".into(),
            is_edited_copy: false,
            differences: vec![Difference {
                path: "spec.token".into(),
                source: json!("CANARY"),
                target: json!(null),
            }],
        };
        let hidden = text("move", &[Conflict::new(differing.clone(), false)]);
        assert!(!hidden.contains("CANARY"), "{hidden}");
        assert!(
            hidden.contains("spec.token  text                 absent"),
            "{hidden}"
        );
        let shown = text("move", &[Conflict::new(differing.clone(), true)]);
        assert!(
            shown.contains("spec.token  CANARY               absent"),
            "{shown}"
        );
        let edited = Differing {
            is_edited_copy: true,
            source_kind: String::new(),
            source_namespace: String::new(),
            source_name: String::new(),
            differences: Vec::new(),
            ..differing
        };
        assert_eq!(
            text("move", &[Conflict::new(edited, false)]),
            "Widget.new.dev shop/a (its source is gone)\n  this migration made it, and somebody else has edited it since\n\nmove: 1 \
             conflict; delete the edited copy, and it is made again if it still has a source, and the migration goes on by itself\n"
        );
    }
}
