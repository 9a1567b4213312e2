//! What is wrong with a spec, and why an object could not be converted. Neither quotes anything of an object.

use std::fmt;

/// How much of an expression is shown.
const SHOWN_CHARACTERS: usize = 160;

/// One thing that is wrong with a `DatastoreMigration`'s spec, known without a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSpec {
    mapping: Option<String>,
    path: String,
    position: Option<(usize, usize)>,
    problem: String,
}

impl InvalidSpec {
    pub(super) fn new(mapping: Option<&str>, path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            mapping: mapping.map(str::to_owned),
            path: path.into(),
            position: None,
            problem: problem.into(),
        }
    }

    pub(super) fn at(mut self, position: Option<(usize, usize)>) -> Self {
        self.position = position;
        self
    }

    /// The name of the mapping, if it is about one.
    pub fn mapping(&self) -> Option<&str> {
        self.mapping.as_deref()
    }

    /// The field, such as `mappings[2].convert[0].value`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Line and column in the field's text, from 1, if it is an expression.
    pub fn position(&self) -> Option<(usize, usize)> {
        self.position
    }

    /// What is wrong and what was expected.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for InvalidSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mapping) = &self.mapping {
            write!(f, "mapping \"{mapping}\": ")?;
        }
        f.write_str(&self.path)?;
        if let Some((line, column)) = self.position {
            write!(f, " at {line}:{column}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for InvalidSpec {}

/// Why one object could not be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertError {
    mapping: Option<String>,
    path: String,
    expression: Option<String>,
    problem: String,
}

impl ConvertError {
    pub(super) fn new(mapping: Option<&str>, path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            mapping: mapping.map(str::to_owned),
            path: path.into(),
            expression: None,
            problem: problem.into(),
        }
    }

    pub(super) fn in_expression(mut self, source: &str) -> Self {
        let mut shown: String = source.chars().take(SHOWN_CHARACTERS).collect();
        if shown.len() < source.len() {
            shown.push('…');
        }
        self.expression = Some(shown);
        self
    }

    /// The name of the mapping, if it is about one.
    pub fn mapping(&self) -> Option<&str> {
        self.mapping.as_deref()
    }

    /// The field of the spec that could not be carried out, such as `mappings[2].convert[0].value`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The beginning of the expression that failed, as it is in the spec.
    pub fn expression(&self) -> Option<&str> {
        self.expression.as_deref()
    }

    /// What failed, without any value of the object.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The whole sentence. It has parts of the spec in it, and no value of the object.
    pub fn redacted(&self) -> exuvia_write::Redacted {
        exuvia_write::Redacted::ours(self.to_string())
    }
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mapping) = &self.mapping {
            write!(f, "mapping \"{mapping}\": ")?;
        }
        f.write_str(&self.path)?;
        if let Some(expression) = &self.expression {
            write!(f, " `{expression}`")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for ConvertError {}
