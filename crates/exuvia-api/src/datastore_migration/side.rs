//! On which side of a migration a kind is.

use super::{DatastoreMigrationSpec, FlagSide, Mapping};

impl DatastoreMigrationSpec {
    /// Whether objects of this kind are moved away, or others become objects of it; `None`: it is not about this kind.
    ///
    /// ```
    /// use exuvia_api::{DatastoreMigrationSpec, FlagSide};
    ///
    /// let spec: DatastoreMigrationSpec = serde_json::from_value(serde_json::json!({"mappings": [{
    ///     "name": "all",
    ///     "from": {"group": "old.dev", "version": "v1", "kinds": ["Widget"]},
    ///     "to": {"group": "new.dev", "version": "v1"},
    /// }]}))?;
    /// assert_eq!(spec.side_of("old.dev", "Widget"), Some(FlagSide::Source));
    /// assert_eq!(spec.side_of("new.dev", "Widget"), Some(FlagSide::Target));
    /// assert_eq!(spec.side_of("new.dev", "Gadget"), None);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn side_of(&self, group: &str, kind: &str) -> Option<FlagSide> {
        let takes = |mapping: &Mapping| mapping.from.kinds.iter().any(|from| from == kind);
        let makes = |mapping: &Mapping| match mapping.to.kind.as_str() {
            "" => takes(mapping),
            to => to == kind,
        };
        let mut mappings = self.mappings.iter();
        if mappings
            .clone()
            .any(|mapping| mapping.from.group == group && takes(mapping))
        {
            return Some(FlagSide::Source);
        }
        mappings
            .any(|mapping| mapping.to.group == group && makes(mapping))
            .then_some(FlagSide::Target)
    }
}
