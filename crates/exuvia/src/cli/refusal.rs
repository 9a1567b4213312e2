//! What is said of a command line of `exuvia` that cannot be understood.

use std::process::ExitCode;

use super::args::Cli;

/// What the command line asks for, or the exit code after it was said why it cannot be understood.
pub fn parse() -> Result<Cli, ExitCode> {
    exuvia_usage::parse_knowing(of_unknown)
}

/// A command that only some builds have.
fn of_unknown(command: &str) -> Option<String> {
    let how = "this binary was built without it; in a clone of the repository, `cargo run --package exuvia -- demo` has it";
    (command == "demo").then(|| how.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let all = std::iter::once("exuvia".to_owned()).chain(words.iter().cloned());
        let error = Cli::try_parse_from(all).expect_err("it is wrong");
        exuvia_usage::sentence(Cli::command(), &error, &words, of_unknown).expect("an error, not help")
    }

    #[test]
    fn each_kind_of_mistake_is_one_sentence_with_a_way_out() {
        for (line, sentence) in [
            (
                "migrate",
                "invalid command \"migrate\": did you mean `exuvia storage migrate`?",
            ),
            (
                "storage migrte",
                "invalid command \"migrte\": did you mean `exuvia storage migrate`?",
            ),
            (
                "storage wash",
                "invalid command \"wash\": expected migrate, status, droppable, users, lint, audit or help",
            ),
            (
                "storage migrate a.b --all",
                "NAME cannot be used with --all: leave one of them out",
            ),
            (
                "storage migrate a.b --settle 1s --settle 2s",
                "--settle is given more than once: give it once",
            ),
            (
                "storage migrate a.b --verify fast",
                "invalid --verify \"fast\": expected auto, proof or full",
            ),
            (
                "storage migrate a.b --qps many",
                "invalid --qps \"many\": expected a whole number from 1 to 1000000",
            ),
            (
                "storage migrate a.b --concurrent 65",
                "invalid --concurrent \"65\": expected a whole number from 1 to 64",
            ),
            (
                "storage audit a.b --etcd x",
                "invalid option \"--etcd\" of `exuvia storage audit`: did you mean --etcd-endpoint or --etcd-prefix?",
            ),
            (
                "storage migrate a.b --page-size 1",
                "invalid option \"--page-size\": `exuvia storage migrate --help` lists the options of this command",
            ),
            (
                "storage users a.b v1 v2",
                "unexpected argument \"v2\": `exuvia storage users --help` shows what it takes",
            ),
            (
                "storage droppable a.b v1 --settle=5s",
                "--settle needs --prove: add --prove, or leave --settle out",
            ),
            (
                "datastore status --interval 5s",
                "--interval needs --watch: add --watch, or leave --interval out",
            ),
            (
                "storage migrate a.b --cacert ca.crt",
                "--cacert needs --etcd-endpoint: add --etcd-endpoint, or leave --cacert out",
            ),
            (
                "storage droppable",
                "missing CRD and VERSION: `exuvia storage droppable --help` shows what they are",
            ),
        ] {
            assert_eq!(said(line), sentence, "{line}");
        }
    }

    #[test]
    fn a_binary_without_the_demo_says_how_to_get_it() {
        let said = of_unknown("demo").expect("it is known");
        assert!(
            said.contains("built without it") && said.contains("cargo run"),
            "{said}"
        );
    }

    #[test]
    fn an_option_of_the_whole_command_may_stand_before_the_subcommand() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).expect("it is right").command;
        for line in [
            "exuvia --kubeconfig /a --context b storage status",
            "exuvia storage --kubeconfig /a status --context b",
            "exuvia storage status --kubeconfig /a --context b",
        ] {
            let super::super::Command::Storage(super::super::StorageCommand::Status(args)) = parsed(line)
            else {
                panic!("{line}");
            };
            assert_eq!(args.cluster.kubeconfig.as_deref(), Some("/a".as_ref()), "{line}");
            assert_eq!(args.cluster.context.as_deref(), Some("b"), "{line}");
        }
        let super::super::Command::Plan(args) = parsed("exuvia --context b plan") else {
            panic!("a plan");
        };
        assert_eq!(args.contexts, ["b"]);
    }
}
