//! The API servers, asked one by one whether they have understood the newest storage version.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use tokio::sync::Mutex;

use crate::definition::Definition;
use crate::protocol::Settled;

mod address;
mod identity;
mod settling;

pub use address::api_server;
use address::{listed, name_of};
use identity::Identity;
use settling::{Seen, Situation, settled};

/// How long a server may take to answer for its discovery before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it is remembered which servers there are, when several migrations ask at once.
const ROLL_CALL_HOLDS: Duration = Duration::from_secs(1);

/// How long it is remembered which processes they are: their metrics are megabytes.
const IDENTITY_HOLDS: Duration = Duration::from_secs(30);

/// How long a listed server that did not answer is left alone.
const SILENCE_HOLDS: Duration = Duration::from_secs(20);

/// The API servers of one cluster. Cheap to clone; migrations that run at the same time share it.
#[derive(Clone)]
pub struct ApiServers(Arc<Inner>);

struct Inner {
    config: Config,
    given: Vec<http::Uri>,
    ignored: Vec<String>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    clients: BTreeMap<String, Client>,
    /// When a server that the cluster lists was last asked in vain: from outside of the cluster's network none answers, and
    /// to wait for each of them again and again would take minutes.
    silent: BTreeMap<String, Instant>,
    roll_call: Option<(Instant, Arc<RollCall>)>,
    starts: BTreeMap<String, (Instant, Option<String>)>,
}

/// Whether servers that were not asked themselves are awake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Awake {
    /// There is none: every server was asked itself, or the user has said which are gone for good.
    NoMatter,
    /// Each has renewed its identity Lease, as far as they may be read.
    All,
    /// Not all of them yet; those that have not for long are named, each in a sentence.
    Not(Vec<String>),
}

/// The servers that there are.
struct RollCall {
    servers: Vec<Server>,
    /// They are all that there are, each asked itself.
    are_all: bool,
    /// Why not, if they are not.
    why_not: Option<String>,
    /// As far as they have identity Leases that may be read.
    identities: Vec<Identity>,
}

#[derive(Clone)]
struct Server {
    name: String,
    /// The user named it; the others are those that the cluster lists.
    is_given: bool,
    client: Client,
}

impl std::fmt::Debug for ApiServers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServers")
            .field("given", &self.0.given)
            .finish_non_exhaustive()
    }
}

impl ApiServers {
    /// Those given, and those that the cluster lists whenever it is asked, but for `ignored`. `config` is for all of them.
    pub fn new(config: &Config, given: &[http::Uri], ignored: &[http::Uri]) -> Self {
        Self(Arc::new(Inner {
            config: config.clone(),
            given: given.to_vec(),
            ignored: ignored.iter().map(name_of).collect(),
            known: Mutex::default(),
        }))
    }

    /// Every server that is known, by name, with a client that asks it itself. `client` is asked which there are.
    pub async fn clients(&self, client: &Client) -> Result<Vec<(String, Client)>, kube::Error> {
        let roll_call = self.roll_call(client).await?;
        let servers = roll_call.servers.iter();
        Ok(servers
            .map(|server| (server.name.clone(), server.client.clone()))
            .collect())
    }

    /// Whether every API server that there is was asked itself, and each is another process.
    pub(crate) async fn are_all(&self, client: &Client) -> Result<bool, kube::Error> {
        Ok(self.roll_call(client).await?.are_all)
    }

