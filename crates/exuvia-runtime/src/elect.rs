//! Leader election on a Lease: who may lead is told by the API server, how long by one's own monotonic clock.

use std::{future::Future, time::Duration};

use exuvia_write::{ErrorClass, RetryPolicy, Writer, brief};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client};

use crate::{Claim, Health, LeaseSettings, lease::LeaseHolder};

/// Stands for election until `stop`, then gives the lease back.
///
/// The claim holds from a won or renewed lease on, for two thirds of the lease's duration, counted from the instant
/// before the request was sent. A challenger waits until it has itself seen the same record for the whole duration, so
/// there is never more than one claim, whatever the clocks on the walls say. A leader that loses goes on as a follower.
///
/// One thing it cannot know: a challenger that starts just after somebody deleted the Lease finds nobody to wait for.
///
/// ```no_run
/// # async fn example(client: kube::Client) {
/// use std::time::Duration;
/// use exuvia_runtime::{Claim, LeaseSettings, elect};
/// use exuvia_write::Writer;
///
/// let claim = Claim::none();
/// let settings = LeaseSettings {
///     namespace: "shop".to_owned(),
///     name: "widget-operator".to_owned(),
///     identity: "widget-operator-7c9f_4711".to_owned(),
///     duration: Duration::from_secs(15),
/// };
/// let writer = Writer::named("widget-operator"); // without a gate: this one makes the claim
/// elect(client, writer, settings, claim.clone(), async { tokio::signal::ctrl_c().await.unwrap() }).await;
/// # }
/// ```
pub async fn elect(
    client: Client,
    writer: Writer,
    settings: LeaseSettings,
    claim: Claim,
    stop: impl Future<Output = ()>,
) {
    stand(client, writer, settings, claim, None, stop).await;
}

/// As [`elect`]; the process is not ready until the Lease could be read and, unless another process holds it, written. Why it
/// cannot, such as a missing right or namespace, is told by [`Health::describe`].
pub fn elect_with_health(
    client: Client,
    writer: Writer,
    settings: LeaseSettings,
    claim: Claim,
    health: Health,
    stop: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    health.expect(CHECK, "not read yet"); // at once, and not when it is first polled
    stand(client, writer, settings, claim, Some(health), stop)
}

/// The check that stands for the Lease.
const CHECK: &str = "lease";

async fn stand(
    client: Client,
    writer: Writer,
    settings: LeaseSettings,
    claim: Claim,
    health: Option<Health>,
    stop: impl Future<Output = ()>,
) {
    let mut candidate = Candidate {
        api: Api::namespaced(client, &settings.namespace),
        writer: writer.once().timeout(settings.request_limit()),
        settings,
        claim,
        held: None,
        observed: None,
        leading: false,
        said: None,
        health,
    };
    tokio::select! {
        biased;
        () = stop => {}
        () = candidate.campaign() => {}
    }
    candidate.claim.revoke();
    candidate.release().await;
}

struct Candidate {
    api: Api<Lease>,
    writer: Writer,
    settings: LeaseSettings,
    claim: Claim,
    /// The lease as it was when it was last known to be ours.
    held: Option<Lease>,
    /// Somebody else's record, or its absence, and since when it has been the same.
    observed: Option<Observed>,
    /// Whether the log has it that we lead.
    leading: bool,
    /// The last trouble that the log has.
    said: Option<String>,
    health: Option<Health>,
}

struct Observed {
    leader: Option<String>,
    /// `None`: the Lease does not exist.
    version: Option<String>,
    since: Duration,
    patience: Duration,
}

impl Candidate {
    async fn campaign(&mut self) {
        let period = self.settings.period();
        // Between half a period and a whole one, so that followers do not march in step.
        let stroll = RetryPolicy {
            attempts: u32::MAX,
            base: period,
            cap: period,
            ..RetryPolicy::default()
        };
        loop {
            let began = tokio::time::Instant::now();
            let result = match self.held.take() {
                Some(held) => self.renew(held).await,
                None => self.challenge().await,
            };
            let failed = result.is_err();
            self.tell(result);
            let pause = match (&self.held, failed) {
                (Some(_), false) => period,
                // The claim is running out, and nobody else may have noticed yet.
                (Some(_), true) => period / 3,
                (None, _) => stroll.after(1, ErrorClass::Transient(None)).unwrap_or(period),
            };
            tokio::time::sleep_until(began + pause).await;
        }
    }

