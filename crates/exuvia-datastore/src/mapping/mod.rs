//! Turns one object of the source into objects of the target: a raw copy, of which only what is declared is converted.
//!
//! [`Mappings::compile`] says everything that is wrong with a spec and can be known without a cluster. What it gives converts
//! objects, one by one, without any state: the same object always becomes the same.
//!
//! ```
//! use exuvia_api::DatastoreMigrationSpec;
//! use exuvia_datastore::mapping::Mappings;
//! use serde_json::json;
//!
//! let spec: DatastoreMigrationSpec = serde_json::from_value(json!({"mappings": [{
//!     "name": "widgets",
//!     "from": {"group": "old.example.com", "version": "v1", "kinds": ["Widget"]},
//!     "to": {"group": "example.com", "version": "v1"},
//!     "convert": [{"path": "spec.size", "value": "object.spec.?width.orValue(1) * 2"}],
//!     "remove": ["spec.width"],
//! }]}))?;
//! let mappings = Mappings::compile(&spec).expect("the spec is valid");
//!
//! let converted = mappings.convert(&json!({
//!     "apiVersion": "old.example.com/v1",
//!     "kind": "Widget",
//!     "metadata": {"name": "a", "namespace": "shop", "uid": "7d0c", "labels": {"tier": "gold"}},
//!     "spec": {"width": 4, "color": "red"},
//! }))?;
//! assert_eq!(converted.taken_by, Some(0));
//! assert_eq!(
//!     converted.outputs[0].object,
//!     json!({
//!         "apiVersion": "example.com/v1",
//!         "kind": "Widget",
//!         "metadata": {"name": "a", "namespace": "shop", "labels": {"tier": "gold"}},
//!         "spec": {"size": 8, "color": "red"},
//!     })
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Expressions are [CEL](https://cel.dev): its standard functions, the string extension, `base64`, optionals with `optMap` and
//! `optFlatMap`, `cel.bind`, and `json(string)`, `merge(map, map)` and `without(map, list)`. They know the variables `object`, as
//! stored, and, where `metadata.unpack` is set, `unpacked`. They have no clock, no random numbers and no access to anything else.
//! Each is bounded in time and memory, so that a spec can hold up its own migration but nothing else.

mod compile;
mod convert;
mod error;
mod expression;
mod metadata;
mod output;
mod path;
mod pool;
mod rewrite;
mod selector;
mod spec;

use std::sync::Arc;

use exuvia_api::DatastoreMigrationSpec;
use serde_json::Value;

pub use self::compile::Converters;
pub use self::convert::Convert;
pub use self::error::{ConvertError, InvalidSpec};
pub use self::expression::{FieldRead, ReadStep, ResultType};
pub use self::output::{Converted, Output, TargetKey};
pub use self::selector::selects;

use self::compile::Compiled;
use self::expression::{Program, Scope};
use self::pool::{Panicked, Pool};

/// The mappings of one `DatastoreMigration`, ready to convert. A clone is the same.
#[derive(Clone)]
pub struct Mappings {
    compiled: Arc<Compiled>,
    pool: Arc<Pool>,
}

impl std::fmt::Debug for Mappings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(
                self.compiled
                    .mappings
                    .iter()
                    .map(|mapping| &mapping.declared.name),
            )
            .finish()
    }
}

impl Mappings {
    /// Reads a spec: everything that is wrong with it and can be known without a cluster is said at once.
    pub fn compile(spec: &DatastoreMigrationSpec) -> Result<Self, Vec<InvalidSpec>> {
        Self::compile_with(spec, Converters::new())
    }

    /// The same, with programs for the conversions of some mappings.
    pub fn compile_with(
        spec: &DatastoreMigrationSpec,
        converters: Converters,
    ) -> Result<Self, Vec<InvalidSpec>> {
        let failed = |problem: String| vec![InvalidSpec::new(None, "mappings", problem)];
        let pool =
            Pool::new().map_err(|error| failed(format!("cannot start a thread to read them: {error}")))?;
        let spec = spec.clone();
        let compiled = pool
            .run(move || compile::compile(&spec, &converters))
            .map_err(|Panicked| failed("the parser of expressions panicked".to_owned()))??;
        Ok(Self {
            compiled: Arc::new(compiled),
            pool: Arc::new(pool),
        })
    }

    /// Which fields of the source the expressions of a mapping read, each with the expression's place, such as
    /// `mappings[0].convert[1].value`.
    pub fn reads(&self, mapping: usize) -> Vec<(String, FieldRead)> {
        let Some(mapping) = self.compiled.mappings.get(mapping) else {
            return Vec::new();
        };
        let at = format!("mappings[{}]", mapping.index);
        let named = [
            ("from.when", &mapping.when),
            ("from.ready", &mapping.ready),
            ("metadata.name", &mapping.name),
            ("metadata.namespace", &mapping.namespace),
        ];
        let named = named
            .into_iter()
            .filter_map(|(field, program)| Some((format!("{at}.{field}"), program.as_ref()?)));
        let annotations = mapping
            .annotations
            .iter()
            .map(|(key, program)| (format!("{at}.metadata.annotations[\"{key}\"]"), program));
        let converted = mapping
            .convert
            .iter()
            .enumerate()
            .map(|(number, (_, program))| (format!("{at}.convert[{number}].value"), program));
        reads_of(named.chain(annotations).chain(converted))
    }

