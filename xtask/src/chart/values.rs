//! The chart's values: the one description from which `values.yaml`, its schema and the README's table are made.
//!
//! A value that becomes a flag of `exuvia operator` takes its meaning and its default from the flag.
#![allow(clippy::too_many_lines)] // a table

use anyhow::Context;
use exuvia_api::limits;
use serde_json::{Value as Json, json};

use super::value::{
    Entry, Flags, at_least, boolean, duration, list, matching, not_empty, nullable, object, own,
    strings_by_name, text, within,
};

/// A name that Kubernetes accepts, or nothing.
const OPTIONAL_NAME: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$";
const LABEL: &str = "^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(=[A-Za-z0-9._-]*)?$";

/// All values, in the order of `values.yaml`.
pub(super) fn entries() -> anyhow::Result<Vec<Entry>> {
    let flags = Flags::new()?;
    let (address, port) = flags
        .default("listen")?
        .and_then(|listen| listen.rsplit_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())))
        .context("--listen has an address and a port")?;
    let port: u16 = port.parse()?;
    let entries = [
        vec![
            Entry::Section("What is migrated"),
            flags.value("enableStorageMigration", "enable-storage-migration", boolean())?,
            flags
                .value("enableDatastoreMigration", "enable-datastore-migration", boolean())?
                .and("Bind them for the time of the migration"),
            flags
                .value("groups", "groups", json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}))?
                .and("RBAC cannot include subgroups: list each group that has CRDs"),
            flags
                .value("crds", "crds", crds())?
                .and("The operator gets rights for these CRDs only"),
            flags.value("optInLabel", "opt-in-label", matching(LABEL))?,
            flags
                .value("lookAtReferences", "look-at-references", boolean())?
                .and(
                    "The operator reads only metadata, but anyone with its token can read the Secrets. `exuvia storage \
                     droppable` answers the same question with your own rights",
                ),
            flags.value("lookAgain", "look-again", duration())?,
            Entry::Section("How (each migration can override some of it in its spec)"),
            flags.value("settle", "settle", duration())?,
            flags.value("apiServers", "apiserver", list(&matching(limits::API_SERVER_PATTERN)))?,
            flags.value("maxConcurrency", "max-concurrency", within(limits::MAX_CONCURRENCY))?,
            flags
                .value("qps", "qps", nullable(within(limits::QPS)))?
                .and("null means no limit"),
            flags.value("pageSize", "page-size", within(limits::PAGE_SIZE))?,
            flags.value(
                "concurrentMigrations",
                "concurrent-migrations",
                within(limits::CONCURRENT_MIGRATIONS),
            )?,
            flags.value("maxBackoff", "max-backoff", duration())?,
            Entry::Section("The operator"),
        ],
        image(),
        vec![
            own("replicas", json!(2), at_least(0), "How many pods run. One of them works, the others are ready to take over"),
            Entry::Object("leaderElection", "How one of the replicas becomes the leader."),
            flags
                .value("leaderElection.enabled", "leader-elect", boolean())?
                .and("Switch it off only with one replica"),
            own("leaderElection.leaseName", json!(""), matching(OPTIONAL_NAME), "The Lease's name. Empty: the release's full name"),
            flags.value("leaderElection.leaseDuration", "lease-duration", duration())?,
            Entry::Object("log", "The operator's log."),
            flags.value("log.level", "log-level", not_empty())?,
            flags.value("log.format", "log-format", json!({"enum": flags.choices("log-format")?}))?,
            own("listenAddress", json!(address), not_empty(), "The address that serves /metrics, /livez, /readyz and /log-level. IPv6 in brackets"),
            own("port", json!(port), within(1024..=65535), "The port that serves /metrics, /livez, /readyz and /log-level"),
            flags
                .value("shutdownGrace", "shutdown-grace", duration())?
                .and("Not longer than terminationGracePeriodSeconds"),
            own("terminationGracePeriodSeconds", json!(30), at_least(1), "How long a pod may take to stop before it is killed"),
            own("extraArgs", json!([]), list(&text()), "More arguments for `exuvia operator`"),
            own("extraEnv", json!([]), list(&json!({"type": "object", "required": ["name"]})), "More environment variables, as in a container"),
        ],
        rights(),
        observability(),
        pods(),
    ];
    Ok(entries.into_iter().flatten().collect())
}

