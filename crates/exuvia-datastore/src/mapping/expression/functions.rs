//! The functions of an expression that are ours: three that people call, and those that the charged tree calls.
#![allow(
    clippy::needless_pass_by_value,
    reason = "the signature is that of a function of CEL"
)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use cel::common::ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue};
use cel::common::types::{
    CelBytes, CelInt, CelList, CelMap, CelMapKey, CelOptional, CelString, DYN_TYPE, INT_TYPE, LIST_TYPE,
    MAP_TYPE, STRING_TYPE,
};
use cel::common::value::{CowVal, Val};
use cel::parser::Macro;
use cel::{DeclarationError, Env, ExecutionError, extensions};
use serde_json::Value;

use super::budget::{self, failure, spend, spend_copy, spend_new_text, spend_nodes, spend_text};
use super::text;
use super::values;

/// Charges a copy of a value, and gives the value back.
pub(super) const COPY: &str = "@copy";
/// Charges the reading of a text, and gives it back.
pub(super) const READ: &str = "@read";
/// Charges the search through a list, and gives it back.
pub(super) const SEARCH: &str = "@search";
/// Charges a comprehension, and gives what it goes through in a fixed order.
pub(super) const RANGE: &str = "@range";
/// `+`, charged.
pub(super) const ADD: &str = "@add";
/// `a.?b.?c` in one go, so that only the end is copied.
pub(super) const OPTIONAL_PATH: &str = "@optionalPath";
/// Charges the arguments of `format`, and gives them back.
pub(super) const FORMAT_ARGUMENTS: &str = "@formatArguments";

/// What every expression is parsed and evaluated with. It holds no state.
pub(super) static ENV: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(environment().expect("our functions are declared once")));

pub(super) type Args<'b, 'v> = Vec<CowVal<'b, 'v>>;
pub(super) type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

fn environment() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::encoders)?;
    env.add_macro(Macro::receiver("bind", 3, |helper, target, args| {
        if !matches!(target.as_ref().map(|target| &target.expr), Some(Expr::Ident(name)) if name == "cel") {
            return Ok(None);
        }
        let Expr::Ident(variable) = &args[0].expr else {
            return Err(helper.new_error(args[0].id, "the first argument of cel.bind must be a name"));
        };
        let variable = variable.clone();
        let result = args.pop().unwrap_or_default();
        let bound = args.pop().unwrap_or_default();
        // As optMap does it: a loop over nothing, whose accumulator is the variable.
        let iter_range = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
        let loop_cond = helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into())));
        let loop_step = helper.next_expr(Expr::Ident(variable.clone()));
        Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(
            ComprehensionExpr {
                iter_range,
                iter_var: "#unused".to_owned(),
                iter_var2: None,
                accu_var: variable,
                accu_init: bound,
                loop_cond,
                loop_step,
                result,
            },
        )))))
    }))?;
    env.add_overload("json", "json_string", vec![STRING_TYPE], json)?;
    env.add_overload("merge", "merge_map_map", vec![MAP_TYPE, MAP_TYPE], merge)?;
    env.add_overload("without", "without_map_list", vec![MAP_TYPE, LIST_TYPE], without)?;
    env.add_overload(COPY, COPY, vec![DYN_TYPE], copy)?;
    env.add_overload(READ, READ, vec![DYN_TYPE], read)?;
    env.add_overload(SEARCH, SEARCH, vec![DYN_TYPE], search)?;
    env.add_overload(RANGE, RANGE, vec![DYN_TYPE, INT_TYPE], range)?;
    env.add_overload(ADD, ADD, vec![DYN_TYPE, DYN_TYPE], add)?;
    env.add_overload(
        OPTIONAL_PATH,
        OPTIONAL_PATH,
        vec![DYN_TYPE, LIST_TYPE],
        optional_path,
    )?;
    env.add_overload(
        FORMAT_ARGUMENTS,
        FORMAT_ARGUMENTS,
        vec![DYN_TYPE],
        format_arguments,
    )?;
    text::declare(&mut env)?;
    Ok(env)
}

fn first<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    args.into_iter()
        .next()
        .ok_or_else(|| ExecutionError::invalid_argument_count(1, 0))
}

/// A call with arguments of types that the function does not know.
pub(super) fn no_overload(function: &str, args: &Args<'_, '_>) -> ExecutionError {
    let types = args.iter().map(|arg| arg.get_type().name().to_owned()).collect();
    ExecutionError::no_such_overload(function, types)
}

fn copy<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let value = first(args)?;
    spend_copy(value.as_ref())?;
    Ok(value)
}

fn read<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let value = first(args)?;
    let bytes = if let Some(text) = value.downcast_ref::<CelString>() {
        text.inner().len()
    } else {
        value
            .downcast_ref::<CelBytes>()
            .map_or(0, |bytes| bytes.inner().len())
    };
    spend_text(bytes)?;
    Ok(value)
}

fn search<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let value = first(args)?;
    if value.downcast_ref::<CelMap>().is_some() {
        spend(1)?;
    } else {
        spend_copy(value.as_ref())?;
    }
    Ok(value)
}

