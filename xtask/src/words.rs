//! Fails on words that we do not use, because readers from other countries stumble over them.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// A word that we do not use, and what to write instead. This list is the only place that may quote them.
const WORDS: &[(&str, &str)] = &[
    ("is no", "\"is not a valid X\", \"not found\" or \"no X is …\""), // words: allow
    ("are no", "\"are not X\" or \"no X are …\""),                     // words: allow
    ("was no", "\"was not a X\" or \"no X was …\""),                   // words: allow
    ("be no", "\"not be a X\" or \"no X can be …\""),                  // words: allow
    ("is none", "\"has no X\" or \"there are none\""),                 // words: allow
    ("whoever", "\"anyone who\", or name the reader"),                 // words: allow
    ("anew", "\"again\""),                                             // words: allow
    ("heed", "\"follow\" or \"respect\""),                             // words: allow
    ("heeds", "\"follows\" or \"respects\""),                          // words: allow
    ("heeded", "\"followed\" or \"respected\""),                       // words: allow
];

/// "No longer" is what Kubernetes itself says.
const FINE_AFTER_NO: &str = "longer";

/// "There are no X" is plain English, and so is "there would be no X". "There is …" is not on this list: "no X is …" is shorter.
const FINE_AFTER_THERE: &[&str] = &["are no", "was no", "be no"]; // words: allow

/// What the standard library calls things.
const NOT_OUR_NAMES: &[&str] = &["is_none", "is_none_or"];

/// A line with this comment quotes the words.
const ALLOW: &str = "words: allow";

/// Which files are ours to word.
const ENDINGS: &[&str] = &[
    ".rs",
    ".md",
    ".yaml",
    ".yml",
    ".tpl",
    ".txt",
    ".toml",
    ".json",
    "Dockerfile",
];

/// Scripts of ours, which have no ending.
const SCRIPTS: &[&str] = &[".ci/run", "deploy/krew/render"];

/// Text that others wrote, or that a machine measured.
const NOT_OURS: &[&str] = &["bench/results/", "/testdata/", "/fixtures/"];

/// A word that we do not use, with its place.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: String,
    line: usize,
    word: &'static str,
    instead: &'static str,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            word,
            instead,
        } = self;
        write!(f, "{file}:{line}: {word:?}: write {instead}")
    }
}

/// Looks at every text file that git tracks; names each violation, and fails if there are any.
pub(crate) fn check() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask lies in the workspace")?;
    let mut violations = Vec::new();
    for file in tracked(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue; // deleted, and not committed yet
        };
        violations.extend(violations_in(&file, &text));
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        number => bail!("{number} places use words that we do not use: see above"),
    }
}

/// Paths of the text files that git tracks.
fn tracked(root: &Path) -> anyhow::Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    if !listed.status.success() {
        bail!(
            "`git ls-files` failed: {}",
            String::from_utf8_lossy(&listed.stderr)
        );
    }
    let is_ours = |path: &&str| {
        (ENDINGS.iter().any(|ending| path.ends_with(ending)) || SCRIPTS.contains(path))
            && !NOT_OURS.iter().any(|part| path.contains(part))
    };
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    Ok(listed.split('\0').filter(is_ours).map(str::to_owned).collect())
}

fn violations_in(file: &str, text: &str) -> Vec<Violation> {
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if line.contains(ALLOW) {
            continue;
        }
        // Sentences are wrapped: two words may be on two lines.
        let next = lines.get(index + 1).map_or("", |next| *next);
        let first = words(line);
        let number = first.len();
        let both: Vec<String> = first.into_iter().chain(words(next)).collect();
        for (word, instead) in WORDS {
            let parts: Vec<&str> = word.split(' ').collect();
            let is_here = |at: &usize| {
                let end = at + parts.len();
                both.get(*at..end).is_some_and(|here| here == parts)
                    && !is_fine(word, &both[..*at], both.get(end))
            };
            found.extend((0..number).filter(is_here).map(|_| Violation {
                file: file.to_owned(),
                line: index + 1,
                word,
                instead,
            }));
        }
    }
    found
}

/// Whether these words are fine between those.
fn is_fine(word: &str, before: &[String], after: Option<&String>) -> bool {
    let is_there = |word: &String| word == "there";
    let after_there = match before {
        [.., there, _] if word.starts_with("be ") => is_there(there), // there may be, there would be
        [.., there] => is_there(there),
        [] => false,
    };
    (word.ends_with(" no") && after.is_some_and(|after| after == FINE_AFTER_NO))
        || (after_there && FINE_AFTER_THERE.contains(&word))
}

/// The words of a line in lower case, without marks; a mark that ends a sentence or a part of it is a word by itself, so
/// that words on its two sides are not read together. A name is read as the words that it is made of.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in line.trim().chars() {
        if c.is_alphanumeric() || c == '_' || c == '\'' {
            words.last_mut().expect("one at least").extend(c.to_lowercase());
        } else {
            if ".;:,(){}[]=|<>\"`".contains(c) {
                words.push(c.to_string());
            }
            words.push(String::new());
        }
    }
    // What begins a comment's next line, or joins two lines of a text, does not part words.
    let is_ours = |word: &String| !NOT_OUR_NAMES.contains(&word.as_str());
    let parts = words.iter().flat_map(|word| {
        let separator = if is_ours(word) { "_" } else { " " };
        word.split(separator).map(str::to_owned)
    });
    parts.filter(|word| !word.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, &'static str)> {
        let violations = violations_in("a.rs", text);
        violations.iter().map(|found| (found.line, found.word)).collect()
    }

    #[test]
    fn a_word_that_we_do_not_use_is_found_with_its_line() {
        let text = "fine\n// This IS NO reason.\nwhoever\n\"it begins anew, and nobody heeds it\"\n"; // words: allow
        assert_eq!(
            found(text),
            [(2, "is no"), (3, "whoever"), (4, "anew"), (4, "heeds")] // words: allow
        );
        let said = violations_in("a.rs", text)[0].to_string();
        assert!(said.starts_with("a.rs:2: ") && said.contains("write"), "{said}");
    }

    #[test]
    fn a_sentence_that_is_wrapped_is_read_across_lines() {
        assert_eq!(found("/// what this is\n/// none of"), [(1, "is none")]); // words: allow
        assert_eq!(found("a text that is \\\n    no reason"), [(1, "is no")]); // words: allow
    }

    #[test]
    fn parts_of_other_words_and_of_other_sentences_are_fine() {
        for fine in [
            "this note is not it",
            "renewed, heedless, is nobody's",
            "it is: no",
            "what it is. None of them",
            "it is no longer served",
            "let is_none = x.is_none();",
            "x.is_none_or(|y| y > 1)",
            "there are no objects, and there was no other",
            "there would be no answer",
            "they are no longer served",
            "whoever // words: allow",
        ] {
            assert_eq!(found(fine), [], "{fine}");
        }
    }

    #[test]
    fn a_name_is_read_as_its_words() {
        assert_eq!(found("fn it_is_drawn_anew() {"), [(1, "anew")]); // words: allow
        assert_eq!(found("async fn a_gap_is_no_loss() {"), [(1, "is no")]); // words: allow
    }

    /// Deleting a line of the list must not go unnoticed.
    #[test]
    fn every_word_of_the_list_is_found() {
        for (word, _) in WORDS {
            let text = format!("text {word} text");
            assert_eq!(found(&text), [(1, *word)]);
        }
    }
}
