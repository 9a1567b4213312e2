//! Crashes a program at every write that it makes, and checks each time that it still ends well.
//!
//! A [`Scenario`] says how to set up, how to start the program behind the fault proxy, and what must hold at the end. The
//! [`Matrix`] counts the writes of a clean run. Then, for each write and each [`Crash`], it runs the scenario with that
//! crash, starts the program again if it was killed, and lets it run to its end. All failures are reported together, each
//! with what to set to run it alone: `EXUVIA_CRASH=killed-after:7 cargo test …`.

use std::fmt;
use std::str::FromStr;

use kube::Client;
use serde_json::Value;
use tokio::sync::mpsc;

pub use self::matrix::Matrix;
pub use self::program::{Program, Task};
pub use self::report::{CrashReport, Failure};
use crate::oracle::History;
use crate::proxy::{Fault, Match, Proxy, Recorded, Rule};
use crate::{Access, ControlPlane};

mod leaves;
mod matrix;
mod program;
mod report;

/// What a test of crashes is about. A panic in any of its methods is a failure of that run; the other runs go on.
#[allow(
    async_fn_in_trait,
    reason = "each lane runs on one thread: no future needs to be Send"
)]
pub trait Scenario: Sync {
    /// What one run works on. Runs share a control plane: give each its own names, from [`Run::name`].
    type World;
    /// The program under test while it runs.
    type Program: Program;

    /// The control plane of a lane.
    async fn control_plane(&self) -> ControlPlane {
        let started = ControlPlane::builder().start().await;
        started.unwrap_or_else(|error| panic!("no control plane: {error}"))
    }

    /// Which requests count as writes of the program. Leave out those whose number depends on time, such as renewals of
    /// a Lease.
    fn counted(&self) -> Match {
        Match::writes()
    }

    /// What a write is, in words that are the same in each run.
    fn describe(&self, write: &Recorded) -> String {
        let object = write.object();
        let words = object.map(|object| [object.resource, object.subresource]);
        let words = words.into_iter().flatten().filter(|word| !word.is_empty());
        std::iter::once(write.method.as_str())
            .chain(words)
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Makes what the program will work on. It may run while another run is at work on the same control plane.
    async fn set_up(&self, lane: &Lane, run: &Run) -> Self::World;

    /// Starts the program, with [`Lane::access`] or [`Lane::proxied_client`]; again after it was killed ([`Run::life`] is
    /// then 2).
    async fn start(&self, lane: &Lane, world: &Self::World, run: &Run) -> Self::Program;

    /// What others do while the program runs, and waiting for the end as the cluster shows it. It goes on across a crash.
    async fn meanwhile(&self, _lane: &Lane, _world: &Self::World) {}

    /// Waits until the program, as it was last started, has nothing left to do.
    async fn finish(&self, _lane: &Lane, _world: &Self::World, _run: &Run, _program: &mut Self::Program) {}

    /// Checks what must hold when the program has stopped, whatever happened before.
    async fn check(&self, lane: &Lane, world: &Self::World, ended: &RunEnd);

    /// All that the run leaves behind, without what differs from run to run. It must be the same as after a clean run.
    async fn leaves(&self, _lane: &Lane, _world: &Self::World) -> Value {
        Value::Null
    }

    /// Removes what would disturb later runs.
    async fn tear_down(&self, _lane: &Lane, _world: &Self::World) {}
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Crash {
    /// The program is killed, and the write never reaches the server.
    KilledBefore,
    /// The program is killed once the write is committed.
    KilledAfter,
    /// The write is committed, but the program gets a 504 or a reset instead of the answer.
    AnswerLost,
}

impl Crash {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::KilledBefore, Self::KilledAfter, Self::AnswerLost];

    fn name(self) -> &'static str {
        match self {
            Self::KilledBefore => "killed-before",
            Self::KilledAfter => "killed-after",
            Self::AnswerLost => "answer-lost",
        }
    }
}