/// Every element is copied into the variable, and the body is evaluated for it. A map's keys come in a fixed order: in the
/// crate's, two evaluations of one expression could differ.
fn range<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let per_item = args
        .get(1)
        .and_then(|n| n.downcast_ref::<CelInt>())
        .map_or(1, |n| n.inner().unsigned_abs());
    let value = first(args)?;
    if let Some(list) = value.downcast_ref::<CelList>() {
        spend((list.inner().len() as u64).saturating_mul(per_item))?;
        spend_copy(value.as_ref())?;
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        spend((map.inner().len() as u64).saturating_mul(per_item))?;
        spend_nodes(map.inner().len())?;
        let mut keys: Vec<&CelMapKey<'v>> = map.inner().keys().collect();
        keys.sort_unstable();
        let keys: Vec<Box<dyn Val + 'v>> = keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect();
        return Ok(CowVal::owned(CelList::from(keys)));
    }
    Ok(value)
}

fn add<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let [left, right] = args.as_slice() else {
        return Err(no_overload("_+_", &args));
    };
    if let (Some(a), Some(b)) = (
        left.downcast_ref::<CelString>(),
        right.downcast_ref::<CelString>(),
    ) {
        spend_new_text(a.inner().len() + b.inner().len())?;
    } else if let (Some(a), Some(b)) = (left.downcast_ref::<CelBytes>(), right.downcast_ref::<CelBytes>()) {
        spend_new_text(a.inner().len() + b.inner().len())?;
    } else if left.downcast_ref::<CelList>().is_some() {
        // The crate would take any iterable on the right, and a map's keys come in no order.
        if right.downcast_ref::<CelList>().is_none() {
            return Err(no_overload("_+_", &args));
        }
        spend_copy(left.as_ref())?;
        spend_copy(right.as_ref())?;
    } else {
        spend(1)?;
    }
    let adder = left.as_adder().ok_or_else(|| no_overload("_+_", &args))?;
    Ok(CowVal::Owned(adder.add(right.as_ref())?.into_owned()))
}

fn optional_path<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let none = || Ok(CowVal::owned(CelOptional::none()));
    let [operand, fields] = args.as_slice() else {
        return Err(no_overload("_?._", &args));
    };
    let Some(fields) = fields.downcast_ref::<CelList>() else {
        return Err(no_overload("_?._", &args));
    };
    let mut current: &(dyn Val + 'v) = operand.as_ref();
    if let Some(optional) = current.downcast_ref::<CelOptional>() {
        match optional.option() {
            Some(inner) => current = inner,
            None => return none(),
        }
    }
    for field in fields.inner() {
        let Some(Ok(CowVal::Borrowed(value))) = current.as_indexer().map(|map| map.get(field.as_ref()))
        else {
            return none();
        };
        current = value;
    }
    spend_copy(current)?;
    Ok(CowVal::owned(CelOptional::of(current.clone_as_boxed())))
}

fn format_arguments<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let value = first(args)?;
    spend_new_text(budget::formatted_len(value.as_ref()))?;
    Ok(value)
}

fn json<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let Some(text) = args.first().and_then(|arg| arg.downcast_ref::<CelString>()) else {
        return Err(no_overload("json", &args));
    };
    spend_new_text(text.inner().len())?;
    // serde_json's message would quote the text.
    let value: Value = serde_json::from_str(text.inner())
        .map_err(|_| failure("the argument of json() is not valid JSON"))?;
    spend_nodes(values::count(&value))?;
    Ok(CowVal::Owned(values::into_cel(value)))
}

/// A copy of what is in a map.
fn entries<'v>(map: &CelMap<'v>) -> HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> {
    map.inner()
        .iter()
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn merge<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let [base, over] = args.as_slice() else {
        return Err(no_overload("merge", &args));
    };
    spend_copy(base.as_ref())?;
    spend_copy(over.as_ref())?;
    let (Some(base), Some(over)) = (base.downcast_ref::<CelMap>(), over.downcast_ref::<CelMap>()) else {
        return Err(no_overload("merge", &args));
    };
    let mut merged = entries(base);
    merged.extend(entries(over));
    Ok(CowVal::owned(CelMap::from(merged)))
}

fn without<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let [map, keys] = args.as_slice() else {
        return Err(no_overload("without", &args));
    };
    spend_copy(map.as_ref())?;
    spend_copy(keys.as_ref())?;
    let (Some(map), Some(keys)) = (map.downcast_ref::<CelMap>(), keys.downcast_ref::<CelList>()) else {
        return Err(no_overload("without", &args));
    };
    let mut left_out = HashSet::new();
    for key in keys.inner() {
        let Some(key) = key.downcast_ref::<CelString>() else {
            return Err(failure("without() expects a list of strings"));
        };
        left_out.insert(key.inner());
    }
    let mut rest = entries(map);
    rest.retain(|key, _| !matches!(key, CelMapKey::String(key) if left_out.contains(key.inner())));
    Ok(CowVal::owned(CelMap::from(rest)))
}

/// A call in the tree.
pub(super) fn call(id: u64, function: &str, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr {
        id,
        expr: Expr::Call(cel::common::ast::CallExpr {
            func_name: function.to_owned(),
            target: None,
            args,
        }),
    }
}
