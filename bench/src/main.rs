//! Storage migration next to its limit (a bare client) and its peer (the in-tree migrator), in turns, in one run.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark sets up its world and plays the bare client"
)]

mod baseline;
mod bystander;
mod contest;
mod contestants;
mod costs;
mod measured;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;

use contest::Arena;
use contestants::Contestant;
use measured::Measured;

/// Long enough to see whether it is waited for once or once per CRD.
const FLEET_SETTLE: Duration = Duration::from_secs(5);

/// How many objects may be in work at once, to see what others have of it.
const CAPS: [usize; 5] = [2, 4, 8, 16, 32];

#[derive(Parser)]
#[command(name = "exuvia-bench")]
struct Args {
    /// The `exuvia` binary to measure
    #[arg(long)]
    exuvia: PathBuf,
    /// Objects in the plain contest
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// How often the bare client and both ways to verify take their turns in the plain contest
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Objects for the peer behind the webhook, which would take most of an hour otherwise
    #[arg(long, default_value_t = 1_000)]
    peer_objects: usize,
    /// Objects of the largest run for memory; 0 leaves it out
    #[arg(long, default_value_t = 100_000)]
    large: usize,
    /// CRDs of the fleet that is migrated by one command; 0 leaves it out
    #[arg(long, default_value_t = 100)]
    crds: usize,
    /// Objects of each CRD of the fleet
    #[arg(long, default_value_t = 50)]
    crd_objects: usize,
    /// Objects on the wire, and for memory next to --large
    #[arg(long, default_value_t = 1_000)]
    few: usize,
    /// Objects of each run with a cap on those in work at once; 0 leaves them out
    #[arg(long, default_value_t = 3_000)]
    capped: usize,
    /// Only the runs with a cap
    #[arg(long)]
    only_capped: bool,
    /// Where to write the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only count what a migration costs per object, and fail if that grew by more than 10 % against this file
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Write what was counted into the file instead
    #[arg(long, requires = "check")]
    update: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let exuvia = std::fs::canonicalize(&args.exuvia)
        .with_context(|| format!("{} is not there: build it first", args.exuvia.display()))?;
    if let Some(committed) = &args.check {
        return costs::check(&exuvia, args.few, committed, args.update).await;
    }
    let mut results = Vec::new();

    let arena = Arena::start().await?;
    if args.capped > 0 {
        for cap in CAPS {
            results.push(arena.run_capped(cap, args.capped, &exuvia).await?);
        }
    }
    if args.only_capped {
        return finish(&results, args.json.as_deref());
    }
    for _ in 0..args.turns {
        for contestant in [Contestant::Bare, Contestant::Proof, Contestant::Full] {
            results.push(arena.run(contestant, args.objects, &exuvia, "plain").await?);
        }
    }
    results.push(
        arena
            .run(Contestant::InTree, args.objects, &exuvia, "plain")
            .await?,
    );
    arena.add_slow_webhook().await?;
    for contestant in [
        Contestant::Bare,
        Contestant::InTree,
        Contestant::Proof,
        Contestant::Full,
    ] {
        let objects = if contestant == Contestant::InTree {
            args.peer_objects
        } else {
            args.objects
        };
        results.push(arena.run(contestant, objects, &exuvia, "webhook").await?);
    }
    arena.remove_slow_webhook().await?;
    if args.crds > 0 {
        let fleet = arena.run_fleet(args.crds, args.crd_objects, &exuvia, FLEET_SETTLE);
        results.push(fleet.await?);
    }
    results.push(arena.run_on_the_wire(args.few, &exuvia, false).await?);
    results.push(arena.run_on_the_wire(args.few, &exuvia, true).await?);
    results.push(arena.run(Contestant::Proof, args.few, &exuvia, "memory").await?);
    if args.large > 0 {
        results.push(
            arena
                .run(Contestant::Proof, args.large, &exuvia, "memory")
                .await?,
        );
    }

    finish(&results, args.json.as_deref())
}

fn finish(results: &[Measured], json: Option<&Path>) -> anyhow::Result<()> {
    measured::print(results);
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_string_pretty(results)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
