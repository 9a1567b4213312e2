//! At 80 columns nothing is cut off, and a pipe gets one line per CRD and no escape codes.

use exuvia_testenv::{ControlPlane, Widgets};

use crate::binary::{self, flipped, text};
use crate::terminal::{AtTerminal, without_codes};
use crate::{kubeconfig, shown};

fn at_80(args: &[&str], kubeconfig: std::path::PathBuf) -> String {
    let (code, raw) = AtTerminal::start(kubeconfig, 80, 40, args).end();
    assert_eq!(code, Some(0), "{raw}");
    without_codes(&raw)
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_readable_at_80_columns_and_its_command_can_be_copied() {
    let control_plane = ControlPlane::shared().await;
    let group = "a-rather-long-name-of-a-group.infrastructure.screen.example.com";
    let widgets = flipped(&control_plane.client().unwrap(), group, 2).await;
    let admin = || control_plane.admin().kubeconfig().unwrap();
    let crd = widgets.crd_name();
    for args in [
        &["plan", "--groups", group][..],
        &["plan", "--groups", group, "-o", "wide"],
        &["storage", "status", &crd],
    ] {
        let said = at_80(args, admin());
        assert!(widest(&said) <= 80, "{args:?}\n{said}");
        let joined = said.replace(" \\\n   ", "");
        assert!(
            joined.contains(&format!("next: exuvia storage migrate {crd}")),
            "whole, and to be copied: {args:?}\n{said}"
        );
    }
    // In a pipe each CRD is one line, for grep and awk.
    let piped = shown(control_plane, group, &[]).await;
    assert_eq!(piped.lines().count(), 2, "{piped}");
    assert!(!piped.contains('\u{1b}'), "{piped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_context_becomes_a_heading_at_80_columns() {
    let control_plane = ControlPlane::shared().await;
    let group = "headings.screen.example.com";
    Widgets::in_group(group)
        .install(&control_plane.client().unwrap(), "v1")
        .await
        .unwrap();
    let arn = "arn:aws:eks:eu-west-1:123456789012:cluster/production";
    let file = kubeconfig(&[(arn, control_plane.admin())], None);
    let args = ["plan", "--all-contexts", "--groups", group];
    let said = at_80(&args, file.path().to_owned());
    assert!(widest(&said) <= 80, "{said}");
    assert!(said.contains(&format!("\ncontext {arn}\n")), "{said}");
    let piped = binary::exuvia(file.path().to_owned(), &args).await;
    assert!(
        text(&piped.stdout).starts_with("CONTEXT "),
        "a column where there is room"
    );
}
