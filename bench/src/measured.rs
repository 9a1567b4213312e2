//! What was measured, as a table with ratios.

use serde::Serialize;

/// One run of one contestant.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) contest: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) objects: usize,
    /// Of how many CRDs, if of more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crds: Option<usize>,
    /// From start to end; waiting for servers to settle is counted in the fleet only.
    pub(crate) seconds: f64,
    /// The bare client's second round, in which no object is written any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elided_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rewrite_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verify_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preflight_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_rss_mib: Option<f64>,
    /// Without the program itself, which is larger in a debug build.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peak_heap_mib: Option<f64>,
    /// Revisions that etcd counted per object.
    pub(crate) etcd_writes_per_object: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_object: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_object: Option<f64>,
    /// Of somebody else who writes 20 other objects per second, on an idle cluster and meanwhile.
    pub(crate) bystander_p99_ms: (f64, f64),
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let objects = self.objects as f64;
        objects / self.seconds
    }

    /// The same as a result of this contest, told at once: a run takes long.
    pub(crate) fn shown(self, contest: &'static str) -> Self {
        let measured = Self { contest, ..self };
        let (who, rate) = (measured.contestant, measured.per_second());
        eprintln!("{contest} {who}: {rate:.0} objects/s");
        measured
    }
}

/// The middle one; of an even number the lower.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

pub(crate) fn print(results: &[Measured]) {
    println!(
        "{:<9} {:<8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8} {:>7} {:>16}",
        "contest",
        "who",
        "objects",
        "all /s",
        "rewr. s",
        "verify s",
        "preflt s",
        "conc.",
        "RSS MiB",
        "etcd w.",
        "p99 ms b/d"
    );
    for run in results {
        let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        println!(
            "{:<9} {:<8} {:>8} {:>9.0} {:>9} {:>9} {:>9} {:>6} {:>8} {:>7.2} {:>7.1} / {:>6.1}",
            run.contest,
            run.contestant,
            run.objects,
            run.per_second(),
            or_dash(run.rewrite_seconds),
            or_dash(run.verify_seconds),
            or_dash(run.preflight_seconds),
            run.concurrency.map_or("-".to_owned(), |value| value.to_string()),
            or_dash(run.peak_rss_mib),
            run.etcd_writes_per_object,
            run.bystander_p99_ms.0,
            run.bystander_p99_ms.1,
        );
    }
    for run in results.iter().filter(|run| run.requests_per_object.is_some()) {
        println!(
            "{} on the wire: {:.2} requests and {:.0} bytes per object",
            run.contest,
            run.requests_per_object.unwrap_or_default(),
            run.bytes_per_object.unwrap_or_default()
        );
    }
    for contest in ["plain", "webhook"] {
        ratios(results, contest);
    }
    memory(results);
    for run in results {
        if let Some(crds) = run.crds {
            let seconds = run.seconds;
            println!("fleet: {crds} CRDs took {seconds:.1} s, the wait for API servers included");
        }
    }
}

/// How the contestants of one contest compare, by the medians of their turns.
fn ratios(results: &[Measured], contest: &str) {
    let of = |who: &str, what: fn(&Measured) -> Option<f64>| {
        let runs = results
            .iter()
            .filter(|r| r.contest == contest && r.contestant == who);
        median(runs.filter_map(what).collect())
    };
    // Per object, as the peer may have fewer of them.
    let each = |who: &str| of(who, |run| Some(1.0 / run.per_second()));
    #[allow(clippy::cast_precision_loss)]
    let elided = of("bare", |run| Some(run.elided_seconds? / run.objects as f64));
    let (Some(rewritten), Some(elided)) = (each("bare"), elided) else {
        return;
    };
    println!(
        "{contest}: a rewrite takes the bare client {:.2} ms, an elided patch {:.2} ms",
        1000.0 * rewritten,
        1000.0 * elided
    );
    if let Some(proof) = each("proof") {
        println!(
            "{contest}: proof: {:.2} of the limit (one rewrite per object)",
            rewritten / proof
        );
    }
    if let Some(full) = each("full") {
        let limit = rewritten + elided;
        println!(
            "{contest}: full: {:.2} of the limit (one rewrite and one elided patch per object)",
            limit / full
        );
    }
    if let (Some(peer), Some(ours)) = (each("in-tree"), each("proof")) {
        println!("{contest}: proof: {:.1} times the in-tree migrator", peer / ours);
    }
    for who in ["proof", "full"] {
        let beside = of(who, |run| Some(run.bystander_p99_ms.1 / run.bystander_p99_ms.0));
        if let Some(beside) = beside {
            println!("{contest}: {who}: a bystander's p99 is {beside:.1} times that at rest");
        }
    }
}

fn memory(results: &[Measured]) {
    let mut runs = results.iter().filter(|run| run.contest == "memory");
    let (first, last) = (runs.next(), runs.next_back());
    let rss = |run: &Measured| run.peak_rss_mib;
    if let (Some(few), Some(many)) = (first.and_then(rss), last.and_then(rss)) {
        println!(
            "memory: {:+.0} % with the larger number of objects",
            100.0 * (many / few - 1.0)
        );
    }
}
