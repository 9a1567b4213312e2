//! The tree of commands and arguments. The work is in other files.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use exuvia_api::{ManagedFields, Verify, defaults, limits};
use exuvia_storage::rbac::{Crd, InvalidCrdName};
use exuvia_storage::{InvalidLabel, OptIn, OptInLabel};

use super::datastore::DatastoreCommand;
use super::exit_codes;
use super::operator::OperatorArgs;
use super::output::Format;
use super::plan::PlanArgs;
use super::rollout::RolloutCommand;
use super::values::{api_server, duration, group, interval, namespace, number, object_name};

/// The namespace of the operator, unless it is given.
pub const OPERATOR_NAMESPACE: &str = "exuvia-system";
/// The name of the operator's roles, service account and Lease, unless it is given.
pub const OPERATOR_NAME: &str = "exuvia";

/// The words that the help texts use.
const WORDS: &str = "Words: to settle is to wait until every API server stores at the new version after a CRD change; a \
patrol looks once more, one settle time after the trim; to shed a version is to move managedFields entries away from it. \
All words: \
https://github.com/exuvia-dev/exuvia/blob/main/docs/glossary.md";

/// Sheds old Kubernetes API versions and API groups from a live cluster without losing an object, and proves it.
#[derive(Debug, Parser)]
#[command(name = "exuvia", version, arg_required_else_help = true, after_long_help = format!("{}\n\n{WORDS}", exit_codes::ALL))]
pub struct Cli {
    /// Log to standard error what is going on (-vv: also every request, without bodies)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
    /// As after the command
    // Each command that needs a cluster has its own, which takes this value: they may stand before the command, too.
    #[arg(long, global = true, hide = true)]
    pub kubeconfig: Option<PathBuf>,
    /// As after the command
    #[arg(long, global = true, hide = true)]
    pub context: Option<String>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show on a throw-away control plane what a change of the storage version leaves behind, and how to migrate it
    ///
    /// Starts a real etcd and kube-apiserver on this machine (no container, no cluster needed), installs a CRD, creates
    /// objects, changes the storage version, reads from etcd itself what is stored, migrates, and drops the old version.
    /// Everything is removed at the end.
    #[cfg(feature = "demo")]
    Demo(DemoArgs),
    /// Show which CRDs still have old versions in storage, and what to do next
    ///
    /// Only reads. STORAGE is the version that objects are written at, STORED is what status.storedVersions lists, VERDICT
    /// is what follows from both and from earlier migrations, NEXT is the command to run next, with its cost if it has one.
    ///
    /// Several clusters are shown in one table, with a column CONTEXT. If a cluster cannot be read, its row says why, and the
    /// exit code is 1.
    #[command(after_long_help = WORDS)]
    Plan(PlanArgs),
    /// Migrate stored objects to the storage version, and say which versions may be dropped
    #[command(subcommand, after_long_help = WORDS)]
    Storage(StorageCommand),
    /// Move kinds to another API group on a live cluster: check, plan, start and follow a `DatastoreMigration`
    #[command(subcommand)]
    Datastore(DatastoreCommand),
    /// Safe roll-outs of pods that apply resources themselves
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Run in a cluster: migrate the CRDs that have opted in, and carry out every `StorageMigration` and
    /// `DatastoreMigration`
    Operator(Box<OperatorArgs>),
    /// Print the rights that the operator needs, as RBAC manifests with a reason for each rule
    ///
    /// The rules are for the CRDs of the cluster that have opted in by label, in all groups or in those of --groups (only CRDs
    /// are read). Give the same --groups and --opt-in-label as to the operator, whose default group is exuvia.dev. With --crds,
    /// the rules are for the CRDs named there, and no cluster is needed. The service account and the namespace are not
    /// included: create both before you apply the rules (`kubectl create namespace exuvia-system`).
    ///
    /// With -f, the rules are those that one `DatastoreMigration` needs for its time, in roles of their own: delete them when it
    /// has come to its end.
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
#[cfg(feature = "demo")]
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Which story to tell
    #[arg(value_enum, default_value_t)]
    pub story: DemoStory,
    /// How many objects to create
    #[arg(long, default_value_t = 500, value_parser = number::<u16>(1..=9999), allow_negative_numbers = true)]
    pub objects: u16,
    /// Keep the control plane up until Ctrl-C, and print the path of its kubeconfig
    #[arg(long)]
    pub keep: bool,
    /// The API server's port on 127.0.0.1, instead of a free one
    #[arg(long, value_parser = number::<u16>(1..=65535), allow_negative_numbers = true)]
    pub port: Option<u16>,
}

/// What `exuvia demo` shows.
#[cfg(feature = "demo")]
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub enum DemoStory {
    /// A storage version is changed: what etcd holds before and after the migration
    #[default]
    Storage,
    /// A group is renamed while clients read and write, and a second move is aborted
    Datastore,
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
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Show messages of the API server and of webhooks in full, with the values of objects that they quote; use it only on
    /// a terminal
    #[arg(long)]
    pub show_values: bool,
}

