//! Arguments of `exuvia plan`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::args::OptInArgs;
use crate::cli::output::Format;
use crate::cli::values::interval;

/// Arguments of `exuvia plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// Also look at every object's managedFields: who owns fields at which version, and where apply is broken already
    #[arg(long)]
    pub ownership: bool,
    /// Look again and again until Ctrl-C: a terminal is drawn over, a pipe gets only what changed
    #[arg(short, long)]
    pub watch: bool,
    /// With --watch: how long to wait between two looks
    #[arg(long, default_value = "5s", value_parser = interval, allow_hyphen_values = true, requires = "watch")]
    pub interval: Duration,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub opt_in: OptInArgs,
    /// The kubeconfig file [default: $KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig (repeatable: all clusters in one table)
    #[arg(
        id = "context",
        long = "context",
        value_name = "CONTEXT",
        conflicts_with = "all_contexts"
    )]
    pub contexts: Vec<String>,
    /// Every context of the kubeconfig: all clusters in one table
    #[arg(long)]
    pub all_contexts: bool,
    /// How to print results
    #[arg(short, long, value_enum, default_value_t)]
    pub output: PlanFormat,
    /// Show messages of the API server and of webhooks in full, with the values of objects that they quote; use it only on
    /// a terminal
    #[arg(long)]
    pub show_values: bool,
}

/// How a plan is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    /// A table; on a narrow terminal sentences go below their row
    #[default]
    Table,
    /// Also what holds each old version: who writes at it, which entries, what a migration did not do. Looks at the metadata
    /// of all objects
    Wide,
    /// JSON; with --ownership also what holds each old version
    Json,
    /// YAML, with the same fields
    Yaml,
}

impl PlanFormat {
    pub(in crate::cli) fn is_for_people(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }

    pub(in crate::cli) fn format(self) -> Format {
        match self {
            Self::Table | Self::Wide => Format::Table,
            Self::Json => Format::Json,
            Self::Yaml => Format::Yaml,
        }
    }
}