/// What goes wrong, and at which write, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The number of the write.
    pub write: usize,
    /// What goes wrong.
    pub crash: Crash,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.crash.name(), self.write)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (name, write) = text.split_once(':')?;
            let crash = Crash::ALL.into_iter().find(|crash| crash.name() == name)?;
            let write = write.parse().ok().filter(|write| *write > 0)?;
            Some(Self { write, crash })
        };
        let expected = "expected killed-before:N, killed-after:N or answer-lost:N, with N from 1";
        parse().ok_or_else(|| format!("invalid crash point {text:?}: {expected}"))
    }
}

impl Point {
    /// Refuses a write that a clean run with so many writes does not come to.
    fn check(self, writes: usize) -> Result<(), String> {
        if self.write <= writes {
            Ok(())
        } else {
            Err(format!("\"{self}\": expected 1 to {writes}"))
        }
    }

    /// Strikes the write, and tells when it has got as far as it may.
    fn rule(self, counted: Match, tell: mpsc::UnboundedSender<Recorded>) -> Rule {
        let rule = Rule::on(counted).nth(self.write as u64);
        // Nobody listens any more if the run has failed.
        let tell = move |write: &Recorded| drop(tell.send(write.clone()));
        match self.crash {
            Crash::KilledBefore => rule.then(Fault::StallRequest).on_request(tell),
            Crash::KilledAfter => rule.then(Fault::StallAnswer).on_commit(tell),
            Crash::AnswerLost if self.write.is_multiple_of(2) => {
                rule.then(Fault::ResetAnswer).on_commit(tell)
            }
            Crash::AnswerLost => rule.then(Fault::replace(504)).on_commit(tell),
        }
    }
}

/// One run of the scenario.
#[derive(Clone, Debug)]
pub struct Run {
    /// A name for it, valid as a DNS label, such as `killed-after-7`.
    pub name: String,
    /// Where it crashes; `None` for a clean run.
    pub point: Option<Point>,
    /// How often the program has been started, this time included.
    pub life: usize,
}

impl Run {
    fn clean(lane: usize) -> Self {
        Self {
            name: format!("clean-{lane}"),
            point: None,
            life: 1,
        }
    }

    fn with_crash(point: Point) -> Self {
        Self {
            name: format!("{}-{}", point.crash.name(), point.write),
            point: Some(point),
            life: 1,
        }
    }
}

/// A control plane behind a fault proxy, for one run after the other.
pub struct Lane {
    /// The control plane.
    pub control_plane: ControlPlane,
    /// An administrator's client that does not go through the proxy.
    pub client: Client,
    /// The proxy between the program and the API server.
    pub proxy: Proxy,
    /// What to start the program with: an administrator, through the proxy.
    pub access: Access,
}

impl Lane {
    async fn start(scenario: &impl Scenario) -> Self {
        let control_plane = scenario.control_plane().await;
        let proxy = control_plane.proxy().await.expect("the proxy starts");
        Self {
            client: control_plane.client().expect("an administrator has a client"),
            access: control_plane.admin().clone().at(proxy.url()),
            proxy,
            control_plane,
        }
    }

    /// A client for a program that is a future.
    pub fn proxied_client(&self) -> Client {
        self.proxy.client().expect("the proxy has a client")
    }
}

/// A run that has come to its end.
#[derive(Debug)]
pub struct RunEnd {
    /// The run.
    pub run: Run,
    /// The counted writes, in the order of arrival.
    pub writes: Vec<Recorded>,
    /// The write at which it crashed, if it came to that write.
    pub struck: Option<Recorded>,
    /// etcd's revision when the program was first started.
    pub since: i64,
}

impl RunEnd {
    /// What happened below these keys since the program was first started.
    pub async fn history(&self, lane: &Lane, prefixes: &[&str]) -> History {
        let history = History::read(lane.control_plane.etcd(), prefixes, self.since).await;
        history.unwrap_or_else(|error| panic!("etcd's history cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_a_clean_run_does_not_come_to_is_refused() {
        let point: Point = "killed-after:43".parse().expect("a point");
        assert_eq!(point.check(43), Ok(()));
        assert_eq!(
            point.check(42),
            Err("\"killed-after:43\": expected 1 to 42".to_owned())
        );
    }
}