    /// As the leader: says that we are still here.
    async fn renew(&mut self, mut held: Lease) -> Result<(), String> {
        loop {
            let sent = self.claim.now();
            let renewing = self.writer.patch(&self.api, &held, |lease| {
                self.settings.renewed(lease.spec.get_or_insert_default());
            });
            // Around all of it: after an answer that was lost the writer looks what came of the request, which would take as
            // long again where nobody answers.
            let limit = self.settings.request_limit();
            let error = match tokio::time::timeout(limit, renewing).await {
                Ok(Ok(written)) => {
                    self.hold(written.object, sent);
                    return Ok(());
                }
                Ok(Err(error)) => error,
                Err(_) => {
                    self.held = Some(held);
                    return Err(format!("no answer within {limit:?}"));
                }
            };
            let found = match error.class() {
                ErrorClass::Gone => None,
                ErrorClass::Conflict => match self.read().await {
                    Ok(found) => found,
                    Err(error) => {
                        self.held = Some(held);
                        return Err(error);
                    }
                },
                _ => {
                    self.held = Some(held);
                    return Err(error.to_string());
                }
            };
            match found {
                // Somebody labelled it, or an answer to us was lost.
                Some(lease) if self.settings.holder_of(&lease) == LeaseHolder::Us => held = lease,
                Some(lease) => {
                    self.lose(Some(&lease));
                    return Ok(());
                }
                None => {
                    let made = self.make(held.spec.clone().unwrap_or_default()).await;
                    if made.is_err() {
                        // The next renewal finds it missing, or finds what we made without knowing.
                        self.held = Some(held);
                    }
                    return made;
                }
            }
        }
    }

