//! The loop of a sweep: pages come in, objects go to workers, verdicts come back, progress goes out.

use std::{any::Any, panic::AssertUnwindSafe, pin::Pin};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use kube::{api::ListParams, core::PartialObjectMeta};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    Control, Error, Progress, Report, Verdict,
    control::Mode,
    list::{ListFailure, Page, Source},
    state::{Done, Settings, State},
    tally::Named,
};

/// Walks to the end.
///
/// All of it is one future: workers are polled here and not spawned, so that they may borrow from the caller, and dropping
/// the sweep drops everything. Nothing is awaited but in the one `select!`, or workers would stand still meanwhile.
pub(crate) async fn drive<S, W, F>(
    source: &S,
    settings: &Settings,
    control: &Control,
    progress: &watch::Sender<Progress>,
    worker: W,
) -> Result<Report, Error>
where
    S: Source,
    W: Fn(PartialObjectMeta) -> F,
    F: Future<Output = Verdict>,
{
    let mut orders = control.subscribe();
    let mut state = State::new(settings, *orders.borrow(), Instant::now());
    let mut workers = FuturesUnordered::new();
    let mut fetch = None;
    loop {
        let now = Instant::now();
        state.heed(*orders.borrow_and_update(), now);
        if state.mode() == Mode::Cancelled {
            fetch = None;
        }
        while let Some((object, named)) = state.begin(workers.len(), now) {
            workers.push(attend(&worker, object, named));
        }
        if fetch.is_none()
            && let Some((params, not_before)) = state.wants_page()
        {
            fetch = Some(Box::pin(page(source, params, not_before)));
        }
        if fetch.is_none() && workers.is_empty() && state.is_over() {
            break;
        }
        if let Some(news) = state.news(workers.len(), now) {
            progress.send_replace(news);
        }
        let wake = state.wake(workers.len(), now);
        tokio::select! {
            biased; // an order first, then what feeds the workers, and only then their verdicts
            _ = orders.changed() => {}
            answer = if_any(&mut fetch) => {
                fetch = None;
                state.on_list(answer, Instant::now());
            }
            () = sleep_until(wake.unwrap_or(now)), if wake.is_some() => {}
            Some(done) = workers.next(), if !workers.is_empty() => state.on_done(done, Instant::now()),
        }
    }
    let now = Instant::now();
    progress.send_replace(state.last_news(now));
    state.end(now)
}

async fn page<S: Source>(
    source: &S,
    params: ListParams,
    not_before: Option<Instant>,
) -> Result<Page, ListFailure> {
    if let Some(not_before) = not_before {
        sleep_until(not_before).await;
    }
    source.page(params).await
}

async fn if_any<F: Future>(future: &mut Option<Pin<Box<F>>>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Has one object worked on. A worker that panics has failed at that object, and at no other.
async fn attend<F: Future<Output = Verdict>>(
    worker: &impl Fn(PartialObjectMeta) -> F,
    object: PartialObjectMeta,
    named: Named,
) -> Done {
    let began = Instant::now();
    // What the worker shares with the others it must keep in order itself, as with any task that panics.
    let working = AssertUnwindSafe(async { worker(object).await });
    let verdict = working.catch_unwind().await.unwrap_or_else(|panic| {
        let message = said(panic.as_ref());
        tracing::error!(
            namespace = named.namespace,
            name = named.name,
            message,
            "a worker panicked"
        );
        Verdict::failed("panic", message)
    });
    Done {
        object: named,
        verdict,
        took: began.elapsed(),
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the worker panicked")
}

#[cfg(test)]
mod tests;
