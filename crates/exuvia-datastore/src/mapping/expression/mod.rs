//! CEL: expressions are checked when they are compiled, and bounded when they are evaluated.

mod budget;
mod charge;
mod failure;
mod functions;
mod names;
mod reads;
mod result;
mod scan;
mod text;
mod values;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use cel::common::ast::{IdedExpr, SourceInfo};
use cel::common::types::CelBool;
use cel::common::value::CowVal;
use cel::{Context, ParseErrors};
use serde_json::Value;

pub use self::reads::{FieldRead, ReadStep};
pub use self::result::ResultType;

/// How long an expression may be, in bytes.
pub(crate) const MAX_EXPRESSION_BYTES: usize = 8192;

/// How much of the parser's words is shown.
const MAX_REASON_CHARACTERS: usize = 160;

/// What is wrong with an expression, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    /// Line and column, from 1.
    pub(super) position: Option<(usize, usize)>,
    pub(super) problem: String,
}

/// A compiled expression.
#[derive(Debug)]
pub(super) struct Program {
    source: String,
    tree: IdedExpr,
    reads: Vec<FieldRead>,
    result: Option<ResultType>,
}

/// What expressions see: the object, and perhaps more.
pub(super) struct Scope<'p, 'v>(Context<'p, 'v>);

impl<'v> Scope<'_, 'v> {
    /// With the variable `object`.
    pub(super) fn new(object: &'v Value) -> Scope<'v, 'v> {
        let mut context = Context::with_env(Arc::clone(&functions::ENV));
        context.add_variable_as_val("object", values::to_cel(object));
        Scope(context)
    }

    /// The same with one more variable.
    pub(super) fn with<'b>(&'b self, name: &str, value: &'b Value) -> Scope<'b, 'b> {
        let outer: &'b Context<'b, 'b> = &self.0;
        let mut inner = outer.new_inner_scope();
        inner.add_variable_as_val(name, values::to_cel(value));
        Scope(inner)
    }
}

impl Program {
    /// Parses and checks. It must be called on a thread of the pool: the parser is recursive.
    pub(super) fn compile(source: &str, variables: &[&str]) -> Result<Self, Rejected> {
        if source.len() > MAX_EXPRESSION_BYTES {
            let problem = format!(
                "the expression has {} bytes: expected at most {MAX_EXPRESSION_BYTES}",
                source.len()
            );
            return Err(Rejected {
                position: None,
                problem,
            });
        }
        scan::scan(source).map_err(|deep| Rejected {
            position: Some(position(source, deep.offset)),
            problem: deep.problem,
        })?;
        let parser = functions::ENV
            .parser()
            .max_recursion_depth(u16::try_from(scan::MAX_NESTING).unwrap_or(u16::MAX));
        let (tree, places) = parser
            .parse_with_source_info(source)
            .map_err(|errors| syntax(&errors))?;
        names::check(&tree, variables).map_err(|problem| Rejected {
            position: place(&places, problem.node),
            problem: problem.text,
        })?;
        Ok(Self {
            source: source.to_owned(),
            reads: reads::reads(&tree, &places),
            result: result::result(&tree),
            tree: charge::charged(tree),
        })
    }

    /// The text that was compiled.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The fields of the object that it reads.
    pub(super) fn reads(&self) -> &[FieldRead] {
        &self.reads
    }

    /// The type of what it gives, where the text alone tells.
    pub(super) fn result(&self) -> Option<ResultType> {
        self.result
    }

    /// Evaluates to JSON; `None` is `optional.none()`. It must be called on a thread of the pool.
    pub(super) fn value(&self, scope: &Scope<'_, '_>) -> Result<Option<Value>, String> {
        self.evaluate(scope, |result| values::to_json(result.as_ref()))
    }

    /// Evaluates to a text; `None` is `optional.none()`.
    pub(super) fn text(&self, scope: &Scope<'_, '_>) -> Result<Option<String>, String> {
        match self.value(scope)? {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err("the result is not a string".to_owned()),
        }
    }

    /// Evaluates to true or false.
    pub(super) fn is_true(&self, scope: &Scope<'_, '_>) -> Result<bool, String> {
        self.evaluate(scope, |result| {
            result
                .downcast_ref::<CelBool>()
                .map(|boolean| *boolean.inner())
                .ok_or_else(|| {
                    format!(
                        "the result is of type {}: expected bool",
                        result.get_type().name()
                    )
                })
        })
    }

    fn evaluate<T>(
        &self,
        scope: &Scope<'_, '_>,
        read: impl FnOnce(CowVal<'_, '_>) -> Result<T, String>,
    ) -> Result<T, String> {
        budget::start();
        text::forget_patterns();
        let result = cel::Value::resolve_val(&self.tree, &scope.0);
        if budget::exceeded() {
            return Err(format!(
                "the evaluation costs more than {} units, or makes a text of more than {} bytes",
                budget::MAX_COST,
                budget::MAX_BYTES
            ));
        }
        result
            .map_err(|error| failure::describe(&error, &self.source))
            .and_then(read)
    }
}

/// The first error of the parser, in one line.
fn syntax(errors: &ParseErrors) -> Rejected {
    let Some(first) = errors.errors.first() else {
        return Rejected {
            position: None,
            problem: "invalid expression".to_owned(),
        };
    };
    let position = match (usize::try_from(first.pos.0), usize::try_from(first.pos.1)) {
        (Ok(line), Ok(column)) if line > 0 && column > 0 => Some((line, column)),
        _ => None,
    };
    let reason = first.msg.lines().next().unwrap_or_default();
    let reason = reason.trim_start_matches("Syntax error: ");
    // What follows are all tokens of the grammar, or the rest of the expression.
    let reason = reason.split(" expecting {").next().unwrap_or_default();
    let reason: String = reason.chars().take(MAX_REASON_CHARACTERS).collect();
    if is_assignment(&reason) {
        return Rejected {
            position,
            problem: "invalid expression: a comparison is written ==, not =".to_owned(),
        };
    }
    let problem = match reason.as_str() {
        "" | "UNKNOWN" => "invalid expression: the parser gave up".to_owned(),
        reason => format!("invalid expression: {reason}"),
    };
    Rejected { position, problem }
}

/// Whether the parser stumbled over a single `=`: CEL has no assignment.
fn is_assignment(reason: &str) -> bool {
    ["'='", "'= '", "\"=\""].iter().any(|sign| reason.contains(sign))
}

/// Where a node begins.
fn place(places: &SourceInfo, node: u64) -> Option<(usize, usize)> {
    let (start, _) = places.offset_for(node)?;
    Some(position(&places.source, start as usize))
}

/// Line and column of a byte, from 1; columns count characters.
fn position(source: &str, byte: usize) -> (usize, usize) {
    let mut end = byte.min(source.len());
    while !source.is_char_boundary(end) {
        end -= 1;
    }
    let before = &source[..end];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}
