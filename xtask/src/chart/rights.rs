//! The chart's roles: templates made from the rules that the controllers state, so that no rule is written a second time.
//!
//! Which rules depend on which value is found by asking: a rule that is there only with `look_at_references` belongs under
//! `{{ if .Values.lookAtReferences }}`. Names that only a values file knows are placeholders, which become expressions.

use anyhow::{bail, ensure};
use exuvia_datastore::DatastoreController;
use exuvia_runtime::rights::{self, Rule, RuleScope};
use exuvia_storage::StorageController;
use exuvia_storage::rbac::{Crd, Scope};

const HEADER: &str = "{{- /* Generated from the code by `cargo xtask generate`. */}}\n";
const GROUP: &str = "PLACEHOLDER-GROUP";
const PLURAL: &str = "PLACEHOLDER-PLURAL";
const LEASE: &str = "PLACEHOLDER-LEASE";

/// Placeholders as they are in a rule, and the expressions that take their place.
fn expressions() -> [(String, &'static str); 5] {
    [
        (format!("[\"{PLURAL}.{GROUP}\"]"), "{{ toJson $managed.crds }}"),
        (format!("[\"{PLURAL}/status\"]"), "{{ toJson $statuses }}"),
        (format!("[\"{PLURAL}\"]"), "{{ toJson $resources }}"),
        (format!("\"{GROUP}\""), "{{ quote $group }}"),
        (
            format!("\"{LEASE}\""),
            "{{ include \"exuvia.leaseName\" . | quote }}",
        ),
    ]
}

/// Which controllers run. The value that switches each one on is in [`STORAGE`] and [`DATASTORE`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enabled {
    Both,
    Storage,
    Datastore,
}

const STORAGE: &str = ".Values.enableStorageMigration";
const DATASTORE: &str = ".Values.enableDatastoreMigration";

/// The rules of an operator with these controllers and this scope.
fn rules_of(enabled: Enabled, lease: Option<&str>, scope: &Scope) -> Vec<Rule> {
    let datastore = (enabled != Enabled::Storage).then(DatastoreController::rights);
    let storage = (enabled != Enabled::Datastore).then(|| StorageController::rights(scope));
    rights::operator(lease, datastore.into_iter().chain(storage))
}

/// The rules of an operator with this scope, and every controller.
fn rules(scope: &Scope) -> Vec<Rule> {
    rules_of(Enabled::Both, Some(LEASE), scope)
}

/// The rules of a scope of roles that do not depend on what is migrated, by which controllers run. A role without rules is
/// left out by the caller.
fn always(scope: RuleScope) -> anyhow::Result<String> {
    let of = |enabled: Enabled| {
        entries(&of_scope(
            &rules_of(enabled, Some(LEASE), &Scope::default()),
            scope,
        ))
    };
    Ok([
        &format!("  {{{{- if and {STORAGE} {DATASTORE} }}}}\n"),
        &of(Enabled::Both)?,
        &format!("  {{{{- else if {STORAGE} }}}}\n"),
        &of(Enabled::Storage)?,
        "  {{- else }}\n",
        &of(Enabled::Datastore)?,
        "  {{- end }}\n",
    ]
    .concat())
}

/// The rules that `scope` adds to those of `base`: rules about the cluster, or the template would miss them.
fn added(base: &Scope, scope: &Scope) -> anyhow::Result<Vec<Rule>> {
    let base = rules(base);
    let added: Vec<Rule> = rules(scope)
        .into_iter()
        .filter(|rule| !base.contains(rule))
        .collect();
    ensure!(
        added.iter().all(|rule| rule.scope == RuleScope::Cluster),
        "a rule in a namespace depends on a value: xtask/src/chart/rights.rs has no place for it"
    );
    ensure!(!added.is_empty(), "a value of the chart changes no rule");
    Ok(added)
}

