//! The tree of commands and arguments, apart from the work.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use exuvia_storage::servers::api_server;
use exuvia_storage::{ManagedFields, OptIn, OptInLabel, Verify};

use super::operator::OperatorArgs;
use super::output::Format;
use super::plan::PlanArgs;
use super::values::{duration, group, namespace, object_name};

/// What nobody should have to guess.
const WORDS: &str = "Words: to settle is to wait until every API server has understood a change of the CRD; a patrol looks \
once more, one settle time after the trim; to shed a version is to move managedFields entries away from it. All words: \
https://github.com/exuvia-dev/exuvia/blob/main/docs/glossary.md";

/// Sheds old Kubernetes API versions and API groups from a live cluster without losing an object, and proves it.
#[derive(Debug, Parser)]
#[command(name = "exuvia", version, arg_required_else_help = true, after_long_help = WORDS)]
pub struct Cli {
    /// Tell on standard error what is going on (-vv: every request)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show on a throw-away control plane what a storage version flip leaves behind, and how it is cured
    ///
    /// Starts a real etcd and kube-apiserver on this machine (no container, no cluster needed), installs a CRD, creates
    /// objects, flips the storage version, reads from etcd's own bytes what is stored, migrates, and drops the old version.
    /// Everything ends with it.
    Demo(DemoArgs),
    /// Show which CRDs still have old versions in storage, and what to do next
    ///
    /// Reads only. STORAGE is the version that objects are written at, STORED what status.storedVersions lists, VERDICT what
    /// follows from that and from what is on record, NEXT the one command that comes next, with its price if it has one.
    ///
    /// Several clusters go into one table, with a column CONTEXT. One that cannot be looked at has a row that says why; the
    /// exit code is 1 then.
    #[command(after_long_help = WORDS)]
    Plan(PlanArgs),
    /// Migrate stored objects to the storage version, and say which versions may be dropped
    #[command(subcommand, after_long_help = WORDS)]
    Storage(StorageCommand),
    /// Run in a cluster and keep CRDs clean that have opted in, and do what `StorageMigration`s ask for
    Operator(Box<OperatorArgs>),
    /// Print the rights that the operator needs, as RBAC manifests with a reason for each rule
    ///
    /// They are for the CRDs of the cluster that have opted in, as the operator would find them (only CRDs are read), or
    /// for those named with --crds (no cluster is asked then). The service account itself is not among them.
    Rbac(RbacArgs),
    /// Print a completion script for your shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the version
    Version,
}

/// Arguments of `exuvia demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many objects to create
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(1..=9999))]
    pub objects: u16,
    /// Keep the control plane up until Ctrl-C, and print the path of its kubeconfig
    #[arg(long)]
    pub keep: bool,
    /// The API server's port on 127.0.0.1, instead of a free one
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
}

/// Which cluster, and how to print.
#[derive(Clone, Debug, Args)]
pub struct ClusterArgs {
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Show messages of the API server and of webhooks whole, with the values of objects that they quote: for a terminal
    /// alone
    #[arg(long)]
    pub show_values: bool,
}

/// Which CRDs take part without being named.
#[derive(Clone, Debug, Args)]
pub struct OptInArgs {
    /// Only CRDs of these groups; `example.com` also stands for `a.example.com`
    #[arg(long, value_delimiter = ',', value_parser = group)]
    pub groups: Vec<String>,
    /// The label by which a CRD opts in, as key or key=value
    #[arg(long, default_value = "exuvia.dev/auto-migrate-storage-version=true")]
    pub opt_in_label: OptInLabel,
}

impl OptInArgs {
    /// What the flags say.
    pub fn to_opt_in(&self) -> OptIn {
        OptIn {
            label: self.opt_in_label.clone(),
            groups: self.groups.clone(),
            crds: Vec::new(),
        }
    }
}

/// Arguments of `exuvia rbac`.
#[derive(Clone, Debug, Args)]
pub struct RbacArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    /// These CRDs by name, such as widgets.example.com, whatever the cluster has
    #[arg(long, value_delimiter = ',', conflicts_with = "groups")]
    pub crds: Vec<exuvia_storage::rbac::Crd>,
    /// All resources of the CRDs' groups and of --groups, so that CRDs which opt in later need no new rules
    #[arg(long)]
    pub group_wildcards: bool,
    /// Also the right to patch /status, for migrations with spec.statusFallback
    #[arg(long)]
    pub status_fallback: bool,
    /// Also the right to list everything, Secrets included, for an operator with --look-at-references
    #[arg(long)]
    pub look_at_references: bool,
    /// The operator's namespace
    #[arg(long, default_value = "exuvia-system", value_parser = namespace)]
    pub namespace: String,
    /// What roles and bindings are called
    #[arg(long, default_value = "exuvia", value_parser = object_name)]
    pub name: String,
    /// The operator's service account [default: the name]
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pub service_account: Option<String>,
    /// The operator's Lease [default: the name]
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pub lease_name: Option<String>,
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context
    #[arg(long)]
    pub context: Option<String>,
    /// How to print: with comments, or for machines
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ManifestFormat,
}

