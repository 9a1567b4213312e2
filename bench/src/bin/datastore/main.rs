//! Datastore migration next to a bare client: how fast it copies, for how long it refuses writes, and what that costs others.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark sets up its world and plays the bare client"
)]

mod arena;
#[path = "../../bystander.rs"]
mod bystander;
mod cel;
mod results;
mod run;
mod timeline;
mod writer;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use exuvia_api::{DatastorePhase, MigrationMode};
use exuvia_testenv::Widgets;

use arena::{Arena, load_average};
use bystander::Bystander;
use results::{Measured, Results};
use run::Run;

#[derive(Parser)]
#[command(name = "datastore")]
struct Args {
    /// The `exuvia` binary to measure
    #[arg(long)]
    exuvia: PathBuf,
    /// Objects that are copied next to a bare client; 0 leaves it out
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// How often the bare client and a migration take their turns in that
    #[arg(long, default_value_t = 2)]
    turns: usize,
    /// Objects in the smaller runs with a writer; 0 leaves them out
    #[arg(long, default_value_t = 1_000)]
    few: usize,
    /// Objects in the larger runs with a writer; 0 leaves them out
    #[arg(long, default_value_t = 20_000)]
    many: usize,
    /// Writes per second to the source meanwhile
    #[arg(long, default_value_t = 50)]
    writes: u32,
    /// `spec.freeze.drain` of the runs with a writer. By gauges it takes 94 s until a freeze begins
    #[arg(long, default_value = "Auto")]
    drain: String,
    /// Objects of the largest run, for memory; 0 leaves it out
    #[arg(long, default_value_t = 50_000)]
    large: usize,
    /// Where to write the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let exuvia = std::fs::canonicalize(&args.exuvia)
        .with_context(|| format!("{} is not there: build it first", args.exuvia.display()))?;
    let cel_evaluations_per_second = tokio::task::spawn_blocking(cel::evaluations_per_second).await??;
    let arena = Arena::start(&exuvia).await?;
    let mut results = Results {
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        bystander_at_rest_p99_ms: Bystander::at_rest(arena.client.clone()).await,
        cel_evaluations_per_second,
        file: args.json.clone(),
        ..Results::default()
    };
    for (name, objects) in [("few", args.few), ("many", args.many)] {
        if objects > 0 {
            freezes(&arena, &args, name, objects, &mut results).await?;
        }
    }
    for turn in 0..args.turns {
        if args.objects > 0 {
            copies(&arena, turn, args.objects, &mut results).await?;
        }
    }
    if args.large > 0 {
        results.add(large(&arena, args.large).await?)?;
    }
    results.print();
    Ok(())
}

/// Both modes from one source, one after the other, while somebody writes.
async fn freezes(
    arena: &Arena,
    args: &Args,
    name: &str,
    objects: usize,
    results: &mut Results,
) -> anyhow::Result<()> {
    let mut left: Vec<Widgets> = Vec::new();
    for (short, mode) in [
        ("copy", MigrationMode::FreezeAndCopy),
        ("sync", MigrationMode::SyncThenFreeze),
    ] {
        // What the writer made in one run is not to be found in the other.
        let source = arena.install(&format!("old.{name}.{short}")).await?;
        arena.create(&source, objects).await?;
        let target = arena.install(&format!("new.{name}.{short}")).await?;
        let run = Run {
            contest: "freeze",
            mode,
            objects,
            source: &source,
            target: &target,
            drain: &args.drain,
            writes_per_second: args.writes,
            last: DatastorePhase::Complete,
        };
        results.add(run.measure(arena).await?)?;
        left.extend([source, target]);
    }
    remove(arena, &left).await
}

/// The bare client creates objects, and a migration copies them.
async fn copies(arena: &Arena, turn: usize, objects: usize, results: &mut Results) -> anyhow::Result<()> {
    let source = arena.install(&format!("old.turn{turn}")).await?;
    let target = arena.install(&format!("new.turn{turn}")).await?;
    let (load_average, bystander) = (load_average(), Bystander::start(arena.client.clone()));
    let seconds = arena.create(&source, objects).await?;
    let (bystander_p99_ms, bystander_writes) = bystander.stop().await;
    let bare = Measured {
        contest: "copy",
        objects,
        seconds,
        load_average,
        bystander_p99_ms: Some(bystander_p99_ms),
        bystander_writes: Some(bystander_writes),
        ..Measured::default()
    };
    results.add(bare.shown())?;
    let run = Run {
        contest: "copy",
        mode: MigrationMode::FreezeAndCopy,
        objects,
        source: &source,
        target: &target,
        drain: "0s", // nobody writes here
        writes_per_second: 0,
        last: DatastorePhase::Complete,
    };
    results.add(run.measure(arena).await?)?;
    remove(arena, &[source, target]).await
}

/// One run for its memory. It is the last one.
async fn large(arena: &Arena, objects: usize) -> anyhow::Result<Measured> {
    let source = arena.install("old.large").await?;
    let target = arena.install("new.large").await?;
    arena.create(&source, objects).await?;
    let run = Run {
        contest: "memory",
        mode: MigrationMode::FreezeAndCopy,
        objects,
        source: &source,
        target: &target,
        drain: "0s",
        writes_per_second: 0,
        last: DatastorePhase::Converged,
    };
    run.measure(arena).await
}

/// Objects that are left would be looked at by every later run.
async fn remove(arena: &Arena, kinds: &[Widgets]) -> anyhow::Result<()> {
    for widgets in kinds {
        arena.remove(widgets).await?;
    }
    Ok(())
}
