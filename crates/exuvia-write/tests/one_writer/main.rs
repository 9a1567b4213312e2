//! A lint: outside this crate nobody writes to an API server but through the writer.
//!
//! Read is every `.rs` file of the workspace but this crate, `exuvia-testenv` and `bench` (which set scenes), and test
//! code: `tests/` and `benches/` directories, and whatever is under `#[cfg(test)]`. Tests must be able to play the other
//! writer, who knows nothing of us. What is found and shall stay is listed in `one-writer-exceptions.txt`, with a reason.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod aliases;
mod planted;
mod scan;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use self::{aliases::Aliases, scan::Finding};

/// A source file with its path from the workspace's root.
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) tree: syn::File,
}

/// `<path> <what>: <reason>`, one per line; `#` begins a comment.
struct Exception {
    path: String,
    what: String,
}

#[test]
fn nobody_else_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap();
    let sources = sources(&root);
    assert!(
        sources.len() > 5,
        "the workspace was not found at {}",
        root.display()
    );
    let listed = fs::read_to_string(root.join("crates/exuvia-write/one-writer-exceptions.txt")).unwrap();
    let problems = judge(&sources, &listed);
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

/// What is wrong with these sources under these exceptions, as sentences.
pub(crate) fn judge(sources: &[Source], listed: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut exceptions = Vec::new();
    for line in listed
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match parse(line) {
            Some(exception) => exceptions.push((exception, false)),
            None => problems.push(format!("the exception {line:?} is not `<path> <what>: <reason>`")),
        }
    }
    let aliases = Aliases::of(sources);
    for (source, finding) in sources.iter().flat_map(|source| {
        scan::findings(&source.tree, &aliases)
            .into_iter()
            .map(move |finding| (source, finding))
    }) {
        let Finding { line, what } = &finding;
        let excuse = exceptions
            .iter_mut()
            .find(|(exception, _)| exception.path == source.path && exception.what == *what);
        match excuse {
            Some((_, used)) => *used = true,
            None => problems.push(format!(
                "{}:{line}: `{what}` writes past the writer; use exuvia-write, or list it in \
                 crates/exuvia-write/one-writer-exceptions.txt with a reason",
                source.path
            )),
        }
    }
    for (Exception { path, what }, _) in exceptions.iter().filter(|(_, used)| !used) {
        problems.push(format!(
            "the exception for `{what}` in {path} is not needed any more; take it out"
        ));
    }
    problems
}

fn parse(line: &str) -> Option<Exception> {
    let (place, reason) = line.split_once(": ")?;
    let (path, what) = place.split_once(' ')?;
    (!reason.trim().is_empty()).then(|| Exception {
        path: path.to_owned(),
        what: what.trim().to_owned(),
    })
}

fn sources(root: &Path) -> Vec<Source> {
    let mut files = BTreeSet::new();
    collect(root, root, &mut files);
    let mut sources: Vec<Source> = files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            let tree = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            Source { path, tree }
        })
        .collect();
    let of_tests: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
    sources.retain(|source| !of_tests.iter().any(|module| source.path.starts_with(module)));
    sources
}

fn collect(root: &Path, directory: &Path, files: &mut BTreeSet<PathBuf>) {
    const SKIPPED: [&str; 8] = [
        "target",
        "tests",
        "benches",
        ".git",
        "node_modules",
        "crates/exuvia-write",
        "crates/exuvia-testenv",
        "bench", // sets scenes, and plays the bystander
    ];
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let name = entry.file_name().into_string().unwrap();
        let from_root = path.strip_prefix(root).unwrap().to_str().unwrap();
        if SKIPPED.contains(&name.as_str()) || SKIPPED.contains(&from_root) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            collect(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.insert(path);
        }
    }
}

/// Where the files of `#[cfg(test)] mod name;` are: paths without an end, so that they match `name.rs` and `name/…`.
fn test_modules(source: &Source) -> Vec<String> {
    let file = Path::new(&source.path);
    let stem = file.file_stem().unwrap().to_str().unwrap();
    let directory = file.parent().unwrap();
    let within = if ["lib", "main", "mod"].contains(&stem) {
        directory.to_owned()
    } else {
        directory.join(stem)
    };
    let of_tests = source.tree.items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && scan::is_test(&module.attrs) => {
            Some(&module.ident)
        }
        _ => None,
    });
    of_tests
        .flat_map(|name| [".rs", "/"].map(|end| format!("{}/{name}{end}", within.display())))
        .collect()
}
