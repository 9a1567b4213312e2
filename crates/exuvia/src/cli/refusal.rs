//! What is said of a command line that cannot be understood: one sentence with the cause and the fix.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, CommandFactory, Parser};
use exuvia_storage::nearest;

use super::args::Cli;
use super::{remark, without_passwords};

/// The exit code of a command that was not understood, or could not begin.
pub(super) const WRONG_USAGE: u8 = 2;

/// What the command line asks for, or the exit code after it was said why it cannot be understood.
pub fn parse() -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| refuse(&error))
}

fn refuse(error: &clap::Error) -> ExitCode {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let Some(sentence) = sentence(error, &words) else {
        error.exit() // help and version
    };
    // It quotes what it does not understand, and a URL may hold a password.
    remark(&format!("error: {}", without_passwords(&sentence)));
    ExitCode::from(WRONG_USAGE)
}

/// `None`: it is not an error, but help that was asked for.
fn sentence(error: &clap::Error, words: &[String]) -> Option<String> {
    let command = Chosen::new(words);
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(" and ")),
        _ => None,
    };
    let arg = said(ContextKind::InvalidArg).map(|arg| bare(&arg));
    let value = said(ContextKind::InvalidValue).unwrap_or_default();
    Some(match (error.kind(), arg) {
        (
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            _,
        ) => return None,
        (ErrorKind::InvalidValue, Some(arg)) => {
            let valid = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(valid)) if !valid.is_empty() => or(valid),
                _ => command.help(&arg),
            };
            let arg = command.given_as(arg, words);
            if value.is_empty() {
                format!("missing value for {arg}: expected {valid}")
            } else {
                format!("invalid {arg} {value:?}: expected {valid}")
            }
        }
        (ErrorKind::ValueValidation, Some(arg)) => {
            let arg = command.given_as(arg, words);
            let why = std::error::Error::source(error).map(ToString::to_string);
            format!("invalid {arg} {value:?}: {}", why.unwrap_or_default())
        }
        (ErrorKind::UnknownArgument, Some(arg)) if arg.starts_with('-') => {
            let suggested = said(ContextKind::SuggestedArg).map(|arg| bare(&arg));
            command.unknown_option(&arg, suggested)
        }
        (ErrorKind::UnknownArgument, Some(arg)) => format!(
            "unexpected argument {arg:?}: `{} --help` shows what it takes",
            command.path
        ),
        (ErrorKind::InvalidSubcommand, _) => {
            let name = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            command.unknown_command(&name)
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(missing)) => missing.iter().map(|arg| bare(arg)).collect(),
                _ => Vec::new(),
            };
            command.missing(&missing, words)
        }
        (ErrorKind::ArgumentConflict, Some(arg)) => {
            let prior = said(ContextKind::PriorArg)
                .map(|prior| bare(&prior))
                .unwrap_or_default();
            if prior == arg || prior.is_empty() {
                format!("{arg} is given more than once: give it once")
            } else {
                format!("{arg} cannot be used with {prior}: leave one of them out")
            }
        }
        _ => {
            // Rare: clap's own first line, and where to look.
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            format!("{first}; see `{} --help`", command.path)
        }
    })
}

/// The command that the words name, as far as they do.
struct Chosen {
    path: String,
    command: Command,
}

impl Chosen {
    fn new(words: &[String]) -> Self {
        let mut command = Cli::command();
        command.build();
        let mut path = "exuvia".to_owned();
        for word in words.iter().filter(|word| !word.starts_with('-')) {
            if let Some(found) = command.find_subcommand(word) {
                path = format!("{path} {word}");
                command = found.clone();
            }
        }
        Self { path, command }
    }

