//! Carries out all runs, several control planes at a time.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use futures::FutureExt;
use serde_json::Value;
use tokio::sync::mpsc;

use super::leaves::differences;
use super::{Crash, CrashReport, Failure, Lane, Point, Program, Run, RunEnd, Scenario};
use crate::in_time;

/// The environment variable that names the only point to run, such as `killed-after:7`.
pub(super) const ONLY: &str = "EXUVIA_CRASH";

/// When so many runs have failed, the others are left out: each may wait for a whole deadline.
const MAX_FAILURES: usize = 20;

/// Which points there are in a clean run with so many writes.
type Choose = dyn Fn(usize) -> Vec<Point> + Sync;

/// All runs of a scenario.
pub struct Matrix<S> {
    scenario: S,
    lanes: usize,
    choose: Box<Choose>,
    writes_may_vary: bool,
}

/// What the lanes share.
#[derive(Default)]
struct Shared {
    clean: OnceLock<Clean>,
    points: OnceLock<Mutex<VecDeque<Point>>>,
    report: Mutex<CrashReport>,
}

/// What a clean run came to.
struct Clean {
    writes: Vec<String>,
    leaves: Value,
}

impl<S: Scenario> Matrix<S> {
    /// Each write with each crash, on one control plane.
    pub fn new(scenario: S) -> Self {
        let all = |writes| {
            let of_write = |write| Crash::ALL.map(|crash| Point { write, crash });
            (1..=writes).flat_map(of_write).collect()
        };
        Self {
            scenario,
            lanes: 1,
            choose: Box::new(all),
            writes_may_vary: false,
        }
    }

    /// Works on so many control planes at once. A run waits about as long as it works: 3 keep two cores busy.
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Takes only these points: `choose` gets the number of writes of a clean run.
    #[must_use]
    pub fn points(mut self, choose: impl Fn(usize) -> Vec<Point> + Sync + 'static) -> Self {
        self.choose = Box::new(choose);
        self
    }

    /// Accepts that the n-th write is another one in each run, and that a run may end before it.
    #[must_use]
    pub fn writes_may_vary(mut self) -> Self {
        self.writes_may_vary = true;
        self
    }

