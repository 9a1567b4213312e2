//! Compares every object at the storage version and at the old ones, page by page, at one resourceVersion each.

use std::collections::HashMap;

use exuvia_sweep::{Control, Page, Pages};
use exuvia_write::{ErrorClass, Name, RetryPolicy, redacted};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use super::difference::Difference;
use super::plan::Plan;
use super::{Losses, Unseen};
use crate::definition::{Definition, Version};

/// Whole objects, and there may be 1 MiB in each: two such pages are in memory at once.
const PAGE: u32 = 100;

/// How often an object that changes meanwhile is read again.
const MAX_READS: u32 = 20;

/// How many objects that never keep still are named.
const MAX_UNSEEN: usize = 20;

/// Finds out what a rewrite of all objects would erase, change or add. Needs `list` on the resource, and writes nothing.
///
/// `None`: it was cancelled. A CRD with a conversion webhook is not judged: what the webhook drops is its own promise.
pub async fn look(
    client: &Client,
    definition: &Definition,
    control: &Control,
) -> Result<Option<Losses>, kube::Error> {
    let mut losses = Losses::default();
    if definition.webhook_conversion {
        return Ok(Some(losses));
    }
    let Plan {
        look: versions,
        unseen,
    } = Plan::of(definition);
    losses.unseen = unseen;
    let storage = definition.version(&definition.crd.storage);
    let Some(storage) = storage.filter(|_| !versions.is_empty()) else {
        return Ok(Some(losses));
    };
    let unseen = losses.unseen.clone();
    let mut looker = Looker {
        client,
        definition,
        storage,
        losses,
    };
    let mut pages = looker.pages(storage, None).page_size(PAGE);
    while let Some(mut page) = pages.next().await? {
        if page.is_first {
            // The list may have lost its place and start over: no object is counted twice.
            looker.losses = Losses {
                unseen: unseen.clone(),
                ..Losses::default()
            };
        }
        let objects = whole(&mut page)?;
        let mut found = vec![Difference::default(); objects.len()];
        for old in &versions {
            if control.is_cancelled() {
                return Ok(None);
            }
            let mut shown = looker.same_page(&pages, old, &page).await?;
            for (object, found) in objects.iter().zip(&mut found) {
                let partner = shown.remove(&identity(object));
                found.merge(looker.compare(old, partner, object).await?);
            }
        }
        for (object, found) in objects.iter().zip(&found) {
            looker.losses.add(&name(object), found);
        }
    }
    Ok(Some(looker.losses))
}

struct Looker<'a> {
    client: &'a Client,
    definition: &'a Definition,
    storage: &'a Version,
    losses: Losses,
}

impl Looker<'_> {
    fn api(&self, version: &Version, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = self.definition.resource(&version.name);
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }

    fn pages(&self, version: &Version, namespace: Option<&str>) -> Pages {
        Pages::of(&self.api(version, namespace)).retry(RetryPolicy::default())
    }

    /// The page as another version shows it, as of the same moment. Where that moment is gone from the server meanwhile,
    /// whatever is there now; where the server cannot even list that, nothing: each object is read by itself then.
    async fn same_page(
        &self,
        pages: &Pages,
        version: &Version,
        page: &Page,
    ) -> Result<HashMap<String, Value>, kube::Error> {
        match pages.beside(&self.api(version, None), page).next().await {
            Ok(Some(mut shown)) => Ok(whole(&mut shown)?
                .into_iter()
                .map(|object| (identity(&object), object))
                .collect()),
            Ok(None) => Ok(HashMap::new()),
            Err(error) if error.class == ErrorClass::Expired => Ok(HashMap::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Compares two views of one object. Views of different moments say nothing: it is read again then.
    async fn compare(
        &mut self,
        old: &Version,
        partner: Option<Value>,
        object: &Value,
    ) -> Result<Difference, kube::Error> {
        let between =
            |shown: &Value, now: &Value| Difference::between(shown, &old.schema, now, &self.storage.schema);
        if let Some(partner) = partner.filter(|partner| are_of_one_moment(partner, object)) {
            return Ok(between(&partner, object));
        }
        for _ in 0..MAX_READS {
            match (
                self.read(self.storage, object).await?,
                self.read(old, object).await?,
            ) {
                (Some(now), Some(shown)) if are_of_one_moment(&shown, &now) => {
                    return Ok(between(&shown, &now));
                }
                // Both are consistent, so it is gone.
                (None, None) => return Ok(Difference::default()),
                // Read on two sides of a write, or one of the two endpoints is not the CRD's.
                _ => {}
            }
        }
        if self.losses.unseen.len() < MAX_UNSEEN {
            self.losses.unseen.push(Unseen {
                version: old.name.clone(),
                why: redacted!(
                    "{} changed between any two reads, or is shown at one of the two versions only, so that its content at {} and \
                     {} cannot be compared: try again",
                    Name(&name(object)),
                    Name(&old.name),
                    Name(&self.storage.name)
                ),
            });
        }
        Ok(Difference::default())
    }

    /// One object, by a list of its name: that needs `list` alone, and is as consistent as a get. `None`: it is gone.
    async fn read(&self, version: &Version, object: &Value) -> Result<Option<Value>, kube::Error> {
        let metadata = &object["metadata"];
        let params = ListParams::default().fields(&format!(
            "metadata.name={}",
            metadata["name"].as_str().unwrap_or("")
        ));
        let mut pages = self
            .pages(version, metadata["namespace"].as_str())
            .select(&params);
        match pages.next().await? {
            Some(mut page) => Ok(whole(&mut page)?.pop()),
            None => Ok(None),
        }
    }
}

/// The objects of a page, taken out of it: the text of each is dropped as it is read.
fn whole(page: &mut Page) -> Result<Vec<Value>, kube::Error> {
    let objects = page.items.drain(..).map(|item| item.read());
    objects.collect::<Result<_, _>>().map_err(kube::Error::SerdeError)
}

/// An object is the same one only with the same uid.
fn identity(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "{}/{}",
        metadata["uid"].as_str().unwrap_or_default(),
        name(object)
    )
}

/// `namespace/name`.
fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

fn are_of_one_moment(first: &Value, second: &Value) -> bool {
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().map(str::to_owned);
    identity(first) == identity(second) && version(first).is_some() && version(first) == version(second)
}
