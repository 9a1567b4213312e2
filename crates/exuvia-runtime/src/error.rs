//! What can go wrong before a controller runs.

/// Why the surroundings of a controller could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; give another address as host:port (port 0 is any free port)"
    )]
    Listen {
        /// As it was given.
        address: String,
        /// As the system gave it.
        source: std::io::Error,
    },
    /// Not a level, and not directives either.
    #[error(
        "invalid log level {given:?}: expected error, warn, info, debug or trace, or directives such as \
         exuvia=debug,hyper=info"
    )]
    LogLevel {
        /// As it was given.
        given: String,
    },
    /// This process has a logger already.
    #[error("logging was started before; start it once, at the beginning of main")]
    LoggingStarted,
}
