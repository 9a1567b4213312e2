//! Where manifests come from: files, directory trees, standard input.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Error, Note};

/// What to lint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file, whatever its name, or a directory, of which all `.yaml`, `.yml` and `.json` files are read.
    Path(PathBuf),
    /// Standard input.
    Stdin,
    /// A stream that is in memory already.
    Bytes {
        /// How findings call it.
        name: String,
        /// The stream.
        bytes: Vec<u8>,
    },
}

impl Input {
    /// What an argument of the command line means: `-` is standard input, anything else a path.
    ///
    /// ```
    /// # use exuvia_lint::Input;
    /// assert_eq!(Input::from_argument("-"), Input::Stdin);
    /// assert_eq!(Input::from_argument("deploy/crds"), Input::Path("deploy/crds".into()));
    /// ```
    pub fn from_argument(argument: impl AsRef<OsStr>) -> Self {
        match argument.as_ref() {
            dash if dash == "-" => Self::Stdin,
            path => Self::Path(path.into()),
        }
    }
}

/// Reads input by input, file by file; a file that is reached twice is read once.
#[derive(Default)]
pub(super) struct Files {
    seen: HashSet<PathBuf>,
    pub(super) notes: Vec<Note>,
}

impl Files {
    /// Calls `with` on each file's name and bytes.
    pub(super) fn read(&mut self, input: &Input, with: &mut dyn FnMut(&str, Vec<u8>)) -> Result<(), Error> {
        match input {
            Input::Path(path) => self.read_path(path, with)?,
            Input::Stdin => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                read.map_err(|source| Error::read(Path::new("standard input"), source))?;
                with("<stdin>", bytes);
            }
            Input::Bytes { name, bytes } => with(name, bytes.clone()),
        }
        Ok(())
    }

    fn read_path(&mut self, path: &Path, with: &mut dyn FnMut(&str, Vec<u8>)) -> Result<(), Error> {
        let metadata = fs::metadata(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => Error::NoSuchPath {
                path: path.to_owned(),
            },
            _ => Error::read(path, source),
        })?;
        if metadata.is_dir() {
            return self.walk(path, with);
        }
        self.read_file(path, with)
    }

    fn walk(&mut self, root: &Path, with: &mut dyn FnMut(&str, Vec<u8>)) -> Result<(), Error> {
        let mut pending = vec![root.to_owned()];
        while let Some(directory) = pending.pop() {
            let entries = fs::read_dir(&directory)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|source| Error::read(&directory, source))?;
            let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
            paths.sort();
            let mut below = Vec::new();
            for path in paths {
                let link = path.is_symlink();
                match fs::metadata(&path) {
                    // A link may lead out of the tree, or round in a circle.
                    Ok(found) if found.is_dir() && link => {
                        self.note(&path, "a link to a directory is not followed");
                    }
                    Ok(found) if found.is_dir() => below.push(path),
                    Ok(found) if found.is_file() && is_manifest(&path) => self.read_file(&path, with)?,
                    Ok(_) => {}
                    Err(_) if link && is_manifest(&path) => self.note(&path, "the link leads nowhere"),
                    Err(_) if link => {}
                    Err(source) => return Err(Error::read(&path, source)),
                }
            }
            pending.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn read_file(&mut self, path: &Path, with: &mut dyn FnMut(&str, Vec<u8>)) -> Result<(), Error> {
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if self.seen.insert(real) {
            let bytes = fs::read(path).map_err(|source| Error::read(path, source))?;
            with(&path.to_string_lossy(), bytes);
        }
        Ok(())
    }

    fn note(&mut self, path: &Path, message: &str) {
        self.notes.push(Note {
            file: path.to_string_lossy().into_owned(),
            line: 0,
            message: message.to_owned(),
        });
    }
}

fn is_manifest(path: &Path) -> bool {
    let extension = path.extension().map(OsStr::to_ascii_lowercase);
    extension.is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known))
}