/// How manifests are printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum ManifestFormat {
    /// YAML documents.
    #[default]
    Yaml,
    /// One JSON list.
    Json,
}

/// `exuvia storage …`.
#[derive(Debug, Subcommand)]
pub enum StorageCommand {
    /// Rewrite every object that is stored at an old version, prove it, and trim storedVersions
    #[command(after_long_help = WORDS)]
    Migrate(MigrateArgs),
    /// Show storage version and stored versions of CRDs, what is proven about them, and what to do next
    Status(StatusArgs),
    /// Say whether a version may be dropped: exit code 0 yes, 1 no, 2 error, 3 not known
    ///
    /// Looks at what is on record about stored bytes, at owners of fields, at ownerReferences in the whole cluster, at the
    /// API server's counters, at migrations, and at what else is served. What cannot be seen makes the answer "not known",
    /// with the command that would find out.
    Droppable(DroppableArgs),
    /// Show who writes at a version, and who reads it
    Users(VersionArgs),
    /// Fail manifests in which a CRD is neither opted in nor excluded with a reason
    Lint(LintArgs),
    /// Read etcd itself and count objects by stored version: the only proof there is
    Audit(AuditArgs),
}

/// Arguments of `exuvia storage status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// CRDs by name; none: all
    pub names: Vec<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// A CRD and one of its versions.
#[derive(Clone, Debug, Args)]
pub struct VersionArgs {
    /// The CRD's name, such as widgets.example.com
    pub crd: String,
    /// The version, such as v1alpha1
    pub version: String,
    /// An API server to ask itself, beside those that the cluster lists (repeatable)
    #[arg(long = "apiserver", value_name = "URL", value_parser = api_server)]
    pub api_servers: Vec<http::Uri>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// Arguments of `exuvia storage droppable`.
#[derive(Clone, Debug, Args)]
pub struct DroppableArgs {
    /// The CRD's name, such as widgets.example.com
    #[arg(required_unless_present = "filename")]
    pub crd: Option<String>,
    /// The version, such as v1alpha1
    #[arg(required_unless_present = "filename")]
    pub version: Option<String>,
    /// Manifests of CRDs as they are to be: a file, a directory, or - for standard input (repeatable). Every version that they
    /// no longer have must be droppable
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["crd", "version"])]
    pub filename: Vec<PathBuf>,
    /// Also count requests for this long: who asks for the version, even to read, holds it (open watches count in any case)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub watch: Option<Duration>,
    /// Migrate first, whatever storedVersions says, verify in full and wait for the patrol: afterwards the bytes are proven
    #[arg(long)]
    pub prove: bool,
    /// With --prove: how long after a CRD change no API server can be behind any more
    #[arg(long, default_value = "60s", value_parser = duration, requires = "prove")]
    pub settle: Duration,
    /// With --prove: an API server to ask itself whether it is behind, beside those that the cluster lists (repeatable)
    #[arg(long = "apiserver", value_name = "URL", value_parser = api_server, requires = "prove")]
    pub api_servers: Vec<http::Uri>,
    /// With --prove: also CRDs that are excluded by annotation
    #[arg(long, requires = "prove")]
    pub include_excluded: bool,
    /// Do not look for ownerReferences, which takes a look at every object in the cluster; the answer is never yes then
    #[arg(long)]
    pub no_references: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// Arguments of `exuvia storage lint`.
