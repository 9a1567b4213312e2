//! The functions over texts whose cost depends on more than the length of one argument.
#![allow(
    clippy::needless_pass_by_value,
    reason = "the signature is that of a function of CEL"
)]

use std::cell::RefCell;
use std::collections::BTreeMap;

use cel::common::types::{CelBool, CelInt, CelList, CelString, INT_TYPE, LIST_TYPE, STRING_TYPE};
use cel::common::value::{CowVal, Val};
use cel::{DeclarationError, Env, ExecutionError};
use regex::{Regex, RegexBuilder};

use super::budget::{failure, spend, spend_new_text, spend_nodes, spend_text};
use super::functions::{Answer, Args, no_overload};

/// The functions that are taken from here instead of from the crate, and the name under which they are.
pub(super) const REPLACED: [(&str, &str); 6] = [
    ("replace", "@replace"),
    ("split", "@split"),
    ("join", "@join"),
    ("indexOf", "@indexOf"),
    ("lastIndexOf", "@lastIndexOf"),
    ("matches", "@matches"),
];

/// What a compiled pattern may take.
const MAX_PATTERN_BYTES: usize = 1 << 18;
/// What compiling one costs: it may take as long as so many other units.
const PATTERN_COST: u64 = 2_000;
/// Patterns that are kept compiled during an evaluation.
const KEPT_PATTERNS: usize = 8;

pub(super) fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    let text = || STRING_TYPE;
    env.add_overload("@replace", "@replace3", vec![text(), text(), text()], replace)?;
    env.add_overload(
        "@replace",
        "@replace4",
        vec![text(), text(), text(), INT_TYPE],
        replace,
    )?;
    env.add_overload("@split", "@split2", vec![text(), text()], split)?;
    env.add_overload("@split", "@split3", vec![text(), text(), INT_TYPE], split)?;
    env.add_overload("@join", "@join1", vec![LIST_TYPE], join)?;
    env.add_overload("@join", "@join2", vec![LIST_TYPE, text()], join)?;
    env.add_overload("@indexOf", "@indexOf2", vec![text(), text()], index_of)?;
    env.add_overload("@indexOf", "@indexOf3", vec![text(), text(), INT_TYPE], index_of)?;
    env.add_overload(
        "@lastIndexOf",
        "@lastIndexOf2",
        vec![text(), text()],
        last_index_of,
    )?;
    env.add_overload(
        "@lastIndexOf",
        "@lastIndexOf3",
        vec![text(), text(), INT_TYPE],
        last_index_of,
    )?;
    env.add_overload("@matches", "@matches2", vec![text(), text()], matches)?;
    Ok(())
}

fn text_at<'a>(args: &'a Args<'_, '_>, at: usize) -> Option<&'a str> {
    args.get(at)?.downcast_ref::<CelString>().map(CelString::inner)
}

fn int_at(args: &Args<'_, '_>, at: usize) -> Option<i64> {
    args.get(at)?.downcast_ref::<CelInt>().map(|int| *int.inner())
}

fn text<'b, 'v>(text: String) -> CowVal<'b, 'v> {
    CowVal::owned(CelString::from(text))
}

fn replace<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (Some(this), Some(from), Some(to)) = (text_at(&args, 0), text_at(&args, 1), text_at(&args, 2)) else {
        return Err(no_overload("replace", &args));
    };
    // A negative number means all of them.
    let most = int_at(&args, 3).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    spend_text(this.len())?;
    let found = this.matches(from).take(most).count();
    spend_new_text(this.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(text(this.replacen(from, to, most)))
}

fn split<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (Some(this), Some(separator)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(no_overload("split", &args));
    };
    let most = int_at(&args, 2).map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
    spend_text(this.len())?;
    let pieces = || -> Box<dyn Iterator<Item = &str>> {
        match (most, separator) {
            (0, _) => Box::new(std::iter::empty()),
            (_, "") => Box::new(characters(this, most)),
            _ => Box::new(this.splitn(most, separator)),
        }
    };
    spend_nodes(pieces().count())?;
    spend_new_text(this.len())?;
    let pieces: Vec<Box<dyn Val + 'v>> = pieces()
        .map(|piece| Box::new(CelString::from(piece.to_owned())) as Box<dyn Val + 'v>)
        .collect();
    Ok(CowVal::owned(CelList::from(pieces)))
}

