//! Finalizers: one entry more or one fewer, never at the cost of somebody else's.

use kube::Api;
use serde_json::{Value, json};

use crate::{
    Error, ErrorClass, Verb, Writable, Writer, Written,
    change::{Change, OnConflict, Part},
};

/// The name of a finalizer: a constant of the code that owns it, checked when that is compiled.
///
/// ```
/// use exuvia_write::Finalizer;
///
/// const CLEANUP: Finalizer = Finalizer::new("widgets.example.dev/cleanup");
/// assert_eq!(CLEANUP.as_str(), "widgets.example.dev/cleanup");
/// ```
///
/// A name without a domain could be anybody's, and does not compile:
///
/// ```compile_fail
/// const CLEANUP: exuvia_write::Finalizer = exuvia_write::Finalizer::new("cleanup");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Finalizer(&'static str);

impl Finalizer {
    /// A finalizer's name, `domain/name`.
    pub const fn new(name: &'static str) -> Self {
        assert!(
            is_qualified(name.as_bytes()),
            "a finalizer's name is domain/name, as in example.dev/cleanup"
        );
        Self(name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

const fn is_qualified(name: &[u8]) -> bool {
    let (mut at, mut slash, mut dot) = (0, None, false);
    while at < name.len() {
        match name[at] {
            b'/' if slash.is_some() => return false,
            b'/' => slash = Some(at),
            b'.' if slash.is_none() => dot = true,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {}
            _ => return false,
        }
        at += 1;
    }
    match slash {
        Some(slash) => dot && slash > 0 && slash + 1 < name.len(),
        None => false,
    }
}

impl Writer {
    /// Sees to it that the object has the finalizer.
    ///
    /// A merge patch replaces the list as a whole, so it is locked; on a 409 the object is read again and the entry added
    /// to the list found there (PITFALLS B20). If it is there already nothing is sent.
    ///
    /// ```no_run
    /// # use exuvia_write::{Finalizer, Writer};
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// const CLEANUP: Finalizer = Finalizer::new("widgets.example.dev/cleanup");
    /// # async fn example(writer: Writer, api: kube::Api<ConfigMap>, object: ConfigMap) -> Result<(), exuvia_write::Error> {
    /// let object = writer.ensure_finalizer(&api, &object, CLEANUP).await?.object;
    /// // … make what the finalizer will take away …
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ensure_finalizer<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        finalizer: Finalizer,
    ) -> Result<Written<K>, Error> {
        self.change(
            api,
            (Verb::EnsureFinalizer, Part::Main),
            object,
            OnConflict::Rerun,
            |object| {
                let present = object.meta().finalizers.as_deref().unwrap_or_default();
                if present.iter().any(|name| name == finalizer.0) {
                    return Ok(None);
                }
                let with: Vec<&str> = present
                    .iter()
                    .map(String::as_str)
                    .chain(std::iter::once(finalizer.0))
                    .collect();
                Ok(Some(list(&with)))
            },
        )
        .await
    }

    /// Sees to it that the object does not have the finalizer. `None`: the object does not exist any more, which is as good.
    ///
    /// Locked and repeated as [`ensure_finalizer`](Self::ensure_finalizer) is. Should an object of the same name have been
    /// made meanwhile, that is another one and is left alone. With its last finalizer an object that is being deleted
    /// goes for good; the answer then is how it was (PITFALLS A9).
    pub async fn remove_finalizer<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        finalizer: Finalizer,
    ) -> Result<Option<Written<K>>, Error> {
        let removed = self
            .change(
                api,
                (Verb::RemoveFinalizer, Part::Main),
                object,
                OnConflict::Rerun,
                |object| {
                    let present = object.meta().finalizers.as_deref().unwrap_or_default();
                    if !present.iter().any(|name| name == finalizer.0) {
                        return Ok(None);
                    }
                    let without: Vec<&str> = present
                        .iter()
                        .map(String::as_str)
                        .filter(|name| *name != finalizer.0)
                        .collect();
                    Ok(Some(list(&without)))
                },
            )
            .await;
        match removed {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.class() == ErrorClass::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// `null` for an empty list, as the server leaves an empty one out.
fn list(finalizers: &[&str]) -> Change {
    let finalizers = if finalizers.is_empty() {
        Value::Null
    } else {
        json!(finalizers)
    };
    Change {
        body: json!({"metadata": {"finalizers": finalizers}}),
        lock: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_needs_a_domain() {
        for good in ["example.dev/cleanup", "a.b/c", "kubernetes.io/pvc-protection"] {
            assert!(is_qualified(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "cleanup",
            "/cleanup",
            "example.dev/",
            "local/cleanup",
            "a.b/c/d",
            "a.b/c d",
        ] {
            assert!(!is_qualified(bad.as_bytes()), "{bad}");
        }
    }
}
