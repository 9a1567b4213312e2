//! What only a datastore migration counts. Phases, stalls and durations are the publisher's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exuvia_api::{DatastoreMigration, DatastorePhase, DatastoreProgress, TypeProgress};
use exuvia_runtime::Metrics;
use exuvia_runtime::publish::Gauges;
use exuvia_write::{Outcome, WriteReport, resource_name};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::{Resource, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use super::status::Migrations;
use crate::Kinds;
use crate::copy::FIELD_MANAGER;
use crate::lock::lock;
use crate::protocol::StepKind;

/// The kind of what is not among the moved ones.
const OTHER: &str = "other";

type Labels<const N: usize> = [(&'static str, String); N];

/// 0.1 s to about 7 h.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.1, 4.0, 10))
}

/// What became of an object: label value, and where the progress has it.
type OutcomePart = (&'static str, fn(&TypeProgress) -> i64);

const OUTCOMES: [OutcomePart; 3] = [
    ("migrated", |progress| progress.migrated),
    ("skipped", |progress| progress.skipped),
    ("conflict", |progress| progress.conflicts),
];

/// Counts objects, errors, retries, and how long each kind and each freeze takes.
#[derive(Clone, Debug)]
pub(super) struct Meters {
    resources: Family<Labels<2>, Counter>,
    errors: Family<Labels<1>, Counter>,
    retries: Family<Labels<2>, Counter>,
    types: Family<Labels<1>, Histogram, fn() -> Histogram>,
    frozen: Family<Labels<1>, Gauge>,
    /// Plural and group of what is written, and the kind: a request names the former, people the latter.
    kinds: Arc<Mutex<BTreeMap<String, String>>>,
}

/// How many objects of each kind and outcome were counted in one run of a migration.
pub(super) type Counted = BTreeMap<(String, &'static str), i64>;

/// What a migration writes besides objects of moved kinds.
fn own_kinds() -> BTreeMap<String, String> {
    let own = [
        resource::<DatastoreMigration>(),
        resource::<ValidatingAdmissionPolicy>(),
        resource::<ValidatingAdmissionPolicyBinding>(),
        resource::<FlowSchema>(),
        resource::<PriorityLevelConfiguration>(),
        resource::<APIService>(),
        resource::<CustomResourceDefinition>(),
    ];
    own.into_iter().collect()
}

fn resource<K: Resource<DynamicType = ()>>() -> (String, String) {
    let name = resource_name(&K::plural(&()), &K::group(&()));
    (name, K::kind(&()).into_owned())
}

/// The label must be bounded: groups of clones have a uid in them, and dependents may be of any kind.
fn kind_of(kinds: &BTreeMap<String, String>, resource: &str) -> String {
    let other = || OTHER.to_owned();
    kinds.get(resource).cloned().unwrap_or_else(other)
}

impl Meters {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let new = Self {
            resources: Family::default(),
            errors: Family::default(),
            retries: Family::default(),
            types: Family::new_with_constructor(durations),
            frozen: Family::default(),
            kinds: Arc::new(Mutex::new(own_kinds())),
        };
        metrics.register(
            "exuvia_datastore_resources",
            "Objects by what became of them while they were copied: migrated, skipped (the target was there already) or conflict",
            new.resources.clone(),
        );
        metrics.register(
            "exuvia_datastore_resource_errors",
            "Objects that could not be copied or verified in one try",
            new.errors.clone(),
        );
        metrics.register(
            "exuvia_datastore_retries",
            "Writes of a datastore migration that were tried again, by kind (`other`: an object that is not moved)",
            new.retries.clone(),
        );
        metrics.register(
            "exuvia_datastore_type_duration_seconds",
            "How long the objects of one kind take to be copied",
            new.types.clone(),
        );
        metrics.register(
            "exuvia_datastore_frozen_seconds",
            "For how long writes to the source have been refused; absent while they are not, and from the cut-over on",
            new.frozen.clone(),
        );
        new
    }

    /// Objects that were copied since the last time. One that is copied again in the same run counts once.
    pub(super) fn count(&self, counted: &mut Counted, progress: &DatastoreProgress) {
        let mut now = Counted::new();
        for of_type in &progress.types {
            for (outcome, part) in OUTCOMES {
                *now.entry((of_type.kind.clone(), outcome)).or_default() += part(of_type);
            }
        }
        for ((kind, outcome), objects) in now {
            let before = counted.entry((kind.clone(), outcome)).or_default();
            let more = u64::try_from(objects - *before).unwrap_or_default();
            *before = objects.max(*before);
            let labels = [("kind", kind), ("outcome", outcome.to_owned())];
            self.resources.get_or_create(&labels).inc_by(more);
        }
    }

    pub(super) fn failed(&self, kind: &str, objects: u64) {
        let labels = [("kind", kind.to_owned())];
        self.errors.get_or_create(&labels).inc_by(objects);
    }

    pub(super) fn took(&self, kind: &str, time: Duration) {
        let labels = [("kind", kind.to_owned())];
        self.types.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// For a writer: counts what it tries again.
    pub(super) fn observe_writes(&self) -> impl Fn(&WriteReport<'_>) + Send + Sync + 'static {
        let (retries, kinds) = (self.retries.clone(), Arc::clone(&self.kinds));
        move |report| {
            let is_sent = !matches!(report.outcome, Outcome::Unsent | Outcome::Gated);
            if report.attempt > 1 && is_sent {
                let labels = [
                    ("kind", kind_of(&lock(&kinds), &report.target.resource)),
                    ("operation", report.verb.as_str().to_owned()),
                ];
                retries.get_or_create(&labels).inc();
            }
        }
    }

    /// These are moved.
    pub(super) fn know(&self, moved: &Kinds) {
        let mut kinds = lock(&self.kinds);
        for kind in moved.sources().into_iter().chain(moved.targets()) {
            kinds.insert(kind.name(), kind.resource.kind.clone());
        }
    }

    /// Shows for how long the source has been frozen.
    pub(super) fn show_frozen(&self, migration: &DatastoreMigration) {
        let labels = [("resource", migration.name_any())];
        let status = migration.status.as_ref();
        let since = status
            .filter(|status| status.phase == Some(DatastorePhase::Migrating))
            .and_then(|status| status.frozen_at.as_ref());
        match since {
            Some(since) => {
                let seconds = Timestamp::now().duration_since(since.0).as_secs().max(0);
                self.frozen.get_or_create(&labels).set(seconds);
            }
            None => {
                self.frozen.remove(&labels);
            }
        }
    }

    pub(super) fn forget(&self, name: &str) {
        self.frozen.remove(&[("resource", name.to_owned())]);
    }

    pub(super) fn forget_all(&self) {
        self.frozen.clear();
    }
}

impl super::DatastoreController {
    /// Registers the controller's metrics and shows each of them once, with an example of its labels: see
    /// [`Metrics::describe`].
    pub fn sample_metrics(metrics: &Metrics) {
        Gauges::<Migrations>::sample(metrics, FIELD_MANAGER, StepKind::Copying.as_str());
        let meters = Meters::register(metrics);
        let progress = DatastoreProgress {
            types: vec![TypeProgress {
                kind: "Widget".to_owned(),
                ..TypeProgress::default()
            }],
            ..DatastoreProgress::default()
        };
        meters.count(&mut Counted::new(), &progress);
        meters.failed("Widget", 0);
        meters.took("Widget", Duration::from_secs(1));
        let labels = [("kind", "Widget".to_owned()), ("operation", "create".to_owned())];
        meters.retries.get_or_create(&labels).inc_by(0);
        meters
            .frozen
            .get_or_create(&[("resource", "widgets".to_owned())])
            .set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(migrated: i64, skipped: i64) -> DatastoreProgress {
        DatastoreProgress {
            types: vec![TypeProgress {
                kind: "Widget".to_owned(),
                migrated,
                skipped,
                ..TypeProgress::default()
            }],
            ..DatastoreProgress::default()
        }
    }

    #[test]
    fn a_retry_is_counted_by_kind() {
        let mut kinds = own_kinds();
        kinds.insert("widgets.new.dev".to_owned(), "Widget".to_owned());
        for (resource, expected) in [
            ("widgets.new.dev", "Widget"),
            ("datastoremigrations.exuvia.dev", "DatastoreMigration"),
            (
                "validatingadmissionpolicies.admissionregistration.k8s.io",
                "ValidatingAdmissionPolicy",
            ),
            ("apiservices.apiregistration.k8s.io", "APIService"),
            ("deployments.apps", "other"),
        ] {
            assert_eq!(kind_of(&kinds, resource), expected);
        }
    }

    #[test]
    fn an_object_that_is_copied_twice_counts_once() {
        let metrics = Metrics::new("test");
        let (meters, mut counted) = (Meters::register(&metrics), Counted::new());
        for now in [progress(2, 1), progress(5, 1), progress(1, 0), progress(6, 1)] {
            meters.count(&mut counted, &now);
        }
        let text = metrics.encode();
        for expected in [
            r#"exuvia_datastore_resources_total{kind="Widget",outcome="migrated"} 6"#,
            r#"exuvia_datastore_resources_total{kind="Widget",outcome="skipped"} 1"#,
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }
}
