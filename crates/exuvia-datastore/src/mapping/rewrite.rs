//! Objects that are not moved but name moved ones: what is declared of them is changed, everything else stays.

use serde_json::{Map, Value};

use super::compile::CompiledRewrite;
use super::convert::{Source, apply, group_of, kind_of};
use super::error::ConvertError;
use super::expression::Program;
use super::metadata;
use super::selector::selects;

impl CompiledRewrite {
    /// What becomes of an object that is not moved but names moved ones; `None` if it stays as it is.
    pub(super) fn rewrite(&self, object: &Value) -> Result<Option<Value>, ConvertError> {
        if group_of(object) != self.group || kind_of(object) != self.kind || !selects(&self.selector, object)
        {
            return Ok(None);
        }
        let source = Source::new(object);
        if let Some(when) = &self.when
            && !when
                .is_true(source.scope())
                .map_err(|problem| self.failed("when", when, problem))?
        {
            return Ok(None);
        }
        let mut fields = object.as_object().cloned().unwrap_or_default();
        for (number, (path, program)) in self.convert.iter().enumerate() {
            let at = format!("convert[{number}]");
            let value = program
                .value(source.scope())
                .map_err(|problem| self.failed(&format!("{at}.value"), program, problem))?;
            apply(path, value, &mut fields).map_err(|problem| self.error(&format!("{at}.path"), problem))?;
        }
        for field in ["labels", "annotations"] {
            let entries = fields
                .get("metadata")
                .map_or_else(|| Ok(Map::new()), |all| metadata::entries(Some(all), field));
            let before = entries.map_err(|problem| self.error("convert", problem))?;
            let after = metadata::rewrite_keys(before.clone(), &self.rewrite_keys)
                .map_err(|problem| self.error("rewriteKeys", problem))?;
            if before != after
                && let Some(all) = fields.get_mut("metadata").and_then(Value::as_object_mut)
            {
                all.insert(field.to_owned(), Value::Object(after));
            }
        }
        let rewritten = Value::Object(fields);
        Ok((rewritten != *object).then_some(rewritten))
    }

    fn error(&self, field: &str, problem: impl Into<String>) -> ConvertError {
        ConvertError::new(
            None,
            format!("references.rewrite[{}].{field}", self.index),
            problem,
        )
    }

    fn failed(&self, field: &str, program: &Program, problem: String) -> ConvertError {
        self.error(field, problem).in_expression(program.source())
    }
}
