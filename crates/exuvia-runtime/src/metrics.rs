//! Metrics: one registry, and what this crate itself counts.

mod describe;
mod process;
mod readings;
mod writes;

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use exuvia_write::WriteReport;
use prometheus_client::{
    collector::Collector,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::{Metric, Registry},
};

pub use self::describe::MetricDescription;
use self::{readings::Readings, writes::WriteMeters};
use crate::{Claim, queue::WorkQueue};

/// Label names and values.
pub(crate) type Labels<const N: usize> = [(&'static str, Cow<'static, str>); N];

/// All metrics of the process.
///
/// Cheap to clone; all clones are one registry. Names of reconciles, queues and the process are those that
/// controller-runtime and the Prometheus clients use, so that dashboards know them.
///
/// ```
/// use exuvia_runtime::Metrics;
/// use prometheus_client::metrics::counter::Counter;
///
/// let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
/// let sold = Counter::<u64>::default();
/// metrics.register("widgets_sold", "Widgets sold", sold.clone()); // a counter's `_total` comes by itself
/// sold.inc();
/// assert!(metrics.encode().contains("widgets_sold_total 1"));
/// ```
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    writes: WriteMeters,
    watch_restarts: Family<Labels<2>, Counter>,
    work: WorkMeters,
    readings: Readings,
}

impl Metrics {
    /// With `exuvia_build_info{version}` and everything that this crate counts.
    pub fn new(version: &'static str) -> Self {
        let mut registry = Registry::default();
        registry.register(
            "exuvia_build",
            "What is running",
            Info::new([("version", version)]),
        );
        let inner = Inner {
            writes: WriteMeters::register(&mut registry),
            watch_restarts: registered(
                &mut registry,
                "exuvia_watch_restarts",
                "Watches that were started again, by the reason why the previous one ended",
            ),
            work: WorkMeters::register(&mut registry),
            readings: Readings::default(),
            registry: Mutex::default(),
        };
        registry.register_collector(Box::new(inner.readings.clone()));
        registry.register_collector(Box::new(process::Process));
        *lock(&inner.registry) = registry;
        Self(Arc::new(inner))
    }

    /// Shows a metric. Each name once; a counter's without `_total`, which is appended.
    pub fn register<M: Metric>(&self, name: &str, help: &str, metric: M) {
        lock(&self.0.registry).register(name, help, metric);
    }

    /// Shows metrics that are read when they are asked for.
    pub fn register_collector(&self, collector: impl Collector) {
        lock(&self.0.registry).register_collector(Box::new(collector));
    }