fn image() -> Vec<Entry> {
    let policies = json!({"enum": ["Always", "IfNotPresent", "Never"]});
    let secret = json!({"type": "object", "additionalProperties": false, "required": ["name"],
        "properties": {"name": {"description": "The Secret's name.", "type": "string"}}});
    vec![
        Entry::Object("image", "The operator's image."),
        own(
            "image.repository",
            json!("exuvia"),
            not_empty(),
            "Registry and repository",
        ),
        own(
            "image.tag",
            json!(""),
            text(),
            "The tag. Empty: the chart's appVersion",
        ),
        own(
            "image.digest",
            json!(""),
            matching("^(sha256:[0-9a-f]{64})?$"),
            "A digest such as sha256:…; it takes precedence over the tag",
        ),
        own(
            "image.pullPolicy",
            json!("IfNotPresent"),
            policies,
            "When the image is pulled",
        ),
        own(
            "imagePullSecrets",
            json!([]),
            list(&secret),
            "Secrets for the registry, as in a pod",
        ),
    ]
}

fn rights() -> Vec<Entry> {
    let strings = |description: &str| json!({"description": description, "type": "array", "minItems": 1, "items": text()});
    let rule = json!({"type": "object", "additionalProperties": false, "required": ["apiGroups", "resources", "verbs"],
    "properties": {
        "apiGroups": strings("API groups."),
        "resources": strings("Resources."),
        "verbs": strings("Verbs."),
        "resourceNames": strings("Names of objects."),
    }});
    vec![
        Entry::Section("Rights"),
        Entry::Object("serviceAccount", "The account that the operator runs as."),
        own(
            "serviceAccount.create",
            json!(true),
            boolean(),
            "Whether the chart creates it",
        ),
        own(
            "serviceAccount.name",
            json!(""),
            matching(OPTIONAL_NAME),
            "Its name. Empty: the release's full name",
        ),
        own(
            "serviceAccount.annotations",
            json!({}),
            strings_by_name(),
            "Its annotations",
        ),
        Entry::Object("rbac", "The operator's rights."),
        own(
            "rbac.create",
            json!(true),
            boolean(),
            "Whether the chart creates roles and bindings. Otherwise `exuvia rbac` prints them",
        ),
        own(
            "rbac.statusFallback",
            json!(false),
            boolean(),
            "Whether the operator may patch /status of what it migrates, for migrations with spec.statusFallback",
        ),
        own(
            "rbac.extraRules",
            json!([]),
            list(&rule),
            "More rules for the operator's ClusterRole, for migrations that people create for something that is neither in \
             groups nor in crds. To re-encrypt Secrets: `{apiGroups: [\"\"], resources: [secrets], verbs: [get, list, patch]}`",
        ),
        Entry::Object(
            "admissionPolicy",
            "A policy for StorageMigrations: to create or change one, a user needs the right to patch what it names, in all \
             namespaces.",
        ),
        own(
            "admissionPolicy.enabled",
            json!(true),
            boolean(),
            "Whether the policy is installed",
        ),
        Entry::Object(
            "flowControl",
            "A priority level for the operator alone, so that it cannot take API server capacity from others.",
        ),
        own(
            "flowControl.enabled",
            json!(false),
            boolean(),
            "Whether FlowSchemas and a PriorityLevelConfiguration are installed",
        ),
        own(
            "flowControl.nominalConcurrencyShares",
            json!(5),
            at_least(1),
            "The level's share. The built-in levels have 10 to 100 each, 245 together",
        ),
        own(
            "flowControl.lendablePercent",
            json!(90),
            within(0..=100),
            "How much of the share others may use while the operator is idle, in per cent",
        ),
        own(
            "flowControl.borrowingLimitPercent",
            json!(0),
            at_least(0),
            "How much the operator may use of what others leave idle, in per cent of its own share",
        ),
        own(
            "flowControl.queueLengthLimit",
            json!(200),
            at_least(1),
            "How many requests may wait. Further ones are refused with 429, and the operator slows down",
        ),
        own(
            "flowControl.matchingPrecedence",
            json!(1000),
            within(2..=8999),
            "The precedence of the FlowSchemas; smaller comes first. The built-in service-accounts has 9000 and would match otherwise",
        ),
    ]
}

