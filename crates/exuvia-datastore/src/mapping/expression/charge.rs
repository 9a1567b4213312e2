//! Rewrites the tree of an expression so that whatever costs time or memory is paid for before it is done. The crate has no limit.

use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, IdedExpr, ListExpr, LiteralValue,
    MapEntryExpr, operators,
};

use super::functions::{ADD, COPY, FORMAT_ARGUMENTS, OPTIONAL_PATH, RANGE, READ, SEARCH, call};
use super::names::namespace;
use super::text::REPLACED;

/// Nodes of a loop's body that are evaluated for one unit.
const EVALUATIONS_PER_UNIT: usize = 2;

/// The same expression, which pays for what it does.
pub(super) fn charged(node: IdedExpr) -> IdedExpr {
    let id = node.id;
    let expr = match node.expr {
        Expr::Select(mut select) => {
            *select.operand = charged(*select.operand);
            Expr::Select(select)
        }
        Expr::List(list) => Expr::List(ListExpr {
            elements: list.elements.into_iter().map(copied).collect(),
            optional_indices: list.optional_indices,
        }),
        Expr::Map(mut map) => {
            map.entries = map.entries.into_iter().map(entry).collect();
            Expr::Map(map)
        }
        Expr::Comprehension(comprehension) => Expr::Comprehension(Box::new(charged_loop(*comprehension))),
        Expr::Call(called) => return charged_call(id, called),
        // A struct was refused before.
        other @ (Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified) => other,
    };
    IdedExpr { id, expr }
}

fn entry(entry: IdedEntryExpr) -> IdedEntryExpr {
    let expr = match entry.expr {
        EntryExpr::MapEntry(MapEntryExpr { key, value, optional }) => EntryExpr::MapEntry(MapEntryExpr {
            key: copied(key),
            value: copied(value),
            optional,
        }),
        field @ EntryExpr::StructField(_) => field,
    };
    IdedEntryExpr { id: entry.id, expr }
}

/// For a place that takes a value over: one that is somebody else's is copied there.
fn copied(node: IdedExpr) -> IdedExpr {
    let borrows = may_borrow(&node);
    let node = charged(node);
    if borrows {
        call(node.id, COPY, vec![node])
    } else {
        node
    }
}

/// Whether the value may be part of something else. What operators and functions make is new, and was paid for when it was made.
fn may_borrow(node: &IdedExpr) -> bool {
    match &node.expr {
        Expr::Ident(name) => !name.starts_with('@'),
        Expr::Select(select) => !select.test,
        Expr::Call(call) => {
            matches!(
                call.func_name.as_str(),
                operators::INDEX | operators::CONDITIONAL | "value" | "or" | "orValue" | "dyn" | "string"
            )
        }
        _ => false,
    }
}

fn charged_loop(mut body: ComprehensionExpr) -> ComprehensionExpr {
    let per_item = 2 + (evaluations(&body.loop_cond) + evaluations(&body.loop_step)) / EVALUATIONS_PER_UNIT;
    body.accu_init = copied(body.accu_init);
    // `cel.bind` and `optMap` go through an empty list.
    if !matches!(&body.iter_range.expr, Expr::List(list) if list.elements.is_empty()) {
        let per_item = i64::try_from(per_item).unwrap_or(i64::MAX);
        let per_item = IdedExpr {
            id: 0,
            expr: Expr::Literal(LiteralValue::Int(per_item.into())),
        };
        body.iter_range = call(
            body.iter_range.id,
            RANGE,
            vec![charged(body.iter_range), per_item],
        );
    }
    body.loop_cond = charged(body.loop_cond);
    body.loop_step = charged(body.loop_step);
    body.result = copied(body.result);
    body
}

/// How many nodes are evaluated, at most. What a loop inside evaluates for each of its elements is paid for by itself.
fn evaluations(node: &IdedExpr) -> usize {
    1 + match &node.expr {
        Expr::Select(select) => evaluations(&select.operand),
        Expr::List(list) => list.elements.iter().map(evaluations).sum(),
        Expr::Map(map) => map
            .entries
            .iter()
            .map(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => evaluations(&entry.key) + evaluations(&entry.value),
                EntryExpr::StructField(field) => evaluations(&field.value),
            })
            .sum(),
        Expr::Call(call) => {
            call.args.iter().map(evaluations).sum::<usize>()
                + call.target.as_ref().map_or(0, |target| evaluations(target))
        }
        Expr::Comprehension(inner) => {
            evaluations(&inner.iter_range) + evaluations(&inner.accu_init) + evaluations(&inner.result)
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => 0,
    }
}

