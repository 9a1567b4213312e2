//! The project's chores, so that clone to result is one command.

mod binaries;
mod chart;
mod deploy;
mod generate;
mod mcp;
mod words;

use std::process::{Command, ExitCode, Stdio};
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
    /// Check and test everything: control plane, formatting, lints, generated files, dependencies, tests, doc tests
    Test,
    /// Run `exuvia demo` with the given arguments, or the demo of the MCP operator (`demo mcp`)
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
    /// Fail on words that we do not use, such as those of old books
    Words,
    /// Measure, and print figures as measured
    Bench {
        /// Only count what a migration costs per object, and fail if memory, requests or etcd writes grew by more than 10 %
        /// against bench/baseline.json
        #[arg(long)]
        check: bool,
        /// With --check: write the figures into that file instead
        #[arg(long, requires = "check")]
        update: bool,
        /// What to measure
        #[arg(value_enum, required_unless_present = "check")]
        what: Option<Bench>,
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
    /// The MCP proxy next to nginx with one worker, if that is installed
    Proxy,
    /// Datastore migration next to a bare client: copy rate, freeze in both modes, memory
    Datastore,
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
            let mut command = demo(&args)?;
            // The demo's own exit code is the answer: 130 after Ctrl-C is not our failure to report.
            let status = command.status().context("cannot run cargo")?;
            std::process::exit(status.code().unwrap_or(1));
        }
        Chore::Testenv => testenv(&Binary::ALL),
        Chore::Generate { check } => generate::run(check),
        Chore::Words => words::check(),
        Chore::Bench {
            check: true, update, ..
        } => bench_check(update),
        Chore::Bench { what, args, .. } => match what {
            Some(Bench::Testenv) => bench_testenv(),
            Some(Bench::Write) => run(&mut cargo(&["bench", "--package", "exuvia-write"])),
            Some(Bench::Storage) => bench_built("exuvia-bench", &args),
            Some(Bench::Operator) => bench_built("operator", &args),
            Some(Bench::Proxy) => {
                run(cargo(&["bench", "--package", "mcp-proxy", "--bench", "proxy", "--"]).args(&args))
            }
            Some(Bench::Datastore) => bench_built("datastore", &args),
            None => bail!("say what to measure, or give --check"),
        },
    }
}

/// The command that runs a demo. That of the MCP operator runs the operator's own programs, which are built first.
fn demo(args: &[String]) -> anyhow::Result<Command> {
    if let Some(story) = args.first().filter(|story| !story.starts_with('-'))
        && !["storage", "datastore", "mcp"].contains(&story.as_str())
    {
        bail!("invalid story {story:?}: expected storage, datastore or mcp");
    }
    if args.first().is_none_or(|story| story != "mcp") {
        let mut command = cargo(&["run", "--package", "exuvia", "--", "demo"]);
        command.args(args);
        return Ok(command);
    }
    testenv(&[
        Binary::Etcd,
        Binary::KubeApiserver,
        Binary::KubeControllerManager,
        Binary::KubeScheduler,
        Binary::Kwok,
    ])?;
    run(&mut cargo(&[
        "build",
        "--package",
        "mcp-operator",
        "--bins",
        "--example",
        "demo",
    ]))?;
    let mut command = cargo(&["run", "--package", "mcp-operator", "--example", "demo", "--"]);
    command.args(&args[1..]);
    Ok(command)
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
    check_features()?;
    generate::run(true)?;
    words::check()?;
    deny()?;
    binaries::run(cargo(&[
        "test",
        "--workspace",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ]))?;
    run(&mut cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]))?;
    // A broken link in the documentation is an error, too.
    run(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))
}

/// The workspace turns every feature on. Those who embed a crate turn on fewer, and so does the container image: that must
/// build, too.
fn check_features() -> anyhow::Result<()> {
    for (package, features) in [
        ("exuvia", ""), // as in the Dockerfile
        ("exuvia-runtime", ""),
        ("exuvia-storage", ""),
        ("exuvia-storage", "controller"),
        ("exuvia-storage", "etcd"),
    ] {
        // Without its tests, whose dependencies would turn features on again.
        let mut clippy = cargo(&["clippy", "--package", package, "--no-default-features"]);
        clippy.args(["--features", features, "--", "--deny", "warnings"]);
        run(&mut clippy)?;
    }
    Ok(())
}

/// Licences, sources and duplicates of dependencies. Advisories need the network, so only CI looks at them.
fn deny() -> anyhow::Result<()> {
    let installed = cargo(&["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!("\nskipped `cargo deny check`, as it is not installed: cargo install --locked cargo-deny");
        return Ok(());
    }
    run(&mut cargo(&[
        "deny",
        "--offline",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))
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

/// Counts what a migration costs, by the debug binary: requests, writes and the heap do not depend on the optimiser, and it is
/// built already where tests have run.
fn bench_check(update: bool) -> anyhow::Result<()> {
    testenv(&[Binary::Etcd, Binary::KubeApiserver])?;
    run(&mut cargo(&[
        "build",
        "--package",
        "exuvia",
        "--package",
        "exuvia-bench",
    ]))?;
    let mut command = cargo(&["run", "--package", "exuvia-bench", "--bin", "exuvia-bench", "--"]);
    command.args([
        "--exuvia",
        "target/debug/exuvia",
        "--check",
        "bench/baseline.json",
    ]);
    if update {
        command.arg("--update");
    }
    run(&mut command)
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
