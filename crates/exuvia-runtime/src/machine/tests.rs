//! The driver, with a scripted machine: what is told, what is done, how it ends.

use std::collections::VecDeque;

use super::*;

type Scripted = NextStep<&'static str, &'static str>;

/// Says what it is told to say, and writes down what happens.
#[derive(Default)]
struct Script {
    next: VecDeque<Scripted>,
    held_by_step: Option<&'static str>,
    cancelled: bool,
    done: Vec<String>,
}

impl Machine for Script {
    type Step = &'static str;
    type Hold = &'static str;
    type Error = &'static str;

    async fn next(&mut self) -> Result<Scripted, &'static str> {
        self.next.pop_front().ok_or("nothing observed")
    }

    async fn carry_out(&mut self, step: &'static str) -> Result<Option<&'static str>, &'static str> {
        self.done.push(format!("did {step}"));
        Ok(self.held_by_step.take())
    }

    fn retry(&mut self, hold: &&'static str) {
        self.done.push(format!("retries {hold}"));
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

/// Writes down what it tells, and how much was done by then.
#[derive(Default)]
struct Told {
    told: Vec<(Scripted, usize)>,
    tries: bool,
    stops_at: Option<Scripted>,
}

impl Teller<Script> for Told {
    async fn tell(
        &mut self,
        machine: &Script,
        next: &Scripted,
        _: Option<&&'static str>,
    ) -> Result<Flow, &'static str> {
        self.told.push((next.clone(), machine.done.len()));
        Ok(if self.stops_at.as_ref() == Some(next) {
            Flow::Stop
        } else {
            Flow::GoOn
        })
    }

    fn is_worth_a_try(&self, hold: &&'static str) -> bool {
        self.tries && *hold == "failures"
    }
}

fn script(next: &[Scripted]) -> Script {
    Script {
        next: next.iter().cloned().collect(),
        ..Script::default()
    }
}

#[tokio::test]
async fn every_step_is_told_before_it_is_done() {
    let mut machine = script(&[NextStep::Do("a"), NextStep::Do("b"), NextStep::Done]);
    let mut told = Told::default();
    assert_eq!(drive(&mut machine, &mut told).await, Ok(Ended::Done));
    assert_eq!(machine.done, ["did a", "did b"]);
    let expected = [
        (NextStep::Do("a"), 0),
        (NextStep::Do("b"), 1),
        (NextStep::Done, 2),
    ];
    assert_eq!(told.told, expected);
}

#[tokio::test]
async fn a_wait_is_handed_to_the_caller() {
    let second = Duration::from_secs(1);
    let mut machine = script(&[NextStep::Do("a"), NextStep::Wait(second)]);
    assert_eq!(drive(&mut machine, &mut Silent).await, Ok(Ended::Waits(second)));
}

#[tokio::test]
async fn a_hold_that_is_worth_a_try_is_tried_once() {
    let steps = [
        NextStep::Hold("failures"),
        NextStep::Do("a"),
        NextStep::Hold("failures"),
    ];
    let mut machine = script(&steps);
    let mut told = Told {
        tries: true,
        ..Told::default()
    };
    assert_eq!(drive(&mut machine, &mut told).await, Ok(Ended::Held("failures")));
    assert_eq!(machine.done, ["retries failures", "did a"]);
    // The first one is not told: it is what the last drive ended with.
    assert_eq!(told.told.len(), 2);
    let mut machine = script(&steps);
    assert_eq!(
        drive(&mut machine, &mut Silent).await,
        Ok(Ended::Held("failures"))
    );
    assert!(machine.done.is_empty());
}

#[tokio::test]
async fn a_hold_that_a_step_finds_is_told() {
    let mut machine = script(&[NextStep::Do("a"), NextStep::Done]);
    machine.held_by_step = Some("not proven");
    let mut told = Told::default();
    assert_eq!(
        drive(&mut machine, &mut told).await,
        Ok(Ended::Held("not proven"))
    );
    assert_eq!(told.told.last(), Some(&(NextStep::Hold("not proven"), 1)));
}

#[tokio::test]
async fn nothing_is_done_once_it_is_cancelled_or_void() {
    let mut machine = script(&[NextStep::Do("a")]);
    machine.cancelled = true;
    assert_eq!(drive(&mut machine, &mut Silent).await, Ok(Ended::Stopped));
    assert!(machine.done.is_empty());
    let mut machine = script(&[NextStep::Do("a"), NextStep::Do("b")]);
    let mut told = Told {
        stops_at: Some(NextStep::Do("b")),
        ..Told::default()
    };
    assert_eq!(drive(&mut machine, &mut told).await, Ok(Ended::Stopped));
    assert_eq!(machine.done, ["did a"]);
}

#[tokio::test]
async fn an_error_ends_the_drive() {
    assert_eq!(
        drive(&mut script(&[]), &mut Silent).await,
        Err("nothing observed")
    );
}
