//! A machine does its work in steps that survive a crash; one driver carries any machine out.
//!
//! A machine is a pure rule, *what is next, given what is observed*, and the code that does one step. What is remembered
//! between two steps is in the cluster, so a process may end at any `await` and another one goes on.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use exuvia_runtime::machine::{Ended, Machine, NextStep, Silent, drive};
//!
//! /// Counts to three.
//! struct Count(u8);
//!
//! #[derive(Debug)]
//! struct Add;
//!
//! impl Machine for Count {
//!     type Step = Add;
//!     type Hold = Infallible; // nothing can stand in the way
//!     type Error = Infallible;
//!
//!     async fn next(&mut self) -> Result<NextStep<Add, Infallible>, Infallible> {
//!         Ok(if self.0 < 3 { NextStep::Do(Add) } else { NextStep::Done })
//!     }
//!
//!     async fn carry_out(&mut self, Add: Add) -> Result<Option<Infallible>, Infallible> {
//!         self.0 += 1;
//!         Ok(None)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let mut count = Count(0);
//! assert_eq!(drive(&mut count, &mut Silent).await, Ok(Ended::Done));
//! assert_eq!(count.0, 3);
//! # });
//! ```

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

/// What a machine wants to happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep<S, H> {
    /// Do this.
    Do(S),
    /// Nothing can be done before this time has passed.
    Wait(Duration),
    /// Something stands in the way.
    Hold(H),
    /// Everything is done.
    Done,
}

/// Work that is done in steps.
pub trait Machine: Send + Sync {
    /// One step.
    type Step: Debug + Send + Sync;
    /// Why it cannot go on.
    type Hold: Clone + Debug + Send + Sync;
    /// What observing or a step can fail with.
    type Error: Send;

    /// Observes, and says what is next. It changes nothing in the cluster.
    fn next(&mut self) -> impl Future<Output = Result<NextStep<Self::Step, Self::Hold>, Self::Error>> + Send;

    /// Does a step, and remembers what came of it. Returns why it cannot go on, if only the step itself can tell.
    ///
    /// The world may have changed since [`next`](Self::next): a step that would be dangerous then looks again.
    fn carry_out(
        &mut self,
        step: Self::Step,
    ) -> impl Future<Output = Result<Option<Self::Hold>, Self::Error>> + Send;

    /// Forgets what keeps it in this hold, so that [`next`](Self::next) tries again.
    fn retry(&mut self, _hold: &Self::Hold) {}

    /// Whether somebody asked it to stop.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Tells people what a machine does: status, events, metrics, a progress bar.
pub trait Teller<M: Machine>: Send {
    /// Tells what is next, before it is done. `retried` is the hold that is tried again in this drive.
    fn tell(
        &mut self,
        _machine: &M,
        _next: &NextStep<M::Step, M::Hold>,
        _retried: Option<&M::Hold>,
    ) -> impl Future<Output = Result<Flow, M::Error>> + Send {
        async { Ok(Flow::GoOn) }
    }

    /// Awaits a step, with whatever is to happen at the same time, such as progress every few seconds.
    fn accompany<T: Send>(
        &mut self,
        doing: impl Future<Output = T> + Send,
    ) -> impl Future<Output = T> + Send {
        doing
    }

    /// A step ended well; `hold`: but it cannot go on. Whether it still makes sense to go on.
    fn stepped(
        &mut self,
        _machine: &M,
        _hold: Option<&M::Hold>,
    ) -> impl Future<Output = Result<Flow, M::Error>> + Send {
        async { Ok(Flow::GoOn) }
    }

    /// Whether this hold may be over although nobody has observed that: it is tried again, once in each drive.
    fn is_worth_a_try(&self, _hold: &M::Hold) -> bool {
        false
    }
}

/// Whether a machine goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    GoOn,
    /// What it is about has changed, or the caller wants no more of it.
    Stop,
}

/// Tells nobody.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl<M: Machine> Teller<M> for Silent {}

/// How a drive ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended<H> {
    /// Nothing can be done before this time has passed: sleep or park the machine, then drive it again.
    Waits(Duration),
    /// Something stands in the way.
    Held(H),
    /// Everything is done.
    Done,
    /// It was cancelled, or the teller said stop.
    Stopped,
}

/// Drives a machine as far as it can go now: tells what is next, does it, and so on.
///
/// A hold that is [worth a try](Teller::is_worth_a_try) becomes the next try, once.
pub async fn drive<M: Machine, T: Teller<M>>(
    machine: &mut M,
    teller: &mut T,
) -> Result<Ended<M::Hold>, M::Error> {
    let mut retried = None;
    loop {
        let mut next = machine.next().await?;
        if let NextStep::Hold(hold) = &next
            && retried.is_none()
            && teller.is_worth_a_try(hold)
        {
            machine.retry(hold);
            retried = Some(hold.clone());
            next = machine.next().await?;
        }
        tracing::debug!(?next, "next step");
        let flow = teller.tell(machine, &next, retried.as_ref()).await?;
        let step = match next {
            _ if flow == Flow::Stop || machine.is_cancelled() => return Ok(Ended::Stopped),
            NextStep::Do(step) => step,
            NextStep::Wait(time) => return Ok(Ended::Waits(time)),
            NextStep::Hold(hold) => return Ok(Ended::Held(hold)),
            NextStep::Done => return Ok(Ended::Done),
        };
        let held = teller.accompany(machine.carry_out(step)).await?;
        let flow = teller.stepped(machine, held.as_ref()).await?;
        if flow == Flow::Stop || machine.is_cancelled() {
            return Ok(Ended::Stopped);
        }
        if let Some(hold) = held {
            let next = NextStep::Hold(hold.clone());
            teller.tell(machine, &next, retried.as_ref()).await?;
            return Ok(Ended::Held(hold));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
