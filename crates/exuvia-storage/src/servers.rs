//! The API servers, asked one by one whether they have understood the newest storage version.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::{Client, Config};

use crate::definition::Definition;
use crate::protocol::Settled;

mod address;

pub use address::api_server;
use address::{listed, name_of};

/// Requests in flight keep the old codec for up to 34 s after a server has understood (PITFALLS A4).
const IN_FLIGHT: Duration = Duration::from_secs(35);

/// How long a server may take to answer for its discovery before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// The API servers of one cluster, and what each was last heard to say.
#[derive(Debug)]
pub struct Servers {
    config: Config,
    given: Vec<http::Uri>,
    /// Those that are there now.
    servers: Vec<Server>,
    /// The flip that the observations below are about.
    about: Option<(String, i64)>,
    seen: BTreeMap<String, Seen>,
}

struct Server {
    name: String,
    /// The user named it; the others are those that the cluster lists.
    is_given: bool,
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
    /// It never answered although the user named it, so that it would be asked.
    GivenAndSilent,
    /// It was not seen to understand, and since this time the cluster does not list it any more.
    Left(Instant),
}

impl Servers {
    /// Those given, and those that the cluster lists whenever it is asked. `config` is for both.
    pub fn new(config: &Config, given: &[http::Uri]) -> Self {
        Self {
            config: config.clone(),
            given: given.to_vec(),
            servers: Vec::new(),
            about: None,
            seen: BTreeMap::new(),
        }
    }

    /// Takes those that are there now: control planes are replaced, and an address that is gone would be waited for for ever.
    fn enlist(&mut self, listed: Vec<http::Uri>) -> Result<(), kube::Error> {
        // An address says nothing about the certificate's names, but every API server's certificate has this one.
        let listed = listed
            .into_iter()
            .map(|uri| (uri, Some("kubernetes.default.svc".to_owned())));
        let given = self.given.iter().map(|uri| (uri.clone(), None));
        let mut known = std::mem::take(&mut self.servers);
        for (uri, certificate_name) in given.chain(listed) {
            let name = name_of(&uri);
            if self.servers.iter().any(|server| server.name == name) {
                continue;
            }
            let server = match known.iter().position(|server| server.name == name) {
                Some(index) => known.swap_remove(index),
                None => Server::at(uri, self.config.clone(), certificate_name)?,
            };
            self.servers.push(server);
        }
        let now = Instant::now();
        let servers = &self.servers;
        let is_here = |name: &String| servers.iter().any(|server| server.name == *name);
        self.seen.retain(|name, seen| match seen {
            _ if is_here(name) => true,
            Seen::Old => {
                *seen = Seen::Left(now);
                true
            }
            Seen::Left(_) => true,
            Seen::New(_) | Seen::Silent | Seen::GivenAndSilent => false,
        });
        Ok(())
    }

    /// Asks each server once and says whether all are settled. `client` is asked which there are.
    pub async fn look(
        &mut self,
        client: &Client,
        definition: &Definition,
        settle: Duration,
    ) -> Result<Settled, kube::Error> {
        self.enlist(listed(client).await?)?;
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
                (None, Some(Seen::Old | Seen::Left(_))) => Seen::Old,
                // It has shown the new version and is gone: nothing it could still do.
                (None, Some(Seen::New(since))) => Seen::New(since),
                (None, _) if server.is_given => Seen::GivenAndSilent,
                (None, _) => Seen::Silent,
            };
            self.seen.insert(server.name.clone(), seen);
        }
        // An unserved storage version has no hash in discovery, so nobody can be asked.
        let served = definition
            .served()
            .any(|version| version == definition.crd.storage);
        let since_change = definition.spec_changed_at.and_then(since);
        let seen = if served {
            &self.seen
        } else {
            const { &BTreeMap::new() }
        };
        Ok(settled(seen, since_change, settle, now))
    }
}

impl Server {
    fn at(uri: http::Uri, mut config: Config, certificate_name: Option<String>) -> Result<Self, kube::Error> {
        let (name, is_given) = (name_of(&uri), certificate_name.is_none());
        config.tls_server_name = certificate_name;
        config.cluster_url = uri;
        config.default_retry = false;
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        Ok(Self {
            name,
            is_given,
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
    let answering = seen.values().any(|seen| matches!(seen, Seen::New(_) | Seen::Old));
    let is_behind = |seen: &Seen| match seen {
        Seen::Old | Seen::GivenAndSilent => true,
        Seen::Silent => answering,
        Seen::New(_) | Seen::Left(_) => false,
    };
    let behind: Vec<String> = seen
        .iter()
        .filter(|(_, seen)| is_behind(seen))
        .map(|(name, _)| name.clone())
        .collect();
    let after_change = settle.saturating_sub(since_change.unwrap_or_default());
    if !behind.is_empty() {
        // Right after the flip that is nothing to complain about.
        return match after_change {
            Duration::ZERO => Settled::Behind(behind),
            left => Settled::Wait(left),
        };
    }
    let in_flight = seen
        .values()
        .filter_map(|seen| match seen {
            Seen::New(first) => Some(settle.min(IN_FLIGHT).saturating_sub(now.duration_since(*first))),
            Seen::Left(at) => Some(settle.saturating_sub(now.duration_since(*at))),
            _ => None,
        })
        .max();
    match after_change.max(in_flight.unwrap_or_default()) {
        Duration::ZERO => Settled::Yes {
            // One that left without a word proves nothing: time alone is left for it.
            one_by_one: answering && !seen.values().any(|seen| matches!(seen, Seen::Left(_))),
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
    fn a_server_that_the_user_named_must_answer() {
        let now = Instant::now();
        let seen = [("a", Seen::GivenAndSilent)];
        assert_eq!(decide(&seen, 1000, now), Settled::Behind(vec!["a".into()]));
    }

    #[test]
    fn nobody_is_accused_right_after_the_flip() {
        let now = Instant::now();
        let seen = [("a", Seen::New(now)), ("b", Seen::Old)];
        assert_eq!(decide(&seen, 20, now), Settled::Wait(Duration::from_secs(40)));
    }

    #[test]
    fn one_that_left_without_having_understood_is_waited_out_and_then_nothing_counts_as_proven() {
        let left = Instant::now();
        let seen = [("a", Seen::New(left)), ("b", Seen::Left(left))];
        let later = left + Duration::from_secs(50);
        assert_eq!(decide(&seen, 1000, later), Settled::Wait(Duration::from_secs(10)));
        assert_eq!(
            decide(&seen, 1000, left + SETTLE),
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
