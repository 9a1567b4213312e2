//! What can go wrong before a controller runs, and how a client's error is told in one line.

use std::error::Error as StdError;

/// Why the surroundings of a controller could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; give a free address as host:port, such as 127.0.0.1:8080")]
    Listen {
        /// As it was given.
        address: String,
        /// As the system gave it.
        source: std::io::Error,
    },
    /// Not a level, and not directives either.
    #[error(
        "no log level {given:?}: use error, warn, info, debug or trace, or directives such as exuvia=debug,hyper=info"
    )]
    LogLevel {
        /// As it was given.
        given: String,
    },
    /// This process has a logger already.
    #[error("logging was started before; start it once, at the beginning of main")]
    LoggingStarted,
}

/// A client's error with its causes, without the status that kube prints in full beside its message.
pub(crate) fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} (http {})", status.message, status.code),
        // What serde says quotes the value, which may be a secret (PITFALLS B27).
        kube::Error::SerdeError(error) => format!(
            "an answer that is not understood (line {}, column {})",
            error.line(),
            error.column()
        ),
        other => {
            let mut text = other.to_string();
            let mut cause = other.source();
            while let Some(error) = cause {
                let own = error.to_string();
                if !text.ends_with(&own) {
                    text = format!("{text}: {own}");
                }
                cause = error.source();
            }
            text
        }
    }
}
