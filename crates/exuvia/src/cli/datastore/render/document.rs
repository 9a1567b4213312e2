//! What becomes of one document: it stays, it is converted, or it is named as one that cannot be.

use exuvia_api::DatastoreMigrationSpec;
use exuvia_datastore::mapping::Mappings;
use exuvia_lint::{Place, StreamPiece};
use serde_json::Value;

use super::text::{self, Rewritten};

/// Converts documents with one mapping.
pub(super) struct Converter<'a> {
    spec: &'a DatastoreMigrationSpec,
    mappings: &'a Mappings,
}

/// A piece of a file after the conversion.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConvertedPiece {
    pub(super) text: String,
    pub(super) documents: u64,
    pub(super) loses_comments: bool,
}

impl<'a> Converter<'a> {
    pub(super) fn new(spec: &'a DatastoreMigrationSpec, mappings: &'a Mappings) -> Self {
        Self { spec, mappings }
    }

    /// `None`: it stays as it is.
    pub(super) fn convert(
        &self,
        piece: &StreamPiece,
        stream: &str,
    ) -> Result<Option<ConvertedPiece>, String> {
        let before = &stream[piece.bytes.clone()];
        if let Some((place, why)) = &piece.malformed {
            let Place { line, column } = place;
            return match self.mentions_source(before) {
                false => Ok(None),
                true if before.contains("{{") => Err(format!(
                    "this is a template ({{{{ … }}}}) that seems to hold a moved kind: change it by hand (line {line}, column {column})"
                )),
                true => Err(format!(
                    "this is not valid YAML, and seems to hold a moved kind: line {line}, column {column}: {why}"
                )),
            };
        }
        let [located] = piece.documents.as_slice() else {
            if piece.documents.is_empty() || !self.mentions_source(before) {
                return Ok(None);
            }
            return Err("several JSON documents follow each other: put `---` between them".to_owned());
        };
        let value = located.value().map_err(|error| error.to_string())?;
        let becomes = self.becomes(&value);
        if !matches!(becomes, Ok(None)) {
            if let Some(Place { line, column }) = located.template() {
                return Err(format!(
                    "this is a template ({{{{ … }}}}) of a moved kind: change it by hand (line {line}, column {column})"
                ));
            }
            if let Some(duplicate) = located.duplicates().first() {
                let (key, Place { line, column }) = (&duplicate.key, duplicate.place);
                return Err(format!(
                    "the key {key:?} stands twice (line {line}, column {column}; first in line {}): remove one of them",
                    duplicate.first_line
                ));
            }
        }
        let Some((becomes, documents)) = becomes? else {
            return Ok(None);
        };
        let Rewritten { text, loses_comments } =
            text::rewrite(before, piece.bytes.start, located, &value, &becomes)?;
        Ok(Some(ConvertedPiece {
            text,
            documents,
            loses_comments,
        }))
    }

    /// Whether text that cannot be read seems to be of a moved kind.
    fn mentions_source(&self, text: &str) -> bool {
        let mut mappings = self.spec.mappings.iter();
        mappings.any(|mapping| text.contains(&format!("{}/", mapping.from.group)))
    }

    /// What a document becomes, and how many documents in it were converted; `None`: it stays.
    fn becomes(&self, value: &Value) -> Result<Option<(Vec<Value>, u64)>, String> {
        let is_list = value["kind"] == "List" && value["apiVersion"] == "v1";
        if !is_list {
            return Ok(self.object(value)?.map(|objects| (objects, 1)));
        }
        let (mut items, mut converted) = (Vec::new(), 0);
        for item in value["items"].as_array().into_iter().flatten() {
            match self.object(item)? {
                Some(objects) => {
                    items.extend(objects);
                    converted += 1;
                }
                None => items.push(item.clone()),
            }
        }
        let mut list = value.clone();
        list["items"] = Value::Array(items);
        Ok((converted > 0).then(|| (vec![list], converted)))
    }

    fn object(&self, value: &Value) -> Result<Option<Vec<Value>>, String> {
        let api_version = value["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kind = value["kind"].as_str().unwrap_or_default();
        let is_source = |from: &exuvia_api::MappingSource| {
            from.group == group && from.kinds.iter().any(|source| source == kind)
        };
        let source = self
            .spec
            .mappings
            .iter()
            .map(|mapping| &mapping.from)
            .find(|from| is_source(from));
        let Some(source) = source else {
            return self.rewritten(value);
        };
        if source.version != version {
            return Err(format!(
                "{kind} is at {api_version}, but the mapping reads {}/{}: bring it to that version first",
                source.group, source.version
            ));
        }
        let converted = self.mappings.convert(value).map_err(|error| error.to_string())?;
        if converted.outputs.is_empty() {
            return Ok(None); // no mapping takes it
        }
        let objects = converted.outputs.into_iter().map(|output| {
            let mut object = output.object;
            if let Some(status) = output.status {
                object["status"] = status;
            }
            object
        });
        Ok(Some(objects.collect()))
    }

    /// An object that is not moved but names moved ones.
    fn rewritten(&self, value: &Value) -> Result<Option<Vec<Value>>, String> {
        let mut now = None;
        for index in 0..self.spec.references.rewrite.len() {
            let current = now.as_ref().unwrap_or(value);
            let rewritten = self.mappings.rewrite_object(index, current);
            if let Some(rewritten) = rewritten.map_err(|error| error.to_string())? {
                now = Some(rewritten);
            }
        }
        Ok(now.map(|object| vec![object]))
    }
}