fn charged_call(id: u64, mut called: CallExpr) -> IdedExpr {
    match called.func_name.as_str() {
        operators::ADD if !is_accumulator(called.args.first()) => {
            return call(id, ADD, called.args.into_iter().map(charged).collect());
        }
        operators::OPT_SELECT => return optional_path(id, called),
        operators::OPT_INDEX => {
            called.args = called.args.into_iter().map(charged).collect();
            return call(
                id,
                COPY,
                vec![IdedExpr {
                    id,
                    expr: Expr::Call(called),
                }],
            );
        }
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            // A comparison ends where the shorter side does.
            let literal = called.args.iter().any(|arg| matches!(arg.expr, Expr::Literal(_)));
            called.args = called.args.into_iter().map(charged).collect();
            if !literal && let Some(left) = called.args.first_mut() {
                *left = call(left.id, COPY, vec![std::mem::take(left)]);
            }
        }
        operators::IN => {
            called.args = called.args.into_iter().map(charged).collect();
            if let Some(list) = called.args.last_mut() {
                *list = call(list.id, SEARCH, vec![std::mem::take(list)]);
            }
        }
        // `+` of the accumulator stays as it is: only so does the crate append in place.
        _ if is_operator(&called.func_name) => called.args = called.args.into_iter().map(charged).collect(),
        _ => return charged_function(id, called),
    }
    IdedExpr {
        id,
        expr: Expr::Call(called),
    }
}

fn is_operator(name: &str) -> bool {
    name.starts_with(['_', '!', '-', '@'])
}

fn is_accumulator(node: Option<&IdedExpr>) -> bool {
    matches!(node.map(|node| &node.expr), Some(Expr::Ident(name)) if name.starts_with('@'))
}

fn charged_function(id: u64, mut called: CallExpr) -> IdedExpr {
    if let Some((_, ours)) = REPLACED.iter().find(|(name, _)| *name == called.func_name) {
        let all = called.target.into_iter().map(|target| *target).chain(called.args);
        return call(id, ours, all.map(charged).collect());
    }
    let takes_over = namespace(&called) == Some("optional");
    let in_namespace = namespace(&called).is_some();
    let argument: fn(IdedExpr) -> IdedExpr = match called.func_name.as_str() {
        _ if takes_over => copied,
        // They pay for themselves, or only hand on what they are given.
        "json" | "merge" | "without" | "value" | "hasValue" | "or" | "orValue" | "type" | "dyn" => charged,
        "format" => |node| call(node.id, FORMAT_ARGUMENTS, vec![charged(node)]),
        _ => read,
    };
    let target = match called.func_name.as_str() {
        "value" | "hasValue" | "or" | "orValue" => charged,
        _ => read,
    };
    called.args = called.args.into_iter().map(argument).collect();
    if !in_namespace {
        called.target = called.target.map(|node| Box::new(target(*node)));
    }
    IdedExpr {
        id,
        expr: Expr::Call(called),
    }
}

fn read(node: IdedExpr) -> IdedExpr {
    if matches!(node.expr, Expr::Literal(_)) {
        return node;
    }
    let node = charged(node);
    call(node.id, READ, vec![node])
}

/// `a.?b.?c`: each step would copy all of what it finds.
fn optional_path(id: u64, called: CallExpr) -> IdedExpr {
    let mut fields = Vec::new();
    let mut current = IdedExpr {
        id,
        expr: Expr::Call(called),
    };
    let operand = loop {
        match current.expr {
            Expr::Call(mut step) if step.func_name == operators::OPT_SELECT && step.args.len() == 2 => {
                fields.extend(step.args.pop());
                current = step.args.pop().unwrap_or_default();
            }
            expr => break IdedExpr { id: current.id, expr },
        }
    };
    fields.reverse();
    let fields = IdedExpr {
        id,
        expr: Expr::List(ListExpr::new(fields)),
    };
    call(id, OPTIONAL_PATH, vec![charged(operand), fields])
}
