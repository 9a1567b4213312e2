//! `exuvia storage lint`: fails manifests in which a CRD is neither opted in nor excluded.

use std::process::ExitCode;

use exuvia_storage::lint::{Input, Options, Outcome, lint};

use super::args::LintArgs;

pub(super) fn run(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let inputs: Vec<Input> = args.paths.iter().map(Input::from_argument).collect();
    let options = Options {
        opt_in: args.opt_in.opt_in_label.clone(),
        groups: args.opt_in.groups.clone(),
        ..Options::default()
    };
    let report = lint(&inputs, &options)?;
    args.output.print(&report, || {
        report.notes.iter().for_each(|note| eprintln!("note: {note}"));
        report.findings.iter().for_each(|finding| println!("{finding}"));
        match report.outcome() {
            Outcome::Clean => println!(
                "{} CRDs in {} files: {} opted in, {} excluded",
                report.checked, report.files, report.opted_in, report.excluded
            ),
            Outcome::Findings => println!("{} findings in {} files", report.findings.len(), report.files),
            Outcome::NoCrds => println!("no CRD in {} files: is the path right?", report.files),
            Outcome::NoCrdsInGroups => {
                println!(
                    "{} CRDs, but none in the groups asked for: is --groups right?",
                    report.other_groups
                );
            }
        }
    })?;
    Ok(if report.outcome() == Outcome::Clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
