//! What an expression gives, where its text alone tells: most expressions depend on the object, and nothing is said of them.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};

/// The type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultType {
    /// A string.
    Text,
    /// A whole number.
    Integer,
    /// Any other number.
    Double,
    /// True or false.
    Bool,
    /// A list.
    List,
    /// A map.
    Map,
}

/// Functions that give one type, whatever they are called with.
const FUNCTIONS: &[(&str, ResultType)] = &[
    ("bool", ResultType::Bool),
    ("charAt", ResultType::Text),
    ("contains", ResultType::Bool),
    ("double", ResultType::Double),
    ("endsWith", ResultType::Bool),
    ("format", ResultType::Text),
    ("hasValue", ResultType::Bool),
    ("indexOf", ResultType::Integer),
    ("int", ResultType::Integer),
    ("join", ResultType::Text),
    ("lastIndexOf", ResultType::Integer),
    ("lowerAscii", ResultType::Text),
    ("matches", ResultType::Bool),
    ("merge", ResultType::Map),
    ("replace", ResultType::Text),
    ("size", ResultType::Integer),
    ("split", ResultType::List),
    ("startsWith", ResultType::Bool),
    ("string", ResultType::Text),
    ("substring", ResultType::Text),
    ("trim", ResultType::Text),
    ("uint", ResultType::Integer),
    ("upperAscii", ResultType::Text),
    ("without", ResultType::Map),
];

/// The type that the tree gives, unless it fails. `None`: that depends on the object, or it may be absent or null.
pub(super) fn result(tree: &IdedExpr) -> Option<ResultType> {
    match &tree.expr {
        Expr::Literal(literal) => match literal {
            LiteralValue::String(_) => Some(ResultType::Text),
            LiteralValue::Int(_) | LiteralValue::UInt(_) => Some(ResultType::Integer),
            LiteralValue::Double(_) => Some(ResultType::Double),
            LiteralValue::Boolean(_) => Some(ResultType::Bool),
            LiteralValue::Bytes(_) | LiteralValue::Null => None,
        },
        Expr::List(_) => Some(ResultType::List),
        Expr::Map(_) => Some(ResultType::Map),
        Expr::Select(select) => select.test.then_some(ResultType::Bool),
        Expr::Call(call) => of_call(call),
        Expr::Comprehension(_) | Expr::Ident(_) | Expr::Struct(_) | Expr::Unspecified => None,
    }
}

fn of_call(call: &CallExpr) -> Option<ResultType> {
    // Each part is looked at once: to do it twice would double the work at every level of a chain.
    let parts = |from: usize| call.args.iter().skip(from).map(result);
    match call.func_name.as_str() {
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::LOGICAL_NOT
        | operators::IN => Some(ResultType::Bool),
        operators::CONDITIONAL => common(parts(1)),
        // A text can be added to a text only, and a list to a list: otherwise it fails.
        operators::ADD => {
            let alike = |type_: &ResultType| matches!(type_, ResultType::Text | ResultType::List);
            let parts: Vec<Option<ResultType>> = parts(0).collect();
            let one = parts.iter().copied().flatten().find(alike);
            one.or_else(|| common(parts.into_iter()))
        }
        operators::LOGICAL_AND | operators::LOGICAL_OR => {
            common(parts(0)).filter(|type_| *type_ == ResultType::Bool)
        }
        operators::SUBSTRACT
        | operators::MULTIPLY
        | operators::DIVIDE
        | operators::MODULO
        | operators::NEGATE => common(parts(0)),
        name => FUNCTIONS
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, type_)| *type_),
    }
}

/// The type that all of them have.
fn common(mut parts: impl Iterator<Item = Option<ResultType>>) -> Option<ResultType> {
    let first = parts.next()??;
    parts.all(|part| part == Some(first)).then_some(first)
}
