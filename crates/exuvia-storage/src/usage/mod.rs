//! How often each version is asked for: what each API server counts, requests and open watches, in its own metrics.

mod prometheus;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exuvia_runtime::servers::{ApiServers, NoAnswer, metrics, process_start};
use exuvia_write::{ErrorClass, Name, Redacted, brief, redacted};
use kube::Client;
use serde::Serialize;

use self::prometheus::{Sample, samples};
pub use self::users::{Manager, ServerCounts, Users, still_writes};

/// Counts a request when it ends, so that a watch shows only then (PITFALLS A37).
const REQUESTS: &str = "apiserver_request_total";
/// Counts what has not ended yet, watches above all.
const OPEN: &str = "apiserver_longrunning_requests";

/// What one API server counts for one version of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Requests by verb, without dry-runs.
    pub requests: BTreeMap<String, u64>,
    /// Watches that are open.
    pub watches: u64,
}

impl Counts {
    /// How many requests in all.
    pub fn total(&self) -> u64 {
        self.requests.values().sum()
    }

    /// What came since.
    fn since(&self, before: &Self) -> Self {
        let added = |(verb, now): (&String, &u64)| {
            let then = before.requests.get(verb).copied().unwrap_or_default();
            (*now > then).then(|| (verb.clone(), now - then))
        };
        Self {
            requests: self.requests.iter().filter_map(added).collect(),
            // A watch that was open at the beginning counts, even if it has ended meanwhile.
            watches: self.watches.max(before.watches),
        }
    }
}

/// Group, plural and version.
type Key = (String, String, String);

/// Why an API server's counters are not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unread {
    /// In one sentence.
    pub why: Redacted,
    /// Whether it is a right that is missing.
    pub forbidden: bool,
    /// Whether it was told by its flags not to count, or not by version.
    pub uncounted: bool,
}

impl Unread {
    fn new(why: impl Into<Redacted>) -> Self {
        Self {
            why: why.into(),
            forbidden: false,
            uncounted: false,
        }
    }

    fn uncounted(why: impl Into<Redacted>) -> Self {
        Self {
            uncounted: true,
            ..Self::new(why)
        }
    }
}

/// Why there may be API servers that were not asked: a watch that is open on one of them would not be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// The identity Leases, by which they are counted, may not be read.
    NotCounted,
    /// Fewer processes were asked than there are identity Leases, or there are no Leases at all.
    Missing {
        /// How many processes were asked.
        asked: usize,
        /// How many Leases there are.
        leases: usize,
    },
}

impl Unasked {
    /// Each process counts once, whatever addresses it has: two readings with one start are of one process. A server that
    /// could not be read counts, too: that it was not read is said of it by name.
    fn of(leases: Option<usize>, readings: &Readings) -> Option<Self> {
        let read = readings.iter().filter_map(|(_, reading)| reading.as_ref().ok());
        let processes: BTreeSet<Option<&String>> = read.map(|reading| reading.started.as_ref()).collect();
        let unread = readings.iter().filter(|(_, reading)| reading.is_err()).count();
        let asked = processes.len() + unread;
        match leases {
            None => Some(Self::NotCounted),
            Some(leases) if leases == 0 || asked < leases => Some(Self::Missing { asked, leases }),
            Some(_) => None,
        }
    }
}

/// One reading of each server, by its name.
type Readings = Vec<(String, Result<Reading, Unread>)>;

/// One reading of one server.
struct Reading {
    /// Tells one process from another: several may share one address.
    started: Option<String>,
    counts: BTreeMap<Key, Counts>,
}

/// What one API server counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its name: the address.
    pub name: String,
    /// By group, plural and version; or why it cannot be read.
    seen: Result<BTreeMap<Key, Counts>, Unread>,
}

/// What API servers counted, each asked itself: since their start, or within a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Since when the requests are counted; `None`: since each server's start.
    pub within: Option<Duration>,
    /// The servers that were asked.
    pub servers: Vec<Server>,
    /// Why there may be others that were not asked; `None`: these are all.
    pub unasked: Option<Unasked>,
}

