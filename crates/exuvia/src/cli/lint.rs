//! `exuvia storage lint`: fails manifests in which a CRD is neither opted in nor excluded.

use std::process::ExitCode;

use exuvia_lint::{Input, LintOptions, Outcome, Reason, lint};
use exuvia_storage::counted;

use super::args::LintArgs;
use super::output::remark;
use super::values::existing;
use exuvia_usage::WRONG_USAGE;

pub(super) fn run(args: &LintArgs) -> anyhow::Result<ExitCode> {
    existing("path", &args.paths)?;
    let inputs: Vec<Input> = args.paths.iter().map(Input::from_argument).collect();
    let options = LintOptions {
        opt_in: args.opt_in.opt_in_label.clone(),
        groups: args.opt_in.groups.clone(),
        ..LintOptions::default()
    };
    let report = lint(&inputs, &options)?;
    for note in &report.notes {
        remark(&format!("note: {note}"));
    }
    args.output.print(&report, || {
        let mut text = String::new();
        for finding in &report.findings {
            text.push_str(&format!("{finding}\n"));
        }
        text.push_str(&match report.outcome() {
            Outcome::Clean => format!(
                "{} in {}: {} opted in, {} excluded\n",
                counted(report.checked as u64, "CRD"),
                counted(report.files as u64, "file"),
                report.opted_in,
                report.excluded
            ),
            Outcome::Findings => format!(
                "{} in {}\n",
                counted(report.findings.len() as u64, "finding"),
                counted(report.files as u64, "file")
            ),
            Outcome::NoCrds if report.unparsable > 0 => format!(
                "no CRD could be checked in {}: correct what is not valid YAML, as noted above\n",
                counted(report.files as u64, "file")
            ),
            Outcome::NoCrds => format!(
                "no CRD in {}: is the path right?\n",
                counted(report.files as u64, "file")
            ),
            Outcome::NoCrdsInGroups => {
                format!(
                    "{}, but none in the groups asked for: is --groups right?\n",
                    counted(report.other_groups as u64, "CRD")
                )
            }
        });
        text
    })?;
    // A file that cannot be read as YAML says nothing about the CRDs in it.
    let is_answer = report
        .findings
        .iter()
        .any(|finding| finding.reason != Reason::Unparsable);
    Ok(match report.outcome() {
        Outcome::Clean => ExitCode::SUCCESS,
        Outcome::Findings if is_answer => ExitCode::FAILURE,
        Outcome::Findings | Outcome::NoCrds | Outcome::NoCrdsInGroups => ExitCode::from(WRONG_USAGE),
    })
}
