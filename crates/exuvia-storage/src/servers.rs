//! The API servers, asked one by one whether they have understood the newest storage version.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, Config};

use crate::definition::Definition;
use crate::protocol::Settled;

/// Requests in flight keep the old codec for up to 34 s after a server has understood (PITFALLS A4).
const IN_FLIGHT: Duration = Duration::from_secs(35);

/// How long a server may take to answer for its discovery before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// The API servers of one cluster, and what each was last heard to say.
#[derive(Debug)]
pub struct Servers {
    servers: Vec<Server>,
    /// The flip that the observations below are about.
    about: Option<(String, i64)>,
    seen: BTreeMap<String, Seen>,
}

struct Server {
    name: String,
    client: Client,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// What one server has shown since the flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The old version, or no answer after it had answered before.
    Old,
    /// The new version, first at this time.
    New(Instant),
    /// It never answered: from here it cannot be asked.
    Silent,
}

impl Servers {
    /// The addresses in `EndpointSlice` `kubernetes`, where they may be read, and those given.
    pub async fn find(config: &Config, client: &Client, given: &[http::Uri]) -> Result<Self, kube::Error> {
        let mut servers = Vec::new();
        for uri in listed(client).await {
            // An address says nothing about the certificate's names, but every API server's certificate has this one.
            servers.push(Server::at(
                uri,
                config.clone(),
                Some("kubernetes.default.svc".to_owned()),
            )?);
        }
        for uri in given {
            servers.push(Server::at(uri.clone(), config.clone(), None)?);
        }
        Ok(Self {
            servers,
            about: None,
            seen: BTreeMap::new(),
        })
    }

    /// Asks each server once and says whether all are settled.
    pub async fn look(&mut self, definition: &Definition, settle: Duration) -> Settled {
        let key = (definition.crd.uid.clone(), definition.crd.generation);
        if self.about.as_ref() != Some(&key) {
            self.about = Some(key);
            self.seen.clear();
        }
        let expected = storage_version_hash(&definition.group, &definition.crd.storage, &definition.kind);
        let version = definition
            .endpoint()
            .map(|version| definition.api_version(version));
        let answers = futures::future::join_all(self.servers.iter().map(|server| {
            let version = version.clone();
            async move { server.hash(version.as_deref()?, &definition.plural).await }
        }))
        .await;
        let now = Instant::now();
        for (server, answer) in self.servers.iter().zip(answers) {
            let before = self.seen.get(&server.name).copied();
            let seen = match (answer, before) {
                (Some(hash), Some(Seen::New(since))) if hash == expected => Seen::New(since),
                (Some(hash), _) if hash == expected => Seen::New(now),
                (Some(_), _) => Seen::Old,
                (None, None | Some(Seen::Silent)) => Seen::Silent,
                // It has shown the new version and is gone: nothing it could still do.
                (None, Some(Seen::New(since))) => Seen::New(since),
                (None, Some(Seen::Old)) => Seen::Old,
            };
            self.seen.insert(server.name.clone(), seen);
        }
        // An unserved storage version has no hash in discovery, so nobody can be asked.
        let served = definition
            .served()
            .any(|version| version == definition.crd.storage);
        let since_change = definition.spec_changed_at.and_then(since);
        settled(
            if served {
                &self.seen
            } else {
                const { &BTreeMap::new() }
            },
            since_change,
            settle,
            now,
        )
    }
}

impl Server {
    fn at(uri: http::Uri, mut config: Config, certificate_name: Option<String>) -> Result<Self, kube::Error> {
        config.tls_server_name = certificate_name;
        let name = uri
            .authority()
            .map_or_else(|| uri.to_string(), ToString::to_string);
        config.cluster_url = uri;
        config.default_retry = false;
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        Ok(Self {
            name,
            client: Client::try_from(config)?,
        })
    }

    /// The resource's storage version hash in this server's own discovery; `None`: no answer.
    async fn hash(&self, api_version: &str, plural: &str) -> Option<String> {
        let asking = self.client.list_api_group_resources(api_version);
        let list = tokio::time::timeout(PATIENCE, asking).await.ok()?.ok()?;
        let resource = list
            .resources
            .into_iter()
            .find(|resource| resource.name == plural);
        Some(
            resource
                .and_then(|resource| resource.storage_version_hash)
                .unwrap_or_default(),
        )
    }
}

