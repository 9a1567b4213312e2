//! The API servers of a cluster, each asked itself: a load balancer answers for one of them, and nobody knows for which.
//!
//! Some things are true only when every API server has seen them: that a storage version is in use, that a policy denies.
//! [`ApiServers::ask`] puts one question to each, by a client that goes to that server and no other.
//!
//! ```no_run
//! use exuvia_runtime::servers::ApiServers;
//! use kube::{Client, Config};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::infer().await?;
//! let client = Client::try_from(config.clone())?;
//! let servers = ApiServers::new(&config, &[], &[]);
//! let asked = servers
//!     .ask(&client, |server| async move { server.apiserver_version().await })
//!     .await?;
//! for answer in &asked.answers {
//!     match &answer.said {
//!         Ok(version) => println!("{} runs {}", answer.server, version.git_version),
//!         Err(no_answer) => println!("{} {no_answer}", answer.server),
//!     }
//! }
//! if let Some(why) = asked.why_not_all {
//!     println!("there may be more of them: {why}");
//! }
//! # Ok(())
//! # }
//! ```

mod address;
mod identity;
#[cfg(feature = "controller")]
mod rights;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exuvia_write::{Redacted, brief};
use kube::{Client, Config};
use tokio::sync::Mutex;

pub use address::{api_server, url_without_password};
use address::{listed, name_of};
use identity::{Identity, Renewals};
pub use identity::{metrics, process_start};

/// How long a server may take to answer a question before it counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it is remembered which servers there are, when several ask at once.
const ROLL_CALL_HOLDS: Duration = Duration::from_secs(1);

/// How long it is remembered which processes they are: their metrics are megabytes.
const IDENTITY_HOLDS: Duration = Duration::from_secs(30);

/// How long a listed server that did not answer is left alone.
const SILENCE_HOLDS: Duration = Duration::from_secs(20);

/// The API servers of one cluster. Cheap to clone; work that goes on at the same time shares it.
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
    /// When a server that the cluster lists was last asked and did not answer. From outside of the cluster's network none of them
    /// answers, and waiting for each again and again would take minutes.
    silent: BTreeMap<String, Instant>,
    roll_call: Option<(Instant, Arc<RollCall>)>,
    starts: BTreeMap<String, (Instant, Option<String>)>,
    /// What the identity Leases have shown.
    renewals: Renewals,
}

/// What the API servers said to one question.
#[derive(Debug)]
pub struct Asked<T> {
    /// One answer for each server, those given first.
    pub answers: Vec<Answer<T>>,
    /// Why these may not be all the API servers of the cluster, in a sentence; `None`: they are all, each asked itself.
    pub why_not_all: Option<String>,
    /// How many API servers have an identity Lease; `None`: the Leases may not be read.
    pub leases: Option<usize>,
}

/// What one API server said.
#[derive(Debug)]
pub struct Answer<T> {
    /// How it is called: host and port.
    pub server: String,
    /// The user named it; the others are those that the cluster lists.
    pub is_given: bool,
    /// What it said, or that it did not answer.
    pub said: Result<T, NoAnswer>,
}

/// Why a server has not answered. Written after its name: "10.0.0.1:6443 did not answer within 5 s".
#[derive(Debug)]
#[non_exhaustive]
pub enum NoAnswer {
    /// The question came to an error.
    Failed(kube::Error),
    /// It took too long.
    TimedOut,
    /// It did not answer a moment ago, and was not asked again.
    LeftAlone,
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "did not answer: {}", Redacted::from_server(&brief(error))),
            Self::TimedOut => write!(f, "did not answer within {} s", PATIENCE.as_secs()),
            Self::LeftAlone => write!(
                f,
                "did not answer within the last {} s, and was not asked again",
                SILENCE_HOLDS.as_secs()
            ),
        }
    }
}

impl std::error::Error for NoAnswer {}

/// Whether servers that were not asked themselves are awake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awake {
    /// It does not matter: every server was asked itself, or the user has said which are gone for good.
    NoMatter,
    /// Each has renewed its identity Lease, as far as they may be read.
    All,
    /// Not all of them yet. Those that have not for long are named, each in a sentence.
    Not(Vec<String>),
}

/// The servers that there are.
struct RollCall {
    servers: Vec<Server>,
    /// Why they may not be all, each asked itself; `None`: they are.
    why_not_all: Option<String>,
    leases: Option<usize>,
    /// As far as they have identity Leases that may be read.
    identities: Vec<Identity>,
}

#[derive(Clone)]
struct Server {
    name: String,
    is_given: bool,
    client: Client,
}

