//! What can go wrong with the control plane: each message names the cause and the fix.

use std::path::PathBuf;

/// An error of the control plane or of finding its binaries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made or read.
    #[error("cannot make a certificate: {0}")]
    Certificate(Box<dyn std::error::Error + Send + Sync>),

    /// More groups than a certificate made here can carry.
    #[error("user {user} asks for {groups} groups, but a client certificate made here carries two at most: bind roles to the user instead")]
    TooManyGroups {
        /// The user that was asked for.
        user: String,
        /// How many groups were asked for.
        groups: usize,
    },

    /// A file or directory could not be used.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// The path it was tried on.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn certificate(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Certificate(error.into())
    }

    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
