//! Builds a binary with `go` from its pinned module, once, under a lock, so that half a build never counts.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Assets, Binary};
use crate::Error;
use crate::process::supervised;

/// How a build goes on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// Another process is building in the same directory.
    Waiting {
        /// What is waited for.
        binary: &'a str,
    },
    /// `go` has started; `packages` is how many it may have to compile.
    Started {
        /// What is built.
        binary: &'a str,
        /// At which version.
        version: &'a str,
        /// Packages in all.
        packages: usize,
    },
    /// One more package is being compiled (or fetched).
    Compiling {
        /// What is built.
        binary: &'a str,
        /// Packages so far; those that Go's own cache holds are never counted.
        done: usize,
        /// Packages in all.
        packages: usize,
    },
    /// The binary is in the cache.
    Finished {
        /// What was built.
        binary: &'a str,
    },
}

/// For tests and other places without a terminal: a line at the start, at each hundred, at the end.
pub(super) fn print_to_stderr(progress: Progress<'_>) {
    match progress {
        Progress::Waiting { binary } => eprintln!("waiting for another process that builds {binary}"),
        Progress::Started {
            binary,
            version,
            packages,
        } => {
            eprintln!("building {binary} {version} ({packages} packages), once; the result is cached");
        }
        Progress::Compiling {
            binary,
            done,
            packages,
        } if done % 100 == 0 => {
            eprintln!("building {binary}: {done} of up to {packages} packages");
        }
        Progress::Compiling { .. } => {}
        Progress::Finished { binary } => eprintln!("built {binary}"),
    }
}

/// A finished binary has a stamp file next to it with its size. The stamp is written last, so that a binary without one is not finished.
pub(super) fn finished(directory: &Path, binary: Binary) -> Result<Option<PathBuf>, Error> {
    let path = directory.join(binary.name());
    let Ok(stamp) = fs::read_to_string(stamp_path(directory, binary)) else {
        return Ok(None);
    };
    let size = fs::metadata(&path).map(|meta| meta.len()).unwrap_or_default();
    if stamp.trim().parse() == Ok(size) {
        return Ok(Some(path));
    }
    Err(Error::DamagedCache {
        binary: binary.name(),
        size,
        stamp: stamp.trim().to_owned(),
        path,
    })
}

fn stamp_path(directory: &Path, binary: Binary) -> PathBuf {
    directory.join(format!("{}.size", binary.name()))
}

pub(super) fn find_or_build(assets: &Assets, binary: Binary) -> Result<PathBuf, Error> {
    let go = find_go(&assets.path).ok_or_else(|| Error::NoGo {
        binary: binary.name(),
        version: binary.version(assets.kube),
        cache: assets.cache.clone(),
    })?;
    let directory = assets.cache.join(binary.directory(assets.kube));
    fs::create_dir_all(&directory).map_err(Error::file("create the cache directory", &directory))?;
    let _lock = lock(assets, &directory, binary)?;
    // The process that held the lock before us may have built it.
    if let Some(path) = finished(&directory, binary)? {
        return Ok(path);
    }
    // Named after us: the `go` of a builder that was killed may still be writing to its own.
    let unfinished = directory.join(format!("{}.unfinished-{}", binary.name(), std::process::id()));
    remove_leftovers(&directory);
    run_go(assets, binary, &go, &directory, &unfinished)?;
    let size = fs::metadata(&unfinished)
        .map_err(Error::file("find what go built,", &unfinished))?
        .len();
    let path = directory.join(binary.name());
    fs::rename(&unfinished, &path).map_err(Error::file("move the finished binary to", &path))?;
    let stamp = stamp_path(&directory, binary);
    fs::write(&stamp, format!("{size}\n")).map_err(Error::file("write", &stamp))?;
    (assets.report.0)(Progress::Finished {
        binary: binary.name(),
    });
    Ok(path)
}

fn remove_leftovers(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(".unfinished-") {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn find_go(path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|directory| directory.join("go"))
        .find(|go| go.is_file())
}

/// One build at a time per directory, across processes; the kernel frees the lock if its holder dies.
fn lock(assets: &Assets, directory: &Path, binary: Binary) -> Result<File, Error> {
    let path = directory.join(".lock");
    let file = File::create(&path).map_err(Error::file("create", &path))?;
    if file.try_lock().is_err() {
        (assets.report.0)(Progress::Waiting {
            binary: binary.name(),
        });
        file.lock().map_err(Error::file("lock", &path))?;
    }
    Ok(file)
}

fn run_go(assets: &Assets, binary: Binary, go: &Path, directory: &Path, output: &Path) -> Result<(), Error> {
    let source = directory.join("source");
    fs::create_dir_all(&source).map_err(Error::file("create", &source))?;
    let module = binary.module(assets.kube);
    for (name, content) in [("go.mod", module.go_mod), ("go.sum", module.go_sum)] {
        let path = source.join(name);
        fs::write(&path, content).map_err(Error::file("write", &path))?;
    }
    let failed = |detail: String| Error::BuildFailed {
        binary: binary.name(),
        version: binary.version(assets.kube),
        detail,
    };
    let with_settings = |mut command: Command| {
        command
            .current_dir(&source)
            .env("PATH", &assets.path)
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=readonly")
            .env("GOWORK", "off")
            .stderr(Stdio::piped());
        command
    };

    // Fetches the sources, and tells how much there is to do.
    let mut listing = with_settings(Command::new(go));
    listing
        .stdin(Stdio::null())
        .args(["list", "-deps", "-tags", binary.tags()])
        .args(["-f", "{{.ImportPath}}", binary.package()]);
    let listing = listing.output().map_err(|e| failed(e.to_string()))?;
    if !listing.status.success() {
        return Err(failed(last_lines(&String::from_utf8_lossy(&listing.stderr), 8)));
    }
    let packages = String::from_utf8_lossy(&listing.stdout).lines().count();
    (assets.report.0)(Progress::Started {
        binary: binary.name(),
        version: binary.version(assets.kube),
        packages,
    });

    let mut build = with_settings(supervised(go, None));
    build
        .args([
            "build",
            "-v",
            "-trimpath",
            "-tags",
            binary.tags(),
            "-ldflags",
            &binary.ldflags(assets.kube),
            "-o",
        ])
        .arg(output);
    let mut child = build
        .arg(binary.package())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    // `go build -v` names each package on standard error as it compiles it; errors come the same way.
    let mut last = VecDeque::new();
    let says = BufReader::new(child.stderr.take().expect("stderr is piped"));
    for (index, line) in says.lines().map_while(Result::ok).enumerate() {
        (assets.report.0)(Progress::Compiling {
            binary: binary.name(),
            done: index + 1,
            packages,
        });
        last.push_back(line);
        if last.len() > 8 {
            last.pop_front();
        }
    }
    let status = child.wait().map_err(|e| failed(e.to_string()))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(format!(
            "{status}; {}",
            last.into_iter().collect::<Vec<_>>().join("; ")
        )))
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}