impl fmt::Debug for ApiServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Asks each server, all at once, by a client that goes to that server alone. `client` is asked which servers there are.
    ///
    /// An error, or nothing within 5 s, is not an answer. Where an error is an answer, such as the refusal of a policy, the
    /// question turns it into `Ok`. A server that the cluster lists and that was silent (nothing came back, not even a
    /// status) is left alone for 20 s; one that the user named is asked each time.
    pub async fn ask<T, Asking>(
        &self,
        client: &Client,
        question: impl Fn(Client) -> Asking,
    ) -> Result<Asked<T>, kube::Error>
    where
        Asking: Future<Output = Result<T, kube::Error>>,
    {
        let roll_call = self.roll_call(client).await?;
        let asking = roll_call.servers.iter().map(|server| {
            let question = question(server.client.clone());
            async move {
                Answer {
                    server: server.name.clone(),
                    is_given: server.is_given,
                    said: self.answer(server, question).await,
                }
            }
        });
        Ok(Asked {
            answers: futures::future::join_all(asking).await,
            why_not_all: roll_call.why_not_all.clone(),
            leases: roll_call.leases,
        })
    }

    /// As [`ask`](Self::ask), for questions where one answer is better than none: where the cluster lists no server, the
    /// one that `client` reaches is asked too, unless it is among those given. It may be one of several behind a load
    /// balancer. It has as long as the client allows, and is named by its URL.
    pub async fn ask_at_least_one<T, Asking>(
        &self,
        client: &Client,
        question: impl Fn(Client) -> Asking,
    ) -> Result<Asked<T>, kube::Error>
    where
        Asking: Future<Output = Result<T, kube::Error>>,
    {
        let mut asked = self.ask(client, &question).await?;
        let url = &self.0.config.cluster_url;
        let is_asked = |answer: &Answer<T>| !answer.is_given || answer.server == name_of(url);
        if !asked.answers.iter().any(is_asked) {
            asked.answers.push(Answer {
                server: url_without_password(url),
                is_given: false,
                said: question(client.clone()).await.map_err(NoAnswer::Failed),
            });
        }
        Ok(asked)
    }

    /// Whether every API server that there is can be asked itself, and each is another process.
    pub async fn are_all(&self, client: &Client) -> Result<bool, kube::Error> {
        Ok(self.roll_call(client).await?.why_not_all.is_none())
    }

    /// Whether servers that were not asked themselves have been awake since then: nobody knows what a sleeping one does when
    /// it wakes. That takes two looks after that moment: only a Lease that changes says so, whatever time is in it.
    pub async fn awake(&self, client: &Client, since: Instant) -> Result<Awake, kube::Error> {
        let roll_call = self.roll_call(client).await?;
        if roll_call.why_not_all.is_none() || !self.0.ignored.is_empty() {
            return Ok(Awake::NoMatter);
        }
        let known = self.0.known.lock().await;
        Ok(match known.renewals.silent_since(&roll_call.identities, since) {
            (0, _) => Awake::All,
            (_, asleep) => Awake::Not(asleep),
        })
    }

    /// One server's answer, unless it was silent a moment ago.
    async fn answer<T>(
        &self,
        server: &Server,
        question: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, NoAnswer> {
        let silent = self.0.known.lock().await.silent.get(&server.name).copied();
        if !server.is_given && silent.is_some_and(|at| at.elapsed() < SILENCE_HOLDS) {
            return Err(NoAnswer::LeftAlone);
        }
        let said = within_patience(question).await;
        let mut known = self.0.known.lock().await;
        match said {
            Ok(_) | Err(NoAnswer::Failed(kube::Error::Api(_))) => known.silent.remove(&server.name),
            Err(_) => known.silent.insert(server.name.clone(), Instant::now()),
        };
        said
    }

    async fn roll_call(&self, client: &Client) -> Result<Arc<RollCall>, kube::Error> {
        let mut known = self.0.known.lock().await;
        if let Some((at, roll_call)) = &known.roll_call
            && at.elapsed() < ROLL_CALL_HOLDS
        {
            return Ok(roll_call.clone());
        }
        let servers = self.enlist(&mut known, listed(client).await?)?;
        let asked_at = Instant::now();
        let identities = identity::leases(client).await?;
        known
            .renewals
            .see(identities.as_deref().unwrap_or_default(), asked_at);
        let leases = identities.as_ref().map(Vec::len);
        let mut starts = Vec::new();
        if servers.len() > 1 && leases == Some(servers.len()) {
            for server in &servers {
                starts.push(known.start(server).await);
            }
        }
        let why_not_all = if self.0.ignored.is_empty() {
            identity::why_not_all(leases, servers.len(), &starts)
        } else {
            Some("an API server is ignored".to_owned())
        };
        let roll_call = Arc::new(RollCall {
            servers,
            why_not_all,
            leases,
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

async fn within_patience<T>(question: impl Future<Output = Result<T, kube::Error>>) -> Result<T, NoAnswer> {
    match tokio::time::timeout(PATIENCE, question).await {
        Ok(said) => said.map_err(NoAnswer::Failed),
        Err(_) => Err(NoAnswer::TimedOut),
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
