//! Checks that every CRD in your manifests opts in to storage migration, or says why not. It needs no cluster.
//!
//!     cargo run -p exuvia-lint --example check_manifests -- charts/exuvia-crds
//!     helm template … | cargo run -p exuvia-lint --example check_manifests -- -

use std::error::Error;
use std::process::ExitCode;

use exuvia_lint::{Input, LintOptions, LintReport, Outcome, lint};

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

/// Whether every CRD is opted in or excluded.
fn start() -> Result<bool, Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        return Err("expected files, directories, or - for standard input".into());
    }
    let report = run(&paths)?;
    for note in &report.notes {
        eprintln!("{note}");
    }
    for finding in &report.findings {
        println!("{finding}"); // file:line: crd: what is wrong; what to do
    }
    println!("{} CRDs, {} findings", report.checked, report.findings.len());
    // No CRD at all is a failure, too: most likely the path is wrong.
    Ok(report.outcome() == Outcome::Clean)
}

/// What is wrong with the CRDs below these paths.
pub(crate) fn run(paths: &[String]) -> Result<LintReport, exuvia_lint::Error> {
    let inputs: Vec<Input> = paths.iter().map(Input::from_argument).collect();
    lint(&inputs, &LintOptions::default())
}