impl Usage {
    /// Asks each server for these resources (group and plural): once, or at the beginning and at the end of `within`.
    /// `client` is asked which servers there are; where the cluster lists none, the one that it reaches is asked.
    pub async fn observe(
        servers: &ApiServers,
        client: &Client,
        resources: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Self {
        let (first, mut unasked) = readings(servers, client, resources).await;
        let servers = if let Some(within) = within {
            tokio::time::sleep(within).await;
            let (last, unasked_last) = readings(servers, client, resources).await;
            unasked = unasked.or(unasked_last);
            between(first, last)
        } else {
            let seen = |(name, reading): (String, Result<Reading, Unread>)| Server {
                name,
                seen: reading.map(|reading| reading.counts),
            };
            first.into_iter().map(seen).collect()
        };
        Self {
            within,
            servers,
            unasked,
        }
    }

    /// One server that counts this for v1alpha1 of widgets.example.com, or cannot be read.
    #[cfg(test)]
    pub(crate) fn counted(name: &str, within: Option<Duration>, counts: Result<Counts, Unread>) -> Self {
        let key = ("example.com".into(), "widgets".into(), "v1alpha1".into());
        Self {
            within,
            servers: vec![Server {
                name: name.to_owned(),
                seen: counts.map(|counts| BTreeMap::from([(key, counts)])),
            }],
            unasked: None,
        }
    }

    /// What each server counts for one version; or why it cannot be read.
    pub fn at<'a>(
        &'a self,
        group: &str,
        plural: &str,
        version: &str,
    ) -> impl Iterator<Item = (&'a str, Result<Counts, &'a Unread>)> {
        let key = (group.to_owned(), plural.to_owned(), version.to_owned());
        self.servers.iter().map(move |server| {
            let counts = match &server.seen {
                Ok(seen) => Ok(seen.get(&key).cloned().unwrap_or_default()),
                Err(unread) => Err(unread),
            };
            (server.name.as_str(), counts)
        })
    }
}

/// What was added between two readings. Counters of two processes cannot be compared.
fn since(last: &Reading, first: &Reading) -> Result<BTreeMap<Key, Counts>, Unread> {
    if last.started != first.started {
        return Err(Unread::new(
            "two processes answered: the API server was restarted meanwhile, or there are several behind this address",
        ));
    }
    let none = Counts::default();
    let keys = last.counts.keys().chain(first.counts.keys());
    let added = keys.map(|key| {
        let then = first.counts.get(key).unwrap_or(&none);
        (key.clone(), last.counts.get(key).unwrap_or(&none).since(then))
    });
    Ok(added.collect())
}

/// What each server counted between two readings, by name. A server that was there only once cannot be judged.
fn between(first: Readings, last: Readings) -> Vec<Server> {
    let once = || Unread::new("it was listed only once while requests were counted");
    let mut last: BTreeMap<_, _> = last.into_iter().collect();
    let mut servers = Vec::new();
    for (name, first) in first {
        let last = last.remove(&name).unwrap_or_else(|| Err(once()));
        let seen = last.and_then(|last| since(&last, &first?));
        servers.push(Server { name, seen });
    }
    let later = last.into_keys().map(|name| Server {
        name,
        seen: Err(once()),
    });
    servers.extend(later);
    servers
}

/// What each server counts now, or why that is not known; and why there may be others.
async fn readings(
    servers: &ApiServers,
    client: &Client,
    resources: &[(&str, &str)],
) -> (Readings, Option<Unasked>) {
    let asked = servers
        .ask_at_least_one(client, |server| async move {
            match metrics(&server).await {
                Ok(text) => Ok(read(&text, resources)),
                // It answers, and does not tell.
                Err(error @ kube::Error::Api(_)) => Ok(Err(Unread {
                    why: Redacted::from_server(&brief(&error)),
                    forbidden: ErrorClass::of(&error) == ErrorClass::Denied,
                    uncounted: false,
                })),
                Err(error) => Err(error),
            }
        })
        .await;
    match asked {
        Ok(asked) => {
            let answers = asked.answers.into_iter();
            let readings = answers.map(|answer| (answer.server, said(answer.said))).collect();
            let unasked = Unasked::of(asked.leases, &readings);
            (readings, unasked)
        }
        Err(error) => {
            let unread = Unread::new(Redacted::from_server(&brief(&error)));
            (vec![("the API servers".to_owned(), Err(unread))], None)
        }
    }
}

