//! Whether the program that a bridge starts for each session is there: a client would be the first to learn that it is not.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Where the system looks if `PATH` is not set.
const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// A program that cannot be started.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingProgram {
    /// Nothing of that name is in a directory of `PATH`.
    #[error(
        "cannot start {0:?}: expected a program in PATH, or the path of one; its arguments are words of their own"
    )]
    NotInPath(OsString),
    /// Nothing is at that path.
    #[error("cannot start {0:?}: no such file")]
    NoFile(OsString),
    /// A directory is at that path.
    #[error("cannot start {0:?}: it is a directory; expected a program")]
    Directory(OsString),
    /// What is at that path is not a program.
    #[error("cannot start {0:?}: not an executable file; `chmod +x` makes a program of a script")]
    NotExecutable(OsString),
}

/// Checks that the first word of a command is a program which the system finds.
pub fn check_program(program: &OsStr) -> Result<(), MissingProgram> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    check_in(program, &path)
}

fn check_in(program: &OsStr, path: &OsStr) -> Result<(), MissingProgram> {
    let own = || program.to_owned();
    if program.as_encoded_bytes().contains(&b'/') {
        let file = Path::new(program);
        return match file.metadata() {
            Err(_) => Err(MissingProgram::NoFile(own())),
            Ok(found) if found.is_dir() => Err(MissingProgram::Directory(own())),
            Ok(_) if is_executable(file) => Ok(()),
            Ok(_) => Err(MissingProgram::NotExecutable(own())),
        };
    }
    let mut directories = std::env::split_paths(path);
    let is_found =
        !program.is_empty() && directories.any(|directory| is_executable(&directory.join(program)));
    if is_found {
        Ok(())
    } else {
        Err(MissingProgram::NotInPath(own()))
    }
}

fn is_executable(file: &Path) -> bool {
    let mode = file.metadata().ok().filter(std::fs::Metadata::is_file);
    mode.is_some_and(|file| file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_that_can_be_executed_is_a_program() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        std::fs::write(&script, "#!/bin/sh\n").unwrap();
        let check = |program: &OsStr| check_in(program, directory.path().as_os_str());
        let not_yet = MissingProgram::NotExecutable(script.clone().into());
        assert_eq!(check(script.as_os_str()), Err(not_yet));
        assert!(check("script".as_ref()).is_err());
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(check(script.as_os_str()), Ok(()));
        assert_eq!(check("script".as_ref()), Ok(()));
        for absent in ["", "another", "script --stdio"] {
            assert_eq!(
                check(absent.as_ref()),
                Err(MissingProgram::NotInPath(absent.into()))
            );
        }
        for path in ["./another", "/nonexistent/x"] {
            assert_eq!(check(path.as_ref()), Err(MissingProgram::NoFile(path.into())));
        }
        let own = directory.path().as_os_str();
        assert_eq!(check(own), Err(MissingProgram::Directory(own.to_owned())));
    }
}
