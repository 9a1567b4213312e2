//! What one evaluation may cost, counted on the thread that evaluates.

use std::cell::Cell;

use cel::ExecutionError;
use cel::common::types::{CelBytes, CelDouble, CelList, CelMap, CelOptional, CelString};
use cel::common::value::Val;

/// Cost units of one evaluation.
pub(crate) const MAX_COST: u64 = 100_000;
/// The longest text, and the largest result: what etcd takes by default.
pub(crate) const MAX_BYTES: usize = 1_572_864;

/// Values that are copied for one unit. 100,000 units are then at most some 20 MiB.
const NODES_PER_UNIT: u64 = 2;
/// Bytes of texts that are read or copied for one unit.
const BYTES_PER_UNIT: u64 = 64;

/// The name in errors of our own making: their texts name no values, so that they can be shown.
pub(super) const OURS: &str = "@exuvia";

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(MAX_COST) };
    // `||` and `&&` swallow the error of one side. This does not go away, and is read after the evaluation.
    static EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

/// A full budget for the evaluation that begins.
pub(super) fn start() {
    LEFT.set(MAX_COST);
    EXCEEDED.set(false);
}

/// Whether the evaluation that ended tried to spend more than it had.
pub(super) fn exceeded() -> bool {
    EXCEEDED.get()
}

/// Takes from the budget, before the work is done.
pub(super) fn spend(units: u64) -> Result<(), ExecutionError> {
    match LEFT.get().checked_sub(units) {
        Some(left) if !EXCEEDED.get() => {
            LEFT.set(left);
            Ok(())
        }
        _ => {
            EXCEEDED.set(true);
            Err(failure("the evaluation costs too much"))
        }
    }
}

/// An error whose text can be shown.
pub(super) fn failure(message: &str) -> ExecutionError {
    ExecutionError::function_error(OURS, message)
}

/// Takes the cost of reading a text from the budget.
pub(super) fn spend_text(bytes: usize) -> Result<(), ExecutionError> {
    spend(1 + bytes as u64 / BYTES_PER_UNIT)
}

/// Takes the cost of making a text from the budget, and refuses one that no object could hold.
pub(super) fn spend_new_text(bytes: usize) -> Result<(), ExecutionError> {
    if bytes > MAX_BYTES {
        EXCEEDED.set(true);
        return Err(failure("the text is too long"));
    }
    spend_text(bytes)
}

/// Takes the cost of so many new values from the budget.
pub(super) fn spend_nodes(nodes: usize) -> Result<(), ExecutionError> {
    spend(1 + nodes as u64 / NODES_PER_UNIT)
}

/// Takes the cost of a copy of this value from the budget.
pub(super) fn spend_copy(value: &dyn Val) -> Result<(), ExecutionError> {
    let mut size = Size::default();
    size.add(value, LEFT.get());
    spend(size.units())
}

#[derive(Default)]
struct Size {
    nodes: u64,
    bytes: u64,
}

impl Size {
    fn units(&self) -> u64 {
        1 + self.nodes / NODES_PER_UNIT + self.bytes / BYTES_PER_UNIT
    }

    /// Adds a value with everything in it. It stops as soon as the limit is passed, so that even the measuring is bounded.
    fn add(&mut self, value: &dyn Val, limit: u64) {
        self.nodes += 1;
        if self.units() > limit {
            return;
        }
        if let Some(text) = value.downcast_ref::<CelString>() {
            self.bytes += text.inner().len() as u64;
        } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
            self.bytes += bytes.inner().len() as u64;
        } else if let Some(list) = value.downcast_ref::<CelList>() {
            for item in list.inner() {
                self.add(item.as_ref(), limit);
                if self.units() > limit {
                    return;
                }
            }
        } else if let Some(map) = value.downcast_ref::<CelMap>() {
            // The table of a map is larger than its entries.
            self.nodes += 1;
            for (key, item) in map.inner() {
                self.add(key.inner(), limit);
                self.add(item.as_ref(), limit);
                if self.units() > limit {
                    return;
                }
            }
        } else if let Some(Some(inner)) = value.downcast_ref::<CelOptional>().map(CelOptional::option) {
            self.add(inner, limit);
        }
    }
}

/// How long the text of a value can become in `format`, at most.
pub(super) fn formatted_len(value: &dyn Val) -> usize {
    if let Some(text) = value.downcast_ref::<CelString>() {
        2 * text.inner().len() // in hexadecimal
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        3 * bytes.inner().len() // each may become a replacement character
    } else if value.downcast_ref::<CelDouble>().is_some() {
        450 // 1e308 with the greatest precision of 100
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        sum(list.inner().iter().map(|item| formatted_len(item.as_ref()) + 4))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        sum(map
            .inner()
            .iter()
            .map(|(key, item)| formatted_len(key.inner()) + formatted_len(item.as_ref()) + 6))
    } else {
        450 // `%f` of an integer, or 64 binary digits
    }
}

/// Adds up until no object could hold it.
fn sum(lengths: impl Iterator<Item = usize>) -> usize {
    let mut total = 2;
    for length in lengths {
        total += length;
        if total > MAX_BYTES {
            break;
        }
    }
    total
}
