//! Threads with large stacks: CEL's parser and interpreter are recursive, and an overflow would end the whole process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::oneshot;

/// Enough for the deepest tree that is let through, in a build without optimization. Only what is used takes memory.
const STACK_BYTES: usize = 64 << 20;
/// More would only compete with what else the process does.
const MAX_THREADS: usize = 4;

/// The work panicked, or its thread is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Panicked;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads that end when the pool is dropped.
#[derive(Debug)]
pub(super) struct Pool {
    jobs: Sender<Job>,
}

impl Pool {
    pub(super) fn new() -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        for number in 0..threads {
            let queue = Arc::clone(&queue);
            let started = thread::Builder::new()
                .name(format!("mapping-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || work(&queue));
            // One is enough.
            if number == 0 {
                started?;
            }
        }
        Ok(Self { jobs })
    }

    /// Runs the work on one of the threads and waits for it.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.begin(work, move |result| {
            // Nobody waits any more.
            let _ = answer.send(result);
        })?;
        answered.recv().map_err(|_| Panicked)?
    }

    /// Runs the work on one of the threads without keeping the caller's busy.
    pub(super) async fn run_async<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Panicked> {
        let (answer, answered) = oneshot::channel();
        self.begin(work, move |result| {
            // Nobody waits any more.
            let _ = answer.send(result);
        })?;
        answered.await.map_err(|_| Panicked)?
    }

    fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        answer: impl FnOnce(Result<T, Panicked>) + Send + 'static,
    ) -> Result<(), Panicked> {
        let job: Job = Box::new(move || answer(catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)));
        self.jobs.send(job).map_err(|_| Panicked)
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        // The lock is held while waiting, and given up before the work.
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let pool = Pool::new().expect("threads");
        for _ in 0..MAX_THREADS * 2 {
            assert_eq!(
                pool.run(|| -> u8 { panic!("as the test wants it") }),
                Err(Panicked)
            );
        }
        assert_eq!(pool.run(|| 7), Ok(7));
    }

    #[test]
    fn deep_recursion_has_room() {
        fn deep(n: u32) -> u32 {
            let filler = std::hint::black_box([n; 1024]);
            if n == 0 {
                0
            } else {
                deep(n - 1) + filler[0] - n + 1
            }
        }
        let pool = Pool::new().expect("threads");
        assert_eq!(pool.run(|| deep(6_000)), Ok(6_000));
    }

    #[tokio::test]
    async fn a_task_can_wait_for_it() {
        let pool = Pool::new().expect("threads");
        assert_eq!(pool.run_async(|| 7).await, Ok(7));
        assert_eq!(
            pool.run_async(|| -> u8 { panic!("as the test wants it") }).await,
            Err(Panicked)
        );
    }
}