fn observability() -> Vec<Entry> {
    vec![
        Entry::Section("Observability"),
        Entry::Object("service", "The Service for metrics."),
        own(
            "service.annotations",
            json!({}),
            strings_by_name(),
            "Its annotations",
        ),
        Entry::Object("serviceMonitor", "A ServiceMonitor for the Prometheus operator."),
        own(
            "serviceMonitor.enabled",
            json!(false),
            boolean(),
            "Whether it is installed",
        ),
        own(
            "serviceMonitor.interval",
            json!("30s"),
            duration(),
            "How often Prometheus scrapes",
        ),
        own(
            "serviceMonitor.scrapeTimeout",
            json!("10s"),
            duration(),
            "How long a scrape may take",
        ),
        own(
            "serviceMonitor.labels",
            json!({}),
            strings_by_name(),
            "Labels by which your Prometheus selects it",
        ),
        Entry::Object("prometheusRule", "Alert rules for the Prometheus operator."),
        own(
            "prometheusRule.enabled",
            json!(false),
            boolean(),
            "Whether they are installed",
        ),
        own(
            "prometheusRule.labels",
            json!({}),
            strings_by_name(),
            "Labels by which your Prometheus selects them",
        ),
        own(
            "prometheusRule.stalledFor",
            json!("15m"),
            duration(),
            "How long a migration may be stalled, or make no progress, before the alert fires",
        ),
        Entry::Object(
            "grafanaDashboard",
            "A ConfigMap with a dashboard for Grafana's sidecar.",
        ),
        own(
            "grafanaDashboard.enabled",
            json!(false),
            boolean(),
            "Whether it is installed",
        ),
        own(
            "grafanaDashboard.labels",
            json!({"grafana_dashboard": "1"}),
            strings_by_name(),
            "Labels by which the sidecar finds it",
        ),
        own(
            "grafanaDashboard.annotations",
            json!({}),
            strings_by_name(),
            "Its annotations, such as the folder",
        ),
    ]
}

fn pods() -> Vec<Entry> {
    let resources = json!({"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}});
    let unavailable =
        json!({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+%$"}]});
    let at_least_one = |items: Json| json!({"type": "array", "minItems": 1, "items": items});
    vec![
        Entry::Section("Pods"),
        own(
            "resources",
            resources,
            object(),
            "The container's resources, as in a pod",
        ),
        Entry::Object(
            "podDisruptionBudget",
            "How many pods a node drain may stop at once.",
        ),
        own(
            "podDisruptionBudget.enabled",
            json!(true),
            boolean(),
            "Whether it is installed",
        ),
        own(
            "podDisruptionBudget.maxUnavailable",
            json!(1),
            unavailable,
            "A number or a percentage",
        ),
        Entry::Object("networkPolicy", "The connections that the pods may have."),
        own(
            "networkPolicy.enabled",
            json!(false),
            boolean(),
            "Whether it is installed",
        ),
        own(
            "networkPolicy.metricsFrom",
            json!([]),
            list(&object()),
            "What may connect to the port, as NetworkPolicy peers. Empty: everything",
        ),
        own(
            "networkPolicy.apiServerCIDRs",
            json!(["0.0.0.0/0", "::/0"]),
            at_least_one(matching("/[0-9]{1,3}$")),
            "The addresses of the API servers. The operator connects to each of them, at the addresses that the cluster lists",
        ),
        own(
            "networkPolicy.apiServerPorts",
            json!([443, 6443]),
            at_least_one(within(1..=65535)),
            "The ports of the API servers, and of the Service in front of them",
        ),
        Entry::Object("topologySpread", "How the replicas are spread."),
        own(
            "topologySpread.enabled",
            json!(true),
            boolean(),
            "Whether the pods have a constraint for it",
        ),
        own(
            "topologySpread.topologyKey",
            json!("kubernetes.io/hostname"),
            not_empty(),
            "The node label over whose values they are spread",
        ),
        own(
            "topologySpread.whenUnsatisfiable",
            json!("ScheduleAnyway"),
            json!({"enum": ["ScheduleAnyway", "DoNotSchedule"]}),
            "What the scheduler does if they cannot be spread",
        ),
        own(
            "podAnnotations",
            json!({}),
            strings_by_name(),
            "Annotations of the pods",
        ),
        own("podLabels", json!({}), strings_by_name(), "Labels of the pods"),
        own(
            "nodeSelector",
            json!({}),
            strings_by_name(),
            "Labels that a node needs to run the pods",
        ),
        own(
            "tolerations",
            json!([]),
            list(&object()),
            "Taints that the pods tolerate, as in a pod",
        ),
        own("affinity", json!({}), object(), "Affinity, as in a pod"),
        own("priorityClassName", json!(""), text(), "The pods' PriorityClass"),
        own(
            "nameOverride",
            json!(""),
            text(),
            "A name to use instead of the chart's, in labels and names",
        ),
        own(
            "fullnameOverride",
            json!(""),
            json!({"type": "string", "maxLength": 44}),
            "A name to use instead of the release's full name",
        ),
    ]
}

fn crds() -> Json {
    json!({"type": "array", "items": {
        "type": ["string", "object"], "additionalProperties": false, "required": ["name"],
        "properties": {"name": {"description": "The CRD's name.", "type": "string"}},
    }})
}