/// Each character, the last piece being all that is left.
fn characters(text: &str, most: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut given = 0;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        given += 1;
        let width = if given == most {
            rest.len()
        } else {
            first.len_utf8()
        };
        let (piece, after) = rest.split_at(width);
        rest = after;
        Some(piece)
    })
}

fn join<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let Some(list) = args.first().and_then(|list| list.downcast_ref::<CelList>()) else {
        return Err(no_overload("join", &args));
    };
    let separator = text_at(&args, 1).unwrap_or_default();
    spend_nodes(list.inner().len())?;
    let mut pieces = Vec::with_capacity(list.inner().len());
    let mut length: usize = 0;
    for item in list.inner() {
        let piece = item
            .downcast_ref::<CelString>()
            .ok_or_else(|| failure("join() expects a list of strings"))?;
        length = length.saturating_add(piece.inner().len() + separator.len());
        pieces.push(piece.inner());
    }
    spend_new_text(length)?;
    Ok(text(pieces.join(separator)))
}

fn out_of_range(function: &str) -> ExecutionError {
    failure(&format!("the offset of {function}() is outside of the text"))
}

/// Positions count characters, not bytes.
fn index<'b, 'v>(
    args: &Args<'b, 'v>,
    function: &str,
    find: fn(&str, &str, Option<usize>) -> Option<usize>,
) -> Answer<'b, 'v> {
    let (Some(this), Some(needle)) = (text_at(args, 0), text_at(args, 1)) else {
        return Err(no_overload(function, args));
    };
    spend_text(this.len())?;
    let offset = match int_at(args, 2) {
        None => None,
        Some(offset) => {
            let length = this.chars().count();
            let offset = usize::try_from(offset).map_err(|_| out_of_range(function))?;
            if needle.is_empty() {
                let at = i64::try_from(offset.min(length)).unwrap_or(i64::MAX);
                return Ok(CowVal::owned(CelInt::from(at)));
            }
            // The byte at which the character of that number begins.
            let byte = this.char_indices().nth(offset).map(|(byte, _)| byte);
            Some(byte.ok_or_else(|| out_of_range(function))?)
        }
    };
    let at = find(this, needle, offset).map_or(-1, |byte| {
        i64::try_from(this[..byte].chars().count()).unwrap_or(-1)
    });
    Ok(CowVal::owned(CelInt::from(at)))
}

fn index_of<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    index(&args, "indexOf", |this, needle, offset| {
        let offset = offset.unwrap_or_default();
        this[offset..].find(needle).map(|at| at + offset)
    })
}

fn last_index_of<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    index(&args, "lastIndexOf", |this, needle, offset| {
        // What begins at the offset counts too.
        let mut end = offset.map_or(this.len(), |offset| (offset + needle.len()).min(this.len()));
        while !this.is_char_boundary(end) {
            end -= 1;
        }
        this[..end].rfind(needle)
    })
}

thread_local! {
    static PATTERNS: RefCell<BTreeMap<String, Regex>> = const { RefCell::new(BTreeMap::new()) };
}

/// Forgets the patterns of the evaluation before: the cost of one must not depend on what was evaluated earlier.
pub(super) fn forget_patterns() {
    PATTERNS.with_borrow_mut(BTreeMap::clear);
}

/// Compiles a regular expression of bounded size.
pub(super) fn pattern(source: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(source)
        .size_limit(MAX_PATTERN_BYTES)
        .dfa_size_limit(MAX_PATTERN_BYTES)
        .build()
}

fn matches<'b, 'v>(args: Args<'b, 'v>) -> Answer<'b, 'v> {
    let (Some(this), Some(source)) = (text_at(&args, 0), text_at(&args, 1)) else {
        return Err(no_overload("matches", &args));
    };
    spend_text(this.len())?;
    PATTERNS.with_borrow_mut(|patterns| {
        if !patterns.contains_key(source) {
            spend(PATTERN_COST)?;
            spend_text(source.len())?;
            let compiled = pattern(source)
                .map_err(|_| failure("the argument of matches() is not a valid regular expression"))?;
            if patterns.len() >= KEPT_PATTERNS {
                patterns.clear();
            }
            patterns.insert(source.to_owned(), compiled);
        }
        let found = patterns.get(source).is_some_and(|pattern| pattern.is_match(this));
        Ok(CowVal::owned(CelBool::from(found)))
    })
}
