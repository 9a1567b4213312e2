//! The search order and the build's bookkeeping, with a `go` that is a shell script: no network, no compiler.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Assets, Binary, KubeVersion};
use crate::Error;

/// A directory with a `go` that counts its builds, does `then`, and writes a binary.
fn fake_go(directory: &Path, then: &str) -> std::ffi::OsString {
    let script = format!(
        r#"#!/bin/sh
if [ "$1" = list ]; then echo one; echo two; exit 0; fi
echo build >> "{count}"
while [ "$1" != -o ]; do shift; done
{then}
echo "binary" > "$2"
"#,
        count = directory.join("builds").display(),
    );
    let bin = directory.join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join("go"), script).unwrap();
    fs::set_permissions(bin.join("go"), fs::Permissions::from_mode(0o755)).unwrap();
    std::env::join_paths([bin.as_path(), Path::new("/usr/bin"), Path::new("/bin")]).unwrap()
}

fn builds(directory: &Path) -> usize {
    fs::read_to_string(directory.join("builds"))
        .unwrap_or_default()
        .lines()
        .count()
}

fn silent(assets: Assets) -> Assets {
    assets.report_to(|_| {})
}

#[test]
fn what_was_built_is_found_and_not_built_again() {
    let directory = tempfile::tempdir().unwrap();
    let assets = silent(Assets::only_in(directory.path(), fake_go(directory.path(), "")));
    assert_eq!(assets.find_ready(Binary::Etcd).unwrap(), None);
    let built = assets.find(Binary::Etcd).unwrap();
    assert_eq!(fs::read_to_string(&built).unwrap(), "binary\n");
    assert_eq!(assets.find(Binary::Etcd).unwrap(), built);
    assert_eq!(builds(directory.path()), 1);
}

#[test]
fn two_that_need_the_same_binary_build_it_once() {
    let directory = tempfile::tempdir().unwrap();
    // The build ends only after both have asked for it: the second one waits for the lock.
    let asked = directory.path().join("asked");
    let go = fake_go(
        directory.path(),
        &format!(r#"while [ ! -e "{}" ]; do sleep 0.02; done"#, asked.display()),
    );
    let first = silent(Assets::only_in(directory.path(), go));
    let second = first.clone().report_to(move |progress| {
        if matches!(progress, super::Progress::Waiting { .. }) {
            fs::write(&asked, "").unwrap();
        }
    });
    let building = std::thread::spawn(move || first.find(Binary::Kwok).unwrap());
    while builds(directory.path()) == 0 {
        std::thread::yield_now();
    }
    let found = second.find(Binary::Kwok).unwrap();
    assert_eq!(building.join().unwrap(), found);
    assert_eq!(builds(directory.path()), 1);
}

#[test]
fn an_interrupted_build_is_not_taken_for_a_finished_one() {
    let directory = tempfile::tempdir().unwrap();
    let dies = fake_go(directory.path(), r#"echo half > "$2"; kill -9 $$"#);
    let error = silent(Assets::only_in(directory.path(), dies))
        .find(Binary::Etcd)
        .unwrap_err();
    assert!(
        matches!(error, Error::BuildFailed { binary: "etcd", .. }),
        "{error}"
    );

    let works = silent(Assets::only_in(directory.path(), fake_go(directory.path(), "")));
    assert_eq!(works.find_ready(Binary::Etcd).unwrap(), None);
    assert_eq!(
        fs::read_to_string(works.find(Binary::Etcd).unwrap()).unwrap(),
        "binary\n"
    );

    // Killed between the binary and its stamp.
    fs::remove_file(directory.path().join("etcd-3.7.0/etcd.size")).unwrap();
    assert_eq!(works.find_ready(Binary::Etcd).unwrap(), None);
}

#[test]
fn a_damaged_cache_is_named_with_its_cure() {
    let directory = tempfile::tempdir().unwrap();
    let assets = silent(Assets::only_in(directory.path(), fake_go(directory.path(), "")));
    let path = assets.find(Binary::Etcd).unwrap();
    fs::write(&path, "bin").unwrap();
    let error = assets.find(Binary::Etcd).unwrap_err().to_string();
    assert!(
        error.contains(&path.display().to_string()) && error.contains("delete that file"),
        "{error}"
    );
}

#[test]
fn without_go_and_binaries_the_error_says_what_to_install_or_set() {
    let directory = tempfile::tempdir().unwrap();
    let error = Assets::only_in(directory.path(), "/nonexistent")
        .find(Binary::KubeApiserver)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("install Go") && text.contains("KUBEBUILDER_ASSETS"),
        "{text}"
    );
}

#[test]
fn ready_binaries_go_first_and_missing_ones_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let ready = directory.path().join("ready");
    fs::create_dir_all(&ready).unwrap();
    fs::write(ready.join("etcd"), "").unwrap();
    let assets =
        silent(Assets::only_in(directory.path(), fake_go(directory.path(), "")).ready_binaries(&ready));
    assert_eq!(assets.find(Binary::Etcd).unwrap(), ready.join("etcd"));
    let error = assets.find(Binary::KubeApiserver).unwrap_err().to_string();
    assert!(
        error.contains("no kube-apiserver is in") && error.contains("KUBEBUILDER_ASSETS"),
        "{error}"
    );
    for not_of_envtest in [Binary::Kwok, Binary::Helm, Binary::Promtool, Binary::Actionlint] {
        assets.find(not_of_envtest).unwrap(); // built: nobody expects it there
    }
    assert_eq!(builds(directory.path()), 4);
}

#[test]
fn setup_envtests_newest_patch_of_the_minor_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    for version in [
        "1.37.0-linux-amd64",
        "1.37.10-linux-amd64",
        "1.37.9-linux-amd64",
        "1.38.0-linux-amd64",
    ] {
        fs::create_dir_all(directory.path().join(version)).unwrap();
        fs::write(directory.path().join(version).join("etcd"), "").unwrap();
    }
    let mut assets = Assets::only_in(directory.path().join("cache"), "");
    assets.envtest = Some(directory.path().to_owned());
    let found = assets.find(Binary::Etcd).unwrap();
    assert_eq!(found, directory.path().join("1.37.10-linux-amd64/etcd"));
}

#[test]
fn a_version_is_selected_by_minor_or_in_full() {
    for (wanted, version) in [
        ("1.37", KubeVersion::V1_37),
        ("1.34.4", KubeVersion::V1_34),
        ("v1.34", KubeVersion::V1_34),
    ] {
        assert_eq!(wanted.parse::<KubeVersion>().unwrap(), version);
    }
    let error = "1.12".parse::<KubeVersion>().unwrap_err().to_string();
    assert!(error.contains("1.12") && error.contains("1.37"), "{error}");
}

#[test]
fn the_pinned_modules_hold_the_versions_we_name() {
    for kube in KubeVersion::ALL {
        for binary in Binary::ALL {
            let version = format!(" v{}", binary.version(kube));
            assert!(
                binary.module(kube).go_mod.contains(&version),
                "{} {version}",
                binary.name()
            );
        }
    }
}