#[derive(Clone, Debug, Args)]
pub struct LintArgs {
    /// Files and directories of manifests, or - for standard input (such as `helm template …`)
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Arguments of `exuvia storage audit`.
#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    /// Resources by name (widgets.example.com, secrets); none: all
    pub resources: Vec<String>,
    /// etcd's client URL (repeatable; tried in this order)
    #[arg(long, required = true)]
    pub etcd_endpoint: Vec<String>,
    /// The authority that signed etcd's certificate
    #[arg(long)]
    pub cacert: Option<PathBuf>,
    /// A client certificate
    #[arg(long, requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of the client certificate
    #[arg(long, requires = "cert")]
    pub key: Option<PathBuf>,
    /// The key below which the API server keeps everything
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Arguments of `exuvia storage migrate`.
#[derive(Clone, Debug, Args)]
pub struct MigrateArgs {
    /// CRDs by full name (widgets.example.com), or built-in resources (secrets, deployments.apps); or --all, or --labelled
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "labelled"], conflicts_with_all = ["all", "labelled", "groups", "opt_in_label"])]
    pub names: Vec<String>,
    /// Every CRD of the cluster that is not excluded by annotation
    #[arg(long, conflicts_with_all = ["labelled", "opt_in_label"])]
    pub all: bool,
    /// Every CRD that has opted in by label
    #[arg(long)]
    pub labelled: bool,
    /// Also CRDs that are excluded by annotation (exuvia.dev/exclude-storage-version-migration)
    #[arg(long)]
    pub include_excluded: bool,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// How long after a CRD change no API server can be behind any more
    #[arg(long, default_value = "60s", value_parser = duration)]
    pub settle: Duration,
    /// An API server to ask itself whether it is behind, beside those that the cluster lists (repeatable)
    #[arg(long = "apiserver", value_name = "URL", value_parser = api_server)]
    pub api_servers: Vec<http::Uri>,
    /// An API server that is gone for good although the cluster still lists it: not waited for, and every object is
    /// verified by a patch (repeatable)
    #[arg(long = "ignore-apiserver", value_name = "URL", value_parser = api_server)]
    pub ignored_api_servers: Vec<http::Uri>,
    /// How to verify. `full` with a name sweeps whatever storedVersions says
    #[arg(long, value_enum, default_value_t)]
    pub verify: VerifyArg,
    /// Wait one settle time after the trim, and look once more at what was written meanwhile
    #[arg(long)]
    pub patrol: bool,
    /// CRDs in work at once; waiting ones do not count
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub concurrent: u16,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub etcd: EtcdGateArgs,
    /// What becomes of managedFields entries at old versions
    #[arg(long, value_enum, default_value_t)]
    pub managed_fields: ManagedFieldsArg,
    /// Also move managedFields entries away from this version, although nothing is stored at it any more (repeatable)
    #[arg(long, value_name = "VERSION")]
    pub shed: Vec<String>,
    /// Afterwards move ownerReferences, of any object in the cluster, from old versions to the storage version
    #[arg(long)]
    pub owner_references: bool,
    /// Fail unless every old version is droppable in the end: waits for the patrol, and looks at everything that can hold a
    /// version, at each object in the cluster for ownerReferences
    #[arg(long, conflicts_with = "dry_run")]
    pub require_droppable: bool,
    /// Go on although the rewrite erases fields that only an old version knows
    #[arg(long)]
    pub accept_pruning: bool,
    /// Try an object that is denied at its own endpoint through /status; this evades somebody's policy
    #[arg(long)]
    pub status_fallback: bool,
    /// Objects in work at once, at most
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub max_concurrency: u16,
    /// Requests per second, at most
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub qps: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// The etcd whose audit is the last gate before the trim.
#[derive(Clone, Debug, Args)]
pub struct EtcdGateArgs {
    /// Audit this etcd right before the trim, and do not trim unless it holds nothing old (its client URL; repeatable)
    #[arg(long, value_name = "URL")]
    pub etcd_endpoint: Vec<String>,
    /// The authority that signed etcd's certificate
    #[arg(long, requires = "etcd_endpoint")]
    pub cacert: Option<PathBuf>,
    /// A client certificate for etcd
    #[arg(long, requires_all = ["etcd_endpoint", "key"])]
    pub cert: Option<PathBuf>,
    /// The key of the client certificate
    #[arg(long, requires_all = ["etcd_endpoint", "cert"])]
    pub key: Option<PathBuf>,
    /// The key below which the API server keeps everything
    #[arg(long, default_value = "/registry")]
    pub etcd_prefix: String,
}

impl EtcdGateArgs {
    /// What to audit, if anything.
    pub fn to_options(&self) -> Option<exuvia_storage::audit::Options> {
        (!self.etcd_endpoint.is_empty()).then(|| exuvia_storage::audit::Options {
            endpoints: self.etcd_endpoint.clone(),
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            prefix: self.etcd_prefix.clone(),
            ..exuvia_storage::audit::Options::default()
        })
    }
}

/// `--verify`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VerifyArg {
    /// By proof where every API server is accounted for, otherwise in full
    #[default]
    Auto,
    /// A resourceVersion proves an object; the others and a sample are patched
    Proof,
    /// Every object is patched once more and must come back unchanged
    Full,
}

impl From<VerifyArg> for Verify {
    fn from(arg: VerifyArg) -> Self {
        match arg {
            VerifyArg::Auto => Self::Auto,
            VerifyArg::Proof => Self::Proof,
            VerifyArg::Full => Self::Full,
        }
    }
}

/// `--managed-fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ManagedFieldsArg {
    /// Moved to the storage version, in the write that rewrites the object
    #[default]
    Rewrite,
    /// Removed; their fields have no owner then
    Drop,
    /// Kept as they are; they hold the version
    Keep,
}

impl From<ManagedFieldsArg> for ManagedFields {
    fn from(arg: ManagedFieldsArg) -> Self {
        match arg {
            ManagedFieldsArg::Rewrite => Self::Rewrite,
            ManagedFieldsArg::Drop => Self::Drop,
            ManagedFieldsArg::Keep => Self::Keep,
        }
    }
}