    /// Everything, in the text format of `OpenMetrics`.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &lock(&self.0.registry));
        text
    }

    /// For [`Writer::observe`](exuvia_write::Writer::observe): counts and times what a writer does.
    pub fn observe_writes(&self) -> impl Fn(&WriteReport<'_>) + Send + Sync + 'static {
        let inner = Arc::clone(&self.0);
        move |report: &WriteReport<'_>| inner.writes.observe(report)
    }

    /// Shows whether the claim on this lease holds, as `leader_election_master_status`.
    pub fn observe_claim(&self, lease: &str, claim: &Claim) {
        self.0.readings.add_claim(lease, claim);
    }

    pub(crate) fn observe_queue(&self, queue: &Arc<WorkQueue>) {
        self.0.readings.add_queue(queue);
    }

    pub(crate) fn watch_restarted(&self, resource: &'static str, reason: &'static str) {
        let labels = [("resource", resource.into()), ("reason", reason.into())];
        self.0.watch_restarts.get_or_create(&labels).inc();
    }

    pub(crate) fn of_controller(&self, name: &'static str) -> ControllerMeters {
        self.0.work.of_controller(name)
    }

    pub(crate) fn of_queue(&self, name: &'static str) -> QueueMeters {
        self.0.work.of_queue(name)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// What is counted for each controller.
struct WorkMeters {
    reconciles: Family<Labels<2>, Counter>,
    errors: Family<Labels<1>, Counter>,
    time: Family<Labels<1>, Histogram>,
    active: Family<Labels<1>, Gauge>,
    most: Family<Labels<1>, Gauge>,
    adds: Family<Labels<1>, Counter>,
    retries: Family<Labels<1>, Counter>,
    queued: Family<Labels<1>, Histogram>,
    worked: Family<Labels<1>, Histogram>,
}

impl WorkMeters {
    fn register(registry: &mut Registry) -> Self {
        let work = Self {
            reconciles: Family::default(),
            errors: Family::default(),
            time: Family::new_with_constructor(reconcile_times),
            active: Family::default(),
            most: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            queued: Family::new_with_constructor(queue_times),
            worked: Family::new_with_constructor(queue_times),
        };
        registry.register(
            "controller_runtime_reconcile",
            "Reconciles by result: success, error, requeue or requeue_after",
            work.reconciles.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Reconciles that failed",
            work.errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile",
            work.time.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Reconciles that run now",
            work.active.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "How many reconciles may run at once",
            work.most.clone(),
        );
        registry.register("workqueue_adds", "Keys queued", work.adds.clone());
        registry.register(
            "workqueue_retries",
            "Keys queued again after a failure",
            work.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long a key waits in the queue",
            work.queued.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long a reconcile of a key takes",
            work.worked.clone(),
        );
        work
    }

    fn of_controller(&self, name: &'static str) -> ControllerMeters {
        let labels = [("controller", name.into())];
        ControllerMeters {
            name,
            reconciles: self.reconciles.clone(),
            errors: self.errors.get_or_create_owned(&labels),
            time: self.time.get_or_create_owned(&labels),
            active: self.active.get_or_create_owned(&labels),
            most: self.most.get_or_create_owned(&labels),
        }
    }

    fn of_queue(&self, name: &'static str) -> QueueMeters {
        let labels = [("name", name.into())];
        QueueMeters {
            name,
            adds: self.adds.get_or_create_owned(&labels),
            retries: self.retries.get_or_create_owned(&labels),
            queued: self.queued.get_or_create_owned(&labels),
            worked: self.worked.get_or_create_owned(&labels),
        }
    }
}

/// What is counted for one controller.
pub(crate) struct ControllerMeters {
    name: &'static str,
    reconciles: Family<Labels<2>, Counter>,
    pub(crate) errors: Counter,
    pub(crate) time: Histogram,
    pub(crate) active: Gauge,
    pub(crate) most: Gauge,
}

impl ControllerMeters {
    /// One more with this result: `success`, `error`, `requeue_after` or `requeue`.
    pub(crate) fn ended(&self, result: &'static str) {
        let labels = [("controller", self.name.into()), ("result", result.into())];
        self.reconciles.get_or_create(&labels).inc();
    }
}

/// What is counted for one queue.
pub(crate) struct QueueMeters {
    pub(crate) name: &'static str,
    pub(crate) adds: Counter,
    pub(crate) retries: Counter,
    pub(crate) queued: Histogram,
    pub(crate) worked: Histogram,
}

/// 5 ms to a minute, as controller-runtime has them, and an hour: a migration is one reconcile.
fn reconcile_times() -> Histogram {
    Histogram::new([
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0, 3600.0,
    ])
}

/// Powers of ten from 10 ns to 1000 s, as client-go has them.
fn queue_times() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 12))
}

/// A family under its name.
fn registered<const N: usize, M, C>(
    registry: &mut Registry,
    name: &str,
    help: &str,
) -> Family<Labels<N>, M, C>
where
    Family<Labels<N>, M, C>: Default + Clone + Metric,
    C: MetricConstructor<M>,
{
    let family = Family::default();
    registry.register(name, help, family.clone());
    family
}

/// No code that could panic half-way runs under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