    /// Whether servers that were not asked themselves have been awake since then: nobody can vouch for what a sleeping one does
    /// when it wakes. Both times are by the server's clock.
    pub(crate) async fn awake(
        &self,
        client: &Client,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<Awake, kube::Error> {
        let roll_call = self.roll_call(client).await?;
        if roll_call.are_all || !self.0.ignored.is_empty() {
            return Ok(Awake::NoMatter);
        }
        let mut silent = roll_call
            .identities
            .iter()
            .filter(|identity| !identity.renewed_since(since))
            .peekable();
        if silent.peek().is_none() {
            return Ok(Awake::All);
        }
        Ok(Awake::Not(
            silent.filter_map(|identity| identity.asleep(now)).collect(),
        ))
    }

    /// The resource's storage version hash in a server's own discovery; `None`: no answer, now or a moment ago.
    async fn hash(&self, server: &Server, api_version: &str, plural: &str) -> Option<String> {
        let silent = self.0.known.lock().await.silent.get(&server.name).copied();
        if !server.is_given && silent.is_some_and(|at| at.elapsed() < SILENCE_HOLDS) {
            return None;
        }
        let answer = server.hash(api_version, plural).await;
        let mut known = self.0.known.lock().await;
        match answer {
            Some(_) => known.silent.remove(&server.name),
            None => known.silent.insert(server.name.clone(), Instant::now()),
        };
        answer
    }

    async fn roll_call(&self, client: &Client) -> Result<Arc<RollCall>, kube::Error> {
        let mut known = self.0.known.lock().await;
        if let Some((at, roll_call)) = &known.roll_call
            && at.elapsed() < ROLL_CALL_HOLDS
        {
            return Ok(roll_call.clone());
        }
        let servers = self.enlist(&mut known, listed(client).await?)?;
        let identities = identity::leases(client).await?;
        let leases = identities.as_ref().map(Vec::len);
        let mut starts = Vec::new();
        if servers.len() > 1 && leases == Some(servers.len()) {
            for server in &servers {
                starts.push(known.start(server).await);
            }
        }
        let why_not = if self.0.ignored.is_empty() {
            identity::why_not_all(leases, servers.len(), &starts)
        } else {
            Some("an API server is ignored".to_owned())
        };
        let are_all = why_not.is_none();
        let roll_call = Arc::new(RollCall {
            servers,
            are_all,
            why_not,
            identities: identities.unwrap_or_default(),
        });
        known.roll_call = Some((Instant::now(), roll_call.clone()));
        Ok(roll_call)
    }

    /// Those that are there now: control planes are replaced, and an address that is gone would be waited for for ever.
    fn enlist(&self, known: &mut Known, listed: Vec<http::Uri>) -> Result<Vec<Server>, kube::Error> {
        // An address says nothing about the certificate's names, but every API server's certificate has this one.
        let listed = listed
            .into_iter()
            .map(|uri| (uri, Some("kubernetes.default.svc".to_owned())));
        let given = self.0.given.iter().map(|uri| (uri.clone(), None));
        let mut servers: Vec<Server> = Vec::new();
        for (uri, certificate_name) in given.chain(listed) {
            let name = name_of(&uri);
            if self.0.ignored.contains(&name) || servers.iter().any(|server| server.name == name) {
                continue;
            }
            let is_given = certificate_name.is_none();
            let client = match known.clients.get(&name) {
                Some(client) => client.clone(),
                None => client_of(uri, self.0.config.clone(), certificate_name)?,
            };
            known.clients.insert(name.clone(), client.clone());
            servers.push(Server {
                name,
                is_given,
                client,
            });
        }
        Ok(servers)
    }
}

impl Known {
    /// When the server's process started, as far as it tells.
    async fn start(&mut self, server: &Server) -> Option<String> {
        let before = self.starts.get(&server.name);
        if let Some((at, start)) = before
            && at.elapsed() < IDENTITY_HOLDS
        {
            return start.clone();
        }
        let asking = tokio::time::timeout(PATIENCE, identity::started(&server.client));
        let start = asking.await.ok().flatten();
        self.starts
            .insert(server.name.clone(), (Instant::now(), start.clone()));
        start
    }
}

fn client_of(
    uri: http::Uri,
    mut config: Config,
    certificate_name: Option<String>,
) -> Result<Client, kube::Error> {
    config.tls_server_name = certificate_name;
    config.cluster_url = uri;
    config.default_retry = false;
    config.connect_timeout = Some(PATIENCE);
    config.read_timeout = Some(PATIENCE);
    Client::try_from(config)
}

impl Server {
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
        let roll_call = self.servers.roll_call(client).await?;
        let now = Instant::now();
        let is_here = |name: &String| roll_call.servers.iter().any(|server| server.name == *name);
        self.seen = std::mem::take(&mut self.seen)
            .into_iter()
            .filter_map(|(name, seen)| {
                let seen = if is_here(&name) {
                    Some(seen)
                } else {
                    seen.after_leaving(now)
                };
                seen.map(|seen| (name, seen))
            })
            .collect();
        let expected = storage_version_hash(&definition.group, &definition.crd.storage, &definition.kind);
        let version = definition
            .endpoint()
            .map(|version| definition.api_version(version));
        let answers = futures::future::join_all(roll_call.servers.iter().map(|server| {
            let (version, servers) = (version.clone(), &self.servers);
            async move {
                servers
                    .hash(server, version.as_deref()?, &definition.plural)
                    .await
            }
        }))
        .await;
        let now = Instant::now();
        for (server, answer) in roll_call.servers.iter().zip(answers) {
            let before = self.seen.get(&server.name).copied();
            let is_new = answer.map(|hash| hash == expected);
            let seen = Seen::after(before, is_new, server.is_given, now);
            self.seen.insert(server.name.clone(), seen);
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
        self.why_not = roll_call.why_not.clone().or_else(unanswered);
        Ok(settled(&Situation {
            seen,
            // Times in the CRD move when the owner of the spec writes anything else, its generation does not.
            since_change: since_change.max(known_for),
            settle,
            now,
            are_all: roll_call.are_all,
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

/// What discovery shows for a resource that is stored at this version: eight bytes of a SHA-256, in base64.
pub fn storage_version_hash(group: &str, version: &str, kind: &str) -> String {
    use base64::Engine;
    let digest = ring::digest::digest(
        &ring::digest::SHA256,
        format!("{group}/{version}/{kind}").as_bytes(),
    );
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}
