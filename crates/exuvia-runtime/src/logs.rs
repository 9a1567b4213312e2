//! Logs: text or JSON on standard error, at a level that can be changed while the process runs.

use std::{
    fmt,
    io::IsTerminal,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use crate::Error;

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The level of the log, to be read and changed.
///
/// `info` means: Exuvia's crates (`exuvia…`, `mcp_…`) at info, everything else at warn. Anything with `=` or `,` is taken as directives of
/// tracing's `EnvFilter`, as it is.
#[derive(Clone)]
pub struct LogLevel {
    handle: reload::Handle<EnvFilter, Registry>,
    current: Arc<Mutex<String>>,
}

/// Sends the log of this process to standard error. Once, at the beginning of `main`.
pub fn start_logging(format: LogFormat, level: &str) -> Result<LogLevel, Error> {
    let (filter, log_level) = LogLevel::new(level)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false); // it would say so on the same stderr, and panic if nobody reads that
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init()
        .map_err(|_| Error::LoggingStarted)?;
    Ok(log_level)
}

impl LogLevel {
    fn new(level: &str) -> Result<(reload::Layer<EnvFilter, Registry>, Self), Error> {
        let (filter, handle) = reload::Layer::new(filter(level)?);
        let current = Arc::new(Mutex::new(level.trim().to_owned()));
        Ok((filter, Self { handle, current }))
    }

    /// A level of no log at all.
    #[cfg(test)]
    pub(crate) fn for_nobody(level: &str) -> Self {
        Self::new(level).expect("a level").1
    }

    /// As it was given.
    pub fn get(&self) -> String {
        self.current().clone()
    }

    /// Changes it, for the whole process and at once. After an error it is as before.
    pub fn set(&self, level: &str) -> Result<(), Error> {
        let filter = filter(level)?;
        let mut current = self.current();
        // It fails only if the log is gone; then nobody can read it anyway.
        let _ = self.handle.reload(filter);
        level.trim().clone_into(&mut current);
        Ok(())
    }

    fn current(&self) -> MutexGuard<'_, String> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogLevel").field(&self.get()).finish()
    }
}

fn filter(level: &str) -> Result<EnvFilter, Error> {
    let level = level.trim();
    let unknown = || Error::LogLevel {
        given: level.to_owned(),
    };
    if level.contains(['=', ',']) {
        return EnvFilter::try_new(level).map_err(|_| unknown());
    }
    // Its own parser would also take a number, and nothing at all.
    let ours = match level.to_ascii_lowercase().as_str() {
        "off" => LevelFilter::OFF,
        "error" => LevelFilter::ERROR,
        "warn" => LevelFilter::WARN,
        "info" => LevelFilter::INFO,
        "debug" => LevelFilter::DEBUG,
        "trace" => LevelFilter::TRACE,
        _ => return Err(unknown()),
    };
    let others = ours.min(LevelFilter::WARN);
    // kube logs an answer that it does not understand at warn, body and all: it may hold a secret (PITFALLS B27). At error it
    // says of each request that failed that it did, and not which: the caller says that, once.
    // The crates of the MCP operator are ours, too: without them its programs would log warnings only.
    let filter = format!("{others},exuvia={ours},mcp_operator={ours},mcp_proxy={ours},kube_client=off");
    EnvFilter::try_new(filter).map_err(|_| unknown())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_for_us_and_others_are_quiet() {
        let shown = |level: &str| filter(level).unwrap().to_string();
        for (level, parts) in [
            ("info", ["warn", "exuvia=info", "kube_client=off"]),
            ("DEBUG", ["warn", "exuvia=debug", "kube_client=off"]),
            ("error", ["error", "exuvia=error", "kube_client=off"]),
            ("off", ["off", "exuvia=off", "kube_client=off"]),
        ] {
            let shown = shown(level);
            assert!(
                parts.iter().all(|part| shown.split(',').any(|own| own == *part)),
                "{shown}"
            );
        }
        let of_mcp = shown("info");
        assert!(
            of_mcp.contains("mcp_operator=info") && of_mcp.contains("mcp_proxy=info"),
            "{of_mcp}"
        );
        assert_eq!(shown("exuvia_write=trace"), "exuvia_write=trace");
        for bad in ["", "loud", "exuvia=loud", "a=b=c", "7"] {
            let error = filter(bad).unwrap_err().to_string();
            assert!(error.contains("expected error, warn, info"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_level_that_is_refused_changes_nothing() {
        let (_layer, level) = LogLevel::new("info").unwrap();
        level.set(" debug\n").unwrap();
        assert_eq!(level.get(), "debug");
        level.set("loud").unwrap_err();
        assert_eq!(level.get(), "debug");
    }
}
