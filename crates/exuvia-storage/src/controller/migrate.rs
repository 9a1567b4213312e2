//! Carries one migration out: drives its engine as far as it can go now, and parks it while it waits.

use std::time::{Duration, Instant};

use exuvia_api::{PassSpec, Phase, StorageMigration, StorageMigrationSpec, reason};
use exuvia_runtime::machine::{Ended, drive};
use exuvia_runtime::{Next, Signal};
use exuvia_sweep::Control;
use exuvia_write::{Name, Redacted, Writer, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::{Api, ResourceExt};
use tokio::sync::watch;

use super::options::options;
use super::status::{self, StatusUpdate};
use super::teller::StatusTeller;
use super::world::SeenMigration;
use super::{StorageController, lock};
use crate::audience::Audience;
use crate::engine::{Activity, Engine};
use crate::protocol::{Hold, Pass};
use crate::{Error, Options, built_in_resource};

/// API servers are looked at again at least this often while a migration waits for them.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A datastore migration that moves the objects is looked at again this often.
const MOVED_AGAIN: Duration = Duration::from_secs(10);

/// An engine that waits for a time to pass. It knows since when each API server shows the new storage version.
pub(super) struct Parked {
    work: Work,
    /// The migration as it was last written: one that somebody else wrote since starts again from its status.
    resource_version: Option<String>,
}

/// A migration in work.
pub(super) struct Work {
    pub(super) engine: Engine,
    pub(super) control: Control,
    pub(super) activity: watch::Receiver<Option<Activity>>,
    /// When this pass began, as far as this process knows.
    pub(super) began: Option<Instant>,
}

/// What a migration is about.
enum Found {
    Crd,
    BuiltIn(ApiResource),
    Nothing,
}

impl StorageController {
    /// Brings the migration as far as it can go now.
    pub(super) async fn migrate(&self, seen: &SeenMigration, signal: &Signal) -> Result<Next, Error> {
        let found = self.migrations().get_opt(&seen.name).await?;
        let Some(mut migration) = found.filter(|migration| migration.uid().as_deref() == Some(&seen.uid))
        else {
            return Ok(Next::Await); // the watch will tell
        };
        lock(&self.looked_at).insert(seen.resource.clone(), migration.metadata.generation);
        let options = match options(&migration.spec, &self.settings.defaults) {
            Ok(options) => options,
            Err(message) => {
                let message = Redacted::ours(message);
                return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
            }
        };
        let built_in = match self.built_in(seen, &mut migration).await? {
            Found::Crd => None,
            Found::BuiltIn(resource) => Some(resource),
            // A CRD would be seen; an aggregated API comes unseen.
            Found::Nothing => return Ok(Next::Retry),
        };
        if built_in.is_some()
            && let Some(why) = crate::unsheddable(&[], &migration.spec.shed)
        {
            let message = Redacted::ours(format!("spec.shed: {why}"));
            return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
        }
        let mut work = self.take_up(&migration, options, built_in);
        let mut teller = StatusTeller::new(self, seen, migration, &work, signal);
        let ended = Box::pin(drive(&mut work.engine, &mut teller)).await?;
        let (mut migration, refused, waits) = (teller.migration, teller.refused, teller.waits);
        let has_left = teller.has_left;
        work.began = teller.began;
        if let Some(message) = refused {
            let message = Redacted::ours(message);
            return self.refuse(&mut migration, reason::INVALID_SPEC, message).await;
        }
        if let Some(message) = waits {
            self.publish(&mut migration, &StatusUpdate::new(Phase::Pending, message, None))
                .await?;
            return Ok(Next::After(MOVED_AGAIN));
        }
        Ok(match ended {
            Ended::Waits(left) => {
                self.park(&migration, work);
                Next::After(left.min(LOOK_AGAIN))
            }
            Ended::Held(hold) => self.held(&migration, work, &hold),
            Ended::Done => match status::looked_again_in(&migration, self.settings.look_again) {
                Some(left) => Next::After(left.max(LOOK_AGAIN)),
                None => Next::Await,
            },
            // A label that was taken off and put on again may show as nothing at all, if the watch lists again in between.
            Ended::Stopped if has_left => Next::Retry,
            // The change that made it void has queued it again, or the operator is shutting down.
            Ended::Stopped => {
                tracing::info!(resource = %seen.resource, "migration stopped: it was cancelled, or its CRD or StorageMigration changed");
                Next::Await
            }
        })
    }

    /// What the migration is about. One that names nothing says so.
    async fn built_in(&self, seen: &SeenMigration, migration: &mut StorageMigration) -> Result<Found, Error> {
        if self.is_crd(&seen.resource).await? {
            return Ok(Found::Crd);
        }
        // A plural alone may be that of a CRD which the watch has not shown yet.
        let mut unseen: Vec<String> = Vec::new();
        loop {
            let is_crd = |group: &str, plural: &str| {
                let name = exuvia_write::resource_name(plural, group);
                unseen.contains(&name) || self.world().crd(&name).is_some()
            };
            match built_in_resource::find(&self.client, &seen.resource, is_crd).await {
                Err(Error::NotFound { .. }) => break,
                found => {
                    let resource = found?;
                    let name = built_in_resource::resource_name(&resource);
                    if !self.is_crd(&name).await? {
                        return Ok(Found::BuiltIn(resource));
                    }
                    unseen.push(name);
                }
            }
        }
        let message = redacted!(
            "no CRD or built-in resource is named {}; the migration starts as soon as it exists",
            Name(&seen.resource)
        );
        self.refuse(migration, reason::NO_SUCH_RESOURCE, message).await?;
        Ok(Found::Nothing)
    }

    /// Whether a CRD has this name. The server is asked unless the watch has shown it: a watch may be late, and a CRD that is
    /// taken for a built-in resource would be rewritten without a look at what that erases.
    async fn is_crd(&self, name: &str) -> Result<bool, Error> {
        if !name.contains('.') {
            return Ok(false); // a CRD's name has its group
        }
        if self.world().crd(name).is_some() {
            return Ok(true);
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        Ok(crds.get_metadata_opt(name).await?.is_some())
    }

    /// An engine that was waiting, or one that goes on from what the status remembers.
    fn take_up(&self, migration: &StorageMigration, options: Options, built_in: Option<ApiResource>) -> Work {
        let resource = &migration.spec.resource;
        if let Some(parked) = lock(&self.parked).remove(resource)
            && parked.resource_version == migration.resource_version()
        {
            return parked.work;
        }
        let status = migration.status.clone().unwrap_or_default();
        let spec = spec_of(migration);
        let pass = status::pass_of(&status).and_then(|pass| for_spec(pass, &spec, migration.spec.suspend));
        if let Some(pass) = pass
            .as_ref()
            .filter(|pass| !pass.is_over() && pass.spec.as_ref() == Some(&spec))
        {
            let r0 = pass.r0.map(|r0| r0.to_string());
            tracing::info!(%resource, phase = status.phase.map(Phase::as_str), r0, "resuming pass");
        }
        let control = Control::new();
        let (send, activity) = watch::channel(None);
        let (client, writer) = (self.client.clone(), self.observed_writer());
        let engine = match built_in {
            Some(resource) => Engine::for_built_in(&self.config, client, writer, resource, options),
            None => Engine::new(&self.config, client, writer, resource, options),
        }
        .resume(pass)
        .carrying_out(spec)
        .suspended(migration.spec.suspend)
        .read_by(Audience::StorageMigration)
        .controlled_by(control.clone())
        .watched_by(move |activity| {
            send.send_replace(Some(activity));
        });
        Work {
            engine,
            control,
            activity,
            began: None,
        }
    }

    /// The writer of one migration: its requests are counted.
    fn observed_writer(&self) -> Writer {
        self.writer.clone().observe(self.metrics.observe_writes())
    }

    fn park(&self, migration: &StorageMigration, work: Work) {
        let parked = Parked {
            work,
            resource_version: migration.resource_version(),
        };
        lock(&self.parked).insert(migration.spec.resource.clone(), parked);
    }

    /// What to do about a hold.
    fn held(&self, migration: &StorageMigration, work: Work, hold: &Hold) -> Next {
        match hold {
            Hold::Gone | Hold::Suspended => Next::Await,
            Hold::ServerBehind(names) if !names.is_empty() => {
                self.park(migration, work);
                Next::After(LOOK_AGAIN)
            }
            _ => Next::Retry,
        }
    }
}

/// The spec as a pass remembers it.
fn spec_of(migration: &StorageMigration) -> PassSpec {
    let lasting = StorageMigrationSpec {
        suspend: false,
        qps: None,
        max_concurrency: None,
        ..migration.spec.clone()
    };
    PassSpec {
        generation: migration.metadata.generation.unwrap_or_default(),
        json: serde_json::to_string(&lasting).unwrap_or_default(),
    }
}

/// What is remembered of a pass, for the spec as it is now. What was done for another spec says nothing about this one: a loss
/// may no longer be accepted, or another version is to be shed. The pass decides that, not `status.observedGeneration`: that
/// one also moves when nothing could be done about a new spec.
fn for_spec(pass: Pass, spec: &PassSpec, suspended: bool) -> Option<Pass> {
    let before = pass.spec.as_ref();
    if suspended || before == Some(spec) {
        return Some(pass);
    }
    // Somebody who changes the spec of a migration that is done wants something done.
    if pass.is_over() {
        return None;
    }
    if before.is_some_and(|before| before.json == spec.json) {
        return Some(Pass {
            spec: Some(spec.clone()),
            ..pass
        });
    }
    pass.begin_again()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::protocol::Preflight;

    fn spec(generation: i64, mut fields: Value) -> PassSpec {
        fields["resource"] = "widgets.example.com".into();
        let mut migration = StorageMigration::new("m", serde_json::from_value(fields).unwrap());
        migration.metadata.generation = Some(generation);
        spec_of(&migration)
    }

    fn running() -> Pass {
        Pass {
            uid: "u".into(),
            generation: 3,
            wanted: true,
            preflight: Some(Preflight::Passed),
            trimmed: true,
            spec: Some(spec(1, json!({"acceptPruning": true}))),
            ..Pass::default()
        }
    }

    #[test]
    fn a_pass_goes_on_when_only_its_pace_changes_and_is_then_one_for_the_new_spec() {
        let faster = spec(2, json!({"acceptPruning": true, "qps": 9, "maxConcurrency": 3}));
        let pass = for_spec(running(), &faster, false).unwrap();
        let expected = Pass {
            spec: Some(faster),
            ..running()
        };
        assert_eq!(pass, expected);
    }

    #[test]
    fn a_pass_for_another_spec_begins_again_and_still_owes_its_patrol() {
        let withdrawn = spec(2, json!({}));
        let pass = for_spec(running(), &withdrawn, false).unwrap();
        assert_eq!((pass.generation, pass.trimmed), (0, true));
        let built_in = Pass {
            uid: String::new(),
            ..running()
        };
        assert_eq!(for_spec(built_in, &withdrawn, false), None);
        assert_eq!(
            for_spec(running(), &withdrawn, true),
            Some(running()),
            "suspended"
        );
    }

    #[test]
    fn a_pass_that_is_over_begins_again_after_any_change_of_the_spec() {
        let over = Pass {
            patrolled: true,
            ..running()
        };
        let same = spec(1, json!({"acceptPruning": true}));
        assert_eq!(for_spec(over.clone(), &same, false), Some(over.clone()));
        let faster = spec(2, json!({"acceptPruning": true, "qps": 9}));
        assert_eq!(for_spec(over, &faster, false), None);
    }
}
