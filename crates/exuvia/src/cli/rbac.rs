//! `exuvia rbac`: the rights that the operator needs for the CRDs of a cluster, each rule with its reason.

use anyhow::Context;
use exuvia_storage::rbac::{Crd, Holder, Manifest, Scope, manifests};
use exuvia_storage::{OptIn, definition::Definition};
use serde_json::{Value, json};

use super::args::{ClusterArgs, ManifestFormat, RbacArgs};
use super::cluster::Cluster;
use super::output::{Format, remark, say};
use super::plan::definitions;

/// How wide comments are.
const WIDTH: usize = 110;

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
    let holder = Holder {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        service_account: args.service_account.clone().unwrap_or(args.name.clone()),
        lease: args.lease_name.clone().unwrap_or(args.name.clone()),
    };
    let manifests = manifests(&scope, &holder);
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

/// CRDs that were named need no cluster: their rules may be wanted before they are installed.
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

/// Those that have opted in, as the operator would find them.
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
        "no CRD{of} has the label {label}, so these rules let the operator migrate nothing: label one with \
         `kubectl label crd NAME {label}`, or name CRDs with --crds, and run this again"
    )
}

/// A document with a comment above each rule, which has one line for each field.
fn yaml(manifest: &Manifest) -> anyhow::Result<String> {
    let mut object = serde_json::to_value(manifest)?;
    let rules = object
        .as_object_mut()
        .and_then(|fields| fields.remove("rules"))
        .unwrap_or(Value::Null);
    let mut text = serde_saphyr::to_string(&object).context("cannot be written as YAML")?;
    for (index, (rule, why)) in rules
        .as_array()
        .into_iter()
        .flatten()
        .zip(&manifest.why)
        .enumerate()
    {
        if index == 0 {
            text.push_str("rules:\n");
        }
        for line in wrap(why, WIDTH) {
            text.push_str(&format!("# {line}\n"));
        }
        let fields = [
            "apiGroups",
            "resources",
            "resourceNames",
            "nonResourceURLs",
            "verbs",
        ];
        let fields = fields.iter().filter_map(|name| Some((name, rule.get(name)?)));
        for (index, (name, value)) in fields.enumerate() {
            text.push_str(&format!(
                "{} {name}: {value}\n",
                if index == 0 { "-" } else { " " }
            ));
        }
    }
    Ok(text)
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always one line");
        if last.is_empty() {
            last.push_str(word);
        } else if last.len() + 1 + word.len() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_wrap_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
    }
}
