//! The conversion of one object: a raw copy, of which only what is declared is changed.

use std::cell::OnceCell;

use exuvia_api::StatusCopy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value};

use super::compile::{Compiled, CompiledMapping};
use super::error::ConvertError;
use super::expression::{Program, Scope};
use super::metadata;
use super::output::{Converted, Output};
use super::path::Path;
use super::selector::selects;
use super::spec::target_kind;

/// A conversion that is a program instead of expressions, for what they cannot say. It replaces `metadata`, `convert` and
/// `remove` of the mapping for which it is given.
///
/// It must be deterministic: an object is converted several times, and must become the same each time.
pub trait Convert: Send + Sync {
    /// Converts a source object, whole and as it was read, to target objects of the mapping's kind. The first one succeeds it;
    /// the others are extra. Their `status` is used if the mapping says `status: Copy`.
    ///
    /// # Errors
    /// A sentence for people, without values of the object.
    fn convert(&self, object: &Value) -> Result<Vec<Value>, String>;
}

/// The group of an apiVersion.
pub(super) fn group_of(object: &Value) -> &str {
    let api_version = object
        .get("apiVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    api_version.split_once('/').map_or("", |(group, _)| group)
}

pub(super) fn kind_of(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

fn string_at<'a>(metadata: Option<&'a Value>, field: &str) -> Option<&'a str> {
    metadata
        .and_then(|metadata| metadata.get(field))
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

/// The object for expressions, made when the first one needs it.
pub(super) struct Source<'v> {
    object: &'v Value,
    scope: OnceCell<Scope<'v, 'v>>,
}

impl<'v> Source<'v> {
    pub(super) fn new(object: &'v Value) -> Self {
        Self {
            object,
            scope: OnceCell::new(),
        }
    }

    pub(super) fn scope(&self) -> &Scope<'v, 'v> {
        self.scope.get_or_init(|| Scope::new(self.object))
    }

    fn metadata(&self) -> Option<&'v Value> {
        self.object.get("metadata")
    }
}

impl Compiled {
    /// Whether some expression has to be evaluated for objects of this kind.
    pub(super) fn evaluates(&self, object: &Value) -> bool {
        self.of_kind(object).any(CompiledMapping::evaluates)
    }

    fn of_kind<'a>(&'a self, object: &'a Value) -> impl Iterator<Item = &'a CompiledMapping> {
        let (group, kind) = (group_of(object), kind_of(object));
        self.mappings.iter().filter(move |mapping| {
            let from = &mapping.declared.from;
            from.group == group && from.kinds.iter().any(|other| other == kind)
        })
    }

    /// Converts one object. If it evaluates, it must be called on a thread of the pool.
    pub(super) fn convert(&self, object: &Value) -> Result<Converted, ConvertError> {
        let source = Source::new(object);
        let mut taking = None;
        for mapping in self.of_kind(object).filter(|mapping| !mapping.declared.extra) {
            if mapping.takes(&source)? {
                taking = Some(mapping);
                break;
            }
        }
        let Some(taking) = taking else {
            return Ok(Converted::default());
        };
        let mut converted = Converted {
            taken_by: Some(taking.index),
            ready: true,
            outputs: Vec::new(),
        };
        taking.add_to(&mut converted, &source)?;
        for extra in self.of_kind(object).filter(|mapping| mapping.declared.extra) {
            if extra.takes(&source)? {
                extra.add_to(&mut converted, &source)?;
            }
        }
        for (number, output) in converted.outputs.iter().enumerate() {
            if converted.outputs[..number]
                .iter()
                .any(|earlier| earlier.key() == output.key())
            {
                let mapping = &self.mappings[output.mapping];
                return Err(mapping.error(
                    "metadata.name",
                    "the object would become two with the same kind and name",
                ));
            }
        }
        Ok(converted)
    }
}

/// Sets the field, or removes it if the value is absent.
pub(super) fn apply(
    path: &Path,
    value: Option<Value>,
    fields: &mut Map<String, Value>,
) -> Result<(), String> {
    let Some(value) = value else {
        path.remove(fields);
        return Ok(());
    };
    path.set(fields, value)
        .map_err(|_| "something on the way to this field is not an object".to_owned())
}

impl CompiledMapping {
    fn error(&self, field: &str, problem: impl Into<String>) -> ConvertError {
        let path = format!("mappings[{}].{field}", self.index);
        ConvertError::new(Some(&self.declared.name), path, problem)
    }

