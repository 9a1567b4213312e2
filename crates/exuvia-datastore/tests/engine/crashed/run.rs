//! One run with a crash at one of its writes, and many of them at a time.

use std::collections::BTreeSet;
use std::sync::Mutex;

use exuvia_api::DatastorePhase;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::in_time;
use exuvia_testenv::proxy::{Fault, Match, Recorded, Rule};
use futures::StreamExt;
use kube::Client;
use kube::api::DeleteParams;
use serde_json::Value;
use tokio::sync::mpsc;

use super::slot::Slot;
use crate::control_plane;

/// So many migrations run at a time.
pub(super) const SLOTS: usize = 6;

/// The writes of the engine that store something.
pub(super) fn counted() -> Match {
    let mut counted = Match::writes().except(Match::any().query("dryRun="));
    for question in ["selfsubjectaccessreviews", "selfsubjectreviews"] {
        counted = counted.except(Match::any().resource(question));
    }
    counted
}

pub(super) fn described(write: &Recorded) -> String {
    let object = write.object().unwrap();
    format!("{} {} {}", write.method, object.resource, object.subresource)
}

/// What a run leaves behind: when it is complete, and when it is deleted.
pub(super) type Left = (Option<Value>, Value);

/// Carries the migration out and deletes it when it is complete.
pub(super) async fn carried_out(slot: &Slot, client: &Client, complete: &Mutex<Option<Value>>) {
    let stage = &slot.stage;
    let Some(migration) = stage.migrations().get_opt(&stage.name).await.unwrap() else {
        return;
    };
    let mut engine = stage.engine_by(client, &migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    if migration.metadata.deletion_timestamp.is_none()
        && let Some(migration) = stage.migrations().get_opt(&stage.name).await.unwrap()
        && migration.metadata.deletion_timestamp.is_none()
    {
        *complete.lock().unwrap() = Some(slot.seen().await);
        stage
            .migrations()
            .delete(&stage.name, &DeleteParams::default())
            .await
            .unwrap();
        assert_eq!(stage.drive(&mut engine).await, Ended::Done);
    }
}

/// What goes wrong at a write. What a process leaves that ends before a write is what one leaves that ended after the write
/// before it; so there is one of that kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Crash {
    /// The engine is dropped, and the request was never sent.
    Before,
    /// The engine is dropped when the write is committed.
    After,
    /// The write is committed, and the engine goes on without its answer.
    AnswerLost,
}

/// A crash at the n-th write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) write: usize,
    pub(super) crash: Crash,
}

/// What came of a run.
pub(super) struct Ran {
    pub(super) left: Left,
    pub(super) writes: Vec<String>,
    /// The phase that the crash met.
    pub(super) at_crash: DatastorePhase,
    /// The run had as many writes as the crash needs. How often an engine on its way says how far it is depends on the time.
    pub(super) met: bool,
}

/// One run. The engine is dropped at `point`; with `aborts`, somebody then deletes the migration.
pub(super) async fn run(slot: &Slot, point: Option<Point>, aborts: bool) -> Ran {
    slot.set_up().await;
    let proxy = control_plane().await.proxy().await.unwrap();
    let (tell, mut hear) = mpsc::unbounded_channel();
    if let Some(Point { write, crash }) = point {
        let rule = Rule::on(counted()).nth(write as u64);
        let tell = move |_: &Recorded| {
            let _ = tell.send(());
        };
        proxy.inject(match crash {
            Crash::Before => rule.then(Fault::StallRequest).on_request(tell),
            Crash::After => rule.then(Fault::StallAnswer).on_commit(tell),
            Crash::AnswerLost if write % 2 == 0 => rule.then(Fault::replace(504)),
            Crash::AnswerLost => rule.then(Fault::ResetAnswer),
        });
    }
    let complete = Mutex::default();
    let client = proxy.client().unwrap();
    let mut at_crash = DatastorePhase::Complete;
    let mut met = true;
    tokio::select! {
        () = carried_out(slot, &client, &complete) => {
            met = point.is_none_or(|point| point.crash == Crash::AnswerLost);
        }
        () = async { if hear.recv().await.is_none() { std::future::pending::<()>().await } } => {
            let migration = slot.stage.migrations().get_opt(&slot.stage.name).await.unwrap();
            if let Some(migration) = migration {
                at_crash = migration.status.unwrap_or_default().phase.unwrap_or_default();
            }
            if aborts {
                let _ = slot.stage.migrations().delete(&slot.stage.name, &DeleteParams::default()).await;
            }
        }
    }
    in_time(
        "the second life",
        Box::pin(carried_out(slot, &slot.stage.client, &complete)),
    )
    .await;
    let mut writes = proxy.writes();
    writes.retain(|write| counted().holds(write));
    let left = slot.seen().await;
    slot.tear_down().await;
    Ran {
        left: (complete.into_inner().unwrap(), left),
        writes: writes.iter().map(described).collect(),
        at_crash,
        met,
    }
}

/// A crash that most runs do not come to shows nothing.
pub(super) fn are_met(met: &[bool]) {
    let missed = met.iter().filter(|met| !**met).count();
    assert!(
        missed * 10 <= met.len(),
        "{missed} of {} crashes did not come",
        met.len()
    );
}

pub(super) fn slots(prefix: &str, mode: &'static str) -> impl Future<Output = Vec<Slot>> {
    futures::future::join_all((0..SLOTS).map(move |number| {
        let name = format!("{prefix}{number}");
        async move { Slot::new(&name, mode).await }
    }))
}

/// The same text for all slots.
pub(super) fn unnamed(slot: &Slot, left: &Value) -> Value {
    let text = left.to_string().replace(&slot.stage.name, "slot");
    serde_json::from_str(&text).unwrap()
}

/// Runs all points, several at a time, and gives what each left behind.
pub(super) async fn run_all<'a, T>(
    slots: &'a [Slot],
    points: Vec<Point>,
    run: impl AsyncFn(&'a Slot, Point) -> T,
) -> Vec<T> {
    let points = Mutex::new(points.into_iter());
    let each = futures::stream::iter(slots).map(async |slot| {
        let mut came = Vec::new();
        loop {
            let Some(point) = points.lock().unwrap().next() else {
                return came;
            };
            came.push(run(slot, point).await);
        }
    });
    each.buffer_unordered(SLOTS).concat().await
}

/// Every write, and a lost answer to one of each sort: the engine looks again in the same way after each of a sort.
pub(super) fn all_points(writes: &[String]) -> Vec<Point> {
    let first = Point {
        write: 1,
        crash: Crash::Before,
    };
    let mut sorts = BTreeSet::new();
    let of_write = |(index, sort): (usize, &String)| {
        let point = |crash| Point {
            write: index + 1,
            crash,
        };
        let lost = sorts.insert(sort.clone()).then(|| point(Crash::AnswerLost));
        std::iter::once(point(Crash::After))
            .chain(lost)
            .collect::<Vec<_>>()
    };
    let each = writes.iter().enumerate().flat_map(of_write);
    std::iter::once(first).chain(each).collect()
}
