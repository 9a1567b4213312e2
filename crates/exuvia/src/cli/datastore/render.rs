//! `exuvia datastore render`: converts the manifests of a Git tree with the mapping of a migration.

mod document;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use exuvia_api::DatastoreMigrationSpec;
use exuvia_datastore::mapping::Mappings;
use exuvia_lint::{Input, Stream, streams};
use exuvia_storage::counted;

use self::document::Converter;
use super::args::RenderArgs;
use super::manifest;
use crate::cli::output::{remark, say};
use crate::cli::values::existing;

/// A file after the conversion.
struct Rendered {
    file: String,
    /// What is to be written below `--output-dir`.
    relative: PathBuf,
    /// What it holds now; `None`: it is not text, and stays as it is.
    text: Option<String>,
    converted: u64,
    /// Places of documents whose comments are lost.
    lost_comments: Vec<String>,
    problems: Vec<String>,
}

pub(super) fn run(args: &RenderArgs) -> anyhow::Result<ExitCode> {
    existing("PATH", &args.paths)?;
    if args.in_place && args.paths.iter().any(|path| path.as_os_str() == "-") {
        bail!("standard input cannot be converted in place: give a file, or leave --in-place out");
    }
    let (migration, mappings) = manifest::only(&args.filename)?;
    let rendered = all(&args.paths, &migration.spec, &mappings)?;
    let problems: Vec<&String> = rendered.iter().flat_map(|file| &file.problems).collect();
    for problem in &problems {
        remark(problem);
    }
    if !problems.is_empty() {
        remark(&format!(
            "error: {} cannot be converted, so no file was written",
            counted(problems.len() as u64, "document")
        ));
        return Ok(ExitCode::FAILURE);
    }
    if let Some(directory) = &args.output_dir {
        write_below(directory, &rendered)?;
    } else if args.in_place {
        write_in_place(&rendered)?;
    } else {
        say(&printed(&rendered))?;
    }
    for place in rendered.iter().flat_map(|file| &file.lost_comments) {
        remark(&format!(
            "note: {place}: this document was written again, and its comments are lost"
        ));
    }
    let converted: u64 = rendered.iter().map(|file| file.converted).sum();
    let files = rendered.iter().filter(|file| file.converted > 0).count() as u64;
    remark(&match converted {
        0 => "nothing is converted: no document is of a kind that the mapping takes".to_owned(),
        converted => format!(
            "{} in {} converted; everything else is as it was",
            counted(converted, "document"),
            counted(files, "file")
        ),
    });
    Ok(ExitCode::SUCCESS)
}

fn all(
    paths: &[PathBuf],
    spec: &DatastoreMigrationSpec,
    mappings: &Mappings,
) -> anyhow::Result<Vec<Rendered>> {
    let converter = Converter::new(spec, mappings);
    let mut rendered = Vec::new();
    for path in paths {
        for stream in streams(&[Input::from_argument(path)])? {
            let mut file = render(&stream, &converter);
            // A file that was given by itself has only its name; what is in a directory keeps its place in it.
            let below = Path::new(&stream.file)
                .strip_prefix(path)
                .unwrap_or(Path::new(""));
            file.relative = if below.as_os_str().is_empty() {
                path.file_name().map(PathBuf::from).unwrap_or_default()
            } else {
                below.to_owned()
            };
            rendered.push(file);
        }
    }
    Ok(rendered)
}

/// From the last document to the first, so that places in front of it stay what they are.
fn render(stream: &Stream, converter: &Converter<'_>) -> Rendered {
    let mut file = Rendered {
        file: stream.file.clone(),
        relative: PathBuf::new(),
        text: stream.text.clone(),
        converted: 0,
        lost_comments: Vec::new(),
        problems: Vec::new(),
    };
    let Some(original) = &stream.text else {
        return file;
    };
    let mut text = original.clone();
    for piece in stream.pieces.iter().rev() {
        let place = format!("{}:{}", stream.file, piece.line);
        match converter.convert(piece, original) {
            Ok(None) => {}
            Ok(Some(now)) => {
                file.converted += now.documents;
                if now.loses_comments {
                    file.lost_comments.push(place);
                }
                text.replace_range(piece.bytes.clone(), &now.text);
            }
            Err(problem) => file.problems.push(format!("{place}: {problem}")),
        }
    }
    file.problems.reverse();
    file.lost_comments.reverse();
    file.text = Some(text);
    file
}

/// One file as it is; of several, each with its name above it.
fn printed(rendered: &[Rendered]) -> String {
    if let [only] = rendered {
        return only.text.clone().unwrap_or_default();
    }
    let mut printed = String::new();
    for file in rendered {
        let Some(text) = &file.text else {
            continue;
        };
        let text = text.strip_prefix("---\n").unwrap_or(text);
        printed.push_str(&format!("---\n# Source: {}\n{text}", file.file));
        if !printed.ends_with('\n') {
            printed.push('\n');
        }
    }
    printed
}

fn write_in_place(rendered: &[Rendered]) -> anyhow::Result<()> {
    for file in rendered.iter().filter(|file| file.converted > 0) {
        let text = file.text.as_deref().unwrap_or_default();
        std::fs::write(&file.file, text).with_context(|| format!("{} cannot be written", file.file))?;
    }
    Ok(())
}

fn write_below(directory: &Path, rendered: &[Rendered]) -> anyhow::Result<()> {
    let mut places: BTreeMap<PathBuf, &Rendered> = BTreeMap::new();
    for file in rendered {
        let relative = if file.relative.as_os_str() == "-" {
            Path::new("stdin.yaml")
        } else {
            &file.relative
        };
        let place = directory.join(relative);
        if let Some(other) = places.insert(place, file) {
            bail!(
                "{} and {} would both become {} below --output-dir: convert them one by one",
                other.file,
                file.file,
                relative.display()
            );
        }
    }
    for (place, file) in places {
        let Some(text) = &file.text else {
            remark(&format!(
                "note: {} is not text in UTF-8, and was left out",
                file.file
            ));
            continue;
        };
        if let Some(parent) = place.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("{} cannot be created", parent.display()))?;
        }
        std::fs::write(&place, text).with_context(|| format!("{} cannot be written", place.display()))?;
    }
    Ok(())
}
