//! Whether every API server is accounted for: as many identity Leases as servers that were asked, each another process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exuvia_write::{ErrorClass, RetryPolicy};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// A Lease is renewed every 10 s. One that was not for so long belongs to a server that is stopped or gone.
const RENEWED_WITHIN: Duration = Duration::from_secs(30);

/// An API server as its identity Lease shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) lease: String,
    pub(super) host: String,
    pub(super) renewed: Option<Timestamp>,
}

impl Identity {
    fn read(lease: &Lease) -> Self {
        let host = lease.labels().get("kubernetes.io/hostname").cloned();
        let spec = lease.spec.as_ref();
        Self {
            lease: lease.name_any(),
            host: host.unwrap_or_default(),
            renewed: spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0),
        }
    }

    /// What is to be said of a server whose Lease has been like this for so long; `None`: nothing yet.
    fn asleep(&self, unchanged: Duration) -> Option<String> {
        let Self { lease, host, .. } = self;
        (unchanged > RENEWED_WITHIN).then(|| {
            format!(
                "the API server on host {host} has not renewed its identity Lease for {} s: it may be stopped, and act on what it \
                 knew then when it goes on; if it is gone for good, delete the Lease {lease} in namespace kube-system",
                unchanged.as_secs()
            )
        })
    }
}

/// What the Leases have shown, by our own monotonic clock. Each server writes its `renewTime` by its own clock, which may be fast
/// or slow: only that it changes says that the server is awake.
#[derive(Debug, Default)]
pub(super) struct Renewals(BTreeMap<String, Renewal>);

#[derive(Clone, Copy, Debug)]
struct Renewal {
    time: Option<Timestamp>,
    /// When it was first and last seen like this.
    first: Instant,
    last: Instant,
    /// The server renewed it after this moment: until then it was seen with another time.
    after: Option<Instant>,
}

impl Renewals {
    /// Takes note of the Leases as they were read. `at` is before that, so that nothing counts as younger than it is.
    pub(super) fn see(&mut self, identities: &[Identity], at: Instant) {
        self.0
            .retain(|lease, _| identities.iter().any(|identity| identity.lease == *lease));
        for Identity { lease, renewed, .. } in identities {
            let new = Renewal {
                time: *renewed,
                first: at,
                last: at,
                after: None,
            };
            let known = self.0.entry(lease.clone()).or_insert(new);
            *known = if known.time == *renewed {
                Renewal { last: at, ..*known }
            } else {
                Renewal {
                    after: Some(known.last),
                    ..new
                }
            };
        }
    }

    /// Whether the server was awake after that moment.
    fn renewed_since(&self, identity: &Identity, since: Instant) -> bool {
        let known = self.0.get(&identity.lease);
        known.is_some_and(|known| known.after.is_some_and(|after| after >= since))
    }

    /// Those that have not been seen awake since then: how many, and what is to be said of those that may be asleep.
    pub(super) fn silent_since(&self, identities: &[Identity], since: Instant) -> (usize, Vec<String>) {
        let silent = identities
            .iter()
            .filter(|identity| !self.renewed_since(identity, since));
        let unchanged = |identity: &Identity| {
            let known = self.0.get(&identity.lease);
            known.map_or(Duration::ZERO, |known| known.last.duration_since(known.first))
        };
        let asleep = silent
            .clone()
            .filter_map(|identity| identity.asleep(unchanged(identity)));
        (silent.clone().count(), asleep.collect())
    }
}

/// The API servers that have an identity Lease. A stopped server's Lease stays for an hour (PITFALLS A40). `None`: it may not
/// be read.
pub(super) async fn leases(client: &Client) -> Result<Option<Vec<Identity>>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let of_servers = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    match RetryPolicy::default().read(|| leases.list(&of_servers)).await {
        Ok(list) => Ok(Some(list.items.iter().map(Identity::read).collect())),
        Err(error) => match ErrorClass::of(&error) {
            ErrorClass::Denied => Ok(None),
            _ => Err(error),
        },
    }
}

/// When the process behind this address started, as its own metrics tell: two addresses with one start are one server, and
/// an address with two starts is a load balancer. `None`: it cannot be told.
pub(super) async fn started(client: &Client) -> Option<String> {
    let read = async || RetryPolicy::default().read(|| metrics(client)).await.ok();
    let first = process_start(&read().await?)?.to_owned();
    let second = read().await?;
    (process_start(&second) == Some(&first)).then_some(first)
}

/// What an API server's `/metrics` says, as text: megabytes.
#[expect(clippy::disallowed_methods, reason = "it only reads: GET /metrics")]
pub async fn metrics(server: &Client) -> Result<String, kube::Error> {
    let request = http::Request::get("/metrics").body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    server.request_text(request).await
}

/// When the process started that these [`metrics`] are from, as the text has it: it tells one process from another, since
/// several may share one address.
pub fn process_start(metrics: &str) -> Option<&str> {
    let mut lines = metrics.lines();
    lines
        .find_map(|line| line.strip_prefix("process_start_time_seconds "))
        .map(str::trim)
}

