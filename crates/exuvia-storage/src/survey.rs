//! A look at every object's metadata, without a request per object: who names which version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use exuvia_sweep::{Sweep, Verdict};
use kube::api::ObjectMeta;

use crate::ownership::Owners;

/// What the look tells.
#[derive(Debug, Default)]
pub struct Survey {
    /// Who names which version in managedFields.
    pub owners: Owners,
    /// How many objects there are.
    pub objects: u64,
    /// One object for each `apiVersion` that entries name, over the whole resource: the first page may not have them all.
    pub(crate) samples: BTreeMap<String, ObjectMeta>,
}

impl Survey {
    /// Sweeps without asking for any object by itself.
    pub async fn of(sweep: Sweep) -> Result<Self, exuvia_sweep::Error> {
        let survey = Mutex::new(Self::default());
        sweep
            .run(async |object| {
                add(&survey, &object.metadata);
                Verdict::skipped()
            })
            .await?;
        Ok(survey.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Counts one object in.
pub(crate) fn add(survey: &Mutex<Survey>, metadata: &ObjectMeta) {
    let mut survey = survey.lock().unwrap_or_else(PoisonError::into_inner);
    survey.objects += 1;
    survey.owners.add(metadata);
    let named = metadata
        .managed_fields
        .iter()
        .flatten()
        .filter_map(|entry| entry.api_version.as_deref());
    for version in named.chain([""]) {
        if !survey.samples.contains_key(version) {
            let sample = ObjectMeta {
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                ..ObjectMeta::default()
            };
            survey.samples.insert(version.to_owned(), sample);
        }
    }
}