/// Which CRDs take part without being named.
#[derive(Clone, Debug, Args)]
pub struct OptInArgs {
    /// Only CRDs of these groups; `example.com` includes `a.example.com`
    #[arg(long, value_delimiter = ',', value_parser = group)]
    pub groups: Vec<String>,
    /// The label by which a CRD opts in, as key or key=value
    #[arg(long, default_value_t, value_parser = opt_in_label)]
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

/// The argument parser repeats the text itself, so the error says only what was expected.
pub(super) fn opt_in_label(text: &str) -> Result<OptInLabel, &'static str> {
    text.parse().map_err(|_| InvalidLabel::EXPECTED)
}

fn crd_name(text: &str) -> Result<Crd, &'static str> {
    text.parse().map_err(|_| InvalidCrdName::EXPECTED)
}

/// Arguments of `exuvia rbac`.
#[derive(Clone, Debug, Args)]
pub struct RbacArgs {
    /// A manifest of a `DatastoreMigration`: print what it needs besides the operator's own rights. The cluster's CRDs are read;
    /// `-` is standard input (repeatable)
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["crds", "groups", "group_wildcards"])]
    pub filename: Vec<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    /// CRDs by name, such as widgets.example.com; the cluster is not read
    #[arg(long, value_delimiter = ',', value_parser = crd_name, conflicts_with = "groups")]
    pub crds: Vec<Crd>,
    /// Allow all resources of the CRDs' groups and of --groups, so that CRDs that opt in later need no new rules
    #[arg(long)]
    pub group_wildcards: bool,
    /// Also allow patches of /status, for migrations with spec.statusFallback
    #[arg(long)]
    pub status_fallback: bool,
    /// Also allow to list everything, including Secrets, for an operator with --look-at-references
    #[arg(long)]
    pub look_at_references: bool,
    /// The operator's namespace
    #[arg(long, default_value = OPERATOR_NAMESPACE, value_parser = namespace)]
    pub namespace: String,
    /// The name of the roles and bindings
    #[arg(long, default_value = OPERATOR_NAME, value_parser = object_name)]
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
    /// The output format
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
    /// Rewrite every object that is stored at an old version, verify that, and trim storedVersions
    #[command(after_long_help = format!("{}\n\n{WORDS}", exit_codes::MIGRATE))]
    Migrate(MigrateArgs),
    /// Show the storage version and stored versions of CRDs, what is proven about them, and what to do next
    Status(StatusArgs),
    /// Say whether a version may be dropped: exit code 0 yes, 1 no, 2 error, 3 not known
    ///
    /// Checks what earlier migrations recorded about stored objects, the owners of fields, ownerReferences in the whole
    /// cluster, the API server's request counters, migrations, and which other versions are served. If something cannot be
    /// checked, the answer is "not known", with the command that would find out.
    Droppable(DroppableArgs),
    /// Show which managers write at a version, and how often it is requested
    ///
    /// Writers are known by name, from managedFields. Readers are not: an API server counts requests and open watches, but
    /// not by whom. The API server's audit log has the names.
    Users(VersionArgs),
    /// Fail if a CRD in the manifests is neither opted in nor excluded with a reason
    Lint(LintArgs),
    /// Read etcd itself and count objects by stored version: the only direct proof
    ///
    /// VERDICT is Current if every object is stored at its CRD's storage version, Behind if one is not, Stranded if a version
    /// is stored that the CRD no longer has, Orphaned if there are objects without a CRD, Unreadable if a value cannot be
    /// read, and `NotJudged` for a built-in resource: which of its versions is right does not show in etcd.
    Audit(AuditArgs),
}

