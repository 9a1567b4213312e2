//! The rights of the operator and of the runner: each rule with its reason; the chart and the runner's Role are made from them.

use exuvia_runtime::rights::{Rule, RuleScope};

use crate::api::GROUP;
use crate::naming;

const RBAC: &str = "rbac.authorization.k8s.io";

/// What the runner of one server may do. `create` and `list` cannot be restricted to a name.
pub fn runner(server: &str) -> Vec<Rule> {
    let backend = || [naming::backend(server)];
    let own = || [server.to_owned()];
    vec![
        Rule::new(
            "Read the server that it runs for.",
            GROUP,
            ["mcpservers"],
            &["get"],
        )
        .only(own()),
        Rule::new(
            "Report what the gate decided.",
            GROUP,
            ["mcpservers/status"],
            &["patch"],
        )
        .only(own()),
        Rule::new("Create the backend.", "apps", ["statefulsets"], &["create"]),
        Rule::new(
            "Apply the backend, and notice when it goes or is edited.",
            "apps",
            ["statefulsets"],
            &["get", "list", "watch", "patch"],
        )
        .only(backend()),
        Rule::new(
            "Ask the Deployment which of two runners with one epoch is the current one.",
            "apps",
            ["deployments"],
            &["get"],
        )
        .only(own()),
        Rule::new(
            "Create the headless Service of the backend.",
            "",
            ["services"],
            &["create"],
        ),
        Rule::new(
            "Apply it, and notice when it goes or is edited.",
            "",
            ["services"],
            &["get", "list", "watch", "patch"],
        )
        .only(backend()),
        Rule::new(
            "Find the pods of the backend, and delete one that is stuck on an old revision.",
            "",
            ["pods"],
            &["list", "watch", "delete"],
        ),
        Rule::new("Publish events.", "events.k8s.io", ["events"], &["create"]),
    ]
}

/// What the operator may do, beyond what the runtime needs itself. It includes every right of a runner, because nobody can
/// give away rights that they do not have.
pub fn operator() -> Vec<Rule> {
    vec![
        Rule::new(
            "Watch servers; add and remove the finalizer, and mark restarts as done.",
            GROUP,
            ["mcpservers"],
            &["get", "list", "watch", "patch"],
        ),
        Rule::new(
            "Report how servers are.",
            GROUP,
            ["mcpservers/status"],
            &["patch"],
        ),
        Rule::new(
            "Read which tools clients see.",
            GROUP,
            ["mcptoolconfigs"],
            &["get", "list", "watch"],
        ),
        Rule::new(
            "Report where tool configs are used.",
            GROUP,
            ["mcptoolconfigs/status"],
            &["patch"],
        ),
        Rule::new(
            "Apply the proxy, watch it, and delete it before the backend.",
            "apps",
            ["deployments"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        Rule::new(
            "Watch the backend, ask the server whether it would take it (a dry run), and delete it after the proxy. Runners get the rights to create and apply it.",
            "apps",
            ["statefulsets"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        Rule::new(
            "See which run configs are in use.",
            "apps",
            ["replicasets"],
            &["list"],
        ),
        Rule::new(
            "Apply run configs, and delete those that are not in use.",
            "",
            ["configmaps"],
            &["get", "list", "watch", "create", "delete"],
        ),
        Rule::new(
            "Apply the Service of the proxy, and delete that of the backend. Runners get the right to apply it.",
            "",
            ["services"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        Rule::new(
            "Apply the service accounts of runners.",
            "",
            ["serviceaccounts"],
            &["get", "list", "watch", "create", "patch"],
        ),
        Rule::new(
            "Find the pods to shake hands with. Runners get these rights, to delete pods among them.",
            "",
            ["pods"],
            &["list", "watch", "delete"],
        ),
        Rule::new(
            "Apply the rights of runners. Nobody can give away rights that they do not have, so this list includes them all.",
            RBAC,
            ["roles", "rolebindings"],
            &["get", "list", "watch", "create", "patch"],
        ),
        Rule::new(
            "Apply the policies that protect backends, and delete them when they are switched off.",
            "networking.k8s.io",
            ["networkpolicies"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        Rule::new("Publish events.", "events.k8s.io", ["events"], &["create"]),
    ]
}

/// All rules of the operator: its own, and those of the runtime below it. `lease` is the name of the Lease that it holds, if it
/// holds one.
pub fn all(lease: Option<&str>) -> Vec<Rule> {
    let rules = exuvia_runtime::rights::operator(lease, [operator()]);
    // Events about cluster-scoped objects would be in `default`; this operator has none, and its own rule is about all namespaces.
    rules
        .into_iter()
        .filter(|rule| rule.scope != RuleScope::Default)
        .collect()
}