fn said(said: Result<Result<Reading, Unread>, NoAnswer>) -> Result<Reading, Unread> {
    said.unwrap_or_else(|no_answer| {
        Err(Unread::new(match no_answer {
            NoAnswer::Failed(error) => Redacted::from_server(&brief(&error)),
            no_answer => redacted!("it {}", Redacted::from_error(&no_answer)),
        }))
    })
}

fn read(text: &str, resources: &[(&str, &str)]) -> Result<Reading, Unread> {
    Ok(Reading {
        started: process_start(text).map(str::to_owned),
        counts: counts(text, resources)?,
    })
}

/// What the text says of these resources.
fn counts(text: &str, resources: &[(&str, &str)]) -> Result<BTreeMap<Key, Counts>, Unread> {
    // Every API server has answered some request, and watches its own objects: without a sample the metric is turned off.
    for metric in [REQUESTS, OPEN] {
        if samples(text, metric).next().is_none() {
            return Err(Unread::uncounted(redacted!(
                "it does not have {}, as an API server's has",
                Name(metric)
            )));
        }
    }
    let mut all: BTreeMap<Key, Counts> = BTreeMap::new();
    for (metric, is_open) in [(REQUESTS, false), (OPEN, true)] {
        for sample in samples(text, metric) {
            let (group, plural) = (sample.label("group"), sample.label("resource"));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a count
            let count = sample.value as u64;
            if count == 0 {
                continue;
            }
            if let Some(label) = uncounted_label(&sample, resources) {
                return Err(Unread::uncounted(redacted!(
                    "its {} does not tell the {} of some requests, which may be for this resource",
                    Name(metric),
                    label
                )));
            }
            if !resources.contains(&(group, plural)) || !sample.label("dry_run").is_empty() {
                continue;
            }
            let key = (
                group.to_owned(),
                plural.to_owned(),
                sample.label("version").to_owned(),
            );
            let counts = all.entry(key).or_default();
            if is_open {
                counts.watches += count;
            } else {
                *counts
                    .requests
                    .entry(sample.label("verb").to_owned())
                    .or_default() += count;
            }
        }
    }
    Ok(all)
}

/// The label that a sample does not tell, if it may be about one of these resources: an API server writes `unexpected` for
/// each value that its flag `--allow-metric-labels` does not list.
fn uncounted_label(sample: &Sample, resources: &[(&str, &str)]) -> Option<&'static str> {
    const UNEXPECTED: &str = "unexpected";
    let is = |label: &str, value: &str| [value, UNEXPECTED].contains(&sample.label(label));
    let mut of_ours = resources.iter();
    if !of_ours.any(|(group, plural)| is("group", group) && is("resource", plural)) {
        return None;
    }
    let labels = ["group", "resource", "version", "dry_run"];
    labels.into_iter().find(|label| sample.label(label) == UNEXPECTED)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
