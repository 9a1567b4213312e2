//! The loop of a sweep: pages come in, objects go to workers, verdicts come back, progress goes out.

use std::{any::Any, panic::AssertUnwindSafe, pin::Pin};

use exuvia_write::Redacted;
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use kube::Resource;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    Control, Error, Identity, Item, ListError, Page, Progress, SweepReport, Verdict,
    control::Mode,
    list::Source,
    pages::Walk,
    state::{Done, Settings, SweepState},
};

/// Walks to the end.
///
/// All of it is one future: workers are polled here and not spawned, so that they may borrow from the caller, and dropping
/// the sweep drops everything. Nothing is awaited outside the one `select!`, or workers would stand still meanwhile.
pub(crate) async fn walk_to_end<S, T, W, F>(
    walk: Walk<S>,
    read: fn(&Item) -> Result<T, serde_json::Error>,
    settings: &Settings,
    control: &Control,
    progress: &watch::Sender<Progress>,
    worker: W,
) -> Result<SweepReport, Error>
where
    S: Source,
    T: Resource,
    W: Fn(T) -> F,
    F: Future<Output = Verdict>,
{
    let mut orders = control.subscribe();
    let mut state = SweepState::new(settings, *orders.borrow(), Instant::now());
    let mut workers = FuturesUnordered::new();
    let mut pager = Some(walk);
    let mut fetch = None;
    loop {
        let now = Instant::now();
        state.take_orders(*orders.borrow_and_update(), now);
        if state.mode() == Mode::Cancelled {
            fetch = None;
        }
        while let Some((object, identity)) = state.begin(read, workers.len(), now) {
            workers.push(attend(&worker, object, identity));
        }
        if state.wants_page()
            && let Some(walk) = pager.take()
        {
            fetch = Some(Box::pin(ask(walk)));
        }
        if fetch.is_none() && workers.is_empty() && state.is_over() {
            break;
        }
        if let Some(due) = state.progress_if_due(workers.len(), now) {
            progress.send_replace(due);
        }
        let wake = state.wake(workers.len(), now);
        tokio::select! {
            biased; // an order first, then what feeds the workers, and only then their verdicts
            _ = orders.changed() => {}
            (walk, answer) = if_any(&mut fetch) => {
                fetch = None;
                state.on_list(walk.lists(), answer, Instant::now());
                pager = Some(walk);
            }
            () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            Some(done) = workers.next(), if !workers.is_empty() => state.on_done(done, Instant::now()),
        }
    }
    let now = Instant::now();
    progress.send_replace(state.final_progress(now));
    state.end(now)
}

/// The pager comes back with the answer: it is asked one page at a time.
async fn ask<S: Source>(mut walk: Walk<S>) -> (Walk<S>, Result<Option<Page>, ListError>) {
    let answer = walk.ask().await;
    (walk, answer)
}

async fn if_any<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Gives one object to the worker. A worker that panics has failed at that object, and at no other.
async fn attend<T, F: Future<Output = Verdict>>(
    worker: &impl Fn(T) -> F,
    object: T,
    identity: Identity,
) -> Done {
    let began = Instant::now();
    // As with any task that panics, the worker itself keeps in order what it shares with the others.
    let working = AssertUnwindSafe(async { worker(object).await });
    let verdict = working.catch_unwind().await.unwrap_or_else(|panic| {
        let message = text_of(panic.as_ref());
        tracing::error!(
            namespace = identity.namespace,
            name = identity.name,
            message,
            "a worker panicked"
        );
        Verdict::failed("panic", Redacted::from_server(message))
    });
    Done {
        object: identity,
        verdict,
        took: began.elapsed(),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the worker panicked")
}

#[cfg(test)]
mod tests;
