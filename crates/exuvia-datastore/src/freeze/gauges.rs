//! What one API server's `/metrics` say about writes under way: the text is read line by line, since it is megabytes.

use std::time::Duration;

use kube::Client;

const EXECUTING: &str = "apiserver_flowcontrol_current_executing_requests";
const IN_QUEUE: &str = "apiserver_flowcontrol_current_inqueue_requests";
const STARTED: &str = "process_start_time_seconds ";
/// Longer than a question to a server may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is under way at one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Gauges {
    /// Which process answered, by the time of its start: an address may be another process tomorrow.
    pub(super) process: String,
    /// Whether a request was ever sorted by our schema there. Only then it is known that the server has it.
    pub(super) has_our_schema: bool,
    /// Writes to the source that are executed or wait, as far as our level counts them.
    pub(super) ours: u64,
    /// What is executed at levels whose schemas are asked before ours.
    pub(super) earlier: u64,
}

/// Asks one server.
pub(super) async fn read(client: &Client, ours: &str, earlier: &[String]) -> Result<Gauges, kube::Error> {
    let request = http::Request::get("/metrics").body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    let metrics = exuvia_write::read(client, request, TIMEOUT).await?;
    Ok(of_text(&String::from_utf8_lossy(&metrics), ours, earlier))
}

/// The pure part of [`read`]. `ours` is the name of both schema and level.
fn of_text(metrics: &str, ours: &str, earlier: &[String]) -> Gauges {
    let mut gauges = Gauges::default();
    for line in metrics.lines() {
        if let Some(start) = line.strip_prefix(STARTED) {
            start.trim().clone_into(&mut gauges.process);
        }
        let is_executing = line.starts_with(EXECUTING);
        if !is_executing && !line.starts_with(IN_QUEUE) {
            continue;
        }
        let Some((head, value)) = line.rsplit_once(' ') else {
            continue;
        };
        // A value that is not understood counts as something under way.
        let value = value.parse::<f64>().map_or(1, as_count);
        let level = label(head, "priority_level");
        if level == Some(ours) {
            gauges.ours += value;
            gauges.has_our_schema |= is_executing && label(head, "flow_schema") == Some(ours);
        } else if level.is_some_and(|level| earlier.iter().any(|earlier| earlier == level)) {
            gauges.earlier += value;
        }
    }
    gauges
}

/// A gauge is a float by format only. Anything that is not zero counts.
fn as_count(value: f64) -> u64 {
    if value <= 0.0 {
        0
    } else {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and its size does not matter"
        )]
        let count = value.ceil() as u64;
        count.max(1)
    }
}

fn label<'a>(head: &'a str, key: &str) -> Option<&'a str> {
    let at = head.find(&format!("{key}=\""))? + key.len() + 2;
    head[at..].split('"').next()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# HELP apiserver_flowcontrol_current_executing_requests x
apiserver_flowcontrol_current_executing_requests{flow_schema="exempt",priority_level="exempt"} 2
apiserver_flowcontrol_current_executing_requests{flow_schema="exuvia-m",priority_level="exuvia-m"} 1
apiserver_flowcontrol_current_executing_requests{flow_schema="service-accounts",priority_level="workload-low"} 40
apiserver_flowcontrol_current_inqueue_requests{flow_schema="exuvia-m",priority_level="exuvia-m"} 3
apiserver_flowcontrol_current_executing_seats{flow_schema="exuvia-m",priority_level="exuvia-m"} 70
process_start_time_seconds 1.7633e+09
"#;

    #[test]
    fn what_is_executed_and_what_waits_are_read() {
        let gauges = of_text(METRICS, "exuvia-m", &["exempt".into()]);
        let expected = Gauges {
            process: "1.7633e+09".into(),
            has_our_schema: true,
            ours: 4,
            earlier: 2,
        };
        assert_eq!(gauges, expected);
    }

    #[test]
    fn a_server_that_never_sorted_by_our_schema_is_not_known_to_have_it() {
        let other = METRICS.replace("exuvia-m", "exuvia-n");
        let gauges = of_text(&other, "exuvia-m", &[]);
        assert!(!gauges.has_our_schema);
        assert_eq!((gauges.ours, gauges.earlier), (0, 0));
    }

    #[test]
    fn a_value_that_is_not_understood_counts_as_under_way() {
        let odd = METRICS.replace("\"} 1\n", "\"} NaNsense\n");
        assert_eq!(of_text(&odd, "exuvia-m", &[]).ours, 4);
        assert_eq!(as_count(0.0), 0);
        assert_eq!(as_count(0.2), 1);
    }
}
