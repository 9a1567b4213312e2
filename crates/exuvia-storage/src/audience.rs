//! Who reads a sentence: one reader is told of flags, another of fields in a spec.

/// Who reads a sentence that says what to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// A person who runs a command, and is told of its flags.
    #[default]
    CommandLine,
    /// A person who looks at a `StorageMigration`, and is told of the fields of its spec.
    StorageMigration,
}

impl Audience {
    /// The flag for one, the field for the other.
    pub(crate) fn setting<'a>(self, flag: &'a str, field: &'a str) -> &'a str {
        match self {
            Self::CommandLine => flag,
            Self::StorageMigration => field,
        }
    }
}