apiserver_request_total{code="200",component="apiserver",dry_run="",group="example.com",resource="widgets",scope="cluster",subresource="",verb="LIST",version="v1alpha1"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="example.com",resource="widgets",scope="namespace",subresource="",verb="LIST",version="v1alpha1"} 4
apiserver_request_total{code="200",component="apiserver",dry_run="All",group="example.com",resource="widgets",scope="resource",subresource="",verb="PATCH",version="v1alpha1"} 9
apiserver_request_total{code="200",component="apiserver",dry_run="",group="example.com",resource="widgets",scope="cluster",subresource="",verb="LIST",version="v1"} 50
apiserver_request_total{code="200",component="apiserver",dry_run="",group="other.com",resource="widgets",scope="cluster",subresource="",verb="LIST",version="v1alpha1"} 50
apiserver_longrunning_requests{component="apiserver",group="example.com",resource="widgets",scope="cluster",subresource="",verb="WATCH",version="v1alpha1"} 2
"#;

    fn at(text: &str) -> Counts {
        let all = counts(text, &[("example.com", "widgets")]).unwrap();
        let key = ("example.com".into(), "widgets".into(), "v1alpha1".into());
        all.get(&key).cloned().unwrap_or_default()
    }

    #[test]
    fn requests_are_summed_by_verb_without_dry_runs_and_open_watches_apart() {
        let seen = at(TEXT);
        assert_eq!(seen.requests, BTreeMap::from([("LIST".to_owned(), 7)]));
        assert_eq!((seen.total(), seen.watches), (7, 2));
    }

    #[test]
    fn a_metric_that_is_turned_off_or_does_not_tell_the_version_is_not_silence() {
        let resources = [("example.com", "widgets")];
        let without: String = TEXT
            .lines()
            .filter(|line| !line.starts_with(OPEN))
            .collect::<Vec<_>>()
            .join("\n");
        let unread = counts(&without, &resources).unwrap_err();
        assert!(unread.uncounted && unread.why.contains(OPEN), "{unread:?}");
        for (value, label) in [
            ("v1alpha1", "version"),
            ("widgets", "resource"),
            ("example.com", "group"),
        ] {
            let hidden = TEXT.replace(
                &format!("{label}=\"{value}\""),
                &format!("{label}=\"unexpected\""),
            );
            let unread = counts(&hidden, &resources).unwrap_err();
            assert!(unread.uncounted && unread.why.contains(label), "{unread:?}");
        }
        let others = TEXT.replace(
            "other.com\",resource=\"widgets\"",
            "other.com\",resource=\"unexpected\"",
        );
        assert!(counts(&others, &resources).is_ok(), "of another group");
        let closed = TEXT.replace("version=\"v1alpha1\"} 2", "version=\"unexpected\"} 0");
        assert!(counts(&closed, &resources).is_ok(), "none is open");
    }

    #[test]
    fn what_came_within_a_time_is_what_was_added_or_was_open() {
        let (before, mut after) = (at(TEXT), at(TEXT));
        assert_eq!(after.since(&before).total(), 0);
        after.requests.insert("GET".into(), 1);
        after.watches = 0;
        let within = after.since(&before);
        assert_eq!((within.total(), within.watches), (1, 2), "open at the beginning");
    }

    #[test]
    fn counters_of_two_processes_are_not_compared() {
        let reading = |started: &str| Reading {
            started: Some(started.to_owned()),
            counts: counts(TEXT, &[("example.com", "widgets")]).unwrap(),
        };
        let key = ("example.com".into(), "widgets".into(), "v1alpha1".into());
        let same = since(&reading("1.5"), &reading("1.5")).unwrap();
        assert_eq!(same[&key].total(), 0);
        assert!(since(&reading("1.5"), &reading("2.5")).is_err());
    }

    #[test]
    fn each_process_is_counted_once_and_compared_with_the_leases() {
        let reading = |started: Option<&str>| {
            Ok(Reading {
                started: started.map(str::to_owned),
                counts: BTreeMap::new(),
            })
        };
        let unasked = |leases, of: Vec<Result<Reading, Unread>>| {
            let named = |(index, reading)| (format!("server-{index}"), reading);
            Unasked::of(leases, &of.into_iter().enumerate().map(named).collect())
        };
        let missing = |asked, leases| Some(Unasked::Missing { asked, leases });
        assert_eq!(
            unasked(Some(1), vec![reading(None)]),
            None,
            "a server that does not tell"
        );
        assert_eq!(
            unasked(Some(2), vec![reading(Some("1.5")), reading(Some("2.5"))]),
            None
        );
        assert_eq!(
            unasked(Some(1), vec![reading(Some("1.5")), reading(Some("1.5"))]),
            None,
            "one process, two addresses"
        );
        assert_eq!(unasked(Some(2), vec![reading(Some("1.5"))]), missing(1, 2));
        assert_eq!(
            unasked(Some(2), vec![reading(Some("1.5")), reading(Some("1.5"))]),
            missing(1, 2),
            "a load balancer in front of one that was asked"
        );
        assert_eq!(
            unasked(Some(2), vec![reading(Some("1.5")), Err(Unread::new("503"))]),
            None,
            "it is named"
        );
        assert_eq!(unasked(Some(0), vec![reading(Some("1.5"))]), missing(1, 0));
        assert_eq!(
            unasked(None, vec![reading(Some("1.5"))]),
            Some(Unasked::NotCounted)
        );
    }

    #[test]
    fn a_text_that_is_not_from_an_api_server_is_an_error() {
        assert!(counts("<html>log in</html>", &[]).is_err());
    }
}
