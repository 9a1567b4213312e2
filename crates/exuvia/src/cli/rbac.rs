//! `exuvia rbac`: prints the rights that the operator needs for the CRDs of a cluster, each rule with its reason.

use anyhow::{Context, bail};
use exuvia_datastore::{DatastoreController, Kinds};
use exuvia_runtime::rights::{self, Manifest, RoleHolder, Rule, manifests};
use exuvia_storage::rbac::{Crd, Scope};
use exuvia_storage::{OptIn, StorageController, definition::Definition};
use serde_json::json;

use super::args::{ClusterArgs, ManifestFormat, RbacArgs};
use super::cluster::Cluster;
use super::datastore::manifest;
use super::output::{Format, remark, say};
use super::plan::{definitions, note_on_groups};

pub(super) async fn run(args: &RbacArgs) -> anyhow::Result<()> {
    if !args.filename.is_empty() {
        return print(args, &of_migrations(args).await?);
    }
    let scope = Scope {
        status_fallback: args.status_fallback,
        look_at_references: args.look_at_references,
        ..if args.crds.is_empty() {
            found(args).await?
        } else {
            remark("note: --crds is taken as given: no cluster was asked whether it has these CRDs");
            named(args)
        }
    };
    let holder = RoleHolder {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        service_account: args.service_account.clone().unwrap_or(args.name.clone()),
    };
    let lease = args.lease_name.as_ref().unwrap_or(&args.name);
    let controllers = [DatastoreController::rights(), StorageController::rights(&scope)];
    let rules = rights::operator(Some(lease), controllers);
    print(args, &manifests(&rules, &holder))
}

/// The roles of each migration in the files, called by its name.
async fn of_migrations(args: &RbacArgs) -> anyhow::Result<Vec<Manifest>> {
    // What is wrong with a file needs no cluster to be said.
    let mut migrations = Vec::new();
    for path in &args.filename {
        migrations.extend(manifest::all(path)?);
    }
    let cluster = connect(args).await?;
    let mut all = Vec::new();
    for migration in migrations {
        let name = migration.metadata.name.clone().unwrap_or_default();
        let (kinds, missing) = Kinds::read(&cluster.client, &migration.spec).await?;
        if let Some(first) = missing.first() {
            bail!(
                "cannot print the rights of DatastoreMigration {name}: {}",
                first.message
            );
        }
        let rules = rights::folded(exuvia_datastore::rights::of_migration(&migration, &kinds));
        let holder = RoleHolder {
            name: format!("{}-{name}", args.name),
            namespace: args.namespace.clone(),
            service_account: args.service_account.clone().unwrap_or(args.name.clone()),
        };
        all.extend(manifests(&rules, &holder));
    }
    Ok(all)
}

fn print(args: &RbacArgs, manifests: &[Manifest]) -> anyhow::Result<()> {
    say(&match args.output {
        ManifestFormat::Json => {
            let list = json!({"apiVersion": "v1", "kind": "List", "items": manifests});
            serde_json::to_string_pretty(&list)? + "\n"
        }
        ManifestFormat::Yaml => {
            let documents: Result<Vec<String>, _> = manifests.iter().map(yaml).collect();
            let namespace = &args.namespace;
            format!(
                "# The namespace must exist: kubectl create namespace {namespace}\n{}",
                documents?.join("---\n")
            )
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

async fn connect(args: &RbacArgs) -> anyhow::Result<Cluster> {
    Cluster::connect(&ClusterArgs {
        kubeconfig: args.kubeconfig.clone(),
        context: args.context.clone(),
        output: Format::default(),
        show_values: false,
    })
    .await
}

/// The CRDs that have opted in, as the operator would find them.
async fn found(args: &RbacArgs) -> anyhow::Result<Scope> {
    let cluster = connect(args).await?;
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
    let known = all.iter().map(|definition| definition.group.clone()).collect();
    if let Some(note) = note_on_groups(&opt_in.groups, &known) {
        remark(&format!("note: {note}"));
    }
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
