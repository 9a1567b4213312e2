//! Children that admission changes while we apply them: a mutating policy or webhook has the last word, and to apply again would change nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kube::ResourceExt;
use kube::api::DynamicObject;

use super::build::Intended;

/// What was left of our own applies, by the uid of the child: the version that came back, and the intent.
#[derive(Debug, Default)]
pub(crate) struct Overruled(Mutex<HashMap<String, (String, String)>>);

impl Overruled {
    /// Whether this is what came back when we applied this very intent, and nobody wrote since.
    pub(super) fn is_known(&self, child: &Intended, live: &DynamicObject) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (uid, seen) = seen(child, live);
        known.get(&uid) == Some(&seen)
    }

    /// Notes what came back from an apply. Whether it is not what was applied.
    pub(super) fn note(&self, child: &Intended, applied: &DynamicObject, manager: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (uid, seen) = seen(child, applied);
        let is_overruled = child.is_drifted(applied, manager);
        if is_overruled {
            known.insert(uid, seen);
        } else {
            known.remove(&uid);
        }
        is_overruled
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn seen(child: &Intended, object: &DynamicObject) -> (String, (String, String)) {
    let version = object.resource_version().unwrap_or_default();
    let intent = child.intent.hash().to_owned();
    (object.uid().unwrap_or_default(), (version, intent))
}
