//! Pages of the documentation that are run: each command in their console blocks, in order, against a real control plane.
//!
//! `EXUVIA_UPDATE_PAGES=1 cargo test -p exuvia --test pages` writes what the commands print now into the page.

#![allow(clippy::unwrap_used)] // a test may panic

mod page;
mod terminal;
mod unlike;

use exuvia_testenv::ControlPlane;
use exuvia_testenv::webhook::Conversion;
use serde_json::{Value, json};

use crate::page::Page;
use crate::terminal::{Terminal, manifests, workspace};

const PAGE: &str = "docs/real-projects.md";

/// Its value is of no importance.
const UPDATE: &str = "EXUVIA_UPDATE_PAGES";

/// As cert-manager did: what is about the private key moves one level down, and gets shorter names.
fn convert(mut object: Value, to: &str) -> Value {
    const NAMES: [(&str, &str); 2] = [("keyAlgorithm", "algorithm"), ("keySize", "size")];
    if let Some(spec) = object["spec"].as_object_mut() {
        if to.ends_with("/v1") {
            for (old, new) in NAMES {
                if let Some(value) = spec.remove(old) {
                    let key = spec.entry("privateKey").or_insert_with(|| json!({}));
                    key[new] = value;
                }
            }
        } else if let Some(key) = spec.remove("privateKey") {
            for (old, new) in NAMES {
                if let Some(value) = key.get(new) {
                    spec.insert(old.into(), value.clone());
                }
            }
        }
    }
    object["apiVersion"] = json!(to);
    object
}

/// What a command is expected to end with: what the `echo $?` after it shows, or 0.
///
/// That is a promise, so it is never updated.
fn expected_code(page: &Page, next: Option<&page::Step>) -> i32 {
    match next {
        Some(step) if step.asks_for_exit_code() => page.output(step).trim().parse().unwrap(),
        _ => 0,
    }
}

#[tokio::test]
async fn the_commands_of_the_page_print_what_it_shows() {
    let control_plane = ControlPlane::shared().await;
    let hooks = control_plane.webhooks().await.unwrap();
    hooks.on_convert(Conversion::by(convert));
    let terminal = Terminal::new(control_plane, &hooks).await;
    let path = workspace().join(PAGE);
    let page = Page::from_text(&std::fs::read_to_string(&path).unwrap());

    let steps = page.steps();
    let mut corrections = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if step.asks_for_exit_code() {
            continue;
        }
        let ended = terminal.run(&step.command).await;
        let expected = expected_code(&page, steps.get(index + 1));
        let (command, printed) = (&step.command, &ended.printed);
        assert_eq!(
            ended.code, expected,
            "the exit code of `{command}`, which printed:\n{printed}"
        );
        if let Some(correction) = page.correction(step, printed) {
            corrections.push((step.clone(), correction));
        }
    }

    stored_at_one_version(control_plane).await;
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, page.corrected(&corrections).text()).unwrap();
        println!("{PAGE}: {} of {} outputs are new", corrections.len(), steps.len());
        return;
    }
    let differences = corrections.iter().map(|(step, printed)| {
        let said = page.output(step);
        format!(
            "$ {}\n--- the page says\n{said}\n--- it printed\n{printed}\n",
            step.command
        )
    });
    let differences: Vec<String> = differences.collect();
    assert!(
        differences.is_empty(),
        "{PAGE} is not what the commands print; if they are right, run this test with {UPDATE}=1:\n\n{}",
        differences.join("\n")
    );
}

/// At the end of the page every old version is dropped; etcd itself says that none was needed any more.
async fn stored_at_one_version(control_plane: &ControlPlane) {
    for (group, plural, version) in [
        ("notification.example.com", "receivers", "v1"),
        ("ipam.example.com", "ipaddresses", "v1beta2"),
        ("certs.example.com", "certificates", "v1"),
        ("snapshot.example.com", "volumesnapshots", "v1"),
        ("gateway.example.com", "httproutes", "v1"),
    ] {
        let counts = control_plane
            .stored(group, plural)
            .count_by_version()
            .await
            .unwrap();
        let versions: Vec<&String> = counts.keys().collect();
        assert_eq!(versions, [&format!("{group}/{version}")], "{plural}");
    }
}

#[test]
fn the_page_uses_every_manifest_of_its_examples() {
    let text = std::fs::read_to_string(workspace().join(PAGE)).unwrap();
    for manifest in manifests() {
        assert!(
            text.contains(manifest.to_str().unwrap()),
            "{manifest:?} is not used"
        );
    }
}