async fn listed(client: &Client) -> Vec<http::Uri> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let Ok(slices) = slices.list(&of_kubernetes).await else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for slice in slices {
        let port = slice
            .ports
            .iter()
            .flatten()
            .find_map(|port| port.port)
            .unwrap_or(6443);
        for address in slice
            .endpoints
            .iter()
            .flatten()
            .flat_map(|endpoint| &endpoint.addresses)
        {
            let host = if address.contains(':') {
                format!("[{address}]")
            } else {
                address.clone()
            };
            found.extend(format!("https://{host}:{port}").parse::<http::Uri>());
        }
    }
    found
}

/// How long ago that was by our clock; `None` if our clock says it is yet to come.
fn since(time: k8s_openapi::jiff::Timestamp) -> Option<Duration> {
    Duration::try_from(k8s_openapi::jiff::Timestamp::now().duration_since(time)).ok()
}

/// The decision, apart from the asking. A shorter `settle` shortens both waits.
fn settled(
    seen: &BTreeMap<String, Seen>,
    since_change: Option<Duration>,
    settle: Duration,
    now: Instant,
) -> Settled {
    let answering = seen.values().any(|seen| *seen != Seen::Silent);
    let behind: Vec<String> = seen
        .iter()
        .filter(|(_, seen)| matches!(seen, Seen::Old) || (answering && matches!(seen, Seen::Silent)))
        .map(|(name, _)| name.clone())
        .collect();
    if !behind.is_empty() {
        return Settled::Behind(behind);
    }
    let after_change = settle.saturating_sub(since_change.unwrap_or_default());
    let in_flight = seen
        .values()
        .filter_map(|seen| match seen {
            Seen::New(first) => Some(settle.min(IN_FLIGHT).saturating_sub(now.duration_since(*first))),
            _ => None,
        })
        .max();
    match after_change.max(in_flight.unwrap_or_default()) {
        Duration::ZERO => Settled::Yes {
            one_by_one: answering,
        },
        left => Settled::Wait(left),
    }
}

/// What discovery shows for a resource that is stored at this version: eight bytes of a SHA-256, in base64.
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    use base64::Engine;
    let digest = ring::digest::digest(
        &ring::digest::SHA256,
        format!("{group}/{version}/{kind}").as_bytes(),
    );
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SETTLE: Duration = Duration::from_secs(60);

    fn decide(seen: &[(&str, Seen)], since_change: u64, now: Instant) -> Settled {
        let seen = seen
            .iter()
            .map(|(name, seen)| ((*name).to_owned(), *seen))
            .collect();
        settled(&seen, Some(Duration::from_secs(since_change)), SETTLE, now)
    }

    #[test]
    fn a_server_that_shows_the_old_version_is_named() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Old)];
        assert_eq!(decide(&seen, 1000, now), Settled::Behind(vec!["b".into()]));
    }

    #[test]
    fn a_listed_server_that_does_not_answer_while_others_do_is_behind() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Silent)];
        assert_eq!(decide(&seen, 1000, now), Settled::Behind(vec!["b".into()]));
    }

    #[test]
    fn where_none_can_be_asked_time_alone_counts() {
        let now = Instant::now();
        assert_eq!(decide(&[], 20, now), Settled::Wait(Duration::from_secs(40)));
        assert_eq!(
            decide(&[("a", Seen::Silent)], 60, now),
            Settled::Yes { one_by_one: false }
        );
    }

    #[test]
    fn requests_in_flight_are_waited_for_after_the_last_server_has_understood() {
        let first = Instant::now();
        let now = first + Duration::from_secs(10);
        let seen = [("a", Seen::New(first)), ("b", Seen::New(now))];
        assert_eq!(decide(&seen, 1000, now), Settled::Wait(IN_FLIGHT));
        assert_eq!(
            decide(&seen, 1000, now + IN_FLIGHT),
            Settled::Yes { one_by_one: true }
        );
    }

    #[test]
    fn a_shorter_settle_shortens_both_waits() {
        let now = Instant::now();
        let seen = [("a".to_owned(), Seen::New(now))].into();
        let settle = Duration::from_secs(2);
        assert_eq!(
            settled(&seen, Some(Duration::ZERO), settle, now),
            Settled::Wait(settle)
        );
        let later = now + settle;
        assert_eq!(
            settled(&seen, Some(settle), settle, later),
            Settled::Yes { one_by_one: true }
        );
    }
}
