//! What can go wrong with the control plane: each message names the cause and the fix.

use std::path::PathBuf;

/// An error of the control plane or of finding its binaries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made or read.
    #[error("cannot make a certificate: {0}")]
    Certificate(Box<dyn std::error::Error + Send + Sync>),

    /// More groups than a certificate made here can carry.
    #[error(
        "user {user} asks for {groups} groups, but a client certificate made here carries two at most: bind roles to the user instead"
    )]
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

    /// Neither `EXUVIA_TESTENV_CACHE` nor a home directory is known.
    #[error("no directory to cache the control plane's binaries in: set EXUVIA_TESTENV_CACHE to a directory")]
    NoCacheDirectory,

    /// `EXUVIA_KUBE_VERSION` names a version that is not pinned here.
    #[error("invalid EXUVIA_KUBE_VERSION \"{wanted}\": expected 1.37 or 1.34, or nothing")]
    UnknownKubeVersion {
        /// What was asked for.
        wanted: String,
    },

    /// `KUBEBUILDER_ASSETS` does not hold what it should.
    #[error(
        "no {binary} is in {directory}, where KUBEBUILDER_ASSETS points: \
         put it there, point KUBEBUILDER_ASSETS elsewhere, or unset it"
    )]
    NotInAssets {
        /// What is missing.
        binary: &'static str,
        /// Where it was looked for.
        directory: PathBuf,
    },

    /// Neither a binary nor Go to build it.
    #[error(
        "{binary} {version} is neither in KUBEBUILDER_ASSETS nor in the cache ({cache}), and `go` is not on PATH \
         to build it: install Go 1.26 or newer, or set KUBEBUILDER_ASSETS to a directory of binaries with {binary} among them"
    )]
    NoGo {
        /// What is missing.
        binary: &'static str,
        /// At which version.
        version: &'static str,
        /// The cache that was looked in.
        cache: PathBuf,
    },

    /// `go build` failed.
    #[error("building {binary} {version} with go failed: {detail}")]
    BuildFailed {
        /// What was built.
        binary: &'static str,
        /// At which version.
        version: &'static str,
        /// The last of what go said.
        detail: String,
    },

    /// A cached binary is not what was built.
    #[error(
        "the cached {binary} is damaged: {path} has {size} bytes, but {stamp} when it was built; \
         delete that file and {binary}.size beside it, then run again to rebuild it"
    )]
    DamagedCache {
        /// Which one.
        binary: &'static str,
        /// Where.
        path: PathBuf,
        /// Its size now.
        size: u64,
        /// What the stamp says.
        stamp: String,
    },

    /// A process could not be started.
    #[error("cannot start {process} from {program}: {source}")]
    Spawn {
        /// Which one.
        process: &'static str,
        /// The program.
        program: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A command-line tool, such as helm, ended with an error.
    #[error("`{command}` failed ({status}): {said}")]
    ToolFailed {
        /// The tool and its arguments.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// All that it said, on standard error first.
        said: String,
    },

    /// A process that is not running was to be signalled.
    #[error("{process} is not running: start it with restart() first")]
    NotRunning {
        /// Which one.
        process: &'static str,
    },

    /// A signal could not be sent.
    #[error("cannot signal {process}: {source}")]
    Signal {
        /// Which one.
        process: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A process did not come up.
    #[error("{process} {why}; its log ({log}) ends with:\n{tail}")]
    NotUp {
        /// Which one.
        process: &'static str,
        /// Whether it ended or took too long.
        why: String,
        /// Where the log is.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },

    /// A process cannot be given another host name.
    #[error(
        "an API server on a host of another name needs `unshare --uts` (util-linux): run as root, or allow user namespaces"
    )]
    NoHostNames,

    /// A ready API server made no identity Lease.
    #[error(
        "the API server is ready, but after a minute it has no identity Lease in kube-system: look at its log, and at the \
         feature gate APIServerIdentity"
    )]
    NoIdentityLease,

    /// A port that was asked for is taken.
    #[error("port {port} on 127.0.0.1 is in use: choose another one, or none to get a free one")]
    PortInUse {
        /// The port.
        port: u16,
    },

    /// No port could be had.
    #[error("cannot get a free port on 127.0.0.1: {0}")]
    NoPort(std::io::Error),

    /// A request to etcd or to an API server failed.
    #[error("the request to {uri} failed: {source}")]
    Request {
        /// Where it went.
        uri: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The API server found a change invalid.
    #[error("the API server refuses {what}: {message}")]
    Refused {
        /// What was tried.
        what: String,
        /// The server's own words.
        message: String,
    },

    /// A client could not be made, or the API server refused what it asked for.
    #[error("the API server's client failed: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),

    /// A proxy or webhook server could not listen.
    #[error(
        "cannot listen on 127.0.0.1: {0}; if open files ran out, raise the limit (ulimit -n) or run fewer tests at once"
    )]
    Listen(std::io::Error),
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Client(error.into())
    }
}

impl Error {
    pub(crate) fn certificate(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Certificate(error.into())
    }

    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
