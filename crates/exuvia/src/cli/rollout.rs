//! `exuvia rollout fence`: prints the admission policy by which a stamp never goes back.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use exuvia_rollout::{DEFAULT_FENCE, Fence, FencedKind, Names};
use serde_json::json;

use super::args::ManifestFormat;
use super::output::say;
use super::values::{group, namespace, object_name};

/// `exuvia rollout …`.
#[derive(Debug, Subcommand)]
pub enum RolloutCommand {
    /// Print an admission policy that keeps old pods from overwriting what newer ones applied
    ///
    /// Pods that apply resources themselves stamp what they apply. With this policy the API server refuses every update of a stamped
    /// object that takes the stamp away or sets it back, from any client. Objects without a stamp are not touched by it. It
    /// takes effect about a second after it is applied, at each API server by itself. No cluster is needed to print it.
    Fence(FenceArgs),
}

/// Arguments of `exuvia rollout fence`.
#[derive(Debug, Args)]
pub struct FenceArgs {
    /// The name of the policy and of its binding
    #[arg(long, default_value = DEFAULT_FENCE, value_parser = object_name)]
    pub name: String,
    /// The resources to fence, as plural.group (plural alone for the core group) [default: statefulsets.apps,services; without
    /// services for --names toolhive]
    #[arg(long, value_delimiter = ',', value_parser = resource)]
    pub resources: Vec<FencedKind>,
    /// Only objects with these names
    #[arg(long, value_delimiter = ',', value_parser = object_name)]
    pub objects: Vec<String>,
    /// Only in these namespaces
    #[arg(long, value_delimiter = ',', value_parser = namespace)]
    pub namespaces: Vec<String>,
    /// What the stamps are called
    #[arg(long, value_enum, default_value_t)]
    pub names: Dialect,
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: ManifestFormat,
}

/// Whose names for annotations are used.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Dialect {
    /// A token in the object's annotations
    #[default]
    Default,
    /// ToolHive's generation in the pod template's annotations
    Toolhive,
}

/// The resources of the core group. No others come to it.
const CORE: [&str; 15] = [
    "configmaps",
    "endpoints",
    "events",
    "limitranges",
    "namespaces",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "serviceaccounts",
    "services",
];
const APPS: [&str; 5] = [
    "controllerrevisions",
    "daemonsets",
    "deployments",
    "replicasets",
    "statefulsets",
];
/// Those of them with a pod template.
const WITH_POD_TEMPLATE: [&str; 6] = [
    "daemonsets",
    "deployments",
    "podtemplates",
    "replicasets",
    "replicationcontrollers",
    "statefulsets",
];

fn resource(text: &str) -> Result<FencedKind, String> {
    let (plural, of) = text.split_once('.').unwrap_or((text, ""));
    let is_group = of.is_empty() || (of != "*" && group(of).is_ok());
    let is_plural = !plural.is_empty()
        && plural
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    if !is_plural || !is_group || text.ends_with('.') {
        return Err("expected a resource such as statefulsets.apps or configmaps".to_owned());
    }
    // A fence of a resource that does not exist would hold nothing, and nobody would notice.
    match of {
        "" if APPS.contains(&plural) => Err(format!("expected its group as well: {plural}.apps")),
        "" if !CORE.contains(&plural) => Err(format!(
            "expected a group, such as {plural}.example.com, or a resource of the core group in plural, such as configmaps"
        )),
        "apps" if !APPS.contains(&plural) => Err(format!(
            "expected a resource of the group apps: {}",
            APPS.join(", ")
        )),
        _ => Ok(FencedKind::new(of, plural)),
    }
}

/// What `mcp-runner` stamps: the backend and its headless Service, which has no pod template.
fn stamped_by_runners(names: Dialect) -> Vec<FencedKind> {
    let backend = FencedKind::new("apps", "statefulsets");
    match names {
        Dialect::Default => vec![backend, FencedKind::new("", "services")],
        Dialect::Toolhive => vec![backend],
    }
}

/// A built-in resource without a pod template, where stamps are in those.
fn cannot_be_stamped(names: Dialect, kinds: &[FencedKind]) -> Option<&FencedKind> {
    let is_built_in = |kind: &&FencedKind| kind.group.is_empty() || kind.group == "apps";
    let lacks_template = |kind: &&FencedKind| !WITH_POD_TEMPLATE.contains(&kind.plural.as_str());
    let mut kinds = kinds.iter().filter(is_built_in).filter(lacks_template);
    kinds.next().filter(|_| matches!(names, Dialect::Toolhive))
}

pub(super) fn run(command: &RolloutCommand) -> anyhow::Result<ExitCode> {
    let RolloutCommand::Fence(args) = command;
    let resources = if args.resources.is_empty() {
        stamped_by_runners(args.names)
    } else {
        args.resources.clone()
    };
    if let Some(kind) = cannot_be_stamped(args.names, &resources) {
        bail!(
            "invalid --resources {:?}: expected a resource with a pod template, where --names toolhive has its stamps",
            kind.plural
        );
    }
    let kinds = resources.into_iter().map(|kind| FencedKind {
        names: args.objects.clone(),
        ..kind
    });
    let names = match args.names {
        Dialect::Default => Names::default(),
        Dialect::Toolhive => Names::toolhive(),
    };
    let fence = Fence {
        namespaces: args.namespaces.clone(),
        ..Fence::new(&args.name, kinds.collect(), names)
    };
    let manifests = fence.manifests();
    say(&match args.output {
        ManifestFormat::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
            serde_json::to_string_pretty(&list)? + "\n"
        }
        ManifestFormat::Yaml => {
            let documents: Result<Vec<String>, _> = manifests.iter().map(serde_saphyr::to_string).collect();
            documents.context("failed to write YAML")?.join("---\n")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_told_by_plural_and_group() {
        assert_eq!(
            resource("statefulsets.apps").unwrap(),
            FencedKind::new("apps", "statefulsets")
        );
        assert_eq!(resource("configmaps").unwrap(), FencedKind::new("", "configmaps"));
        assert_eq!(
            resource("tills.example.com").unwrap(),
            FencedKind::new("example.com", "tills")
        );
        for wrong in ["", ".", "x.", ".apps", "StatefulSet", "a b", "x.*", "sets/status"] {
            assert!(resource(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn everything_that_runners_stamp_is_fenced_by_default() {
        let kinds = |names| {
            let kinds = stamped_by_runners(names);
            assert_eq!(cannot_be_stamped(names, &kinds), None);
            kinds.into_iter().map(|kind| kind.plural).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Dialect::Default), ["statefulsets", "services"]);
        assert_eq!(kinds(Dialect::Toolhive), ["statefulsets"]);
    }

    #[test]
    fn a_fence_that_would_hold_nothing_is_refused() {
        for (wrong, expected) in [
            ("deployments", "deployments.apps"),
            ("statefulset.apps", "statefulsets"),
            ("foo", "foo.example.com"),
            ("configmap", "configmaps"),
        ] {
            let error = resource(wrong).unwrap_err();
            assert!(error.contains(expected), "{wrong}: {error}");
        }
        let kinds =
            ["statefulsets.apps", "tills.example.com", "configmaps"].map(|kind| resource(kind).unwrap());
        assert_eq!(cannot_be_stamped(Dialect::Default, &kinds), None);
        assert_eq!(cannot_be_stamped(Dialect::Toolhive, &kinds), Some(&kinds[2]));
        assert_eq!(cannot_be_stamped(Dialect::Toolhive, &kinds[..2]), None);
    }
}
