//! Reads `StorageMigration`s as JSON, and says of each whether it is done, at work or stalled. The types need no client.
//!
//!     kubectl get storagemigrations -o json | cargo run -p exuvia-api --example stalled
//!
//! It fails if one of them is stalled, so a pipeline can use it.

use std::error::Error;
use std::io::Read;
use std::process::ExitCode;

use exuvia_api::{StorageMigration, condition};
use serde::Deserialize;

fn main() -> ExitCode {
    match start() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing is stalled.
fn start() -> Result<bool, Box<dyn Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let states = run(&text)?;
    if states.is_empty() {
        println!("there are no StorageMigrations");
    }
    for (resource, state) in &states {
        println!("{resource}: {state}");
    }
    Ok(!states.iter().any(|(_, state)| state.starts_with("stalled")))
}

/// What `kubectl get -o json` prints.
#[derive(Deserialize)]
struct List {
    items: Vec<StorageMigration>,
}

/// Each resource, with what its migration comes to.
pub(crate) fn run(json: &str) -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let list: List = serde_json::from_str(json).map_err(|error| {
        format!("invalid input: expected `kubectl get storagemigrations -o json`: {error}")
    })?;
    let state = |migration: &StorageMigration| {
        let conditions = migration.status.iter().flat_map(|status| &status.conditions);
        let is_true = |wanted: &str| {
            let mut all = conditions.clone();
            all.find(|condition| condition.type_ == wanted && condition.status == "True")
        };
        if let Some(stalled) = is_true(condition::STALLED) {
            return format!("stalled: {}: {}", stalled.reason, stalled.message);
        }
        match is_true(condition::READY) {
            Some(_) => "done".to_owned(),
            None => "at work".to_owned(),
        }
    };
    let states = list
        .items
        .iter()
        .map(|migration| (migration.spec.resource.clone(), state(migration)));
    Ok(states.collect())
}
