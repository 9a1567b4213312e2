//! The tree of commands and arguments, apart from the work.

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

/// Sheds old Kubernetes API versions and API groups from a live cluster without losing an object, and proves it.
#[derive(Debug, Parser)]
#[command(name = "exuvia", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show on a throw-away control plane what a storage version flip leaves behind
    ///
    /// Starts a real etcd and kube-apiserver on this machine (no container, no cluster needed), installs a CRD, creates
    /// objects, flips the storage version, and reads from etcd's own bytes what is stored. Everything ends with it.
    Demo(DemoArgs),
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
    #[arg(long)]
    pub port: Option<u16>,
}
