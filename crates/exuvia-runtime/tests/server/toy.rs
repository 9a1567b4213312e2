//! A toy machine, to show what a new capability needs: types, `next`, `carry_out`, rules. It survives a crash at every write.

use std::convert::Infallible;

use exuvia_runtime::machine::{Ended, Machine, NextStep, Silent, drive};
use exuvia_testenv::crash::{Crash, Lane, Matrix, Run, RunEnd, Scenario, Task};
use exuvia_write::Writer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};

// The machine, at most 60 lines: a value moves from the first of three ConfigMaps to the last.

type Error = Box<dyn std::error::Error + Send + Sync>;

struct Mover {
    api: Api<ConfigMap>,
    names: [String; 3],
    writer: Writer,
    /// The places, as they were last read.
    observed: Vec<ConfigMap>,
}

#[derive(Debug)]
enum Step {
    /// Copy the value from this place to the next one.
    Copy(usize),
    /// Remove it from this place.
    Erase(usize),
}

/// The rules: a value is copied to where it is missing, and erased only where the next place has it.
fn next(held: [Option<&str>; 3]) -> NextStep<Step, Infallible> {
    match held {
        [Some(_), None, _] => NextStep::Do(Step::Copy(0)),
        [Some(_), Some(_), _] => NextStep::Do(Step::Erase(0)),
        [None, Some(_), None] => NextStep::Do(Step::Copy(1)),
        [None, Some(_), Some(_)] => NextStep::Do(Step::Erase(1)),
        [None, None, _] => NextStep::Done,
    }
}

impl Machine for Mover {
    type Step = Step;
    type Hold = Infallible;
    type Error = Error;

    async fn next(&mut self) -> Result<NextStep<Step, Infallible>, Error> {
        self.observed = read(&self.api, &self.names).await?;
        let held = |place: usize| value(&self.observed[place]);
        Ok(next([held(0), held(1), held(2)]))
    }

    async fn carry_out(&mut self, step: Step) -> Result<Option<Infallible>, Error> {
        let (place, data) = match step {
            Step::Copy(from) => (from + 1, self.observed[from].data.clone()),
            Step::Erase(place) => (place, None),
        };
        let put = |object: &mut ConfigMap| object.data = data;
        self.writer.patch(&self.api, &self.observed[place], put).await?;
        Ok(None)
    }
}

// The machine ends here.

fn value(object: &ConfigMap) -> Option<&str> {
    object.data.as_ref()?.get("value").map(String::as_str)
}

async fn read(api: &Api<ConfigMap>, names: &[String; 3]) -> Result<Vec<ConfigMap>, Error> {
    let mut read = Vec::new();
    for name in names {
        read.push(api.get(name).await?);
    }
    Ok(read)
}

fn mover(client: &Client, names: &[String; 3]) -> Mover {
    Mover {
        api: Api::default_namespaced(client.clone()),
        names: names.clone(),
        writer: Writer::named("toy"),
        observed: Vec::new(),
    }
}

/// What the places hold.
async fn held(client: &Client, names: &[String; 3]) -> Vec<Option<String>> {
    let all = read(&Api::default_namespaced(client.clone()), names)
        .await
        .unwrap();
    all.iter()
        .map(|object| value(object).map(str::to_owned))
        .collect()
}

/// Three places, the first with the value.
async fn places(client: &Client, prefix: &str) -> [String; 3] {
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let names = ["first", "second", "third"].map(|place| format!("toy-{prefix}-{place}"));
    for (index, name) in names.iter().enumerate() {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.clone());
        object.data = (index == 0).then(|| [("value".to_owned(), prefix.to_owned())].into());
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    names
}

/// The machine as a program that can crash.
struct MovesThrough;

/// Drives it to its end.
async fn run(client: Client, names: [String; 3]) -> Result<(), Error> {
    match drive(&mut mover(&client, &names), &mut Silent).await? {
        Ended::Done => Ok(()),
        ended => Err(format!("not done: {ended:?}").into()),
    }
}

impl Scenario for MovesThrough {
    type World = [String; 3];
    type Program = Task;

    async fn set_up(&self, lane: &Lane, run: &Run) -> [String; 3] {
        places(&lane.client, &run.name).await
    }

    async fn start(&self, lane: &Lane, names: &[String; 3], _run: &Run) -> Task {
        let left = held(&lane.client, names).await;
        assert!(left.iter().any(Option::is_some), "the value is lost: {left:?}");
        Task::spawn(run(lane.proxied_client(), names.clone()))
    }

    async fn finish(&self, _lane: &Lane, _names: &[String; 3], _run: &Run, program: &mut Task) {
        program.result().await.unwrap();
    }

    async fn check(&self, lane: &Lane, names: &[String; 3], ended: &RunEnd) {
        let value = Some(ended.run.name.clone());
        assert_eq!(held(&lane.client, names).await, [None, None, value]);
    }
}

#[test]
fn a_toy_machine_survives_a_crash_at_every_write() {
    let report = Matrix::new(MovesThrough).run();
    report.assert_all_ended_well();
    assert_eq!(report.writes, ["PATCH configmaps"; 4], "two copies, two erasures");
    assert_eq!(report.struck.len(), 4 * Crash::ALL.len());
}