/// `templates/clusterrole.yaml`.
pub(super) fn cluster_role() -> anyhow::Result<String> {
    let nothing = Scope::default();
    let references = Scope {
        look_at_references: true,
        ..Scope::default()
    };
    let groups = Scope {
        groups: [GROUP.to_owned()].into(),
        ..Scope::default()
    };
    let crd = Crd {
        group: GROUP.to_owned(),
        plural: PLURAL.to_owned(),
    };
    let crds = Scope {
        crds: [crd].into(),
        ..Scope::default()
    };
    let with_status = Scope {
        status_fallback: true,
        ..crds.clone()
    };
    let is_about_group = |rule: &Rule| rule.rule.api_groups.as_deref() == Some(&[GROUP.to_owned()][..]);
    let (group_objects, any_crd): (Vec<Rule>, Vec<Rule>) =
        added(&nothing, &groups)?.into_iter().partition(is_about_group);
    let (crd_objects, named_crds): (Vec<Rule>, Vec<Rule>) =
        added(&nothing, &crds)?.into_iter().partition(is_about_group);
    let text = [
        HEADER,
        &format!("{{{{- if and .Values.rbac.create (or {STORAGE} {DATASTORE}) }}}}\n"),
        "{{- $managed := include \"exuvia.managed\" . | fromJson }}\n",
        &head("ClusterRole", RuleScope::Cluster),
        "rules:\n",
        &always(RuleScope::Cluster)?,
        &format!("  {{{{- if {STORAGE} }}}}\n  {{{{- if .Values.lookAtReferences }}}}\n"),
        &entries(&added(&nothing, &references)?)?,
        "  {{- end }}\n  {{- if $managed.groups }}\n",
        &entries(&any_crd)?,
        "  {{- else if $managed.crds }}\n",
        &entries(&named_crds)?,
        "  {{- end }}\n",
        BY_GROUP,
        "  {{- range $group, $resources := $byGroup }}\n",
        &entries(&crd_objects)?,
        "  {{- if $.Values.rbac.statusFallback }}\n",
        STATUSES,
        &entries(&added(&crds, &with_status)?)?,
        "  {{- end }}\n  {{- end }}\n  {{- range $group := $managed.groups }}\n",
        &entries(&group_objects)?,
        "  {{- end }}\n  {{- end }}\n",
        EXTRA_RULES,
        "---\n",
        &binding(RuleScope::Cluster),
        "{{- end }}\n",
    ]
    .concat();
    complete(text)
}

/// Plurals by group, as the code has them.
const BY_GROUP: &str = r#"  {{- $byGroup := dict }}
  {{- range $managed.crds }}
  {{- $parts := splitn "." 2 . }}
  {{- $_ := set $byGroup $parts._1 (append (get $byGroup $parts._1 | default list) $parts._0) }}
  {{- end }}
"#;

const STATUSES: &str = r#"  {{- $statuses := list }}
  {{- range $resources }}
  {{- $statuses = append $statuses (printf "%s/status" .) }}
  {{- end }}
"#;

const EXTRA_RULES: &str = "  {{- with .Values.rbac.extraRules }}
  # rbac.extraRules
  {{- toYaml . | nindent 2 }}
  {{- end }}
";

/// `templates/roles.yaml`.
pub(super) fn roles() -> anyhow::Result<String> {
    let all = rules(&Scope::default());
    let without_lease = rules_of(Enabled::Both, None, &Scope::default());
    ensure!(
        of_scope(&without_lease, RuleScope::Own).is_empty(),
        "a controller has a rule in its own namespace: xtask/src/chart/rights.rs has no place for it"
    );
    let mut text = format!("{HEADER}{{{{- if .Values.rbac.create }}}}\n");
    let of_datastore = rules_of(Enabled::Datastore, None, &Scope::default());
    ensure!(
        of_scope(&of_datastore, RuleScope::KubeSystem).is_empty(),
        "datastore migration has a rule in kube-system: xtask/src/chart/rights.rs has no place for it"
    );
    let any = format!("or {STORAGE} {DATASTORE}");
    for (scope, condition, rules) in [
        (RuleScope::Default, any.as_str(), always(RuleScope::Default)?),
        (
            RuleScope::KubeSystem,
            STORAGE,
            entries(&of_scope(&all, RuleScope::KubeSystem))?,
        ),
        (
            RuleScope::Own,
            ".Values.leaderElection.enabled",
            entries(&of_scope(&all, RuleScope::Own))?,
        ),
    ] {
        text.push_str(&format!("{{{{- if {condition} }}}}\n---\n"));
        text.push_str(&head("Role", scope));
        text.push_str("rules:\n");
        text.push_str(&rules);
        text.push_str("---\n");
        text.push_str(&binding(scope));
        text.push_str("{{- end }}\n");
    }
    text.push_str("{{- end }}\n");
    complete(text)
}

