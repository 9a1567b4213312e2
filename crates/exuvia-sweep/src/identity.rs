//! Which object: all that is kept of it while it is in work.

use std::fmt;

use kube::api::ObjectMeta;
use serde::Deserialize;

/// Which object: an object of the same name with another uid is another object.
///
/// ```
/// use exuvia_sweep::Identity;
/// use kube::api::ObjectMeta;
///
/// let metadata = ObjectMeta {
///     namespace: Some("shop".into()),
///     name: Some("till".into()),
///     ..ObjectMeta::default()
/// };
/// assert_eq!(Identity::from(&metadata).to_string(), "shop/till");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct Identity {
    /// The object's namespace, if it has one.
    pub namespace: Option<String>,
    /// The object's name.
    #[serde(default)]
    pub name: String,
    /// The object's uid, if the server gave one.
    pub uid: Option<String>,
}

impl From<&ObjectMeta> for Identity {
    fn from(metadata: &ObjectMeta) -> Self {
        Self {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone(),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}
