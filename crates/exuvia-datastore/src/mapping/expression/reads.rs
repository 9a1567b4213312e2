//! Which fields of the object an expression reads, as far as its text tells: variables of loops and computed names do not.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, SourceInfo, operators};

use super::place;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// A field, or a key that is written out.
    Field(String),
    /// Some element of a list, or some value of a map.
    Item,
}

/// A field of the object that an expression reads, from the object downwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRead {
    /// The path.
    pub path: Vec<ReadStep>,
    /// From this step on the expression goes on without it if it is missing (`.?field`).
    pub optional_from: Option<usize>,
    /// Line and column of the path in the expression, from 1.
    pub position: Option<(usize, usize)>,
}

/// What the tree reads of the variable `object`. Paths that are tested by `has()` or `in` somewhere are left out: whether they are
/// there is the expression's own matter.
pub(super) fn reads(tree: &IdedExpr, places: &SourceInfo) -> Vec<FieldRead> {
    let mut found = Found {
        places,
        reads: Vec::new(),
        tested: Vec::new(),
    };
    found.visit(tree);
    let tested = found.tested;
    let mut reads = found.reads;
    reads.retain(|read| !tested.iter().any(|path| read.path.starts_with(path)));
    reads.dedup();
    reads
}

struct Found<'a> {
    places: &'a SourceInfo,
    reads: Vec<FieldRead>,
    tested: Vec<Vec<ReadStep>>,
}

impl Found<'_> {
    fn visit(&mut self, node: &IdedExpr) {
        if let Some(read) = self.chain(node) {
            if !read.path.is_empty() {
                self.reads.push(read);
            }
            return;
        }
        match &node.expr {
            Expr::Select(select) => {
                if select.test
                    && let Some(read) = self.chain(&select.operand)
                {
                    let field = ReadStep::Field(select.field.clone());
                    self.tested.push(read.path.into_iter().chain([field]).collect());
                }
                self.visit(&select.operand);
            }
            Expr::Call(call) => {
                if call.func_name == operators::IN
                    && let [key, within] = call.args.as_slice()
                    && let (Some(key), Some(read)) = (text(key), self.chain(within))
                {
                    self.tested
                        .push(read.path.into_iter().chain([ReadStep::Field(key)]).collect());
                }
                for part in call.target.iter().map(AsRef::as_ref).chain(&call.args) {
                    self.visit(part);
                }
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            self.visit(&entry.key);
                            self.visit(&entry.value);
                        }
                        EntryExpr::StructField(field) => self.visit(&field.value),
                    }
                }
            }
            Expr::Comprehension(body) => {
                for part in [
                    &body.iter_range,
                    &body.accu_init,
                    &body.loop_cond,
                    &body.loop_step,
                    &body.result,
                ] {
                    self.visit(part);
                }
            }
            Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified => {}
        }
    }

    /// The path, if the node is one that begins at the object. What indexes compute is visited on the way.
    fn chain(&mut self, node: &IdedExpr) -> Option<FieldRead> {
        let (operand, step, is_optional) = match &node.expr {
            Expr::Ident(name) if name == "object" => {
                return Some(FieldRead {
                    path: Vec::new(),
                    optional_from: None,
                    position: place(self.places, node.id),
                });
            }
            Expr::Select(select) if !select.test => {
                (&*select.operand, ReadStep::Field(select.field.clone()), false)
            }
            Expr::Call(call) => {
                let [operand, key] = call.args.as_slice() else {
                    return None;
                };
                let is_optional = match call.func_name.as_str() {
                    operators::INDEX => false,
                    operators::OPT_INDEX | operators::OPT_SELECT => true,
                    _ => return None,
                };
                let step = text(key).map_or(ReadStep::Item, ReadStep::Field);
                (operand, step, is_optional)
            }
            _ => return None,
        };
        let mut read = self.chain(operand)?;
        if let Expr::Call(call) = &node.expr
            && step == ReadStep::Item
            && let Some(index) = call.args.last()
        {
            self.visit(index);
        }
        if is_optional && read.optional_from.is_none() {
            read.optional_from = Some(read.path.len());
        }
        read.path.push(step);
        Some(read)
    }
}

fn text(node: &IdedExpr) -> Option<String> {
    match &node.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
        _ => None,
    }
}
