//! What is said of a command line that cannot be understood: one sentence with the cause and the fix. Pure, but for the printing.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Parser};

use crate::{WRONG_USAGE, nearest, or, say_error};

/// What the command line asks for, or the exit code after it was said why it cannot be understood. Help and version are printed, and
/// end the process.
pub fn parse<P: Parser>() -> Result<P, ExitCode> {
    parse_knowing(|_| None)
}

/// As [`parse`], for a program that can say something about commands which it does not have.
pub fn parse_knowing<P: Parser>(of_unknown: impl Fn(&str) -> Option<String>) -> Result<P, ExitCode> {
    P::try_parse().map_err(|error| {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let Some(sentence) = sentence(P::command(), &error, &words, of_unknown) else {
            error.exit()
        };
        say_error(&sentence);
        ExitCode::from(WRONG_USAGE)
    })
}

/// What is wrong with these words, and what to do. `None`: it is not an error, but help that was asked for.
pub fn sentence(
    program: Command,
    error: &clap::Error,
    words: &[String],
    of_unknown: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    // What follows a -- is another program's.
    let words = words.split(|word| word == "--").next().unwrap_or_default();
    let command = Chosen::new(program, words);
    let said = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => Some(texts.join(" and ")),
        _ => None,
    };
    let arg = said(ContextKind::InvalidArg).map(|arg| bare(&arg));
    let value = said(ContextKind::InvalidValue).unwrap_or_default();
    let path = &command.path;
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
        (ErrorKind::UnknownArgument, Some(arg)) => {
            format!("unexpected argument {arg:?}: `{path} --help` shows what it takes")
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let name = said(ContextKind::InvalidSubcommand).unwrap_or_default();
            of_unknown(&name).map_or_else(
                || command.unknown_command(&name),
                |said| format!("invalid command {name:?}: {said}"),
            )
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(missing)) => missing.iter().map(|arg| bare(arg)).collect(),
                _ => Vec::new(),
            };
            command.missing(&missing, words)
        }
        (ErrorKind::ArgumentConflict, Some(arg)) => {
            let prior = said(ContextKind::PriorArg).map(|prior| bare(&prior));
            match prior.filter(|prior| *prior != arg) {
                Some(prior) => format!("{arg} cannot be used with {prior}: leave one of them out"),
                None => format!("{arg} is given more than once: give it once"),
            }
        }
        _ => {
            // Rare: clap's own first line, and where to look.
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            format!("{first}; see `{path} --help`")
        }
    })
}

/// The command that the words name, as far as they do.
struct Chosen {
    path: String,
    command: Command,
}

impl Chosen {
    fn new(mut command: Command, words: &[String]) -> Self {
        command.build();
        let mut path = command.get_name().to_owned();
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
        help.map_or_else(|| "a value".to_owned(), |help| first_letter_small(&help))
    }

    fn missing(&self, names: &[String], words: &[String]) -> String {
        if let [needed] = names
            && let Some(given) = self.given_that_needs(needed, words)
        {
            return format!("{given} needs {needed}: add {needed}, or leave {given} out");
        }
        // As it is written.
        let written = |name: &String| match self.find(name) {
            Some(arg) if arg.is_last_set() => format!("`-- {name}`"),
            _ => name.clone(),
        };
        match names {
            [name] => format!("missing {}: expected {}", written(name), self.help(name)),
            names => {
                let names: Vec<_> = names.iter().map(written).collect();
                format!(
                    "missing {}: `{} --help` shows what they are",
                    names.join(" and "),
                    self.path
                )
            }
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

    /// `exuvia migrate` is `exuvia storage migrate`: what is meant may be a command of this one's commands.
    fn unknown_command(&self, name: &str) -> String {
        let own = (self.path.clone(), &self.command);
        // `help` repeats all of them.
        let others = shown(&self.command).filter(|command| command.get_name() != "help");
        let below = others.map(|command| (format!("{} {}", self.path, command.get_name()), command));
        let mut meant = Vec::new();
        for (path, command) in std::iter::once(own).chain(below) {
            let names = names(command);
            let near = nearest(name, names.iter().map(String::as_str));
            meant.extend(near.into_iter().map(|near| format!("`{path} {near}`")));
        }
        if meant.is_empty() {
            format!("invalid command {name:?}: expected {}", or(&names(&self.command)))
        } else {
            format!("invalid command {name:?}: did you mean {}?", or(&meant))
        }
    }
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn names(command: &Command) -> Vec<String> {
    shown(command)
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// `--listen <ADDR>` as `--listen`, `--elect[=<BOOL>]` as `--elect`, `[COMMAND]...` as `COMMAND`.
fn bare(arg: &str) -> String {
    let name = arg.split(' ').next().unwrap_or_default().trim_end_matches("...");
    let name = name.split_once("[=").map_or(name, |(option, _)| option);
    name.trim_matches(['<', '>', '[', ']']).to_owned()
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

    fn tool() -> Command {
        let option = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help);
        let listen = option("listen", "Where to listen").value_parser(clap::value_parser!(u16));
        let quiet = option("quiet", "Say nothing").action(clap::ArgAction::SetTrue);
        let elect = option("elect", "Elect")
            .num_args(0..=1)
            .require_equals(true)
            .value_name("BOOL");
        let serve = Command::new("serve")
            .arg(listen.conflicts_with("quiet"))
            .arg(option("level", "How much is said").value_parser(["much", "little"]))
            .arg(quiet)
            .arg(
                Arg::new("command")
                    .value_name("COMMAND")
                    .help("The program and its arguments")
                    .num_args(1..)
                    .last(true)
                    .required(true),
            );
        let end = Command::new("end")
            .arg(option("image", "The image").required(true))
            .arg(elect);
        Command::new("tool")
            .version("1")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands([serve, end])
    }

    fn said(line: &str) -> Option<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let all = std::iter::once("tool".to_owned()).chain(words.iter().cloned());
        let error = tool().try_get_matches_from(all).expect_err("it is wrong");
        sentence(tool(), &error, &words, |_| None)
    }

    #[test]
    fn each_kind_of_mistake_is_one_sentence_with_a_way_out() {
        for (line, sentence) in [
            ("wash", "invalid command \"wash\": expected serve, end or help"),
            ("serv", "invalid command \"serv\": did you mean `tool serve`?"),
            (
                "serve --listen http -- a",
                "invalid --listen \"http\": invalid digit found in string",
            ),
            (
                "serve --level loud -- a",
                "invalid --level \"loud\": expected much or little",
            ),
            (
                "serve --listn 80 -- a",
                "invalid option \"--listn\" of `tool serve`: did you mean --listen?",
            ),
            (
                "serve --zzz -- end --listen",
                "invalid option \"--zzz\": `tool serve --help` lists the options of this command",
            ),
            (
                "serve",
                "missing `-- COMMAND`: expected the program and its arguments",
            ),
            ("end", "missing --image: expected the image"),
            ("end --image", "missing value for --image: expected the image"),
            (
                "end --image a --elect=true --elect=false",
                "--elect is given more than once: give it once",
            ),
            (
                "end --image a b",
                "unexpected argument \"b\": `tool end --help` shows what it takes",
            ),
            (
                "end --image a --image b",
                "--image is given more than once: give it once",
            ),
            (
                "serve --listen 80 --quiet -- a",
                "--listen cannot be used with --quiet: leave one of them out",
            ),
        ] {
            assert_eq!(said(line).as_deref(), Some(sentence), "{line}");
        }
    }

    #[test]
    fn help_and_version_stay_as_they_are() {
        for line in ["", "--help", "serve --help", "--version"] {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
