//! Whether the API servers, asked one by one, have understood the newest storage version.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Client;

use crate::definition::Definition;
use crate::protocol::Settled;

mod settling;

pub(crate) use exuvia_runtime::servers::Awake;
pub use exuvia_runtime::servers::{ApiServers, api_server};

use settling::{Seen, Situation, settled};

/// What the API servers have shown of one CRD.
#[derive(Debug)]
pub(crate) struct Settling {
    servers: ApiServers,
    /// Why the servers were not all accounted for when they were last asked.
    why_not: Option<String>,
    /// The flip that the observations below are about, and since when it is known here.
    about: Option<(String, i64, Instant)>,
    seen: BTreeMap<String, Seen>,
}

impl Settling {
    pub(crate) fn new(servers: ApiServers) -> Self {
        Self {
            servers,
            why_not: None,
            about: None,
            seen: BTreeMap::new(),
        }
    }

    /// How many servers were asked.
    pub(crate) fn asked(&self) -> usize {
        self.seen.len()
    }

    /// Why a resourceVersion proves nothing, as of the last look.
    pub(crate) fn why_not_accounted(&self) -> Option<&str> {
        self.why_not.as_deref()
    }

    pub(crate) fn servers(&self) -> &ApiServers {
        &self.servers
    }

    /// Asks each server once and says whether all are settled. `client` is asked which there are; `since_change` is how long
    /// ago the spec was last written, as far as the CRD tells.
    pub(crate) async fn look(
        &mut self,
        client: &Client,
        definition: &Definition,
        since_change: Duration,
        settle: Duration,
    ) -> Result<Settled, kube::Error> {
        let known_for = self.known_for(definition);
        let expected = storage_version_hash(&definition.group, &definition.crd.storage, &definition.kind);
        let version = definition
            .endpoint()
            .map(|version| definition.api_version(version));
        let asked_at = Instant::now();
        let asked = self
            .servers
            .ask(client, |server| {
                let version = version.clone();
                async move {
                    match version {
                        Some(version) => hash(&server, &version, &definition.plural).await.map(Some),
                        None => Ok(None), // nothing is served that they could be asked for
                    }
                }
            })
            .await?;
        let is_here = |name: &String| asked.answers.iter().any(|answer| answer.server == *name);
        self.seen = std::mem::take(&mut self.seen)
            .into_iter()
            .filter_map(|(name, seen)| {
                let seen = if is_here(&name) {
                    Some(seen)
                } else {
                    seen.after_leaving(asked_at)
                };
                seen.map(|seen| (name, seen))
            })
            .collect();
        let now = Instant::now();
        for answer in asked.answers {
            let before = self.seen.get(&answer.server).copied();
            let is_new = answer.said.ok().flatten().map(|hash| hash == expected);
            let seen = Seen::after(before, is_new, answer.is_given, now);
            self.seen.insert(answer.server, seen);
        }
        // An unserved storage version has no hash in discovery, so nobody can be asked.
        let served = definition
            .served()
            .any(|version| version == definition.crd.storage);
        let seen = if served {
            &self.seen
        } else {
            const { &BTreeMap::new() }
        };
        let all_new = !seen.is_empty() && seen.values().all(|seen| matches!(seen, Seen::New(_)));
        let unanswered =
            || (!all_new).then(|| "not every API server answered for the storage version itself".to_owned());
        let are_all = asked.why_not_all.is_none();
        self.why_not = asked.why_not_all.or_else(unanswered);
        Ok(settled(&Situation {
            seen,
            // Times in the CRD move when the owner of the spec writes anything else, its generation does not.
            since_change: since_change.max(known_for),
            settle,
            now,
            are_all,
        }))
    }

    /// For how long the CRD has been seen at its uid and generation. At another one nothing is known of the servers.
    pub(crate) fn known_for(&mut self, definition: &Definition) -> Duration {
        let (uid, generation) = (&definition.crd.uid, definition.crd.generation);
        match &self.about {
            Some((known, at, since)) if known == uid && *at == generation => since.elapsed(),
            _ => {
                self.about = Some((uid.clone(), generation, Instant::now()));
                self.seen.clear();
                Duration::ZERO
            }
        }
    }
}

/// The resource's storage version hash in a server's own discovery; empty if it shows none.
async fn hash(server: &Client, api_version: &str, plural: &str) -> Result<String, kube::Error> {
    let list = server.list_api_group_resources(api_version).await?;
    let mut resources = list.resources.into_iter();
    let resource = resources.find(|resource| resource.name == plural);
    let hash = resource.and_then(|resource| resource.storage_version_hash);
    Ok(hash.unwrap_or_default())
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
