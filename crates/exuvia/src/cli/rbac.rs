//! `exuvia rbac`: prints the rights that the operator needs for the CRDs of a cluster, each rule with its reason.

use anyhow::Context;
use exuvia_runtime::rights::{self, Manifest, RoleHolder, Rule, manifests};
use exuvia_storage::rbac::{Crd, Scope};
use exuvia_storage::{OptIn, StorageController, definition::Definition};
use serde_json::json;

use super::args::{ClusterArgs, ManifestFormat, RbacArgs};
use super::cluster::Cluster;
use super::output::{Format, remark, say};
use super::plan::definitions;

pub(super) async fn run(args: &RbacArgs) -> anyhow::Result<()> {
    let scope = Scope {
        status_fallback: args.status_fallback,
        look_at_references: args.look_at_references,
        ..if args.crds.is_empty() {
            found(args).await?
        } else {
            named(args)
        }
    };
    let holder = RoleHolder {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        service_account: args.service_account.clone().unwrap_or(args.name.clone()),
    };
    let lease = args.lease_name.as_ref().unwrap_or(&args.name);
    let rules = rights::operator(Some(lease), [StorageController::rights(&scope)]);
    let manifests = manifests(&rules, &holder);
    say(&match args.output {
        ManifestFormat::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
            serde_json::to_string_pretty(&list)? + "\n"
        }
        ManifestFormat::Yaml => {
            let documents: Result<Vec<String>, _> = manifests.iter().map(yaml).collect();
            documents?.join("---\n")
        }
    })
}

/// CRDs that are named need no cluster: people may want the rules before they install the CRDs.
fn named(args: &RbacArgs) -> Scope {
    let crds = args.crds.iter().cloned();
    if args.group_wildcards {
        Scope::of_groups(crds, [])
    } else {
        Scope {
            crds: crds.collect(),
            ..Scope::default()
        }
    }
}

/// The CRDs that have opted in, as the operator would find them.
async fn found(args: &RbacArgs) -> anyhow::Result<Scope> {
    let cluster = Cluster::connect(&ClusterArgs {
        kubeconfig: args.kubeconfig.clone(),
        context: args.context.clone(),
        output: Format::default(),
        show_values: false,
    })
    .await?;
    let everywhere = args.opt_in.groups.iter().any(|group| group == "*");
    let opt_in = if everywhere {
        OptIn {
            groups: Vec::new(),
            ..args.opt_in.to_opt_in()
        }
    } else {
        args.opt_in.to_opt_in()
    };
    let all = definitions(&cluster).await?;
    let crds: Vec<Crd> = all
        .iter()
        .filter(|definition| opt_in.includes(definition))
        .map(crd)
        .collect();
    if crds.is_empty() {
        remark(&format!("note: {}", nothing_found(&opt_in)));
    }
    Ok(if args.group_wildcards && everywhere {
        Scope::of_groups([], ["*".to_owned()])
    } else if args.group_wildcards {
        Scope::of_groups(crds, opt_in.groups)
    } else {
        Scope {
            crds: crds.into_iter().collect(),
            ..Scope::default()
        }
    })
}

fn crd(definition: &Definition) -> Crd {
    Crd {
        group: definition.group.clone(),
        plural: definition.plural.clone(),
    }
}

fn nothing_found(opt_in: &OptIn) -> String {
    let of = match opt_in.groups.as_slice() {
        [] => String::new(),
        groups => format!(" of group {}", groups.join(", ")),
    };
    let label = &opt_in.label;
    format!(
        "no CRD{of} has the label {label}, so the operator may migrate nothing with these rules: label one with \
         `kubectl label crd NAME {label}`, or name CRDs with --crds, and run the command again"
    )
}

/// A document with a comment above each rule.
fn yaml(manifest: &Manifest) -> anyhow::Result<String> {
    let mut object = serde_json::to_value(manifest)?;
    if let Some(fields) = object.as_object_mut() {
        fields.remove("rules");
    }
    let mut text = serde_saphyr::to_string(&object).context("failed to write YAML")?;
    if !manifest.rules.is_empty() {
        text.push_str("rules:\n");
        text.extend(manifest.rules.iter().map(Rule::to_yaml));
    }
    Ok(text)
}