    /// The same for the expressions of `references.rewrite[index]`.
    pub fn reads_of_rewrite(&self, index: usize) -> Vec<(String, FieldRead)> {
        let Some(rule) = self.compiled.rewrites.get(index) else {
            return Vec::new();
        };
        let at = format!("references.rewrite[{}]", rule.index);
        let when = rule.when.iter().map(|program| (format!("{at}.when"), program));
        let programs = rule.convert.iter().map(|(_, program)| program).enumerate();
        let converted = programs.map(|(number, program)| (format!("{at}.convert[{number}].value"), program));
        reads_of(when.chain(converted))
    }

    /// What each `convert` of a mapping gives, where its text alone tells.
    pub fn results(&self, mapping: usize) -> Vec<Option<ResultType>> {
        let mapping = self.compiled.mappings.get(mapping);
        results_of(mapping.map_or(&[][..], |mapping| &mapping.convert[..]))
    }

    /// The same for `references.rewrite[index]`.
    pub fn results_of_rewrite(&self, index: usize) -> Vec<Option<ResultType>> {
        let rule = self.compiled.rewrites.get(index);
        results_of(rule.map_or(&[][..], |rule| &rule.convert[..]))
    }

    /// The names of the mappings, by number.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.compiled
            .mappings
            .iter()
            .map(|mapping| mapping.declared.name.as_str())
    }

    /// What becomes of an object, whole and as it was read at the mapping's version. The caller waits while expressions are
    /// evaluated; a task should use [`convert_async`](Self::convert_async).
    pub fn convert(&self, object: &Value) -> Result<Converted, ConvertError> {
        if !self.compiled.evaluates(object) {
            return self.compiled.convert(object);
        }
        let (compiled, object) = (Arc::clone(&self.compiled), object.clone());
        self.pool
            .run(move || compiled.convert(&object))
            .map_err(|Panicked| panicked("mappings"))?
    }

    /// What becomes of an object, without keeping the task's thread busy.
    pub async fn convert_async(&self, object: Arc<Value>) -> Result<Converted, ConvertError> {
        if !self.compiled.evaluates(&object) {
            return self.compiled.convert(&object);
        }
        let compiled = Arc::clone(&self.compiled);
        self.pool
            .run_async(move || compiled.convert(&object))
            .await
            .map_err(|Panicked| panicked("mappings"))?
    }

    /// What `references.rewrite[index]` makes of an object that is not moved; `None` if it stays as it is.
    pub fn rewrite_object(&self, index: usize, object: &Value) -> Result<Option<Value>, ConvertError> {
        if self.compiled.rewrites.get(index).is_none() {
            return Ok(None);
        }
        let (compiled, object) = (Arc::clone(&self.compiled), object.clone());
        self.pool
            .run(move || compiled.rewrites[index].rewrite(&object))
            .map_err(|Panicked| panicked(&format!("references.rewrite[{index}]")))?
    }

    /// As [`rewrite_object`](Self::rewrite_object), without keeping the task's thread busy.
    pub async fn rewrite_object_async(
        &self,
        index: usize,
        object: Arc<Value>,
    ) -> Result<Option<Value>, ConvertError> {
        if self.compiled.rewrites.get(index).is_none() {
            return Ok(None);
        }
        let compiled = Arc::clone(&self.compiled);
        self.pool
            .run_async(move || compiled.rewrites[index].rewrite(&object))
            .await
            .map_err(|Panicked| panicked(&format!("references.rewrite[{index}]")))?
    }

    /// The condition of `cutover.waitFor[index]`, if it has one.
    pub fn wait_for(&self, index: usize) -> Option<Expression> {
        let program = Arc::clone(self.compiled.conditions.get(index)?.as_ref()?);
        let path = format!("cutover.waitFor[{index}].when");
        Some(Expression {
            program,
            path,
            pool: Arc::clone(&self.pool),
        })
    }
}

/// What programs read, each with its place.
fn reads_of<'a>(programs: impl Iterator<Item = (String, &'a Program)>) -> Vec<(String, FieldRead)> {
    programs
        .flat_map(|(at, program)| program.reads().iter().map(move |read| (at.clone(), read.clone())))
        .collect()
}

fn results_of(conversions: &[(path::Path, Program)]) -> Vec<Option<ResultType>> {
    conversions.iter().map(|(_, program)| program.result()).collect()
}

fn panicked(path: &str) -> ConvertError {
    ConvertError::new(None, path, "the evaluation panicked, which is a defect of ours")
}

/// A condition over `object`.
#[derive(Clone, Debug)]
pub struct Expression {
    program: Arc<Program>,
    path: String,
    pool: Arc<Pool>,
}

impl Expression {
    /// Whether it holds for this object. The caller waits for the evaluation.
    pub fn is_true(&self, object: &Value) -> Result<bool, ConvertError> {
        let (this, object) = (self.clone(), object.clone());
        self.pool
            .run(move || this.evaluate(&object))
            .map_err(|Panicked| panicked(&self.path))?
    }

    /// Whether it holds for this object, without keeping the task's thread busy.
    pub async fn is_true_async(&self, object: Arc<Value>) -> Result<bool, ConvertError> {
        let this = self.clone();
        self.pool
            .run_async(move || this.evaluate(&object))
            .await
            .map_err(|Panicked| panicked(&self.path))?
    }

    fn evaluate(&self, object: &Value) -> Result<bool, ConvertError> {
        self.program.is_true(&Scope::new(object)).map_err(|problem| {
            ConvertError::new(None, self.path.as_str(), problem).in_expression(self.program.source())
        })
    }
}