    fn failed(&self, field: &str, program: &Program, problem: String) -> ConvertError {
        self.error(field, problem).in_expression(program.source())
    }

    fn is_true(
        &self,
        field: &str,
        program: Option<&Program>,
        source: &Source<'_>,
    ) -> Result<bool, ConvertError> {
        program.map_or(Ok(true), |program| {
            program
                .is_true(source.scope())
                .map_err(|problem| self.failed(field, program, problem))
        })
    }

    fn takes(&self, source: &Source<'_>) -> Result<bool, ConvertError> {
        Ok(selects(&self.declared.from.selector, source.object)
            && self.is_true("from.when", self.when.as_ref(), source)?)
    }

    fn add_to(&self, converted: &mut Converted, source: &Source<'_>) -> Result<(), ConvertError> {
        converted.ready &= self.is_true("from.ready", self.ready.as_ref(), source)?;
        if let Some(converter) = &self.converter {
            let objects = converter
                .convert(source.object)
                .map_err(|problem| self.error("name", problem))?;
            if objects.is_empty() && !self.declared.extra {
                return Err(self.error("name", "the program made no object of it: expected its successor"));
            }
            for (number, object) in objects.into_iter().enumerate() {
                converted.outputs.push(self.made(source, object, number > 0)?);
            }
        } else {
            converted.outputs.push(self.output(source)?);
        }
        Ok(())
    }

    /// The target, as it is declared.
    fn output(&self, source: &Source<'_>) -> Result<Output, ConvertError> {
        let declared = &self.declared.metadata;
        let unpacked = if declared.unpack.is_empty() {
            Value::Null
        } else {
            metadata::unpack(source.object, &declared.unpack)
                .map_err(|problem| self.error("metadata.unpack", problem))?
        };
        let with_unpacked;
        let scope = if declared.unpack.is_empty() || !self.evaluates() {
            None
        } else {
            with_unpacked = source.scope().with("unpacked", &unpacked);
            Some(&with_unpacked)
        };
        let text = |field: &str, program: &Program| match scope {
            Some(scope) => program
                .text(scope)
                .map_err(|problem| self.failed(field, program, problem)),
            None => program
                .text(source.scope())
                .map_err(|problem| self.failed(field, program, problem)),
        };

        let (labels, mut annotations) = self.labels_and_annotations(source, &unpacked)?;
        for (key, program) in &self.annotations {
            match text(&format!("metadata.annotations[\"{key}\"]"), program)? {
                Some(value) => annotations.insert(key.clone(), Value::String(value)),
                None => annotations.remove(key),
            };
        }
        let name = match &self.name {
            Some(program) => text("metadata.name", program)?.filter(|name| !name.is_empty()),
            None => string_at(Some(&unpacked), "name")
                .or(string_at(source.metadata(), "name"))
                .map(str::to_owned),
        };
        let name = name.ok_or_else(|| self.error("metadata.name", "the name is empty"))?;
        let namespace = match &self.namespace {
            Some(program) => text("metadata.namespace", program)?.filter(|namespace| !namespace.is_empty()),
            None => string_at(source.metadata(), "namespace").map(str::to_owned),
        };

        // Content, status, labels and annotations are what paths can reach.
        let mut fields = source.object.as_object().cloned().unwrap_or_default();
        if self.declared.status == StatusCopy::None {
            fields.remove("status");
        }
        let mut reachable = Map::new();
        reachable.insert("labels".to_owned(), Value::Object(labels));
        reachable.insert("annotations".to_owned(), Value::Object(annotations));
        fields.insert("metadata".to_owned(), Value::Object(reachable));
        for (number, (path, program)) in self.convert.iter().enumerate() {
            let at = format!("convert[{number}]");
            let value = match scope {
                Some(scope) => program.value(scope),
                None => program.value(source.scope()),
            };
            let value = value.map_err(|problem| self.failed(&format!("{at}.value"), program, problem))?;
            apply(path, value, &mut fields).map_err(|problem| self.error(&format!("{at}.path"), problem))?;
        }
        for path in &self.remove {
            path.remove(&mut fields);
        }
        let mut owners =
            metadata::owners(source.metadata()).map_err(|problem| self.error("from", problem))?;
        owners.extend(
            metadata::owners(Some(&unpacked)).map_err(|problem| self.error("metadata.unpack", problem))?,
        );
        let finalizers = metadata::finalizers(source.object, &declared.finalizers);
        let identity = Identity {
            name,
            namespace,
            finalizers,
            owners,
            extra: self.declared.extra,
        };
        self.finish(source, identity, fields)
    }

