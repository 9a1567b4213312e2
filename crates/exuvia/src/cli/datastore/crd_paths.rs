//! Paths of a mapping against the schemas of the CRDs: fields that the target does not have, or the source never had. The same for
//! objects that `references.rewrite` changes.

use exuvia_api::{Conversion, DatastoreMigration, Mapping, RewriteScope};
use exuvia_datastore::mapping::{Mappings, ResultType};
use exuvia_lint::Segment;
use exuvia_usage::nearest;
use serde_json::Value;

use super::field_path::{segments, shown};
use super::manifest::{Fault, Manifest};
use super::{read_paths, result_types};
use exuvia_usage::or;

/// Deeper fields are not compared: nobody reads so many notes, and a schema may repeat itself.
const MAX_DEPTH: usize = 12;
/// How many fields of one kind are named that only the source has.
const MAX_NAMED: usize = 20;

/// The CRDs that were given or found.
pub(super) struct Schemas {
    crds: Vec<Value>,
    /// They are those of a cluster, and not of files.
    of_cluster: bool,
}

/// What the CRDs say of a mapping.
#[derive(Default)]
pub(super) struct Answer {
    pub(super) faults: Vec<Fault>,
    pub(super) notes: Vec<String>,
}

impl Schemas {
    pub(super) fn new(crds: Vec<Value>, of_cluster: bool) -> Self {
        Self { crds, of_cluster }
    }

    /// Whether a document is a CRD.
    pub(super) fn is_crd(document: &Value) -> bool {
        document["kind"] == "CustomResourceDefinition"
            && document["apiVersion"]
                .as_str()
                .is_some_and(|version| version.starts_with("apiextensions.k8s.io/"))
    }

    /// The schema of a kind at a version; otherwise what is missing, in words. One that keeps whatever it is given is null.
    fn find(&self, group: &str, version: &str, kind: &str) -> Result<&Value, String> {
        let is_meant = |crd: &&Value| crd["spec"]["group"] == group && crd["spec"]["names"]["kind"] == kind;
        let Some(crd) = self.crds.iter().find(is_meant) else {
            return Err(format!(
                "no CRD was found for kind {kind} in group {group}{}",
                self.meant(group, kind)
            ));
        };
        let versions = || crd["spec"]["versions"].as_array().into_iter().flatten();
        let is_served = |version: &&Value| version["served"] != false;
        let mut served = versions().filter(is_served);
        match served.find(|served| served["name"] == version) {
            Some(_) if crd["spec"]["preserveUnknownFields"] == true => Ok(&Value::Null),
            Some(served) => Ok(&served["schema"]["openAPIV3Schema"]),
            None => {
                let names = versions()
                    .filter(is_served)
                    .filter_map(|version| version["name"].as_str());
                let names: Vec<String> = names.map(str::to_owned).collect();
                Err(format!(
                    "the CRD for kind {kind} in group {group} does not serve version {version}: expected {}",
                    or(&names)
                ))
            }
        }
    }

    /// Which kind or group may be meant; otherwise what to do.
    fn meant(&self, group: &str, kind: &str) -> String {
        let named = |crd: &Value| {
            let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (of(&crd["spec"]["group"]), of(&crd["spec"]["names"]["kind"]))
        };
        let all: Vec<(String, String)> = self.crds.iter().map(named).collect();
        let kinds = all
            .iter()
            .filter(|(of, _)| of == group)
            .map(|(_, kind)| kind.as_str());
        let groups = all
            .iter()
            .filter(|(_, of)| of == kind)
            .map(|(group, _)| group.as_str());
        let (kinds, groups) = (nearest(kind, kinds), nearest(group, groups));
        let (what, meant) = if kinds.is_empty() {
            ("group", groups)
        } else {
            ("kind", kinds)
        };
        let meant: Vec<String> = meant.into_iter().map(str::to_owned).collect();
        match (meant.as_slice(), self.of_cluster) {
            ([], true) => String::new(),
            ([], false) => ": give its manifest with --crds, too".to_owned(),
            (meant, _) => format!(": did you mean {what} {}?", or(meant)),
        }
    }