/// Arguments of `exuvia storage status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// CRDs by name [default: all]
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
    /// An API server to ask directly, in addition to those that the cluster lists (repeatable)
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
    /// The version, such as v1alpha1; several are judged as if they were dropped together
    #[arg(required_unless_present = "filename", value_name = "VERSION")]
    pub versions: Vec<String>,
    /// Manifests of the new CRDs: a file, a directory, or - for standard input (repeatable). Every version that is missing in
    /// them must be droppable
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["crd", "versions"])]
    pub filename: Vec<PathBuf>,
    /// Also count requests for this long: any request for the version holds it, even a read (open watches always count)
    #[arg(long, value_name = "DURATION", value_parser = interval, allow_hyphen_values = true)]
    pub watch: Option<Duration>,
    /// Migrate first, whatever storedVersions says, verify every object and wait for the patrol: this proves what is stored
    #[arg(long)]
    pub prove: bool,
    /// With --prove: how long after a CRD change an API server may still store at the old version
    #[arg(long, default_value = defaults::SETTLE, value_parser = duration, allow_hyphen_values = true, requires = "prove")]
    pub settle: Duration,
    /// An API server to ask directly, in addition to those that the cluster lists (repeatable)
    #[arg(long = "apiserver", value_name = "URL", value_parser = api_server)]
    pub api_servers: Vec<http::Uri>,
    /// With --prove: include CRDs that are excluded by annotation
    #[arg(long, requires = "prove")]
    pub include_excluded: bool,
    /// Do not look for ownerReferences, which reads the metadata of every object in the cluster; the answer is then never yes
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
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Arguments of `exuvia storage audit`.
#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    /// Resources by name (widgets.example.com, secrets) [default: all]
    pub resources: Vec<String>,
    /// etcd's client URL (repeatable; tried in this order)
    #[arg(long, required = true)]
    pub etcd_endpoint: Vec<String>,
    /// The certificate authority that signed etcd's certificate
    #[arg(long)]
    pub cacert: Option<PathBuf>,
    /// A client certificate
    #[arg(long, requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of the client certificate
    #[arg(long, requires = "cert")]
    pub key: Option<PathBuf>,
    /// The prefix of the API server's keys in etcd
    #[arg(long, default_value_t = exuvia_audit::AuditOptions::default().prefix)]
    pub etcd_prefix: String,
    /// The output format
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
    /// Only say what the migration would do
    #[arg(long)]
    pub dry_run: bool,
    /// How long after a CRD change an API server may still store at the old version
    #[arg(long, default_value = defaults::SETTLE, value_parser = duration, allow_hyphen_values = true)]
    pub settle: Duration,
    /// An API server to ask directly whether it is behind, in addition to those that the cluster lists (repeatable)
    #[arg(long = "apiserver", value_name = "URL", value_parser = api_server)]
    pub api_servers: Vec<http::Uri>,
    /// An API server that is gone for good although the cluster still lists it (repeatable). The migration does not wait for
    /// it, and verifies every object with a patch
    #[arg(long = "ignore-apiserver", value_name = "URL", value_parser = api_server)]
    pub ignored_api_servers: Vec<http::Uri>,
    /// How to verify. `full` with a name also sweeps if storedVersions is clean
    #[arg(long, value_enum, default_value_t)]
    pub verify: Verify,
    /// Wait one settle time after the trim, then check again what was written in the meantime (CRDs only)
    #[arg(long)]
    pub patrol: bool,
    /// How many CRDs are migrated at once; waiting ones do not count
    #[arg(long, default_value_t = defaults::CONCURRENT_CRDS, value_parser = number::<u16>(limits::CONCURRENT_MIGRATIONS), allow_negative_numbers = true)]
    pub concurrent: u16,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub etcd: EtcdGateArgs,
    /// What happens to managedFields entries at old versions
    #[arg(long, value_enum, default_value_t)]
    pub managed_fields: ManagedFields,
    /// Also move managedFields entries away from this version, although nothing is stored at it any more (repeatable)
    #[arg(long, value_name = "VERSION")]
    pub shed: Vec<String>,
    /// Afterwards move ownerReferences of all objects in the cluster from old versions to the storage version
    #[arg(long)]
    pub owner_references: bool,
    /// Fail unless every old version is droppable at the end. Waits for the patrol, and checks everything that can hold a
    /// version, including the ownerReferences of every object in the cluster
    #[arg(long, conflicts_with = "dry_run")]
    pub require_droppable: bool,
    /// Continue although the rewrite erases fields that only an old version has
    #[arg(long)]
    pub accept_pruning: bool,
    /// Try an object that is denied at its own endpoint through /status; this bypasses the policy that denied it
    #[arg(long)]
    pub status_fallback: bool,
    /// How many objects are processed at once, at most
    #[arg(long, default_value_t = defaults::MAX_CONCURRENCY, value_parser = number::<u16>(limits::MAX_CONCURRENCY), allow_negative_numbers = true)]
    pub max_concurrency: u16,
    /// How many objects are processed per second, at most; an object may take more than one request
    #[arg(long, value_parser = number::<u32>(limits::QPS), allow_negative_numbers = true)]
    pub qps: Option<u32>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub cluster: ClusterArgs,
}

/// The etcd that is audited right before the trim.
#[derive(Clone, Debug, Args)]
pub struct EtcdGateArgs {
    /// Audit this etcd right before the trim, and trim only if nothing is stored at an old version (its client URL;
    /// repeatable)
    #[arg(long, value_name = "URL")]
    pub etcd_endpoint: Vec<String>,
    /// With --etcd-endpoint: the certificate authority that signed etcd's certificate
    #[arg(long, requires = "etcd_endpoint")]
    pub cacert: Option<PathBuf>,
    /// With --etcd-endpoint: a client certificate
    #[arg(long, requires_all = ["etcd_endpoint", "key"])]
    pub cert: Option<PathBuf>,
    /// With --etcd-endpoint: the key of the client certificate
    #[arg(long, requires_all = ["etcd_endpoint", "cert"])]
    pub key: Option<PathBuf>,
    /// The prefix of the API server's keys in etcd
    #[arg(long, default_value_t = exuvia_audit::AuditOptions::default().prefix)]
    pub etcd_prefix: String,
}

impl EtcdGateArgs {
    /// What to audit, if anything.
    pub fn to_options(&self) -> Option<exuvia_audit::AuditOptions> {
        (!self.etcd_endpoint.is_empty()).then(|| exuvia_audit::AuditOptions {
            endpoints: self.etcd_endpoint.clone(),
            cacert: self.cacert.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            prefix: self.etcd_prefix.clone(),
            ..exuvia_audit::AuditOptions::default()
        })
    }
}
