//! Which names an expression may use: what is unknown is said when it is compiled, not when the first object comes.

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use exuvia_api::counted;
use exuvia_usage::nearest;

use super::text;

/// How deep the tree may be.
pub(super) const MAX_DEPTH: usize = 64;

/// What is wrong at one node of the tree.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) node: u64,
    pub(super) text: String,
}

/// How a function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// `size(x)`, or `optional.of(x)`.
    Global,
    /// `x.size()`.
    Member,
}

use Style::{Global, Member};

/// Every function: its name, how it is called, and with how many arguments.
const FUNCTIONS: &[(&str, Style, usize, usize)] = &[
    ("base64.decode", Global, 1, 1),
    ("base64.encode", Global, 1, 1),
    ("bool", Global, 1, 1),
    ("bytes", Global, 1, 1),
    ("charAt", Member, 1, 1),
    ("contains", Member, 1, 1),
    ("double", Global, 1, 1),
    ("dyn", Global, 1, 1),
    ("endsWith", Member, 1, 1),
    ("format", Member, 1, 1),
    ("hasValue", Member, 0, 0),
    ("indexOf", Member, 1, 2),
    ("int", Global, 1, 1),
    ("join", Member, 0, 1),
    ("json", Global, 1, 1),
    ("lastIndexOf", Member, 1, 2),
    ("lowerAscii", Member, 0, 0),
    ("matches", Global, 2, 2),
    ("matches", Member, 1, 1),
    ("merge", Global, 2, 2),
    ("optional.none", Global, 0, 0),
    ("optional.of", Global, 1, 1),
    ("optional.ofNonZeroValue", Global, 1, 1),
    ("or", Member, 1, 1),
    ("orValue", Member, 1, 1),
    ("replace", Member, 2, 3),
    ("reverse", Member, 0, 0),
    ("size", Global, 1, 1),
    ("size", Member, 0, 0),
    ("split", Member, 1, 2),
    ("startsWith", Member, 1, 1),
    ("string", Global, 1, 1),
    ("strings.quote", Global, 1, 1),
    ("substring", Member, 1, 2),
    ("trim", Member, 0, 0),
    ("type", Global, 1, 1),
    ("uint", Global, 1, 1),
    ("upperAscii", Member, 0, 0),
    ("value", Member, 0, 0),
    ("without", Global, 2, 2),
];

/// What looks like a function but is expanded by the parser: here only to find what was meant.
const MACROS: &[&str] = &[
    "all",
    "cel.bind",
    "exists",
    "exists_one",
    "filter",
    "has",
    "map",
    "optFlatMap",
    "optMap",
];

/// The names of types, as in `type(x) == string`.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// The words before the dot of a function's name.
pub(super) const NAMESPACES: &[&str] = &["base64", "optional", "strings"];

const OPERATORS: &[&str] = &[
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::SUBSTRACT,
    operators::ADD,
    operators::MULTIPLY,
    operators::DIVIDE,
    operators::MODULO,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::GREATER_EQUALS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::LESS,
    operators::NEGATE,
    operators::INDEX,
    operators::OPT_INDEX,
    operators::OPT_SELECT,
    operators::NOT_STRICTLY_FALSE,
    operators::IN,
];

/// Finds the first thing that is wrong with the tree: a name, a number of arguments, a pattern, or its depth.
pub(super) fn check(tree: &IdedExpr, variables: &[&str]) -> Result<(), Problem> {
    Check {
        variables,
        bound: Vec::new(),
    }
    .visit(tree, 1)
}

/// The namespace, if the target of a call is one.
pub(super) fn namespace(call: &CallExpr) -> Option<&str> {
    match call.target.as_ref().map(|target| &target.expr) {
        Some(Expr::Ident(name)) if NAMESPACES.contains(&name.as_str()) => Some(name),
        _ => None,
    }
}

struct Check<'a> {
    variables: &'a [&'a str],
    bound: Vec<&'a str>,
}

