//! Mutexes whose content is whole at every moment: a panic elsewhere does not make it useless.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The content, whatever became of those who held it before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