    /// As a follower: looks, and takes what is free.
    async fn challenge(&mut self) -> Result<(), String> {
        let found = self.read().await?;
        let now = self.claim.now();
        let patient = self.observe(found.as_ref(), now);
        let Some(lease) = found else {
            // Its former holder creates it again within a period, if it is alive.
            return if patient {
                self.make(LeaseSpec::default()).await
            } else {
                Ok(())
            };
        };
        if !patient {
            return Ok(());
        }
        let sent = self.claim.now();
        let taken = self
            .writer
            .patch(&self.api, &lease, |lease| {
                self.settings.acquired(lease.spec.get_or_insert_default());
            })
            .await;
        match taken {
            Ok(written) => self.hold(written.object, sent),
            // Somebody else was faster, or it was the old leader after all.
            Err(error) if matches!(error.class(), ErrorClass::Conflict | ErrorClass::Gone) => {}
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    /// Whether the record may be taken now: it is free, or has stood still for long enough before our own eyes.
    fn observe(&mut self, found: Option<&Lease>, now: Duration) -> bool {
        let holder = found.map(|lease| self.settings.holder_of(lease));
        match (holder, &self.observed) {
            (Some(LeaseHolder::Nobody | LeaseHolder::Us), _) | (None, None) => return true,
            _ => {}
        }
        let version = found.and_then(|lease| lease.metadata.resource_version.clone());
        match &self.observed {
            Some(observed) if observed.version == version => {
                now.saturating_sub(observed.since) >= observed.patience
            }
            before => {
                let patience = match (found, before) {
                    (Some(lease), _) => self.settings.patience(lease),
                    (None, Some(before)) => before.patience,
                    (None, None) => self.settings.duration,
                };
                let leader = found.and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
                if leader.is_some()
                    && before.as_ref().and_then(|before| before.leader.as_ref()) != leader.as_ref()
                {
                    tracing::info!(
                        lease = self.settings.name,
                        leader,
                        "standing by: another process is the leader"
                    );
                }
                self.observed = Some(Observed {
                    leader,
                    version,
                    since: now,
                    patience,
                });
                false
            }
        }
    }

    /// Makes the Lease, ours from the start, with what `spec` says of the time before.
    async fn make(&mut self, mut spec: LeaseSpec) -> Result<(), String> {
        if spec.acquire_time.is_none() {
            self.settings.acquired(&mut spec);
        } else {
            self.settings.renewed(&mut spec);
        }
        let mut lease = Lease {
            spec: Some(spec),
            ..Lease::default()
        };
        lease.metadata.name = Some(self.settings.name.clone());
        lease.metadata.namespace = Some(self.settings.namespace.clone());
        let sent = self.claim.now();
        match self.writer.create(&self.api, &lease).await {
            Ok(lease) => self.hold(lease, sent),
            Err(error) if error.is_already_exists() => match self.read().await? {
                // Made by a request whose answer was lost.
                Some(lease) if self.settings.holder_of(&lease) == LeaseHolder::Us => self.held = Some(lease),
                found => self.lose(found.as_ref()),
            },
            Err(error) => return Err(error.to_string()),
        }
        Ok(())
    }

    fn hold(&mut self, lease: Lease, sent: Duration) {
        if self.settings.holder_of(&lease) != LeaseHolder::Us {
            // Nothing that we send leads here; if something ever does, it must not be a claim.
            return self.lose(Some(&lease));
        }
        self.claim.extend(sent + self.settings.claim_lasts());
        self.held = Some(lease);
        self.observed = None;
    }

    /// Another one has it, or may have.
    fn lose(&mut self, found: Option<&Lease>) {
        self.claim.revoke();
        self.held = None;
        self.observed = None;
        self.observe(found, self.claim.now());
    }

    /// Gives the lease back, so that the next one need not wait. What was under way when we were stopped is not known, so
    /// the server is asked first.
    async fn release(&mut self) {
        for _ in 0..3 {
            let Ok(Some(lease)) = self.read().await else {
                return;
            };
            if self.settings.holder_of(&lease) != LeaseHolder::Us {
                return;
            }
            let released = self
                .writer
                .patch(&self.api, &lease, |lease| {
                    let spec = lease.spec.get_or_insert_default();
                    spec.holder_identity = Some(String::new());
                    spec.renew_time = Some(MicroTime(Timestamp::now()));
                })
                .await;
            match released {
                Err(error) if error.class() == ErrorClass::Conflict => {}
                Err(error) => {
                    tracing::warn!(lease = self.settings.name, %error, "failed to release the lease; it will expire");
                    return;
                }
                Ok(_) => {
                    tracing::info!(lease = self.settings.name, "released the lease");
                    return;
                }
            }
        }
    }

    async fn read(&self) -> Result<Option<Lease>, String> {
        let limit = self.settings.request_limit();
        match tokio::time::timeout(limit, self.api.get(&self.settings.name)).await {
            Err(_) => Err(format!("no answer within {limit:?}")),
            Ok(Ok(lease)) => Ok(Some(lease)),
            Ok(Err(error)) if ErrorClass::of(&error) == ErrorClass::Gone => Ok(None),
            Ok(Err(error)) => Err(brief(&error)),
        }
    }

    /// The log hears of changes only: a server that is away for an hour is one line, not a thousand.
    fn tell(&mut self, result: Result<(), String>) {
        let lease = self.settings.name.as_str();
        let leads = self.claim.holds();
        if leads != self.leading {
            self.leading = leads;
            if leads {
                tracing::info!(lease, identity = self.settings.identity, "became leader");
            } else {
                tracing::warn!(lease, identity = self.settings.identity, "lost leadership");
            }
        }
        match result {
            Ok(()) => {
                if let Some(health) = &self.health {
                    let held_by = if leads {
                        "held by this process"
                    } else {
                        "standing by: not held by this process"
                    };
                    health.passed(CHECK, held_by);
                }
                if self.said.take().is_some() {
                    tracing::info!(lease, "the lease can be read and written again");
                }
            }
            Err(error) => {
                let error = self.settings.trouble(error);
                if let Some(health) = &self.health {
                    health.note(CHECK, &error);
                }
                if self.said.as_ref() != Some(&error) {
                    tracing::warn!(lease, error, "failed to read or write the lease; retrying");
                    self.said = Some(error);
                }
            }
        }
    }
}
