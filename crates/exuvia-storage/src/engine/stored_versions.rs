//! What is written to the CRD's status: the trim, what is put back, and the record of what was proven.

use std::time::Instant;

use exuvia_api::EXCLUDE_ANNOTATION;
use exuvia_sweep::ResourceVersion;
use exuvia_write::{ErrorClass, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::Engine;
use crate::Error;
use crate::definition::Definition;
use crate::protocol::{Hold, Pass, StepKind};
use crate::record::Record;
use crate::report::Verified;

/// How often a write of the CRD's status is tried again at once when somebody else wrote the CRD in between.
const MAX_TRIES: usize = 10;

impl Engine {
    /// Removes exactly the old versions, under the lock, and puts on record what was proven. On a 409 the next observation
    /// decides again; nothing else is done twice (PITFALLS B4, B7). Returns why not, if etcd itself
    /// shows something else, or another server answers for the CRD.
    pub(super) async fn trim(&mut self, old: &[String]) -> Result<Option<Hold>, Error> {
        self.busy(StepKind::Trim, None);
        if let Some(hold) = self.audit_etcd().await? {
            return Ok(Some(hold));
        }
        // Last, since it is the sweeps that count: they saw the CRD's objects only if the CRD answers still.
        if let Some(hold) = self.unless_hidden().await {
            return Ok(Some(hold));
        }
        let record = self.record_of(self.pass.as_ref());
        let at = record.at;
        let storage = self.report.storage_version.clone();
        let trimmed = |crd: &mut CustomResourceDefinition| {
            trim(crd, old, &storage);
            record.write(crd);
        };
        if self.write_status(&self.writer(), trimmed).await? {
            self.trimmed_at = Some(Instant::now());
            trim_list(&mut self.report.stored_after, old, &storage);
            self.remember(|pass| (pass.trimmed, pass.trimmed_at) = (true, Some(at)));
            self.record = Some(record);
        }
        Ok(None)
    }

    /// Tries the trim without carrying it out: better to know before 10,000 objects are rewritten that we may not.
    pub(super) async fn try_trim(&self) -> Result<(), Error> {
        let Some(definition) = &self.definition else {
            return Ok(());
        };
        let old = definition.crd.old_versions();
        let record = self.record_of(self.pass.as_ref());
        let trimmed = |crd: &mut CustomResourceDefinition| {
            trim(crd, &old, &definition.crd.storage);
            record.write(crd);
        };
        self.write_status(&self.writer().dry_run(), trimmed)
            .await
            .map(drop)
    }

    fn record_of(&self, pass: Option<&Pass>) -> Record {
        let pass = pass.cloned().unwrap_or_default();
        Record {
            uid: pass.uid,
            generation: pass.generation,
            storage_version: self.report.storage_version.clone(),
            verified: if pass.verified_in_full {
                Verified::Full
            } else {
                Verified::Proof
            },
            r1: pass.r1,
            at: self.clock.now(),
            // What was patrolled at this generation has only been confirmed since; a contradiction would have erased it.
            patrolled: self.record.as_ref().is_some_and(|record| record.patrolled),
            patrolled_at: self.record.as_ref().and_then(|record| record.patrolled_at),
            left: self.left(),
        }
    }

    /// What this pass left, or else the one that is on record.
    fn left(&self) -> Vec<String> {
        let on_record = || self.record.as_ref().map(|record| record.left.clone());
        self.report.left.clone().or_else(on_record).unwrap_or_default()
    }

    /// Adds what was trimmed to `storedVersions` again, even if others change the CRD at the same time, and takes back what is on
    /// record; `false`: nothing is listed again, because the CRD has only one version, or it the CRD is gone or was flipped, which
    /// explains by itself that objects moved.
    ///
    /// If somebody else trimmed, nobody knows which version it was: all others of the CRD are listed until it is proven.
    pub(super) async fn put_back(&self, pass: &Pass) -> Result<bool, Error> {
        let crds = self.crds();
        let found = self.find_crd(&self.name).await?;
        let is_same = |crd: &CustomResourceDefinition| {
            (crd.metadata.uid.as_ref(), crd.metadata.generation) == (Some(&pass.uid), Some(pass.generation))
        };
        let Some(crd) = found.filter(is_same) else {
            return Ok(false);
        };
        let put_back = |crd: &mut CustomResourceDefinition| {
            let definition = Definition::read(crd);
            let all: Vec<String> = definition
                .versions
                .into_iter()
                .map(|version| version.name)
                .collect();
            let is_old = |version: &&String| **version != definition.crd.storage;
            let before: Vec<&String> = pass.stored_before.iter().filter(is_old).collect();
            let missing = if before.is_empty() {
                all.iter().filter(is_old).collect()
            } else {
                before
            };
            let stored = crd
                .status
                .get_or_insert_default()
                .stored_versions
                .get_or_insert_default();
            for version in missing.into_iter().filter(|version| all.contains(version)) {
                if !stored.contains(version) {
                    stored.push(version.clone());
                }
            }
            Record::erase(crd);
        };
        let written = self.writer().patch_status(&crds, &crd, put_back).await?;
        let listed = Definition::read(&written.object).crd.old_versions();
        if !listed.is_empty() {
            tracing::warn!(resource = %self.name, versions = listed.join(","), "listed in storedVersions until it is proven");
        }
        Ok(!listed.is_empty())
    }

    /// Puts on record that the patrol was done; `false`: the CRD is another by now, or lists an old version again.
    pub(super) async fn note_patrol(&mut self, r1: Option<ResourceVersion>) -> Result<bool, Error> {
        let crds = self.crds();
        let Some(crd) = self.find_crd(&self.name).await? else {
            return Ok(false);
        };
        let pass = self.pass.clone().unwrap_or_default();
        let holds = |crd: &CustomResourceDefinition| {
            let now = Definition::read(crd).crd;
            now.uid == pass.uid && now.generation == pass.generation && now.old_versions().is_empty()
        };
        let confirmed = self.record_of(Some(&pass));
        let record = Record {
            r1,
            patrolled: true,
            patrolled_at: Some(confirmed.at),
            ..confirmed
        };
        let noted = |crd: &mut CustomResourceDefinition| {
            if holds(crd) {
                record.write(crd);
            }
        };
        let written = self.writer().patch_status(&crds, &crd, noted).await?;
        let is_noted = holds(&written.object);
        self.record = Some(record.clone()).filter(|_| is_noted);
        Ok(is_noted)
    }

    /// Writes the CRD's status if it is still the one that was observed; `false`: it is not, observe again.
    async fn write_status(
        &self,
        writer: &Writer,
        change: impl Fn(&mut CustomResourceDefinition),
    ) -> Result<bool, Error> {
        let (Some(definition), crds) = (&self.definition, self.crds()) else {
            return Ok(false);
        };
        for _ in 0..MAX_TRIES {
            let Some(crd) = self.find_crd(&self.name).await? else {
                return Ok(false);
            };
            if !is_same(&Definition::read(&crd), definition) {
                return Ok(false);
            }
            match writer.once().patch_status_locked(&crds, &crd, &change).await {
                Ok(_) => return Ok(true),
                Err(error) if error.class() == ErrorClass::Conflict => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}

/// Whether nothing has changed that a step was decided upon. Labels, and the annotation that excludes a CRD, count too: somebody
/// who asked us to stop by one of them must not find the CRD trimmed. Other annotations do not: somebody may write one many
/// times a second, and would keep the trim away for ever.
fn is_same(now: &Definition, then: &Definition) -> bool {
    let excluded = |definition: &Definition| definition.annotations.get(EXCLUDE_ANNOTATION).cloned();
    now.crd == then.crd && now.labels == then.labels && excluded(now) == excluded(then)
}

fn trim(crd: &mut CustomResourceDefinition, old: &[String], storage: &str) {
    let status = crd.status.get_or_insert_default();
    trim_list(status.stored_versions.get_or_insert_default(), old, storage);
}

/// Anybody can write the list, and may have left the storage version out: it is where everything is stored now.
fn trim_list(stored: &mut Vec<String>, old: &[String], storage: &str) {
    stored.retain(|version| !old.contains(version));
    if stored.is_empty() {
        stored.push(storage.to_owned());
    }
}
