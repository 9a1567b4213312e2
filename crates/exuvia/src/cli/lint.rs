//! `exuvia storage lint`: fails manifests in which a CRD is neither opted in nor excluded.

use std::process::ExitCode;

use exuvia_storage::lint::{Input, Options, Outcome, lint};

use super::args::LintArgs;
use super::output::{count, remark};

pub(super) fn run(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let inputs: Vec<Input> = args.paths.iter().map(Input::from_argument).collect();
    let options = Options {
        opt_in: args.opt_in.opt_in_label.clone(),
        groups: args.opt_in.groups.clone(),
        ..Options::default()
    };
    let report = lint(&inputs, &options)?;
    for note in &report.notes {
        remark(&format!("note: {note}"));
    }
    args.output.print(&report, || {
        let mut text = String::new();
        for finding in &report.findings {
            text.push_str(&format!(
                "{finding}
"
            ));
        }
        text.push_str(&match report.outcome() {
            Outcome::Clean => format!(
                "{} in {}: {} opted in, {} excluded\n",
                count(report.checked as u64, "CRD"),
                count(report.files as u64, "file"),
                report.opted_in,
                report.excluded
            ),
            Outcome::Findings => format!(
                "{} in {}\n",
                count(report.findings.len() as u64, "finding"),
                count(report.files as u64, "file")
            ),
            Outcome::NoCrds => format!(
                "no CRD in {}: is the path right?\n",
                count(report.files as u64, "file")
            ),
            Outcome::NoCrdsInGroups => {
                format!(
                    "{}, but none in the groups asked for: is --groups right?\n",
                    count(report.other_groups as u64, "CRD")
                )
            }
        });
        text
    })?;
    Ok(if report.outcome() == Outcome::Clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
