//! The arguments of `exuvia datastore …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::cli::args::ClusterArgs;
use crate::cli::exit_codes;
use crate::cli::output::Format;
use crate::cli::values::{interval, namespace, object_name};

/// What people need to know before they use any of it.
const ABOUT: &str = "Words: the source is the kinds that objects are moved away from, the target those that they become; a \
mapping says which becomes which; a source is frozen while nobody can write to it, and thawed when people can again; a \
migration has converged when everything is copied and verified, and from then on nothing is undone. Page: \
https://github.com/exuvia-dev/exuvia/blob/main/docs/datastore-migration.md";

/// `exuvia datastore …`.
#[derive(Debug, Subcommand)]
#[command(after_long_help = ABOUT)]
pub enum DatastoreCommand {
    /// Check manifests of `DatastoreMigration`s without a cluster: fields, expressions and paths, with line and column
    #[command(after_long_help = exit_codes::VALIDATE)]
    Validate(ValidateArgs),
    /// Say what a migration would move, refuse and find in conflict; nothing is written
    ///
    /// Every object is converted and tried as a dry run. While another API server answers for the target group
    /// (cutover.apiService), targets cannot be looked at; objects are then only converted.
    #[command(after_long_help = exit_codes::DATASTORE_PLAN)]
    Plan(DatastorePlanArgs),
    /// Create a `DatastoreMigration` from a manifest, if it is valid; the operator carries it out
    ///
    /// The rights that it needs must be bound before (`exuvia rbac -f FILE | kubectl apply -f -`). Whether something stands in
    /// its way is not looked at: `exuvia datastore plan -f FILE` does that.
    #[command(after_long_help = exit_codes::START)]
    Start(StartArgs),
    /// Show how far migrations are: bars by kind, how long the source is frozen, what stands in the way
    Status(DatastoreStatusArgs),
    /// Show every target that exists and differs, field by field
    ///
    /// What the fields hold is not shown, but what they are: text, number, absent. At a terminal, --show-values shows it.
    #[command(after_long_help = exit_codes::CONFLICTS)]
    Conflicts(NamedArgs),
    /// Let a migration that waits before its commit go on: clears cutover.hold
    Cutover(OperatedArgs),
    /// Delete a migration, which undoes it; after its commit only with --cleanup, as nothing is undone then
    Abort(AbortArgs),
    /// Let a migration that has failed begin again
    Retry(OperatedArgs),
    /// Let people write to the source of a migration that was deleted with cleanup.source: `KeepFrozen`
    Thaw(SteerArgs),
    /// Read every source and every target again, and count those with and without the other
    #[command(after_long_help = exit_codes::VERIFY)]
    Verify(NamedArgs),
    /// Convert manifest files, such as those of a Git tree, with the mapping of a migration
    ///
    /// Documents of other kinds stay as they are, byte for byte. Where only names change, such as the apiVersion, so does the
    /// rest of a converted document; otherwise it is written again, and its comments are lost (which is said). If one document
    /// cannot be converted, no file is written.
    #[command(after_long_help = exit_codes::RENDER)]
    Render(RenderArgs),
}

/// Which operator is asked about: whether it runs is seen from its Lease.
#[derive(Clone, Debug, Default, Args)]
pub struct LeaseArgs {
    /// The name of the operator's Lease, by which is seen whether one runs [default: that of the operator that carries the
    /// migration out, otherwise exuvia]
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pub lease_name: Option<String>,
    /// The namespace of the operator's Lease [default: that of the operator that carries the migration out, otherwise any]
    #[arg(long, value_name = "NAMESPACE", value_parser = namespace)]
    pub lease_namespace: Option<String>,
}

/// Arguments of `exuvia datastore validate`.
#[derive(Clone, Debug, Args)]
pub struct ValidateArgs {
    /// Manifests: a file, a directory, or - for standard input (repeatable)
    #[arg(short, long, value_name = "PATH", required = true)]
    pub filename: Vec<PathBuf>,
    /// Also check paths against the CRDs in these manifests: a file or a directory (repeatable)
    #[arg(long, value_name = "PATH", conflicts_with = "cluster")]
    pub crds: Vec<PathBuf>,
    /// Also check paths against the CRDs of the cluster
    #[arg(long)]
    pub cluster: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub connection: ClusterArgs,
}

/// Arguments of `exuvia datastore plan`.
#[derive(Clone, Debug, Args)]
pub struct DatastorePlanArgs {
    /// A migration of the cluster; or -f FILE, for one that is not created yet
    #[arg(value_name = "NAME", required_unless_present = "filename", conflicts_with = "filename", value_parser = object_name)]
    pub name: Option<String>,
    /// The manifest of a migration: a file, or - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// Arguments of `exuvia datastore start`.
#[derive(Clone, Debug, Args)]
pub struct StartArgs {
    /// The manifest of the migration: a file, or - for standard input
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// Follow it to its end
    #[arg(long)]
    pub watch: bool,
    /// With --watch: how often to look
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval, requires = "watch")]
    pub interval: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lease: LeaseArgs,
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
}

/// Arguments of `exuvia datastore status`.
#[derive(Clone, Debug, Args)]
pub struct DatastoreStatusArgs {
    /// A migration [default: all, in a table]
    #[arg(value_name = "NAME", value_parser = object_name)]
    pub name: Option<String>,
    /// Show it again and again: one migration until its end, all of them until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// With --watch: how often to look
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval, requires = "watch")]
    pub interval: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lease: LeaseArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// A migration to look at.
#[derive(Clone, Debug, Args)]
pub struct NamedArgs {
    /// The migration's name
    #[arg(value_name = "NAME", value_parser = object_name)]
    pub name: String,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// A migration to do something about.
#[derive(Clone, Debug, Args)]
pub struct SteerArgs {
    /// The migration's name
    #[arg(value_name = "NAME", value_parser = object_name)]
    pub name: String,
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
}

/// A migration to do something about that an operator must carry out then.
#[derive(Clone, Debug, Args)]
pub struct OperatedArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub steer: SteerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lease: LeaseArgs,
}

/// Arguments of `exuvia datastore abort`.
#[derive(Clone, Debug, Args)]
pub struct AbortArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub steer: SteerArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub lease: LeaseArgs,
    /// Also delete a migration that has converged. Nothing is undone: the targets stay, and cleanup.source says what becomes of
    /// the source (by default it stays, and nobody can create or update its objects until `exuvia datastore thaw NAME`)
    #[arg(long)]
    pub cleanup: bool,
}

/// Arguments of `exuvia datastore render`.
#[derive(Clone, Debug, Args)]
pub struct RenderArgs {
    /// The manifest of the migration: a file
    #[arg(short, long, value_name = "FILE")]
    pub filename: PathBuf,
    /// What to convert: files, directories, or - for standard input
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Write converted files in the place of the old ones [default: to standard output]
    #[arg(long, conflicts_with = "output_dir")]
    pub in_place: bool,
    /// Write all files, converted or not, below this directory
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
}

/// A connection as commands take it that print sentences only.
pub(super) fn connection(kubeconfig: Option<&PathBuf>, context: Option<&String>) -> ClusterArgs {
    ClusterArgs {
        kubeconfig: kubeconfig.cloned(),
        context: context.cloned(),
        output: Format::default(),
        show_values: false,
    }
}

impl SteerArgs {
    /// Which cluster.
    pub(super) fn cluster(&self) -> ClusterArgs {
        connection(self.kubeconfig.as_ref(), self.context.as_ref())
    }
}