    /// Checks every mapping of a migration, and every rule for objects that name moved ones.
    pub(super) fn check(
        &self,
        manifest: &Manifest,
        migration: &DatastoreMigration,
        mappings: &Mappings,
    ) -> Answer {
        let mut answer = Answer::default();
        for (number, mapping) in migration.spec.mappings.iter().enumerate() {
            let at = format!("spec.mappings[{number}]");
            let mut sources = Vec::new();
            for (index, kind) in mapping.from.kinds.iter().enumerate() {
                let (to, at_target) = match mapping.to.kind.as_str() {
                    "" => (kind.as_str(), format!("{at}.to")),
                    given => (given, format!("{at}.to.kind")),
                };
                let (from, target) = (&mapping.from, &mapping.to);
                let source = self.find(&from.group, &from.version, kind);
                let found = self.find(&target.group, &target.version, to);
                for (at, result) in [
                    (format!("{at}.from.kinds[{index}]"), &source),
                    (at_target, &found),
                ] {
                    if let Err(problem) = result {
                        answer.faults.push(manifest.fault(&segments(&at), problem));
                    }
                }
                let kind = format!("{to}.{}", target.group);
                if let Ok(schema) = found {
                    let conversions = Conversions {
                        at: &at,
                        declared: &mapping.convert,
                        results: &mappings.results(number),
                    };
                    conversions.check(manifest, schema, &kind, &mut answer);
                }
                if let Ok(schema) = source {
                    removed(manifest, mapping, &at, schema, &mut answer);
                }
                if let (Ok(source), Ok(target)) = (&source, &found) {
                    left_over(manifest, mapping, &at, (source, target), &kind, &mut answer);
                }
                sources.extend(source);
            }
            // Of a kind that is not known nothing is certain.
            if sources.len() == mapping.from.kinds.len() {
                let source = match mapping.from.kinds.as_slice() {
                    [kind] => format!("{kind}.{}", mapping.from.group),
                    kinds => format!("{} of {}", kinds.join(", "), mapping.from.group),
                };
                read_paths::check(manifest, &mappings.reads(number), &source, &sources, &mut answer);
            }
        }
        for (number, rule) in migration.spec.references.rewrite.iter().enumerate() {
            let RewriteScope {
                group, version, kind, ..
            } = &rule.within;
            // It may be of a kind that no CRD defines, such as a Deployment.
            let Ok(schema) = self.find(group, version, kind) else {
                continue;
            };
            let kind = format!("{kind}.{group}");
            let conversions = Conversions {
                at: &format!("spec.references.rewrite[{number}]"),
                declared: &rule.convert,
                results: &mappings.results_of_rewrite(number),
            };
            conversions.check(manifest, schema, &kind, &mut answer);
            let reads = mappings.reads_of_rewrite(number);
            read_paths::check(manifest, &reads, &kind, &[schema], &mut answer);
        }
        answer.faults.dedup();
        answer.notes.dedup();
        answer
    }
}

/// The conversions of a mapping or of a rule.
struct Conversions<'a> {
    /// Where they stand.
    at: &'a str,
    declared: &'a [Conversion],
    /// What each of them gives, if that is certain.
    results: &'a [Option<ResultType>],
}

impl Conversions<'_> {
    fn check(&self, manifest: &Manifest, schema: &Value, kind: &str, answer: &mut Answer) {
        let paths: Vec<Vec<Segment>> = self
            .declared
            .iter()
            .map(|conversion| segments(&conversion.path))
            .collect();
        for (number, path) in paths.iter().enumerate() {
            let at = format!("{}.convert[{number}]", self.at);
            if let Some(unknown) = first_unknown(schema, path) {
                let problem = format!(
                    "unknown field {unknown} of {kind}: its API would refuse every object that has it"
                );
                answer
                    .faults
                    .push(manifest.fault(&segments(&format!("{at}.path")), problem));
                continue;
            }
            // What a later one sets again does not matter.
            let is_set_again = paths[number + 1..].iter().any(|later| path.starts_with(later));
            let result = self.results.get(number).copied().flatten();
            if let Some(result) = result.filter(|_| !is_set_again)
                && let Some(expected) = result_types::unfit(schema, path, result)
            {
                let problem = format!(
                    "it always gives {}: expected {expected}, as {} of {kind} is",
                    result_types::said(result),
                    shown(path)
                );
                answer
                    .faults
                    .push(manifest.fault(&segments(&format!("{at}.value")), problem));
            }
        }
    }
}

fn removed(manifest: &Manifest, mapping: &Mapping, at: &str, schema: &Value, answer: &mut Answer) {
    // A field that only one of several kinds has is fine.
    if mapping.from.kinds.len() > 1 {
        return;
    }
    for (number, path) in mapping.remove.iter().enumerate() {
        if let Some(unknown) = first_unknown(schema, &segments(path)) {
            let problem = format!("unknown field {unknown} of the source: there is nothing to remove");
            let path = segments(&format!("{at}.remove[{number}]"));
            answer.faults.push(manifest.fault(&path, problem));
        }
    }
}

