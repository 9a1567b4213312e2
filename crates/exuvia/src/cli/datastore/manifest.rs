//! `DatastoreMigration`s in manifests: what is wrong with them, each fault with file, line and column.

use std::fmt;
use std::path::PathBuf;

use anyhow::bail;
use exuvia_api::{DatastoreMigration, GROUP};
use exuvia_datastore::freeze::{Tight, tight};
use exuvia_datastore::mapping::{InvalidSpec, Mappings};
use exuvia_lint::{Input, Located, Place, Segment, Stream, streams};
use exuvia_usage::nearest;
use kube::{CustomResourceExt, Resource};
use serde::Serialize;
use serde_json::Value;

use super::field_path::{segments, shown};
use super::schema;
use crate::cli::output::remark;
use crate::cli::values::{existing, object_name};

/// Something that is wrong with a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) column: usize,
    /// The migration's name, if it has one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) migration: String,
    /// The field, such as `spec.mappings[0].convert[1].value`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) path: String,
    pub(super) problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}

/// A `DatastoreMigration` as it stands in a file.
pub(super) struct Manifest {
    pub(super) file: String,
    text: String,
    located: Located,
    pub(super) name: String,
    value: Value,
}

/// What a manifest is good for.
pub(super) struct Checked {
    pub(super) faults: Vec<Fault>,
    /// What may go wrong, depending on the cluster.
    pub(super) notes: Vec<String>,
    /// If there are no faults.
    pub(super) valid: Option<(DatastoreMigration, Mappings)>,
}

impl Checked {
    fn without(faults: Vec<Fault>) -> Self {
        Self {
            faults,
            notes: Vec::new(),
            valid: None,
        }
    }
}

/// All `DatastoreMigration`s in these paths, and documents that cannot be read.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<(Vec<Manifest>, Vec<Fault>)> {
    existing("--filename", paths)?;
    let inputs: Vec<Input> = paths.iter().map(Input::from_argument).collect();
    let (mut manifests, mut faults, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for stream in streams(&inputs)? {
        add(&stream, &mut manifests, &mut faults, &mut others);
    }
    if manifests.is_empty() && faults.is_empty() {
        faults = others; // that there are none would hide why
    }
    faults.extend(twice(&manifests));
    Ok((manifests, faults))
}

/// Migrations that stand in a file more than once: the last would replace the others, or be refused.
fn twice(manifests: &[Manifest]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (index, manifest) in manifests.iter().enumerate() {
        let mut earlier = manifests[..index].iter();
        let is_same = |other: &&Manifest| {
            !manifest.name.is_empty() && (&other.file, &other.name) == (&manifest.file, &manifest.name)
        };
        if let Some(first) = earlier.find(is_same) {
            let line = first.located.place(&segments("metadata.name")).line;
            let problem = format!(
                "the name is used twice in this file, first in line {line}: give each migration its own"
            );
            faults.push(manifest.fault(&segments("metadata.name"), problem));
        }
    }
    faults
}

