//! What each metric is called, what it means and which labels it has, read from the registry itself: for documentation.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use exuvia_write::{ErrorClass, Outcome};

use super::{Metrics, lock};
use crate::{Claim, queue::WorkQueue};

/// A metric, as a page about metrics lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its name as Prometheus stores it, with `_total` or `_info` where that belongs to it.
    pub name: String,
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// The names of its labels, in the order in which they are shown.
    pub labels: Vec<String>,
    /// What it means.
    pub help: String,
}

impl Metrics {
    /// Shows each metric of this crate once, with an example of its labels. Never in an operator: use it with
    /// [`describe`](Self::describe).
    pub fn sample(&self) {
        let name = "storagemigration";
        let controller = self.of_controller(name);
        controller.ended("success");
        self.watch_restarted("customresourcedefinitions", "expired");
        self.0.writes.count(
            "patch".into(),
            "widgets".into(),
            Outcome::Written,
            Some(Duration::ZERO),
            Some(ErrorClass::Conflict),
        );
        self.observe_claim("exuvia", &Claim::always());
        let queue = WorkQueue::new(Duration::from_secs(1), self.of_queue(name));
        self.observe_queue(&Arc::new(queue));
    }

    /// Describes every metric, in the order of registration. Fails with the names of those that have no series yet: their
    /// labels are not known.
    ///
    /// ```
    /// let metrics = exuvia_runtime::Metrics::new("1.0.0");
    /// assert!(metrics.describe().is_err());
    /// metrics.sample();
    /// let all = metrics.describe().unwrap();
    /// assert_eq!((all[0].name.as_str(), all[0].labels.as_slice()), ("exuvia_build_info", &["version".to_owned()][..]));
    /// ```
    pub fn describe(&self) -> Result<Vec<MetricDescription>, Vec<String>> {
        let text = self.encode();
        let mut described: Vec<MetricDescription> = Vec::new();
        let mut shown = BTreeSet::new();
        for line in text.lines() {
            if let Some((name, help)) = after(line, "# HELP ") {
                shown.insert(name.to_owned());
                described.push(MetricDescription {
                    name: name.to_owned(),
                    kind: String::new(),
                    labels: Vec::new(),
                    help: help.trim_end_matches('.').to_owned(),
                });
            } else if let (Some((name, kind)), Some(last)) = (after(line, "# TYPE "), described.last_mut()) {
                kind.clone_into(&mut last.kind);
                match kind {
                    "counter" => last.name = format!("{name}_total"),
                    "info" => last.name = format!("{name}_info"),
                    _ => {}
                }
            } else if let (Some((_, rest)), Some(last)) = (line.split_once('{'), described.last_mut())
                && last.labels.is_empty()
            {
                last.labels = label_names(rest);
            }
        }
        let missing: Vec<String> = self
            .registered()
            .into_iter()
            .filter(|name| !shown.contains(name))
            .collect();
        if missing.is_empty() {
            Ok(described)
        } else {
            Err(missing)
        }
    }

    /// The names of all registered metrics. The registry shows them in its `Debug` form alone.
    fn registered(&self) -> Vec<String> {
        let registry = format!("{:?}", lock(&self.0.registry));
        registry
            .split("Descriptor { name: \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .map(str::to_owned)
            .collect()
    }
}

fn after<'a>(line: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    line.strip_prefix(start)?.split_once(' ')
}

/// Names of labels in `a="x",b="y"} 1`, without a histogram's `le`.
fn label_names(series: &str) -> Vec<String> {
    let (labels, _) = series.rsplit_once('}').unwrap_or((series, ""));
    let pairs = labels.split("\",");
    let names = pairs.filter_map(|pair| Some(pair.split_once("=\"")?.0));
    names.filter(|name| *name != "le").map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::{counter::Counter, family::Family};

    use super::*;

    #[test]
    fn a_metric_that_the_sample_forgets_is_named() {
        let metrics = Metrics::new("1.0.0");
        metrics.sample();
        assert!(metrics.describe().is_ok());
        let forgotten: Family<[(&'static str, String); 1], Counter> = Family::default();
        metrics.register("widgets_sold", "Widgets sold", forgotten.clone());
        assert_eq!(metrics.describe(), Err(vec!["widgets_sold".to_owned()]));
        forgotten
            .get_or_create(&[("color", "red, blue".to_owned())])
            .inc();
        let all = metrics.describe().unwrap_or_default();
        let sold = all.iter().find(|metric| metric.name == "widgets_sold_total");
        let expected = MetricDescription {
            name: "widgets_sold_total".to_owned(),
            kind: "counter".to_owned(),
            labels: vec!["color".to_owned()],
            help: "Widgets sold".to_owned(),
        };
        assert_eq!(sold, Some(&expected));
    }
}
