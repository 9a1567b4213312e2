//! What was measured, as a table with ratios.

use serde::Serialize;

/// One run of one contestant.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) contest: &'static str,
    pub(crate) contestant: &'static str,
    pub(crate) objects: usize,
    /// From start to end, waiting for servers to settle not counted.
    pub(crate) seconds: f64,
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
    /// Revisions that etcd counted per object.
    pub(crate) etcd_writes_per_object: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_per_object: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_object: Option<f64>,
    /// Of somebody else who writes 20 other objects per second, before and meanwhile.
    pub(crate) bystander_p99_ms: (f64, f64),
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let objects = self.objects as f64;
        objects / self.seconds
    }
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
        let of = |who: &str| {
            results
                .iter()
                .find(|r| r.contest == contest && r.contestant == who)
                .map(Measured::per_second)
        };
        if let (Some(bare), Some(peer), Some(ours)) = (of("bare"), of("in-tree"), of("exuvia")) {
            println!(
                "{contest}: {:.2} of the limit, {:.1} times the in-tree migrator",
                ours / bare,
                ours / peer
            );
        }
    }
}
