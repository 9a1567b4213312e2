//! A reader that does not read: the proxy's process must not grow with what is pending.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::harness::{Server, events, get, soon};

const PIECE: usize = 64 * 1024;
const PIECES: usize = 200 * 1024 * 1024 / PIECE;

/// Starts a command of this crate, and returns it with the address that it serves on.
pub(crate) async fn command(path: &str, args: &[&str]) -> (Child, SocketAddr) {
    let mut child = Command::new(path)
        .args(["--listen", "127.0.0.1:0"])
        .args(args)
        .env("NO_COLOR", "1")
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = soon("the command serves", async {
        loop {
            let line = lines
                .next_line()
                .await
                .unwrap()
                .expect("a line that says where it serves");
            if let Some((_, address)) = line.split_once("address=") {
                return address.trim().parse().unwrap();
            }
        }
    })
    .await;
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

fn resident_kib(child: &Child) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_slow_reader_with_200_megabytes_pending_costs_at_most_16() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = made.clone();
    let server = Server::start(move |_| {
        let counted = counted.clone();
        async move {
            let pieces = stream::iter(0..PIECES).map(move |_| {
                counted.fetch_add(1, SeqCst);
                Bytes::from(vec![b'x'; PIECE])
            });
            events(pieces.boxed())
        }
    })
    .await;
    let (child, address) = command(env!("CARGO_BIN_EXE_mcp-proxy"), &["--backend", &server.url()]).await;
    // A first stream, read to its end: what the process needs anyway.
    let mut warm = get(address, "/mcp", &[]).await;
    assert_eq!(warm.body().await.len(), PIECES * PIECE);
    let before = resident_kib(&child);

    let mut slow = get(address, "/mcp", &[]).await;
    made.store(0, SeqCst);
    let mut last = 0;
    let mut same = 0;
    soon("the backend is held back", async {
        while same < 20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = made.load(SeqCst);
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
    })
    .await;
    assert!(
        last < PIECES / 2,
        "{last} of {PIECES} pieces were made without a reader"
    );
    let grown = resident_kib(&child).saturating_sub(before);
    println!(
        "the proxy grew by {grown} KiB from {before} KiB, with {} MiB pending",
        ((PIECES - last) * PIECE) >> 20
    );
    assert!(grown <= 16 * 1024, "grew by {grown} KiB");
    assert_eq!(slow.body().await.len(), PIECES * PIECE, "nothing is lost");
}
