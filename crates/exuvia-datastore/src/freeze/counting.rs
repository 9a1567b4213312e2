//! Asks each API server what it works on, and remembers what each has shown: the IO around the rules of the drain.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use exuvia_runtime::servers::Awake;
use exuvia_write::Redacted;
use kube::api::{DynamicObject, ObjectMeta};
use kube::{Api, Client};

use super::drain::{Drain, Drained, Found, Seen, Situation, Unasked, WithoutCount, all_deny_since, drained};
use super::error::Error;
use super::flow::{self, Counting};
use super::gauges::{self, Gauges};
use super::policy::{Form, PROBE_MANAGER, Part};
use super::probe::{self, Probed};
use super::{Freeze, whoami};

/// Who bypasses flow control.
const MASTERS: &str = "system:masters";

/// What the servers have shown since this program started. Another process starts over, which costs time and nothing else.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    servers: BTreeMap<String, Seen>,
    counting: Option<Counting>,
    /// The policy and binding that the denials are about.
    locks: Vec<(String, i64)>,
    is_master: Option<bool>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Freeze {
    /// Makes the `FlowSchema` and priority level by which each server counts the writes to the source, and asks each whether
    /// it has them. To be called long before the freeze: it counts [`SCHEMA_COUNTS_AFTER`](super::SCHEMA_COUNTS_AFTER) later. `false`: it cannot be had here, and the
    /// drain will take its time.
    pub async fn count_writers(&self) -> Result<bool, Error> {
        // Otherwise the time that a schema needs to count would be waited for in vain.
        if self.without_count().await?.is_some() {
            return Ok(false);
        }
        if !flow::ensure(&self.client, &self.writer, &self.scope).await? {
            return Ok(false);
        }
        self.look_at_gauges().await?;
        Ok(true)
    }

    /// Why writes under way cannot be counted here, and how long the drain takes at least because of that; `None`: they may be.
    ///
    /// Gauges prove something only if every API server can be asked for its own, and if we are counted ourselves.
    pub async fn without_count(&self) -> Result<Option<WithoutCount>, Error> {
        let knows_all = self.servers.are_all(&self.client).await;
        if !knows_all.map_err(Error::read("the list of API servers"))? {
            return Ok(Some(WithoutCount::UnknownServers));
        }
        Ok(self.is_master().await?.then_some(WithoutCount::Exempt))
    }

    /// Whether what counts the writes is there.
    pub async fn is_counting(&self) -> Result<bool, Error> {
        flow::exists(&self.client, &self.scope).await
    }

    /// Removes what counts the writes: after the freeze nothing needs it.
    pub async fn stop_counting(&self) -> Result<(), Error> {
        flow::remove(&self.client, &self.writer, &self.scope).await
    }

    /// Whether a write from before the freeze may still be under way, after [`probe`](Self::probe) found that every server
    /// denies. Each is asked again whether it still does; one that does not, or is new, must be probed again.
    pub async fn drained(&self, how: Drain) -> Result<Drained, Error> {
        self.check_locks().await?;
        let probed = self.canaries(&[Part::Source], Form::Frozen).await?;
        self.forget_denying(probed.clone());
        let why_no_gauges = match how {
            Drain::Auto => self.look_at_gauges().await?,
            Drain::Fixed(_) => None,
        };
        if let Some((server, [why, ..])) = probed.not_yet().next() {
            return Ok(Drained::NotYet {
                why: format!("API server {server} {why}"),
            });
        }
        let servers = self.memory.lock().servers.clone();
        let unasked = match (&probed.why_not_all, all_deny_since(&servers)) {
            (Some(_), Ok(since)) => self.unasked(since).await?,
            _ => Unasked::Awake,
        };
        Ok(drained(&Situation {
            servers: &servers,
            why_not_all: probed.why_not_all.as_deref(),
            unasked: &unasked,
            why_no_gauges: why_no_gauges.as_deref(),
            how,
            writes_end_within: self.drains_within,
            now: Instant::now(),
        }))
    }

    /// Forgets who denied if the policy or its binding is another one now.
    pub(super) async fn check_locks(&self) -> Result<(), Error> {
        let locks = self.source_locks().await?;
        let mut memory = self.memory.lock();
        if memory.locks != locks {
            memory.servers.values_mut().for_each(Seen::freeze_changed);
            memory.locks = locks;
        }
        Ok(())
    }

    /// What a whole probe found. Servers that are not among those asked have left.
    pub(super) fn remember_denying(&self, probed: &Probed) {
        let now = Instant::now();
        let mut memory = self.memory.lock();
        memory
            .servers
            .retain(|name, seen| probed.found.contains_key(name) || seen.leave(now));
        for (name, found) in &probed.found {
            let seen = memory.servers.entry(name.clone()).or_default();
            seen.probed(*found, now);
        }
    }

    /// What a canary alone found: that a server does not deny any more. That one denies is for the whole probe to say.
    fn forget_denying(&self, mut canary: Probed) {
        for found in canary.found.values_mut().filter(|found| **found == Found::Denies) {
            *found = Found::Unclear;
        }
        self.remember_denying(&canary);
    }

    /// Reads the gauges of each server into the memory. `Some`: why nobody counts for us.
    async fn look_at_gauges(&self) -> Result<Option<String>, Error> {
        if self.is_master().await? {
            // None of our requests is sorted by our schema, so nothing would show that a server has it.
            return Ok(Some(format!(
                "this program is a member of {MASTERS}, which bypasses flow control"
            )));
        }
        let counting = match flow::counting(&self.client, &self.scope).await {
            Ok(counting) => counting,
            Err(why) => {
                self.schema_is(None);
                return Ok(Some(why));
            }
        };
        self.schema_is(Some(counting.clone()));
        let asked_at = Instant::now();
        let ours = flow::name(&self.scope);
        let asked = self
            .servers
            .ask_at_least_one(&self.client, |server| {
                self.gauges_of(server, &ours, &counting.earlier_levels)
            })
            .await
            .map_err(Error::read("the list of API servers"))?;
        let now = Instant::now();
        let mut memory = self.memory.lock();
        for answer in asked.answers {
            let seen = memory.servers.entry(answer.server).or_default();
            match answer.said {
                Ok(gauges) => seen.told(&gauges, asked_at, now, self.counts_after),
                Err(no_answer) => seen.told_nothing(format!("{no_answer}")),
            }
        }
        Ok(None)
    }

    /// Whether we bypass flow control ourselves.
    async fn is_master(&self) -> Result<bool, Error> {
        let known = self.memory.lock().is_master;
        if let Some(is_master) = known {
            return Ok(is_master);
        }
        let us = whoami(&self.client).await?;
        let is_master = us.groups.iter().any(|group| group == MASTERS);
        self.memory.lock().is_master = Some(is_master);
        Ok(is_master)
    }

    /// One server's gauges. Where no request was sorted by our schema yet, one is sent that is: a patch of nothing.
    async fn gauges_of(&self, server: Client, ours: &str, earlier: &[String]) -> Result<Gauges, kube::Error> {
        let gauges = gauges::read(&server, ours, earlier).await?;
        let Some(kind) = self.scope.source.first().filter(|_| !gauges.has_our_schema) else {
            return Ok(gauges);
        };
        let api: Api<DynamicObject> = Api::all_with(server.clone(), &probe::resource(kind));
        let nothing = ObjectMeta {
            name: Some(format!("{ours}-probe")),
            namespace: kind.namespaced.then(|| "default".to_owned()),
            ..ObjectMeta::default()
        };
        let writer = self.writer.acting_as(PROBE_MANAGER).dry_run().once();
        // It does not exist: a 404, or a refusal by a policy. Either was sorted.
        if let Err(error) = writer.rewrite(&api, &nothing).await {
            tracing::trace!(error = %Redacted::from_error(&error), "a patch of nothing");
        }
        gauges::read(&server, ours, earlier).await
    }

    fn schema_is(&self, counting: Option<Counting>) {
        let mut memory = self.memory.lock();
        if memory.counting != counting {
            memory.servers.values_mut().for_each(Seen::schema_changed);
            memory.counting = counting;
        }
    }

    /// Whether servers that cannot be asked have been awake since all others deny.
    async fn unasked(&self, since: Instant) -> Result<Unasked, Error> {
        let awake = self.servers.awake(&self.client, since).await;
        Ok(match awake.map_err(Error::read("the identity Leases"))? {
            Awake::NoMatter | Awake::All => Unasked::Awake,
            Awake::Not(asleep) => Unasked::NotKnown(asleep.into_iter().next().unwrap_or_else(|| {
                "not every API server has renewed its identity Lease since the others deny".to_owned()
            })),
        })
    }
}