    /// Carries out all runs. It blocks: call it from a plain `#[test]`.
    pub fn run(&self) -> CrashReport {
        let only = std::env::var(ONLY).ok().filter(|point| !point.is_empty());
        let only: Option<Point> = only.map(|point| point.parse().unwrap_or_else(|error| panic!("{error}")));
        let shared = Shared::default();
        let lanes = if only.is_some() { 1 } else { self.lanes };
        std::thread::scope(|scope| {
            for number in 0..lanes {
                let shared = &shared;
                // A thread each, because killing and stopping a process blocks.
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                    let runtime = runtime.expect("a runtime starts");
                    runtime.block_on(self.work(number, shared, only));
                });
            }
        });
        let mut report = shared.report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.failures.sort_by_key(|failure| failure.point);
        report
    }

    /// A clean run, and then one point after the other until there are no more.
    async fn work(&self, number: usize, shared: &Shared, only: Option<Point>) {
        let lane = Lane::start(&self.scenario).await;
        let run = Run::clean(number);
        let attempt = async {
            let world = self.scenario.set_up(&lane, &run).await;
            self.carry_out(&lane, &world, run.clone()).await
        };
        shared.report().runs += 1;
        let clean = match caught(attempt).await {
            Ok((ended, leaves)) => Clean {
                writes: self.describe_all(&ended),
                leaves,
            },
            Err(message) => return shared.fail(None, String::new(), message),
        };
        let reference = shared.clean.get_or_init(|| {
            shared.report().writes.clone_from(&clean.writes);
            Clean {
                writes: clean.writes.clone(),
                leaves: clean.leaves.clone(),
            }
        });
        let mut unlike = differences(&clean.leaves, &reference.leaves);
        // Otherwise the n-th write would be another one in each run.
        if !self.writes_may_vary && clean.writes != reference.writes {
            unlike.push(format!(
                "two clean runs write {:?} and {:?}",
                clean.writes, reference.writes
            ));
        }
        if !unlike.is_empty() {
            shared.fail(None, String::new(), unlike.join("\n"));
        }
        if let Some(only) = only.filter(|_| !self.writes_may_vary)
            && let Err(message) = only.check(reference.writes.len())
        {
            return shared.fail(None, String::new(), format!("invalid {ONLY} {message}"));
        }
        shared.points.get_or_init(|| {
            let points = only.map_or_else(|| (self.choose)(reference.writes.len()), |only| vec![only]);
            Mutex::new(points.into())
        });
        // Setting up often waits for the server, such as for a new CRD: time for other runs.
        let (ready, runs) = mpsc::channel(1);
        tokio::join!(
            self.set_up_all(&lane, shared, ready.clone()),
            self.set_up_all(&lane, shared, ready),
            self.carry_out_all(&lane, shared, runs),
        );
    }

    async fn set_up_all(
        &self,
        lane: &Lane,
        shared: &Shared,
        ready: mpsc::Sender<(Run, Result<S::World, String>)>,
    ) {
        while let Some(point) = shared.next_point() {
            let run = Run::with_crash(point);
            let world = caught(self.scenario.set_up(lane, &run)).await;
            if ready.send((run, world)).await.is_err() {
                return;
            }
        }
    }

    async fn carry_out_all(
        &self,
        lane: &Lane,
        shared: &Shared,
        mut runs: mpsc::Receiver<(Run, Result<S::World, String>)>,
    ) {
        while let Some((run, world)) = runs.recv().await {
            shared.report().runs += 1;
            let Some((point, clean)) = run.point.zip(shared.clean.get()) else {
                continue;
            };
            let outcome = match world {
                Ok(world) => caught(self.carry_out(lane, &world, run)).await,
                Err(message) => Err(message),
            };
            let meant = clean.writes.get(point.write - 1).cloned().unwrap_or_default();
            let found = match outcome {
                Ok((ended, leaves)) => {
                    let mut found = differences(&leaves, &clean.leaves);
                    let struck = ended.struck.as_ref().map(|write| self.scenario.describe(write));
                    if !self.writes_may_vary && struck.as_ref() != Some(&meant) {
                        found.push(format!("it crashed at {struck:?}"));
                    }
                    if struck.is_some() {
                        shared.report().struck.insert(point);
                    }
                    found
                }
                Err(message) => vec![message],
            };
            if !found.is_empty() {
                shared.fail(Some(point), meant, found.join("\n"));
            }
        }
    }

    /// One run, from the start of the program to its end.
    async fn carry_out(&self, lane: &Lane, world: &S::World, mut run: Run) -> (RunEnd, Value) {
        let scenario = &self.scenario;
        lane.proxy.clear();
        lane.proxy.forget();
        let since = lane.control_plane.etcd().revision().await;
        let since = since.expect("etcd tells its revision");
        let (tell, mut hear) = mpsc::unbounded_channel();
        if let Some(point) = run.point {
            lane.proxy.inject(point.rule(scenario.counted(), tell));
        }
        let mut program = scenario.start(lane, world, &run).await;
        let mut meanwhile = std::pin::pin!(scenario.meanwhile(lane, world));
        let is_over = Cell::new(false);
        let mut struck = None;
        if let Some(point) = run.point {
            let end = async {
                meanwhile.as_mut().await;
                is_over.set(true);
                if !self.writes_may_vary {
                    // The write is still to come.
                    std::future::pending::<()>().await;
                }
            };
            struck = tokio::select! {
                biased;
                write = in_time("the write at which to crash", hear.recv()) => write,
                () = end => None,
            };
            if let Some(write) = &struck {
                let is_committed = write.upstream.is_some_and(|code| code < 300);
                let as_meant = is_committed || point.crash == Crash::KilledBefore || self.writes_may_vary;
                assert!(as_meant, "the server did not commit the write: {write:?}");
                if point.crash != Crash::AnswerLost {
                    program.kill().await;
                    run.life += 1;
                    program = scenario.start(lane, world, &run).await;
                }
            }
        }
        if !is_over.get() {
            in_time("the end", meanwhile).await;
        }
        scenario.finish(lane, world, &run, &mut program).await;
        program.stop().await;
        let counted = scenario.counted();
        let mut writes = lane.proxy.writes();
        writes.retain(|write| counted.holds(write));
        let ended = RunEnd {
            run,
            writes,
            struck,
            since,
        };
        scenario.check(lane, world, &ended).await;
        let leaves = scenario.leaves(lane, world).await;
        scenario.tear_down(lane, world).await;
        (ended, leaves)
    }

    fn describe_all(&self, ended: &RunEnd) -> Vec<String> {
        let writes = ended.writes.iter();
        writes.map(|write| self.scenario.describe(write)).collect()
    }
}

impl Shared {
    fn report(&self) -> MutexGuard<'_, CrashReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, point: Option<Point>, write: String, message: String) {
        let failure = Failure {
            point,
            write,
            message,
        };
        self.report().failures.push(failure);
    }

    fn next_point(&self) -> Option<Point> {
        if self.report().failures.len() >= MAX_FAILURES {
            return None;
        }
        let points = self.points.get()?;
        points.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The message of a panic is what failed.
async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let message = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "it panicked".to_owned())
    };
    AssertUnwindSafe(work).catch_unwind().await.map_err(message)
}
