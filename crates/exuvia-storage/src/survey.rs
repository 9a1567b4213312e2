//! A look at every object's metadata, without a request per object: which manager names which version.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use exuvia_sweep::{Pages, Sweep, Verdict};
use exuvia_write::RetryPolicy;
use kube::Api;
use kube::api::{DynamicObject, ObjectMeta, PartialObjectMeta};

use crate::ownership::Owners;
use crate::probe::versions_named;

/// What the look tells.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Which managers name which version in managedFields.
    pub owners: Owners,
    /// How many objects there are.
    pub objects: u64,
    /// One object for each `apiVersion` that entries name, over the whole resource: the first page may not have them all.
    pub(crate) samples: BTreeMap<String, ObjectMeta>,
}

/// How many objects a first look takes in.
const FIRST_LOOK: u32 = 500;

impl Survey {
    /// A look at the first page only, for a migration that does something in any case: what entries further down name is
    /// asked for when its turn comes.
    pub(crate) async fn of_first_page(
        api: &Api<DynamicObject>,
        retry: &RetryPolicy,
    ) -> Result<Self, kube::Error> {
        let mut pages = Pages::of(api)
            .metadata()
            .page_size(FIRST_LOOK)
            .retry(retry.clone());
        let survey = Mutex::new(Self::default());
        if let Some(page) = pages.next().await? {
            for item in &page.items {
                let object: PartialObjectMeta = item.read().map_err(kube::Error::SerdeError)?;
                add(&survey, &object.metadata);
            }
        }
        Ok(survey.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

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
    for version in versions_named(metadata) {
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