/// The first field on a path that a schema does not have.
fn first_unknown(schema: &Value, path: &[Segment]) -> Option<String> {
    if matches!(path.first(), Some(Segment::Key(key)) if key == "metadata") {
        return None; // the same for all kinds
    }
    let mut schema = schema;
    for (depth, segment) in path.iter().enumerate() {
        let Segment::Key(key) = segment else {
            return None; // the path itself is not valid, which is said elsewhere
        };
        schema = match below(schema, key) {
            Below::Known(schema) => schema,
            Below::Anything => return None,
            Below::Unknown => return Some(shown(&path[..=depth])),
        };
    }
    None
}

pub(super) enum Below<'a> {
    Known(&'a Value),
    Anything,
    Unknown,
}

/// What a schema says of a field.
pub(super) fn below<'a>(schema: &'a Value, key: &str) -> Below<'a> {
    if let Some(property) = schema["properties"].get(key) {
        return Below::Known(property);
    }
    let preserves = schema["x-kubernetes-preserve-unknown-fields"] == true;
    let embedded = schema["x-kubernetes-embedded-resource"] == true;
    match schema.get("additionalProperties") {
        Some(more) if more.is_object() => Below::Known(more),
        Some(Value::Bool(true)) => Below::Anything,
        _ if preserves || embedded || schema.is_null() => Below::Anything,
        // A schema without a type says nothing.
        _ if schema["type"].is_null() => Below::Anything,
        _ => Below::Unknown,
    }
}

/// Fields that only the source has and that the mapping neither removes nor converts: objects that have them are refused.
fn left_over(
    manifest: &Manifest,
    mapping: &Mapping,
    at: &str,
    (source, target): (&Value, &Value),
    kind: &str,
    answer: &mut Answer,
) {
    let handled: Vec<Vec<Segment>> = mapping
        .remove
        .iter()
        .chain(mapping.convert.iter().map(|conversion| &conversion.path))
        .map(|path| segments(path))
        .collect();
    let mut found = Vec::new();
    only_in_source(source, target, &mut Vec::new(), &handled, &mut found);
    let more = found.len().saturating_sub(MAX_NAMED);
    found.truncate(MAX_NAMED);
    if found.is_empty() {
        return;
    }
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let place = manifest.fault(&segments(at), "");
    answer.notes.push(format!(
        "{}:{}: {at}: {kind} does not have {}{more}; an object with one of them is refused unless the mapping converts or \
         removes it",
        place.file,
        place.line,
        found.join(", ")
    ));
}

fn only_in_source(
    source: &Value,
    target: &Value,
    path: &mut Vec<Segment>,
    handled: &[Vec<Segment>],
    found: &mut Vec<String>,
) {
    for (key, property) in source["properties"].as_object().into_iter().flatten() {
        let is_common =
            path.is_empty() && ["apiVersion", "kind", "metadata", "status"].contains(&key.as_str());
        path.push(Segment::Key(key.clone()));
        if !is_common && !handled.iter().any(|handled| path.starts_with(handled)) && path.len() <= MAX_DEPTH {
            match below(target, key) {
                Below::Unknown => found.push(shown(path)),
                Below::Known(below) => only_in_source(property, below, path, handled, found),
                Below::Anything => {}
            }
        }
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}}})
    }

    #[test]
    fn an_unknown_field_is_named_up_to_where_it_is_unknown() {
        let unknown = |path: &str| first_unknown(&schema(), &segments(path));
        assert_eq!(unknown("spec.size"), None);
        assert_eq!(unknown("spec.labels[\"a.b/c\"]"), None);
        assert_eq!(unknown("spec.template.spec.x"), None);
        assert_eq!(unknown("metadata.labels.x"), None);
        assert_eq!(unknown("spec.colour.shade").as_deref(), Some("spec.colour"));
        assert_eq!(unknown("data").as_deref(), Some("data"));
    }

    #[test]
    fn fields_that_only_the_source_has_are_found_unless_the_mapping_knows_them() {
        let target = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        }}}});
        let left = |handled: &[&str]| {
            let handled: Vec<_> = handled.iter().map(|path| segments(path)).collect();
            let mut found = Vec::new();
            only_in_source(&schema(), &target, &mut Vec::new(), &handled, &mut found);
            found
        };
        assert_eq!(left(&[]), ["spec.size", "spec.template"]);
        assert_eq!(left(&["spec.size", "spec.template"]), [""; 0]);
        assert_eq!(left(&["spec"]), [""; 0]);
    }
}
