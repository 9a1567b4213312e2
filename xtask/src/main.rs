//! The project's chores, so that clone to result is one command.

mod deploy;
mod generate;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use exuvia_testenv::assets::{Assets, Binary};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Check and test everything: control plane, formatting, lints, generated files, tests, doc tests
    Test,
    /// Run `exuvia demo` with the given arguments
    Demo {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Find or build the control plane's binaries (a second run is instant)
    Testenv,
    /// Write the generated files, such as docs/cli.md
    Generate {
        /// Change nothing, and fail if a file is stale
        #[arg(long)]
        check: bool,
    },
    /// Measure, and print figures as measured
    Bench {
        /// What to measure
        #[arg(value_enum)]
        what: Bench,
        /// For the benchmark itself, such as `--objects 1000`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Bench {
    /// How long a control plane takes to start
    Testenv,
    /// What a merge diff costs
    Write,
    /// Storage migration next to a bare client and the in-tree migrator
    Storage,
    /// What an idle operator costs: memory with 500 CRDs, writes in a minute
    Operator,
}

fn main() -> ExitCode {
    match carry_out(Args::parse().chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(chore: Chore) -> anyhow::Result<()> {
    match chore {
        Chore::Test => test(),
        Chore::Demo { args } => {
            let mut command = cargo(&["run", "--package", "exuvia", "--", "demo"]);
            command.args(args);
            // The demo's own exit code is the answer: 130 after Ctrl-C is not our failure to report.
            let status = command.status().context("cannot run cargo")?;
            std::process::exit(status.code().unwrap_or(1));
        }
        Chore::Testenv => testenv(&Binary::ALL),
        Chore::Generate { check } => generate::run(check),
        Chore::Bench {
            what: Bench::Testenv, ..
        } => bench_testenv(),
        Chore::Bench {
            what: Bench::Write, ..
        } => run(&mut cargo(&["bench", "--package", "exuvia-write"])),
        Chore::Bench {
            what: Bench::Storage,
            args,
        } => bench_built("exuvia-bench", &args),
        Chore::Bench {
            what: Bench::Operator,
            args,
        } => bench_built("operator", &args),
    }
}

fn test() -> anyhow::Result<()> {
    testenv(&Binary::ALL)?;
    run(&mut cargo(&["fmt", "--all", "--check"]))?;
    run(&mut cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "--deny",
        "warnings",
    ]))?;
    generate::run(true)?;
    // Documentation tests are part of `cargo test`; a broken link in the documentation is an error, too.
    // A failing binary must not hide what the others would have said.
    // Tests on a real server mostly wait for it: four at a time on two cores are about twice as fast as two.
    run(cargo(&["test", "--workspace", "--no-fail-fast"]).env("RUST_TEST_THREADS", "4"))?;
    run(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))
}

fn testenv(binaries: &[Binary]) -> anyhow::Result<()> {
    let assets = Assets::from_env()?.report_to(exuvia::build_progress::on_terminal());
    for &binary in binaries {
        let path = assets.find(binary)?;
        println!("{:<24} {}", binary.name(), path.display());
    }
    Ok(())
}

fn bench_testenv() -> anyhow::Result<()> {
    testenv(&[Binary::Etcd, Binary::KubeApiserver])?;
    let runtime = tokio::runtime::Runtime::new()?;
    for _ in 0..5 {
        let started = Instant::now();
        let control_plane = runtime.block_on(exuvia_testenv::ControlPlane::builder().start())?;
        let ready = started.elapsed();
        drop(control_plane);
        println!(
            "ready after {:.2} s, gone after {:.2} s",
            ready.as_secs_f64(),
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Runs a program of the bench crate on the release build of `exuvia`.
fn bench_built(program: &str, args: &[String]) -> anyhow::Result<()> {
    testenv(&[Binary::Etcd, Binary::KubeApiserver, Binary::KubeControllerManager])?;
    run(&mut cargo(&[
        "build",
        "--release",
        "--package",
        "exuvia",
        "--package",
        "exuvia-bench",
    ]))?;
    let mut command = cargo(&[
        "run",
        "--release",
        "--package",
        "exuvia-bench",
        "--bin",
        program,
        "--",
    ]);
    run(command.args(["--exuvia", "target/release/exuvia"]).args(args))
}

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(args);
    // What cargo told this package about itself would make the inner cargo build half of everything again.
    for (name, _) in std::env::vars_os() {
        let own = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_BIN_")
                || [
                    "CARGO_MANIFEST_DIR",
                    "CARGO_MANIFEST_PATH",
                    "CARGO_CRATE_NAME",
                    "CARGO_PRIMARY_PACKAGE",
                ]
                .contains(&name)
        });
        if own {
            command.env_remove(name);
        }
    }
    command
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let args: Vec<_> = command
        .get_args()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let line = format!("cargo {}", args.join(" "));
    println!("\n$ {line}");
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}