fn of_scope(rules: &[Rule], scope: RuleScope) -> Vec<Rule> {
    rules.iter().filter(|rule| rule.scope == scope).cloned().collect()
}

fn head(kind: &str, scope: RuleScope) -> String {
    let suffix = scope.role_suffix();
    let namespace = match scope {
        RuleScope::Cluster => String::new(),
        RuleScope::Own => "  namespace: {{ .Release.Namespace }}\n".to_owned(),
        RuleScope::Default | RuleScope::KubeSystem => {
            format!("  namespace: {}\n", scope.namespace().unwrap_or_default())
        }
    };
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {{{{ include \"exuvia.fullname\" . }}}}{suffix}\n\
         {namespace}  labels:\n    {{{{- include \"exuvia.labels\" . | nindent 4 }}}}\n"
    )
}

fn binding(scope: RuleScope) -> String {
    let role = match scope {
        RuleScope::Cluster => "ClusterRole",
        _ => "Role",
    };
    let suffix = scope.role_suffix();
    format!(
        "{}roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {role}\n  name: {{{{ include \"exuvia.fullname\" . }}}}{suffix}\n\
         subjects:\n  {{{{- include \"exuvia.subject\" . | nindent 2 }}}}\n",
        head(&format!("{role}Binding"), scope)
    )
}

/// The rules as entries of `rules`, with expressions for placeholders.
fn entries(rules: &[Rule]) -> anyhow::Result<String> {
    let mut text = String::new();
    for rule in rules {
        let mut yaml = rule.to_yaml();
        for (placeholder, expression) in expressions() {
            yaml = yaml.replace(&placeholder, expression);
        }
        ensure!(
            !rule.why.contains("{{"),
            "the reason is not plain text: {}",
            rule.why
        );
        for line in yaml.lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    Ok(text)
}

/// The template, if no placeholder is left in it.
fn complete(text: String) -> anyhow::Result<String> {
    if let Some(line) = text.lines().find(|line| line.contains("PLACEHOLDER")) {
        bail!("xtask/src/chart/rights.rs has no expression for: {}", line.trim());
    }
    Ok(text)
}

/// Every rule that an operator can have with named CRDs, as a table for people.
pub(crate) fn rule_table() -> anyhow::Result<String> {
    let scope = Scope {
        crds: ["widgets.example.com".parse()?].into(),
        status_fallback: true,
        look_at_references: true,
        ..Scope::default()
    };
    let rules = rules_of(Enabled::Both, Some("exuvia"), &scope);
    let mut text = "| where | rule | why |\n|---|---|---|\n".to_owned();
    for scope in RuleScope::ALL {
        for rule in of_scope(&rules, scope) {
            let place = match scope {
                RuleScope::Cluster => "cluster".to_owned(),
                RuleScope::Own => "its own namespace".to_owned(),
                RuleScope::Default | RuleScope::KubeSystem => {
                    format!("namespace `{}`", scope.namespace().unwrap_or_default())
                }
            };
            text.push_str(&format!("| {place} | {} | {} |\n", in_words(&rule), rule.why));
        }
    }
    Ok(text)
}

fn in_words(rule: &Rule) -> String {
    let quoted = |names: Option<&Vec<String>>| -> String {
        let names = names.into_iter().flatten().map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    let rule = &rule.rule;
    let verbs = rule.verbs.join(", ");
    if let Some(paths) = &rule.non_resource_urls {
        return format!("{verbs} the path {}", quoted(Some(paths)));
    }
    let only = match &rule.resource_names {
        Some(names) => format!(", only {}", quoted(Some(names))),
        None => String::new(),
    };
    let (resources, groups) = (rule.resources.as_ref(), rule.api_groups.as_ref());
    format!("{verbs} {} in {}{only}", quoted(resources), quoted(groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_the_template_cannot_express_is_refused() {
        let mixed = Rule::new(
            "Read them.",
            GROUP,
            ["configmaps".to_owned(), PLURAL.to_owned()],
            &["get"],
        );
        let text = entries(&[mixed]).expect("the reason is plain text");
        let refused = complete(text).expect_err("no expression for one of two resources");
        assert!(
            refused.to_string().contains("has no expression for: resources"),
            "{refused}"
        );
    }
}
