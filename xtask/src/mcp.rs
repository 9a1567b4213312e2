//! The generated files of the MCP operator: roles and CRDs of its chart, and the reference of its CRDs.

use exuvia_runtime::rights::{Rule, RuleScope};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use mcp_operator::{api, rights};

const HEADER: &str = "{{- /* Generated from the code by `cargo xtask generate`. */}}\n";
const LEASE: &str = "PLACEHOLDER-LEASE";
const CRDS: &str = "docs/mcp-crds.md";

/// Paths and contents.
pub(crate) fn files() -> anyhow::Result<Vec<(&'static str, String)>> {
    let rules = rights::all(Some(LEASE));
    let [servers, tool_configs] = api::crds();
    Ok(vec![
        (
            "charts/mcp-operator/templates/clusterrole.yaml",
            role("ClusterRole", "", &of_scope(&rules, RuleScope::Cluster)),
        ),
        (
            "charts/mcp-operator/templates/role.yaml",
            role(
                "Role",
                "  namespace: {{ .Release.Namespace }}\n",
                &of_scope(&rules, RuleScope::Own),
            ),
        ),
        (
            "charts/mcp-operator/templates/mcpservers.mcp.exuvia.dev.yaml",
            crd_template(&servers)?,
        ),
        (
            "charts/mcp-operator/templates/mcptoolconfigs.mcp.exuvia.dev.yaml",
            crd_template(&tool_configs)?,
        ),
        (CRDS, reference(&[servers, tool_configs])),
    ])
}

fn of_scope(rules: &[Rule], scope: RuleScope) -> Vec<&Rule> {
    rules.iter().filter(|rule| rule.scope == scope).collect()
}

/// A role with these rules, and its binding.
fn role(kind: &str, namespace: &str, rules: &[&Rule]) -> String {
    let mut text = HEADER.to_owned();
    let head = |kind: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {{{{ include \"mcp-operator.fullname\" . }}}}\n\
             {namespace}  labels:\n    {{{{- include \"mcp-operator.labels\" . | nindent 4 }}}}\n"
        )
    };
    text.push_str(&head(kind));
    text.push_str("rules:\n");
    for rule in rules {
        let yaml = rule.to_yaml();
        let yaml = yaml.replace(
            &format!("\"{LEASE}\""),
            "{{ include \"mcp-operator.fullname\" . | quote }}",
        );
        for line in yaml.lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text.push_str("---\n");
    text.push_str(&head(&format!("{kind}Binding")));
    text.push_str(&format!(
        "roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: {kind}\n  name: {{{{ include \"mcp-operator.fullname\" . }}}}\n\
         subjects:\n  - kind: ServiceAccount\n    name: {{{{ include \"mcp-operator.serviceAccountName\" . }}}}\n    \
         namespace: {{{{ .Release.Namespace }}}}\n"
    ));
    text
}

fn crd_template(crd: &CustomResourceDefinition) -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(crd)?;
    anyhow::ensure!(!yaml.contains("{{"), "a description is taken for an expression");
    Ok(format!(
        "{HEADER}{{{{- if .Values.installCrds }}}}\n{yaml}{{{{- end }}}}\n"
    ))
}

/// A page with one table of fields for each kind.
fn reference(crds: &[CustomResourceDefinition]) -> String {
    let mut text = "# Reference of the MCP operator's CRDs\n\nGenerated from the code by `cargo xtask generate`. What the operator makes of \
                    them is in [mcp-operator.md](mcp-operator.md).\n"
        .to_owned();
    for crd in crds {
        let versions: Vec<String> = crd
            .spec
            .versions
            .iter()
            .map(|version| {
                format!(
                    "`{}`{}",
                    version.name,
                    if version.storage { " (stored)" } else { "" }
                )
            })
            .collect();
        text.push_str(&format!(
            "\n## {}\n\n`{}`, versions {}.\n\n",
            crd.spec.names.kind,
            crd.spec.group,
            versions.join(", ")
        ));
        text.push_str("| field | type | meaning |\n|---|---|---|\n");
        let schema = crd
            .spec
            .versions
            .first()
            .and_then(|version| version.schema.as_ref());
        let schema = schema.and_then(|schema| schema.open_api_v3_schema.as_ref());
        for part in ["spec", "status"] {
            let fields = schema.and_then(|schema| schema.properties.as_ref()?.get(part));
            if let Some(fields) = fields {
                rows(&mut text, part, fields);
            }
        }
    }
    text
}

/// Parts that are Kubernetes' own are not repeated.
const KNOWN: [&str; 5] = ["env", "envFrom", "resources", "conditions", "imagePullSecrets"];

fn rows(text: &mut String, path: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        let about = field
            .description
            .clone()
            .unwrap_or_default()
            .replace(['\n', '|'], " ");
        let default = field
            .default
            .as_ref()
            .map(|value| format!(" Default: `{}`.", value.0))
            .unwrap_or_default();
        let kind = field.type_.clone().unwrap_or_else(|| "any".to_owned());
        let required = schema.required.iter().flatten().any(|required| required == name);
        let required = if required { ", required" } else { "" };
        text.push_str(&format!("| `{path}` | {kind}{required} | {about}{default} |\n"));
        if !KNOWN.contains(&name.as_str()) {
            rows(text, &path, field);
        }
    }
}
