//! A resourceVersion that can be compared.

use std::{fmt, str::FromStr};

use kube::api::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A resourceVersion as a number: the etcd revision of an object's last write, or of a list (PITFALLS A25).
///
/// Only a number that the server would write itself is one: not empty, not `0` (which asks for anything), no sign, no
/// leading zero. It is serialised as the string that it is everywhere in Kubernetes.
///
/// ```
/// use exuvia_sweep::ResourceVersion;
///
/// let first: ResourceVersion = "99".parse()?;
/// let later: ResourceVersion = "1004".parse()?;
/// assert!(later > first);
/// assert!("0".parse::<ResourceVersion>().is_err());
/// # Ok::<(), exuvia_sweep::InvalidResourceVersion>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceVersion(u64);

/// The text is not a resourceVersion that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid resourceVersion {0:?}: expected a number above 0, as the API server writes it")]
pub struct InvalidResourceVersion(String);

impl ResourceVersion {
    /// The version of an object as it was read; `None` if it has none that can be compared.
    ///
    /// To ask whether it was written after a certain list, there is [`precedes`](Self::precedes), which is false where
    /// nobody knows; comparing two `Option`s is not.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        metadata.resource_version.as_deref()?.parse().ok()
    }

    /// Whether an object is known to have been written after this version, that of a list for instance.
    ///
    /// ```
    /// use exuvia_sweep::ResourceVersion;
    /// use kube::api::ObjectMeta;
    ///
    /// let r0: ResourceVersion = "99".parse()?;
    /// let mut metadata = ObjectMeta::default();
    /// assert!(!r0.precedes(&metadata));
    /// metadata.resource_version = Some("100".into());
    /// assert!(r0.precedes(&metadata));
    /// # Ok::<(), exuvia_sweep::InvalidResourceVersion>(())
    /// ```
    pub fn precedes(self, metadata: &ObjectMeta) -> bool {
        Self::of(metadata).is_some_and(|version| version > self)
    }
}

impl FromStr for ResourceVersion {
    type Err = InvalidResourceVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidResourceVersion(text.to_owned());
        // `u64` would take "+7" and "007" as well.
        if !text.starts_with(|first: char| matches!(first, '1'..='9')) {
            return Err(invalid());
        }
        text.parse().map(Self).map_err(|_| invalid())
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for ResourceVersion {
    type Error = InvalidResourceVersion;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ResourceVersion> for String {
    fn from(version: ResourceVersion) -> Self {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_server_writes_is_a_version() {
        for text in [
            "",
            "0",
            "007",
            "+7",
            "-7",
            "7a",
            "a",
            " 7",
            "18446744073709551616",
        ] {
            assert!(text.parse::<ResourceVersion>().is_err(), "{text:?}");
        }
        for text in ["1", "10", "18446744073709551615"] {
            let parsed = text.parse::<ResourceVersion>().map(|version| version.to_string());
            assert_eq!(parsed.as_deref(), Ok(text));
        }
    }

    #[test]
    fn versions_are_compared_as_numbers_and_kept_as_text() -> Result<(), serde_json::Error> {
        let kept = serde_json::to_value([ResourceVersion(9), ResourceVersion(10)])?;
        assert_eq!(kept, serde_json::json!(["9", "10"]));
        let read: Vec<ResourceVersion> = serde_json::from_value(kept)?;
        assert!(read[0] < read[1]);
        Ok(())
    }
}