/// `faults` get what seems to be a migration and cannot be read, `others` get whatever else is not valid YAML.
fn add(stream: &Stream, manifests: &mut Vec<Manifest>, faults: &mut Vec<Fault>, others: &mut Vec<Fault>) {
    let Some(text) = &stream.text else {
        let problem = "this is not text in UTF-8".to_owned();
        faults.push(unreadable(&stream.file, Place { line: 1, column: 1 }, problem));
        return;
    };
    let kind = DatastoreMigration::kind(&()).into_owned();
    for piece in &stream.pieces {
        if let Some((place, why)) = &piece.malformed {
            let fault = match indenting_tab(text, *place).filter(|_| why.contains("tab")) {
                Some(tab) => {
                    let problem =
                        "this is not valid YAML: a tab indents this line; expected spaces".to_owned();
                    unreadable(&stream.file, tab, problem)
                }
                None => unreadable(&stream.file, *place, format!("this is not valid YAML: {why}")),
            };
            if text[piece.bytes.clone()].contains(&kind) {
                faults.push(fault);
            } else {
                others.push(fault);
            }
        }
        let is_one = |document: &&Located| {
            document.text("kind") == Some(&kind) && is_our_version(document.text("apiVersion"))
        };
        for located in piece.documents.iter().filter(is_one) {
            match located.value() {
                Ok(value) => manifests.push(Manifest {
                    file: stream.file.clone(),
                    text: text.clone(),
                    name: value["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                    located: located.clone(),
                    value,
                }),
                Err(error) => faults.push(unreadable(&stream.file, located.first(), error.to_string())),
            }
        }
    }
}

/// The first tab that indents a line, from this place on: the parser says where it stumbled, which may be a line before.
fn indenting_tab(text: &str, from: Place) -> Option<Place> {
    let lines = text.lines().enumerate().skip(from.line.saturating_sub(1));
    let mut tabs = lines.filter_map(|(index, line)| {
        let tab = line
            .chars()
            .take_while(|c| c.is_whitespace())
            .position(|c| c == '\t')?;
        Some(Place {
            line: index + 1,
            column: tab + 1,
        })
    });
    tabs.next()
}

/// Whether a document with our kind is meant for us: other projects have kinds of the same name.
fn is_our_version(version: Option<&str>) -> bool {
    let group = version.map(|version| version.split('/').next().unwrap_or_default());
    group.is_none_or(|group| group == GROUP || !nearest(group, [GROUP]).is_empty())
}

fn unreadable(file: &str, place: Place, problem: String) -> Fault {
    Fault {
        file: file.to_owned(),
        line: place.line,
        column: place.column,
        migration: String::new(),
        path: String::new(),
        problem,
    }
}

/// The one migration of a file. What is wrong with it is said, line by line.
pub(super) fn only(path: &PathBuf) -> anyhow::Result<(DatastoreMigration, Mappings)> {
    let (mut manifests, mut faults) = read(std::slice::from_ref(path))?;
    let shown = path.display();
    if manifests.len() > 1 {
        let names: Vec<String> = manifests.into_iter().map(|manifest| manifest.name).collect();
        bail!(
            "invalid --filename \"{shown}\": expected one DatastoreMigration, but it holds {}: {}",
            names.len(),
            names.join(", ")
        );
    }
    let Some(manifest) = manifests.pop() else {
        match faults.first() {
            Some(fault) => bail!("{fault}"),
            None => bail!("invalid --filename \"{shown}\": it holds no DatastoreMigration"),
        }
    };
    let checked = manifest.check();
    faults.extend(checked.faults);
    for note in &checked.notes {
        remark(&format!("note: {note}"));
    }
    match checked.valid {
        Some(valid) if faults.is_empty() => Ok(valid),
        _ => refuse(&faults),
    }
}

/// All migrations of a file, at least one. What is wrong with them is said, line by line.
pub(in crate::cli) fn all(path: &PathBuf) -> anyhow::Result<Vec<DatastoreMigration>> {
    let (manifests, mut faults) = read(std::slice::from_ref(path))?;
    let mut valid = Vec::new();
    for manifest in &manifests {
        let checked = manifest.check();
        faults.extend(checked.faults);
        valid.extend(checked.valid.map(|(migration, _)| migration));
    }
    if !faults.is_empty() {
        return refuse(&faults);
    }
    if valid.is_empty() {
        bail!(
            "invalid --filename \"{}\": expected a manifest of a DatastoreMigration",
            path.display()
        );
    }
    Ok(valid)
}

/// Each fault in a line; the last one is the error.
fn refuse<T>(faults: &[Fault]) -> anyhow::Result<T> {
    let Some((last, others)) = faults.split_last() else {
        bail!("it cannot be read as a DatastoreMigration");
    };
    for fault in others {
        remark(&format!("error: {fault}"));
    }
    bail!("{last}")
}

impl Manifest {
    /// Everything that is wrong and can be known without a cluster.
    pub(super) fn check(&self) -> Checked {
        let mut faults: Vec<Fault> = schema_faults(&self.value)
            .into_iter()
            .map(|fault| {
                let key = self.located.key_place(&fault.path).filter(|_| fault.is_unknown);
                let place = key.unwrap_or_else(|| self.located.place(&fault.path));
                self.fault_at(place, &fault.path, fault.problem)
            })
            .collect();
        faults.extend(self.located.duplicates().iter().map(|duplicate| {
            let problem = format!(
                "the key {:?} stands twice, first in line {}: remove one of them",
                duplicate.key, duplicate.first_line
            );
            self.fault_at(duplicate.place, &[], problem)
        }));
        if let Some(place) = self.located.template() {
            let problem = "this is a template ({{ … }}): give what it renders to".to_owned();
            faults.push(self.fault_at(place, &[], problem));
        }
        if object_name(&self.name).is_err() && self.value["metadata"]["name"].is_string() {
            let problem = format!(
                "invalid name {:?}: expected lower-case letters, digits, '-' and '.'",
                self.name
            );
            faults.push(self.fault(&segments("metadata.name"), problem));
        }
        if !faults.is_empty() {
            return Checked::without(faults);
        }
        let migration: DatastoreMigration = match serde_json::from_value(self.value.clone()) {
            Ok(migration) => migration,
            Err(error) => {
                return Checked::without(vec![self.fault(&[], error.to_string())]);
            }
        };
        let mut notes = Vec::new();
        match tight(&migration.spec.freeze) {
            Some(Tight::Never(why)) => faults.push(self.fault(&segments("spec.freeze.maxDuration"), why)),
            Some(Tight::Perhaps(why)) => {
                let place = self.fault(&segments("spec.freeze.maxDuration"), why);
                notes.push(place.to_string());
            }
            None => {}
        }
        match Mappings::compile(&migration.spec) {
            Ok(mappings) if faults.is_empty() => Checked {
                faults,
                notes,
                valid: Some((migration, mappings)),
            },
            Ok(_) => Checked::without(faults),
            Err(invalid) => {
                faults.extend(invalid.iter().map(|invalid| self.invalid(invalid)));
                Checked::without(faults)
            }
        }
    }

    /// A fault at a field, or at the innermost of those around it that is there.
    pub(super) fn fault(&self, path: &[Segment], problem: impl Into<String>) -> Fault {
        self.fault_at(self.located.place(path), path, problem.into())
    }

    fn fault_at(&self, place: Place, path: &[Segment], problem: String) -> Fault {
        Fault {
            file: self.file.clone(),
            line: place.line,
            column: place.column,
            migration: self.name.clone(),
            path: shown(path),
            problem,
        }
    }

    fn invalid(&self, invalid: &InvalidSpec) -> Fault {
        self.fault_in(invalid.path(), invalid.position(), invalid.problem().to_owned())
    }

    /// A fault within the text of a field of the spec.
    pub(super) fn fault_in(&self, field: &str, within: Option<(usize, usize)>, mut problem: String) -> Fault {
        let path = segments(&format!("spec.{field}"));
        let exact = within.and_then(|within| self.located.place_in(&path, within, &self.text));
        if let (None, Some((line, column))) = (exact, within) {
            problem = format!("at {line}:{column} of the expression: {problem}");
        }
        self.fault_at(exact.unwrap_or_else(|| self.located.place(&path)), &path, problem)
    }
}

fn schema_faults(value: &Value) -> Vec<schema::Fault> {
    let crd = DatastoreMigration::crd();
    let version = &crd.spec.versions[0];
    let mut faults = Vec::new();
    let expected = format!("{}/{}", crd.spec.group, version.name);
    if value["apiVersion"] != expected.as_str() {
        let problem = if value["apiVersion"].is_null() {
            format!("the field is missing: expected {expected}")
        } else {
            format!("unknown version: expected {expected}")
        };
        faults.push(schema::Fault {
            path: segments("apiVersion"),
            problem,
            is_unknown: false,
        });
    }
    if !value["metadata"]["name"].is_string() {
        faults.push(schema::Fault {
            path: segments("metadata.name"),
            problem: "the field is missing: expected a name".to_owned(),
            is_unknown: false,
        });
    }
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    if let Some(properties) = schema["properties"].as_object_mut() {
        for known in ["apiVersion", "kind", "metadata", "status"] {
            properties.insert(
                known.to_owned(),
                serde_json::json!({"x-kubernetes-preserve-unknown-fields": true}),
            );
        }
    }
    faults.extend(schema::faults(&schema, value));
    faults
}
