//! What a value of the chart is: where its meaning, its default and its schema come from.

use std::ops::RangeInclusive;

use anyhow::Context;
use clap::CommandFactory;
use exuvia_api::limits;
use serde_json::{Value as Json, json};

/// A line of the description.
pub(super) enum Entry {
    /// A headline in `values.yaml`.
    Section(&'static str),
    /// What the values below this name are about.
    Object(&'static str, &'static str),
    /// A value.
    Value(Value),
}

/// A value that a user may set.
pub(super) struct Value {
    /// Its name, with dots.
    pub(super) path: &'static str,
    pub(super) default: Json,
    /// What helm accepts.
    pub(super) schema: Json,
    /// What it means, in sentences; the last one without its full stop, as in a flag's help.
    pub(super) help: String,
}

pub(super) fn own(path: &'static str, default: Json, schema: Json, help: &str) -> Entry {
    Entry::Value(Value {
        path,
        default,
        schema,
        help: help.to_owned(),
    })
}

impl Entry {
    /// With one more sentence that matters in the chart alone.
    pub(super) fn and(mut self, sentence: &str) -> Self {
        if let Self::Value(value) = &mut self {
            value.help = format!("{}. {sentence}", value.help);
        }
        self
    }
}

pub(super) fn boolean() -> Json {
    json!({"type": "boolean"})
}

pub(super) fn text() -> Json {
    json!({"type": "string"})
}

pub(super) fn not_empty() -> Json {
    json!({"type": "string", "minLength": 1})
}

pub(super) fn matching(pattern: &str) -> Json {
    json!({"type": "string", "pattern": pattern})
}

pub(super) fn duration() -> Json {
    matching(limits::DURATION_PATTERN)
}

pub(super) fn at_least(minimum: u64) -> Json {
    json!({"type": "integer", "minimum": minimum})
}

pub(super) fn within(range: RangeInclusive<u64>) -> Json {
    json!({"type": "integer", "minimum": range.start(), "maximum": range.end()})
}

pub(super) fn nullable(mut schema: Json) -> Json {
    schema["type"] = json!([schema["type"], "null"]);
    schema
}

pub(super) fn list(items: &Json) -> Json {
    json!({"type": "array", "items": items})
}

pub(super) fn object() -> Json {
    json!({"type": "object"})
}

pub(super) fn strings_by_name() -> Json {
    json!({"type": "object", "additionalProperties": {"type": "string"}})
}

/// The flags of `exuvia operator`.
pub(super) struct Flags(clap::Command);

impl Flags {
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut root = exuvia::cli::Cli::command();
        root.build();
        let operator = root
            .find_subcommand("operator")
            .context("there is `exuvia operator`")?;
        Ok(Self(operator.clone()))
    }

    fn flag(&self, name: &str) -> anyhow::Result<&clap::Arg> {
        let mut flags = self.0.get_arguments();
        flags
            .find(|flag| flag.get_long() == Some(name))
            .with_context(|| format!("`exuvia operator` has no flag --{name}"))
    }

    pub(super) fn default(&self, name: &str) -> anyhow::Result<Option<String>> {
        let default = self.flag(name)?.get_default_values().first();
        Ok(default.map(|default| default.to_string_lossy().into_owned()))
    }

    pub(super) fn choices(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let values = self.flag(name)?.get_possible_values();
        Ok(values.iter().map(|value| value.get_name().to_owned()).collect())
    }

    /// A value that becomes this flag.
    pub(super) fn value(&self, path: &'static str, flag: &str, schema: Json) -> anyhow::Result<Entry> {
        let help = self
            .flag(flag)?
            .get_help()
            .with_context(|| format!("--{flag} has no help"))?;
        let help = help.to_string().replace(" (repeatable)", "");
        let default = match (schema["type"].as_str(), self.default(flag)?) {
            (Some("boolean" | "integer"), Some(default)) => serde_json::from_str(&default)?,
            (Some("array"), default) => default.iter().flat_map(|list| list.split(',')).collect(),
            (_, Some(default)) => json!(default),
            (_, None) => Json::Null,
        };
        Ok(Entry::Value(Value {
            path,
            default,
            schema,
            help,
        }))
    }
}
