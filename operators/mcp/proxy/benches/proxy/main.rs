//! What the proxy costs, next to no proxy at all and to nginx with one worker, in one run: compare the ratios.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss)] // a benchmark may panic, and its figures are approximate

mod contestants;
mod load;
mod server;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use serde_json::{Value, json};

use self::{
    contestants::Contestant,
    load::{Rate, first_events, open_streams, rate},
};

#[derive(Parser)]
struct Args {
    /// Connections that send requests, one after the other on each
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Seconds of load per contestant and turn
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// How often the contestants take turns
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Streams that are open at once
    #[arg(long, default_value_t = 1000)]
    streams: usize,
    /// Another build of mcp-proxy, measured in the same run
    #[arg(long, value_name = "PROGRAM")]
    other: Option<PathBuf>,
    /// Where to write the results as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// What `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

struct Measured {
    contestant: Contestant,
    rates: Vec<Rate>,
    first_events: Vec<Duration>,
    rss_before: usize,
    rss_with_streams: usize,
}

fn main() {
    let args = Args::parse();
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(args));
}

/// Each stream needs a descriptor at the client, two at the proxy, one at the server.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

async fn run(args: Args) {
    let server = server::start().await;
    let directory = tempfile::tempdir().unwrap();
    let mut measured: Vec<Measured> = contestants::all(server, directory.path(), args.other.as_deref())
        .await
        .into_iter()
        .map(|contestant| Measured {
            contestant,
            rates: Vec::new(),
            first_events: Vec::new(),
            rss_before: 0,
            rss_with_streams: 0,
        })
        .collect();
    for turn in 0..=args.turns {
        for one in &mut measured {
            let address = one.contestant.address;
            // The turn before the first one warms up, and is not counted.
            let time = Duration::from_secs(if turn == 0 { 1 } else { args.seconds });
            let rate = rate(address, args.connections, time).await;
            let first = first_events(address, if turn == 0 { 20 } else { 200 }).await;
            if turn > 0 {
                one.rates.push(rate);
                one.first_events.extend(first);
            }
        }
    }
    for one in &mut measured {
        one.rss_before = one.contestant.rss_kib();
        let open = open_streams(one.contestant.address, args.streams).await;
        one.rss_with_streams = one.contestant.rss_kib();
        drop(open);
    }
    report(&args, &mut measured);
}

fn report(args: &Args, measured: &mut [Measured]) {
    println!(
        "| who | requests/s | p50 | p99 | first event p50 | p99 | RSS | with {} streams | per idle stream |",
        args.streams
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut rows: Vec<Value> = Vec::new();
    for one in measured.iter_mut() {
        let per_second = median(&one.rates, |rate| rate.per_second);
        let p50 = median(&one.rates, |rate| rate.p50.as_secs_f64() * 1e3);
        let p99 = median(&one.rates, |rate| rate.p99.as_secs_f64() * 1e3);
        one.first_events.sort_unstable();
        let first = |share: f64| load::quantile(&one.first_events, share).as_secs_f64() * 1e3;
        let grown = one.rss_with_streams.saturating_sub(one.rss_before) as f64;
        let row = json!({
            "who": one.contestant.name,
            "requestsPerSecond": per_second,
            "requestsPerSecondByTurn": one.rates.iter().map(|rate| rate.per_second).collect::<Vec<_>>(),
            "p50Milliseconds": p50,
            "p99Milliseconds": p99,
            "firstEventP50Milliseconds": first(0.5),
            "firstEventP99Milliseconds": first(0.99),
            "rssKib": one.rss_before,
            "rssWithStreamsKib": one.rss_with_streams,
            "kibPerIdleStream": grown / args.streams as f64,
        });
        println!(
            "| {} | {per_second:.0} | {p50:.2} ms | {p99:.2} ms | {:.2} ms | {:.2} ms | {:.1} MiB | {:.1} MiB | {:.1} KiB |",
            one.contestant.name,
            first(0.5),
            first(0.99),
            one.rss_before as f64 / 1024.0,
            one.rss_with_streams as f64 / 1024.0,
            grown / args.streams as f64,
        );
        rows.push(row);
    }
    let of = |who: &str, what: &str| rows.iter().find(|row| row["who"] == who)?[what].as_f64();
    println!();
    for (what, aim) in [
        ("requestsPerSecond", "at least 0.8"),
        ("p99Milliseconds", "at most 1.5"),
        ("firstEventP50Milliseconds", "at most 2"),
    ] {
        match (of("mcp-proxy", what), of("nginx", what)) {
            (Some(ours), Some(theirs)) => println!("{what}: {:.2} of nginx ({aim})", ours / theirs),
            _ => println!("{what}: not compared, as nginx is not installed ({aim})"),
        }
    }
    println!(
        "an idle stream: {:.1} KiB (at most 40)",
        of("mcp-proxy", "kibPerIdleStream").unwrap()
    );
    println!(
        "RSS with {} streams: {:.1} MiB (at most 24)",
        args.streams,
        of("mcp-proxy", "rssWithStreamsKib").unwrap() / 1024.0
    );
    if let Some(path) = &args.json {
        let all = json!({
            "connections": args.connections,
            "secondsPerTurn": args.seconds,
            "turns": args.turns,
            "streams": args.streams,
            "contestants": rows,
        });
        std::fs::write(path, format!("{all:#}\n")).unwrap();
    }
}

fn median<T>(all: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut figures: Vec<f64> = all.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
