//! Why an evaluation failed, in words without values: the crate's errors quote the values they met, which may be secret.

use cel::ExecutionError;
use exuvia_api::counted;

use super::budget::OURS;

/// What can be said of an error. Names are shown only if they are in the expression itself.
pub(super) fn describe(error: &ExecutionError, source: &str) -> String {
    match error {
        ExecutionError::FunctionError { function, message } if function == OURS => message.clone(),
        ExecutionError::FunctionError { function, message }
            if function == "value" && message.contains("none()") =>
        {
            "value() was called on an absent optional: use orValue()".to_owned()
        }
        ExecutionError::FunctionError { function, .. } => format!("the function {function} failed"),
        ExecutionError::NoSuchKey(key) if !key.is_empty() && source.contains(key.as_str()) => {
            format!("the object has no \"{key}\" here: use has(), or .?{key}")
        }
        ExecutionError::NoSuchKey(_) => "a map has no such key: use `in`, or [?key]".to_owned(),
        ExecutionError::NoSuchOverload(overload) => format!(
            "{} cannot be applied to ({})",
            shown_name(overload.function()),
            overload.argument_types().join(", ")
        ),
        ExecutionError::UnexpectedType { got, want } if is_type(got) => {
            format!("the type is {got}, not {want}")
        }
        ExecutionError::UnexpectedType { want, .. } => format!("the type is not {want}"),
        ExecutionError::UnsupportedBinaryOperator(operator, ..) => {
            format!("the operator {operator} cannot be applied to these types")
        }
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "division by zero".to_owned()
        }
        ExecutionError::Overflow(..) => "the number is too large".to_owned(),
        ExecutionError::IndexOutOfBounds(_) => {
            "the list has no element with this index: use [?index]".to_owned()
        }
        ExecutionError::DuplicateKey(_) => "a map has the same key twice".to_owned(),
        ExecutionError::UnsupportedKeyType(_) => "a value of this type cannot be the key of a map".to_owned(),
        ExecutionError::ValuesNotComparable(..) => "values of these types cannot be compared".to_owned(),
        ExecutionError::InvalidArgumentCount { expected, actual } => {
            format!("expected {}, not {actual}", counted(*expected as u64, "argument"))
        }
        _ => "the evaluation failed".to_owned(),
    }
}

fn is_type(name: &str) -> bool {
    [
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
    ]
    .contains(&name)
}

/// An operator as people write it.
fn shown_name(function: &str) -> String {
    match function {
        "_[_]" | "_[?_]" => "[]".to_owned(),
        "_._" | "_?._" => "a selection".to_owned(),
        "@in" => "in".to_owned(),
        name => name.trim_matches(['_', '@']).to_owned(),
    }
}