    /// The labels and annotations before any expression.
    fn labels_and_annotations(
        &self,
        source: &Source<'_>,
        unpacked: &Value,
    ) -> Result<(metadata::Entries, metadata::Entries), ConvertError> {
        let declared = &self.declared.metadata;
        let read = |field: &str| -> Result<metadata::Entries, ConvertError> {
            let mut entries =
                metadata::entries(source.metadata(), field).map_err(|problem| self.error("from", problem))?;
            let over = metadata::entries(Some(unpacked), field)
                .map_err(|problem| self.error("metadata.unpack", problem))?;
            entries.extend(over);
            Ok(entries)
        };
        let rewrite = |entries| {
            metadata::rewrite_keys(entries, &declared.rewrite_keys)
                .map_err(|problem| self.error("metadata.rewriteKeys", problem))
        };
        let mut annotations = read("annotations")?;
        if !declared.unpack.is_empty() {
            annotations.remove(&declared.unpack);
        }
        // Under the old key and under the new one.
        metadata::drop_annotations(&mut annotations, &declared.drop_annotations);
        let mut annotations = rewrite(annotations)?;
        metadata::drop_annotations(&mut annotations, &declared.drop_annotations);
        Ok((rewrite(read("labels")?)?, annotations))
    }

    /// A target that a program made.
    fn made(&self, source: &Source<'_>, object: Value, extra: bool) -> Result<Output, ConvertError> {
        let invalid =
            |problem: &str| self.error("name", format!("the program made an invalid object: {problem}"));
        let to = &self.declared.to;
        let kind = target_kind(&self.declared, kind_of(source.object));
        if group_of(&object) != to.group || kind_of(&object) != kind {
            return Err(invalid(&format!("expected the kind {kind} of {}", to.group)));
        }
        let all = object.get("metadata");
        let name = string_at(all, "name")
            .ok_or_else(|| invalid("expected a name"))?
            .to_owned();
        let namespace = string_at(all, "namespace").map(str::to_owned);
        let finalizers = all
            .and_then(|all| all.get("finalizers"))
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let owners = if all.is_some_and(|all| all.get("ownerReferences").is_some()) {
            metadata::owners(all)
        } else {
            metadata::owners(source.metadata())
        };
        let owners = owners.map_err(|problem| invalid(&problem))?;
        let identity = Identity {
            name,
            namespace,
            finalizers,
            owners,
            extra: extra || self.declared.extra,
        };
        let Value::Object(fields) = object else {
            return Err(invalid("expected an object"));
        };
        self.finish(source, identity, fields)
    }

    /// Puts together what is written. Nothing else of the metadata is, since it belongs to the API server.
    fn finish(
        &self,
        source: &Source<'_>,
        identity: Identity,
        mut fields: Map<String, Value>,
    ) -> Result<Output, ConvertError> {
        let to = &self.declared.to;
        let kind = target_kind(&self.declared, kind_of(source.object)).to_owned();
        let Identity {
            name,
            namespace,
            finalizers,
            owners,
            extra,
        } = identity;
        let reached = fields.remove("metadata");
        let mut written = Map::new();
        written.insert("name".to_owned(), Value::from(name.as_str()));
        if let Some(namespace) = &namespace {
            written.insert("namespace".to_owned(), Value::from(namespace.as_str()));
        }
        for field in ["labels", "annotations"] {
            let entries = metadata::entries(reached.as_ref(), field)
                .map_err(|problem| self.error("convert", problem))?;
            if !entries.is_empty() {
                written.insert(field.to_owned(), Value::Object(entries));
            }
        }
        if !finalizers.is_empty() {
            written.insert("finalizers".to_owned(), Value::Array(finalizers));
        }
        let status = fields
            .remove("status")
            .filter(|_| self.declared.status == StatusCopy::Copy);
        fields.insert(
            "apiVersion".to_owned(),
            Value::from(format!("{}/{}", to.group, to.version)),
        );
        fields.insert("kind".to_owned(), Value::from(kind.as_str()));
        fields.insert("metadata".to_owned(), Value::Object(written));
        Ok(Output {
            mapping: self.index,
            extra,
            group: to.group.clone(),
            version: to.version.clone(),
            kind,
            namespace,
            name,
            object: Value::Object(fields),
            owners,
            status,
        })
    }
}

/// What of the metadata is not reached by a path.
struct Identity {
    name: String,
    namespace: Option<String>,
    finalizers: Vec<Value>,
    owners: Vec<OwnerReference>,
    extra: bool,
}
