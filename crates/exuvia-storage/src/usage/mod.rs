//! Who asks for which version: what each API server counts, requests and open watches, in its own metrics.

mod prometheus;

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_write::{ErrorClass, brief};
use kube::Client;
use serde::Serialize;

use self::prometheus::samples;

/// Counts a request when it ends, so that a watch shows only then (PITFALLS A37).
const REQUESTS: &str = "apiserver_request_total";
/// Counts what has not ended yet, watches above all.
const OPEN: &str = "apiserver_longrunning_requests";
/// Tells one process from another: behind one address there may be several.
const STARTED: &str = "process_start_time_seconds";

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
            // One that was open at the beginning asked for it as well, if it has ended meanwhile.
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
    pub why: String,
    /// Whether it is a right that is missing.
    pub forbidden: bool,
}

impl Unread {
    fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            forbidden: false,
        }
    }
}

/// One reading of one server.
struct Reading {
    started: Option<f64>,
    counts: BTreeMap<Key, Counts>,
}

/// What one API server counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// How it is called: its address.
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
}

impl Usage {
    /// Asks each server for these resources (group and plural): once, or at the beginning and at the end of `within`.
    pub async fn observe(
        servers: &[(String, Client)],
        resources: &[(&str, &str)],
        within: Option<Duration>,
    ) -> Self {
        let all = || {
            let mut readings = Vec::new();
            for (_, client) in servers {
                readings.push(read(client, resources));
            }
            futures::future::join_all(readings)
        };
        let first = all().await;
        let seen: Vec<_> = if let Some(within) = within {
            tokio::time::sleep(within).await;
            let last = all().await.into_iter().zip(first);
            last.map(|(last, first)| since(&last?, &first?)).collect()
        } else {
            first.into_iter().map(|reading| Ok(reading?.counts)).collect()
        };
        let names = servers.iter().map(|(name, _)| name.clone());
        Self {
            within,
            servers: names
                .zip(seen)
                .map(|(name, seen)| Server { name, seen })
                .collect(),
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

/// What came between two readings. Counters of two processes cannot be compared, whichever is larger.
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

#[expect(clippy::disallowed_methods, reason = "it only reads: GET /metrics")]
async fn read(client: &Client, resources: &[(&str, &str)]) -> Result<Reading, Unread> {
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .map_err(|error| Unread::new(error.to_string()))?;
    let text = client.request_text(request).await.map_err(|error| Unread {
        why: brief(&error),
        forbidden: ErrorClass::of(&error) == ErrorClass::Denied,
    })?;
    Ok(Reading {
        started: samples(&text, STARTED).next().map(|sample| sample.value),
        counts: counts(&text, resources)?,
    })
}

/// What the text says of these resources.
fn counts(text: &str, resources: &[(&str, &str)]) -> Result<BTreeMap<Key, Counts>, Unread> {
    // Each API server has answered something.
    if samples(text, REQUESTS).next().is_none() {
        return Err(Unread::new(format!(
            "it does not have {REQUESTS}, as an API server's has"
        )));
    }
    let mut all: BTreeMap<Key, Counts> = BTreeMap::new();
    for (metric, is_open) in [(REQUESTS, false), (OPEN, true)] {
        for sample in samples(text, metric) {
            let (group, plural) = (sample.label("group"), sample.label("resource"));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a count
            let count = sample.value as u64;
            if count == 0 || !resources.contains(&(group, plural)) || !sample.label("dry_run").is_empty() {
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
        let reading = |started| Reading {
            started,
            counts: counts(TEXT, &[("example.com", "widgets")]).unwrap(),
        };
        let key = ("example.com".into(), "widgets".into(), "v1alpha1".into());
        let same = since(&reading(Some(1.5)), &reading(Some(1.5))).unwrap();
        assert_eq!(same[&key].total(), 0);
        assert!(since(&reading(Some(1.5)), &reading(Some(2.5))).is_err());
    }

    #[test]
    fn a_text_that_no_api_server_writes_is_not_taken_for_silence() {
        assert!(counts("<html>log in</html>", &[]).is_err());
    }
}