impl<'a> Check<'a> {
    fn visit(&mut self, node: &'a IdedExpr, depth: usize) -> Result<(), Problem> {
        let problem = |text: String| Err(Problem { node: node.id, text });
        if depth > MAX_DEPTH {
            return problem(format!(
                "the expression is more than {MAX_DEPTH} deep: split it, or use cel.bind"
            ));
        }
        match &node.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.ident(node.id, name),
            Expr::Select(select) => self.visit(&select.operand, depth + 1),
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|element| self.visit(element, depth + 1)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.visit(&entry.key, depth + 1)?;
                    self.visit(&entry.value, depth + 1)
                }
                EntryExpr::StructField(field) => self.visit(&field.value, depth + 1),
            }),
            Expr::Struct(literal) => problem(format!(
                "unknown type \"{}\": expected a map, such as {{'field': value}}",
                literal.type_name
            )),
            Expr::Comprehension(comprehension) => self.comprehension(node.id, comprehension, depth),
            Expr::Call(call) => self.call(node.id, call, depth),
            Expr::Unspecified => problem("the expression is not complete".to_owned()),
        }
    }

    fn ident(&self, node: u64, name: &str) -> Result<(), Problem> {
        let known = self.variables.contains(&name) || self.bound.contains(&name) || TYPES.contains(&name);
        // The parser's own variables cannot be written.
        if known || name.starts_with('@') {
            return Ok(());
        }
        let mut expected = self.variables.join(", ");
        if let Some(near) = nearest(name, self.bound.iter().chain(self.variables).copied()).first() {
            expected = format!("{expected} (did you mean {near}?)");
        }
        Err(Problem {
            node,
            text: format!("unknown variable \"{name}\": expected {expected}"),
        })
    }

    fn comprehension(
        &mut self,
        node: u64,
        loop_: &'a ComprehensionExpr,
        depth: usize,
    ) -> Result<(), Problem> {
        self.visit(&loop_.iter_range, depth + 1)?;
        self.visit(&loop_.accu_init, depth + 1)?;
        let names = [
            Some(loop_.iter_var.as_str()),
            loop_.iter_var2.as_deref(),
            Some(loop_.accu_var.as_str()),
        ];
        let before = self.bound.len();
        for name in names
            .into_iter()
            .flatten()
            .filter(|name| !name.starts_with(['@', '#']))
        {
            if self.variables.contains(&name)
                || NAMESPACES.contains(&name)
                || TYPES.contains(&name)
                || name == "cel"
            {
                let text =
                    format!("the variable \"{name}\" would hide what {name} means: choose another name");
                return Err(Problem { node, text });
            }
            self.bound.push(name);
        }
        for part in [&loop_.loop_cond, &loop_.loop_step, &loop_.result] {
            self.visit(part, depth + 1)?;
        }
        self.bound.truncate(before);
        Ok(())
    }

    fn call(&mut self, node: u64, call: &'a CallExpr, depth: usize) -> Result<(), Problem> {
        let namespace = namespace(call);
        if !OPERATORS.contains(&call.func_name.as_str()) {
            known_function(node, call, namespace)?;
        }
        if namespace.is_none()
            && let Some(target) = &call.target
        {
            self.visit(target, depth + 1)?;
        }
        call.args.iter().try_for_each(|arg| self.visit(arg, depth + 1))
    }
}

fn known_function(node: u64, call: &CallExpr, namespace: Option<&str>) -> Result<(), Problem> {
    let problem = |text: String| Err(Problem { node, text });
    let (name, style) = match (namespace, &call.target) {
        (Some(namespace), _) => (format!("{namespace}.{}", call.func_name), Global),
        (None, None) => (call.func_name.clone(), Global),
        (None, Some(_)) => (call.func_name.clone(), Member),
    };
    let same_name: Vec<_> = FUNCTIONS.iter().filter(|function| function.0 == name).collect();
    let Some((_, _, least, most)) = same_name.iter().find(|function| function.1 == style).copied() else {
        if let Some((_, Member, ..)) = same_name.first() {
            return problem(format!("{name} is called on a value: expected x.{name}()"));
        }
        if let Some((_, Global, ..)) = same_name.first() {
            return problem(format!("{name} is not called on a value: expected {name}(x)"));
        }
        let all = FUNCTIONS
            .iter()
            .map(|function| function.0)
            .chain(MACROS.iter().copied());
        let expected = match nearest(&name, all).first() {
            Some(near) => format!("did you mean {near}?"),
            None => {
                "expected one of CEL's standard functions, of its string extension, json, merge or without"
                    .to_owned()
            }
        };
        return problem(format!("unknown function \"{name}\": {expected}"));
    };
    let given = call.args.len();
    if given < *least || given > *most {
        let expected = if least == most {
            counted(*least as u64, "argument")
        } else {
            format!("{least} or {most} arguments")
        };
        return problem(format!("{name} takes {expected}, not {given}"));
    }
    if name == "matches"
        && let Some(Expr::Literal(LiteralValue::String(source))) = call.args.last().map(|arg| &arg.expr)
        && let Err(error) = text::pattern(source.inner())
    {
        // Its text has a drawing of where it is; the last line says what.
        let text = error.to_string();
        let reason = text
            .lines()
            .last()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        return problem(format!("invalid regular expression: {reason}"));
    }
    Ok(())
}
