//! Whether every API server is accounted for: as many identity Leases as servers that were asked, each another process.

use exuvia_write::ErrorClass;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, Client};

/// How many API servers have an identity Lease. A stopped server's Lease stays for an hour (PITFALLS A40). `None`: it may not
/// be read.
pub(super) async fn leases(client: &Client) -> Result<Option<usize>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let of_servers = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    match leases.list_metadata(&of_servers).await {
        Ok(list) => Ok(Some(list.items.len())),
        Err(error) => match ErrorClass::of(&error) {
            ErrorClass::Denied => Ok(None),
            _ => Err(error),
        },
    }
}

/// When the process behind this address started, as its own metrics tell: two addresses with one start are one server, and
/// an address with two starts is a load balancer. `None`: it cannot be told.
pub(super) async fn started(client: &Client) -> Option<String> {
    let first = start_in_metrics(client).await?;
    let second = start_in_metrics(client).await?;
    (first == second).then_some(first)
}

#[expect(clippy::disallowed_methods, reason = "it only reads: GET /metrics")]
async fn start_in_metrics(client: &Client) -> Option<String> {
    let request = http::Request::get("/metrics").body(Vec::new()).ok()?;
    let metrics = client.request_text(request).await.ok()?;
    start_in(&metrics).map(str::to_owned)
}

fn start_in(metrics: &str) -> Option<&str> {
    let mut lines = metrics.lines();
    lines
        .find_map(|line| line.strip_prefix("process_start_time_seconds "))
        .map(str::trim)
}

/// Whether these are all API servers. `starts` has one entry for each server that was asked.
///
/// One Lease and one server asked: it is that one, whatever its address is. With more of them, an address may be a load
/// balancer in front of another, so each must be a process of its own.
pub(super) fn are_all(leases: Option<usize>, asked: usize, starts: &[Option<String>]) -> bool {
    let distinct = || {
        let mut known: Vec<&String> = starts.iter().flatten().collect();
        known.sort();
        known.dedup();
        known.len() == asked
    };
    asked > 0 && leases == Some(asked) && (asked == 1 || distinct())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(of: &[&str]) -> Vec<Option<String>> {
        of.iter()
            .map(|start| Some((*start).to_owned()).filter(|start| !start.is_empty()))
            .collect()
    }

    #[test]
    fn as_many_leases_as_servers_each_another_process() {
        assert!(are_all(Some(1), 1, &starts(&[""])));
        assert!(are_all(Some(2), 2, &starts(&["1.5e9", "1.6e9"])));
    }

    #[test]
    fn a_server_that_nobody_asked_or_a_load_balancer_is_not_accounted_for() {
        assert!(!are_all(Some(2), 1, &starts(&["a"])), "one was not asked");
        assert!(!are_all(Some(1), 2, &starts(&["a", "b"])), "one has no Lease");
        assert!(!are_all(None, 1, &starts(&["a"])), "Leases may not be read");
        assert!(!are_all(Some(0), 0, &[]), "none is known");
        assert!(
            !are_all(Some(2), 2, &starts(&["a", "a"])),
            "one process, two addresses"
        );
        assert!(!are_all(Some(2), 2, &starts(&["a", ""])), "one cannot be told");
    }

    #[test]
    fn the_start_is_read_from_metrics() {
        let metrics = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7633e+09\nprocess_open_fds 7\n";
        assert_eq!(start_in(metrics), Some("1.7633e+09"));
        assert_eq!(start_in("up 1\n"), None);
    }
}