/// Why these are not known to be all API servers; `None`: they are. `starts` has one entry for each server that was asked.
///
/// One Lease and one server asked: it is that one, whatever its address is. With more of them, an address may be a load
/// balancer in front of another, so each must be another process.
pub(super) fn why_not_all(leases: Option<usize>, asked: usize, starts: &[Option<String>]) -> Option<String> {
    let distinct = || {
        let mut known: Vec<&String> = starts.iter().flatten().collect();
        known.sort();
        known.dedup();
        known.len() == asked
    };
    match (leases, asked) {
        (_, 0) => {
            Some("no API server is known that could be asked itself; name them with --apiserver".to_owned())
        }
        (None, _) => Some("the identity Leases of the API servers in kube-system may not be read".to_owned()),
        (Some(leases), asked) if leases != asked => {
            let servers = match asked {
                1 => "1 API server was asked itself".to_owned(),
                asked => format!("{asked} API servers were asked themselves"),
            };
            let leases = match leases {
                1 => "is 1 identity Lease".to_owned(),
                leases => format!("are {leases} identity Leases"),
            };
            Some(format!("{servers}, and there {leases}"))
        }
        (_, 1) => None,
        _ if distinct() => None,
        _ => Some("the API servers that were asked cannot be told apart by their /metrics".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(of: &[&str]) -> Vec<Option<String>> {
        of.iter()
            .map(|start| Some((*start).to_owned()).filter(|start| !start.is_empty()))
            .collect()
    }

    fn are_all(leases: Option<usize>, asked: usize, starts: &[Option<String>]) -> bool {
        why_not_all(leases, asked, starts).is_none()
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
    fn one_server_and_one_lease_are_told_in_the_singular() {
        let why = |leases, asked| why_not_all(Some(leases), asked, &[]).unwrap_or_default();
        assert_eq!(
            why(2, 1),
            "1 API server was asked itself, and there are 2 identity Leases"
        );
        assert_eq!(
            why(1, 2),
            "2 API servers were asked themselves, and there is 1 identity Lease"
        );
    }

    fn identity(renewed: i64) -> [Identity; 1] {
        [Identity {
            lease: "apiserver-abc".into(),
            host: "b".into(),
            renewed: Timestamp::from_second(renewed).ok(),
        }]
    }

    #[test]
    fn a_server_is_awake_if_its_lease_changes_whatever_its_clock_says() {
        // An hour behind, as far as anybody can tell, and an hour ahead.
        for clock in [1_800_000_000, 1_800_007_200] {
            let since = Instant::now();
            let at = |seconds| since + Duration::from_secs(seconds);
            let mut renewals = Renewals::default();
            let silent = |renewals: &Renewals, clock| renewals.silent_since(&identity(clock), since).0;
            renewals.see(
                &identity(clock),
                since.checked_sub(Duration::from_secs(1)).unwrap_or(since),
            );
            renewals.see(&identity(clock), at(1));
            assert_eq!(silent(&renewals, clock), 1, "nobody knows when that was");
            renewals.see(&identity(clock + 10), at(9));
            assert_eq!(silent(&renewals, clock + 10), 0);
            renewals.see(&identity(clock + 10), at(11));
            assert_eq!(silent(&renewals, clock + 10), 0);
        }
    }

    #[test]
    fn a_renewal_that_may_have_been_before_does_not_count() {
        let since = Instant::now() + Duration::from_secs(60);
        let mut renewals = Renewals::default();
        renewals.see(
            &identity(1),
            since.checked_sub(Duration::from_secs(1)).unwrap_or(since),
        );
        renewals.see(&identity(2), since + Duration::from_secs(1));
        assert_eq!(renewals.silent_since(&identity(2), since).0, 1);
        renewals.see(&identity(3), since + Duration::from_secs(11));
        assert_eq!(renewals.silent_since(&identity(3), since).0, 0);
    }

    #[test]
    fn a_server_that_does_not_renew_its_lease_may_be_asleep() {
        let since = Instant::now();
        let mut renewals = Renewals::default();
        renewals.see(&identity(1_800_007_200), since);
        renewals.see(&identity(1_800_007_200), since + Duration::from_secs(20));
        let (silent, asleep) = renewals.silent_since(&identity(1_800_007_200), since);
        assert_eq!((silent, asleep.len()), (1, 0));
        renewals.see(&identity(1_800_007_200), since + Duration::from_secs(90));
        let (_, asleep) = renewals.silent_since(&identity(1_800_007_200), since);
        assert!(
            asleep[0].contains("host b") && asleep[0].contains("apiserver-abc") && asleep[0].contains("90 s"),
            "{asleep:?}"
        );
    }

    #[test]
    fn the_start_is_read_from_metrics() {
        let metrics = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7633e+09\nprocess_open_fds 7\n";
        assert_eq!(process_start(metrics), Some("1.7633e+09"));
        assert_eq!(process_start("up 1\n"), None);
    }
}