    fn find(&self, name: &str) -> Option<&Arg> {
        let is_named = |arg: &&Arg| {
            let value_name = arg.get_value_names().and_then(|names| names.first());
            match name.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long),
                None => arg.is_positional() && value_name.is_some_and(|value| value.as_str() == name),
            }
        };
        self.command.get_arguments().find(is_named)
    }

    /// The option, or the environment variable that its value comes from.
    fn given_as(&self, option: String, words: &[String]) -> String {
        let is_word = |word: &String| word.split('=').next() == Some(&option);
        let variable = self.find(&option).and_then(Arg::get_env);
        match variable.filter(|name| !words.iter().any(is_word) && std::env::var_os(name).is_some()) {
            Some(name) => name.to_string_lossy().into_owned(),
            None => option,
        }
    }

    /// What the argument is, as its help says.
    fn help(&self, name: &str) -> String {
        let help = self.find(name).and_then(Arg::get_help).map(ToString::to_string);
        match help {
            Some(help) => first_letter_small(&help),
            None => "a value".to_owned(),
        }
    }

    fn missing(&self, names: &[String], words: &[String]) -> String {
        if let [needed] = names
            && let Some(given) = self.given_that_needs(needed, words)
        {
            return format!("{given} needs {needed}: add {needed}, or leave {given} out");
        }
        match names {
            [name] => format!("missing {name}: expected {}", self.help(name)),
            names => format!(
                "missing {}: `{} --help` shows what they are",
                names.join(" and "),
                self.path
            ),
        }
    }

    /// The option among the words that is only for use with another one, as its help says: `With --prove: …`.
    fn given_that_needs(&self, needed: &str, words: &[String]) -> Option<String> {
        let only_with = format!("With {needed}: ");
        let is_only_with = |arg: &&Arg| {
            let help = arg.get_help().map(ToString::to_string);
            help.is_some_and(|help| help.starts_with(&only_with))
        };
        let longs = self.command.get_arguments().filter(is_only_with);
        let mut longs = longs.filter_map(|arg| arg.get_long().map(|long| format!("--{long}")));
        longs.find(|long| {
            words
                .iter()
                .any(|word| word.split('=').next() == Some(long.as_str()))
        })
    }

    /// Options that begin the same way are meant more often than those that merely look alike.
    fn unknown_option(&self, name: &str, suggested: Option<String>) -> String {
        let longs: Vec<String> = self
            .command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
            .collect();
        let mut meant: Vec<String> = longs
            .iter()
            .filter(|long| long.starts_with(name))
            .cloned()
            .collect();
        if meant.is_empty() {
            let near = nearest(name, longs.iter().map(String::as_str));
            meant = near.into_iter().map(str::to_owned).collect();
        }
        if meant.is_empty() {
            meant.extend(suggested);
        }
        let path = &self.path;
        if meant.is_empty() {
            format!("invalid option {name:?}: `{path} --help` lists the options of this command")
        } else {
            format!(
                "invalid option {name:?} of `{path}`: did you mean {}?",
                or(&meant)
            )
        }
    }

    /// `exuvia migrate` is `exuvia storage migrate`, and `exuvia abort` is `exuvia datastore abort`.
    fn unknown_command(&self, name: &str) -> String {
        if name == "demo" {
            // Otherwise it would be known.
            return "invalid command \"demo\": this binary was built without it; in a clone of the repository, `cargo run \
                    --package exuvia -- demo` has it"
                .to_owned();
        }
        let path = &self.path;
        let commands = |command: &Command| -> Vec<String> {
            let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            shown.map(|sub| sub.get_name().to_owned()).collect()
        };
        let mut meant = Vec::new();
        let below = ["storage", "datastore"].into_iter().filter_map(|name| {
            let command = self.command.find_subcommand(name)?;
            Some((format!("{path} {name}"), command))
        });
        for (path, command) in std::iter::once((path.clone(), &self.command)).chain(below) {
            let names = commands(command);
            let near = nearest(name, names.iter().map(String::as_str));
            meant.extend(near.into_iter().map(|near| format!("`{path} {near}`")));
        }
        if meant.is_empty() {
            format!(
                "invalid command {name:?}: expected {}",
                or(&commands(&self.command))
            )
        } else {
            format!("invalid command {name:?}: did you mean {}?", or(&meant))
        }
    }
}

/// `--verify <VERIFY>` as `--verify`, `--leader-elect[=<BOOL>]` as `--leader-elect`, `[NAME]...` as `NAME`.
fn bare(arg: &str) -> String {
    let name = arg.split(' ').next().unwrap_or_default().trim_end_matches("...");
    let name = name.split_once("[=").map_or(name, |(option, _)| option);
    name.trim_matches(['<', '>', '[', ']']).to_owned()
}

/// `a, b or c`.
pub(super) fn or(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Help begins with a capital, and goes on with one only for names such as `CRDs`.
fn first_letter_small(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let all = std::iter::once("exuvia".to_owned()).chain(words.iter().cloned());
        let error = Cli::try_parse_from(all).expect_err("it is wrong");
        sentence(&error, &words).expect("an error, not help")
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
        let said = Chosen::new(&[]).unknown_command("demo");
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
