//! Storage migration next to its limit (a bare client) and its peer (the in-tree migrator), in turns, in one run.
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark sets up its world and plays the bare client"
)]

mod bystander;
mod contest;
mod measured;

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;

use contest::{Arena, Contestant};

#[derive(Parser)]
#[command(name = "exuvia-bench")]
struct Args {
    /// The `exuvia` binary to measure
    #[arg(long)]
    exuvia: PathBuf,
    /// Objects in the plain contest
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// Objects for the peer behind the webhook, which would take most of an hour otherwise
    #[arg(long, default_value_t = 1_000)]
    peer_objects: usize,
    /// Objects of the largest run for memory; 0 leaves it out
    #[arg(long, default_value_t = 100_000)]
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
    let mut results = Vec::new();

    let arena = Arena::start().await?;
    for contestant in [Contestant::Bare, Contestant::InTree, Contestant::Exuvia] {
        results.push(arena.run(contestant, args.objects, &exuvia, "plain").await?);
    }
    arena.add_slow_webhook().await?;
    for contestant in [Contestant::Bare, Contestant::InTree, Contestant::Exuvia] {
        let objects = if contestant == Contestant::InTree {
            args.peer_objects
        } else {
            args.objects
        };
        results.push(arena.run(contestant, objects, &exuvia, "webhook").await?);
    }
    arena.remove_slow_webhook().await?;
    results.push(arena.run_on_the_wire(1_000, &exuvia, false).await?);
    results.push(arena.run_on_the_wire(1_000, &exuvia, true).await?);
    results.push(arena.run(Contestant::Exuvia, 1_000, &exuvia, "memory").await?);
    if args.large > 0 {
        results.push(
            arena
                .run(Contestant::Exuvia, args.large, &exuvia, "memory")
                .await?,
        );
    }

    measured::print(&results);
    if let Some(path) = args.json {
        std::fs::write(&path, serde_json::to_string_pretty(&results)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
