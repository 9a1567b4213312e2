//! Carries out what the command line asks for.

mod args;
mod audit;
mod bars;
mod cluster;
mod commands;
mod datastore;
#[cfg(feature = "demo")]
mod demo;
mod droppable;
mod exit_codes;
mod lint;
mod migrate;
mod moved;
mod names;
mod operator;
mod output;
mod plan;
mod rbac;
mod references;
mod refusal;
mod rollout;
mod stop;
mod summary;
mod table;
mod values;
mod verdicts;

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use exuvia_storage::redact_uncut;

pub use args::*;
pub use datastore::*;
pub use operator::OperatorArgs;
pub use output::Format;
pub(crate) use output::remark;
pub use plan::{PlanArgs, PlanFormat};
pub use refusal::parse;
pub use rollout::{Dialect, FenceArgs, RolloutCommand};

/// Runs one command. Errors go to standard error as one sentence; the exit code is then not zero.
pub fn run(cli: Cli) -> ExitCode {
    // The operator starts its own logging.
    if !matches!(cli.command, Command::Operator(_)) {
        log_to_stderr(cli.verbose);
    }
    let rules = match &cli.command {
        Command::Datastore(_) => DATASTORE_RULES,
        Command::Rbac(args) if !args.filename.is_empty() => DATASTORE_RULES,
        _ => STORAGE_RULES,
    };
    let result = match cli.command {
        Command::Operator(args) => operator::run(&args),
        Command::Version => {
            output::say(concat!("exuvia ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| ExitCode::SUCCESS)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "exuvia", &mut script);
            output::say(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
        Command::Plan(args) if args.watch => block_on(plan::run(&args)), // a signal ends it, and that is success
        Command::Plan(args) => look(plan::run(&args)),
        Command::Rbac(args) => look(rbac::run(&args)).map(|()| ExitCode::SUCCESS),
        Command::Datastore(command) => datastore::run(&command),
        Command::Rollout(command) => rollout::run(&command),
        Command::Storage(StorageCommand::Migrate(args)) => block_on(migrate::run(&args)),
        Command::Storage(StorageCommand::Status(args)) => {
            look(plan::status(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Storage(StorageCommand::Users(args)) => {
            look(droppable::users(&args)).map(|()| ExitCode::SUCCESS)
        }
        Command::Storage(StorageCommand::Lint(args)) => lint::run(&args),
        Command::Storage(StorageCommand::Audit(args)) => look(audit::run(&args)),
        Command::Storage(StorageCommand::Droppable(args)) if args.prove => block_on(droppable::run(&args)),
        Command::Storage(StorageCommand::Droppable(args)) => look(droppable::run(&args)),
    };
    // Not 1, which is an answer: "no" must not be mistaken for "cannot tell".
    result.unwrap_or_else(|error| failed(&error, rules, exuvia_usage::WRONG_USAGE))
}

/// Objects' bodies are never logged, however often `-v` is given.
fn log_to_stderr(verbose: u8) {
    let filter = match verbose {
        0 => return,
        1 => "exuvia_storage=debug,exuvia_datastore=debug,exuvia_runtime=debug,exuvia::cli=debug",
        // exuvia::requests among them
        _ => {
            "exuvia_storage=debug,exuvia_datastore=debug,exuvia_runtime=debug,exuvia_sweep=debug,exuvia_write=debug,exuvia=debug"
        }
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false) // it would report a closed standard error to standard error, and panic
        .with_ansi(colours(std::env::var_os("NO_COLOR").as_deref()))
        .with_writer(std::io::stderr);
    let _ = subscriber.try_init(); // fails if logging was set up already, which then stays
}

/// Whether what is logged is coloured: for people at a terminal, unless they said no (<https://no-color.org>).
fn colours(no_color: Option<&std::ffi::OsStr>) -> bool {
    no_color.is_none_or(std::ffi::OsStr::is_empty) && std::io::stderr().is_terminal()
}

/// Where all rules are that a storage migration needs.
const STORAGE_RULES: &str = "`exuvia rbac --crds NAME` prints all rules for a migration of the CRD NAME";
/// The same for a datastore migration.
const DATASTORE_RULES: &str =
    "`exuvia rbac -f FILE` prints all rules for the datastore migration of the manifest FILE";

fn failed(error: &anyhow::Error, rules: &str, code: u8) -> ExitCode {
    if let Some(code) = stop::exit_code(error) {
        remark(&sentence(error));
        return code;
    }
    remark(&format!("error: {}", with_missing_right(sentence(error), rules)));
    ExitCode::from(code)
}

/// What the server said, with the rule that would help if it said that a right is missing, and where all rules are.
fn with_missing_right(said: String, rules: &str) -> String {
    // What we say before it has a "cannot" of its own.
    let by_server = said.find(" is forbidden: ").map_or("", |at| &said[at..]);
    match exuvia_storage::MissingRule::named_in(by_server) {
        Some(rule) if !said.contains("add to the role") => {
            format!("{said}; add to the role of this user: {rule} ({rules})")
        }
        _ => said,
    }
}

/// Causes joined once each: errors of several layers repeat what is below them, and kube's print whole structures. What
/// the server quotes of an object is left out, and so are credentials: a terminal is often a log.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // An error in a box is another type than the error.
        let boxed = cause.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
        let kube = cause.downcast_ref::<kube::Error>().or(boxed);
        let own = match kube {
            Some(kube::Error::Api(status)) => cluster::answer(status),
            Some(other) => exuvia_write::brief(other),
            None => cause.to_string(),
        };
        if !text.contains(&own) {
            text = if text.is_empty() {
                own
            } else {
                format!("{text}: {own}")
            };
        }
        if kube.is_some() {
            break;
        }
    }
    exuvia_usage::without_passwords(&redact_uncut(&text))
}

/// Work that writes nothing, and may be ended at any time.
fn look<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    block_on(stop::unless_stopped(work))
}

fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Runtime::new()
        .context("cannot start the async runtime")?
        .block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error with a cause in a box, as thiserror hands it on.
    #[derive(Debug)]
    struct Outer(Box<kube::Error>);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the write failed")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn what_the_server_said_is_a_sentence_even_in_a_box() {
        let status = kube::core::Status::failure("spec.x: Invalid value: \"CANARY\": no", "Invalid");
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(
            sentence(&error.into()),
            "the write failed: spec.x: Invalid value: …: no"
        );
    }

    #[test]
    fn a_missing_right_is_named_with_the_rule_and_only_once() {
        let said = "the objects cannot be read: widgets.example.com is forbidden: User \"me\" cannot list resource \"widgets\" in API group \"example.com\" \
                    at the cluster scope";
        let helped = with_missing_right(said.to_owned(), DATASTORE_RULES);
        let rule = r#"{apiGroups: ["example.com"], resources: ["widgets"], verbs: ["list"]}"#;
        assert!(
            helped.starts_with(said) && helped.contains(rule) && helped.contains("`exuvia rbac -f FILE`"),
            "{helped}"
        );
        assert_eq!(with_missing_right(helped.clone(), STORAGE_RULES), helped);
        assert_eq!(
            with_missing_right("no route to host".to_owned(), STORAGE_RULES),
            "no route to host"
        );
    }
}
