//! Killed before and after every write of the freeze: repeating it ends as if nothing had happened.

use exuvia_datastore::freeze::{Error, Form, Freeze, FrozenKind, Scope};
use exuvia_runtime::servers::ApiServers;
use exuvia_testenv::crash::{Lane, Matrix, Run, RunEnd, Scenario, Task};
use exuvia_write::Writer;
use kube::Client;
use serde_json::{Value, json};

use crate::locks::made_for;

/// What the program does, again from the start after each crash.
#[derive(Clone, Copy, PartialEq)]
enum Course {
    /// Frozen, converged, and retired.
    Retired,
    /// Frozen, and all removed.
    Removed,
}

async fn carry_out(client: Client, scope: Scope, course: Course) -> Result<(), Error> {
    let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap()); // nobody is asked
    let servers = ApiServers::new(&config, &[], &[]);
    let freeze = Freeze::new(client, &Writer::named("exuvia"), servers, scope);
    freeze.set(Form::Frozen, true).await?;
    match course {
        Course::Retired => {
            freeze.set(Form::Converged, true).await?;
            freeze.retire(&[]).await
        }
        Course::Removed => freeze.remove().await,
    }
}

fn scope_of(run: &Run) -> Scope {
    Scope {
        uid: run.name.clone(),
        migration: run.name.clone(),
        source: vec![FrozenKind {
            group: format!("old.{}.example.com", run.name),
            version: "v1".into(),
            kind: "Widget".into(),
            plural: "widgets".into(),
            ..FrozenKind::default()
        }],
        target: vec![(format!("new.{}.example.com", run.name), "widgets".into())],
        has_early_targets: false,
        moved_groups: vec![format!("old.{}.example.com", run.name)],
        api_service: None,
        username: "exuvia".into(),
    }
}

impl Scenario for Course {
    type World = Run;
    type Program = Task;

    async fn set_up(&self, _lane: &Lane, run: &Run) -> Run {
        run.clone()
    }

    async fn start(&self, lane: &Lane, _world: &Run, run: &Run) -> Task {
        Task::spawn(carry_out(lane.proxied_client(), scope_of(run), *self))
    }

    async fn finish(&self, lane: &Lane, world: &Run, run: &Run, program: &mut Task) {
        while program.result().await.is_err() {
            *program = self.start(lane, world, run).await;
        }
    }

    async fn check(&self, lane: &Lane, world: &Run, _ended: &RunEnd) {
        let expected = match self {
            Self::Removed => vec![],
            Self::Retired => ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
                .map(|kind| format!("{kind} exuvia-{}-source", world.name))
                .into(),
        };
        assert_eq!(made_for(&lane.client, &world.name).await, expected);
    }

    async fn leaves(&self, lane: &Lane, world: &Run) -> Value {
        let made = made_for(&lane.client, &world.name).await;
        json!(
            made.iter()
                .map(|name| name.replace(&world.name, "…"))
                .collect::<Vec<_>>()
        )
    }
}

#[test]
fn a_freeze_that_is_removed_leaves_nothing_wherever_it_crashed() {
    Matrix::new(Course::Removed).run().assert_all_ended_well();
}

#[test]
fn a_freeze_that_is_retired_ends_the_same_wherever_it_crashed() {
    Matrix::new(Course::Retired).run().assert_all_ended_well();
}
