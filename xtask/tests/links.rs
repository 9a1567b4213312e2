//! Every relative link in the documentation leads to a file, and to a heading of it.
#![allow(clippy::unwrap_used)] // a test may panic

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The Markdown files below a directory, without what is built, cached or hidden.
fn pages(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The lines outside of code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect()
}

/// What GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links(line: &str) -> Vec<&str> {
    let after_brackets = line.split("](").skip(1);
    after_brackets
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
        .collect()
}

fn broken(page: &Path, link: &str) -> Option<&'static str> {
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => page.parent().unwrap().join(path),
    };
    if !target.exists() {
        return Some("the file does not exist");
    }
    if fragment.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let text = std::fs::read_to_string(target).unwrap();
    let headings: HashSet<String> = prose(&text)
        .into_iter()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect();
    (!headings.contains(fragment)).then_some("the heading does not exist")
}

#[test]
fn every_relative_link_of_the_documentation_leads_somewhere() {
    let mut found = Vec::new();
    pages(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(found.len() > 20, "{found:?}");
    let mut complaints = Vec::new();
    for page in &found {
        let text = std::fs::read_to_string(page).unwrap();
        for link in prose(&text)
            .into_iter()
            .flat_map(links)
            .filter(|link| !link.contains("://"))
        {
            if let Some(why) = broken(page, link) {
                complaints.push(format!("{}: {link}: {why}", page.display()));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_link_to_nowhere_is_noticed() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    assert_eq!(broken(&page, "docs/glossary.md"), None);
    assert_eq!(
        broken(&page, "docs/storage-migration.md#what-droppable-means"),
        None
    );
    assert_eq!(broken(&page, "docs/nothing.md"), Some("the file does not exist"));
    assert_eq!(
        broken(&page, "docs/glossary.md#nothing"),
        Some("the heading does not exist")
    );
}
