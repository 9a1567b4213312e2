//! Looks: every object at the storage version and at the old ones, page by page, at one resourceVersion each.

use std::collections::HashMap;
use std::time::Duration;

use exuvia_sweep::Control;
use exuvia_write::{ErrorClass, RetryPolicy};
use kube::api::{DynamicObject, ListParams, VersionMatch};
use kube::core::{ListMeta, Request};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::Value;

use super::difference::Difference;
use super::plan::Plan;
use super::{Losses, Unseen};
use crate::definition::{Definition, Version};

/// Whole objects, and there may be 1 MiB in each: two such pages are in memory at once.
const PAGE: u32 = 100;

/// How often in a row the server may hand back a fresh token and then not take it.
const RESUMES_IN_A_ROW: u32 = 5;

/// How often an object that changes meanwhile is read again.
const MOST_READS: u32 = 20;

/// So many of those that never keep still are named.
const MOST_UNSEEN: usize = 20;

/// 65 s: the API server itself gives up on a list after 60 s.
const TIMEOUT: Duration = Duration::from_secs(65);

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
    let mut looker = Looker {
        client,
        definition,
        storage,
        losses,
    };
    let mut token = None;
    let mut resumed = 0;
    loop {
        let params = from_token(token.clone());
        let page = match looker.list(storage, None, &params).await {
            Err(error) => match fresh_token(&error).filter(|_| resumed < RESUMES_IN_A_ROW) {
                Some(fresh) => {
                    (token, resumed) = (Some(fresh), resumed + 1);
                    continue;
                }
                None => return Err(error),
            },
            Ok(page) => page,
        };
        resumed = 0;
        let mut found = vec![Difference::default(); page.items.len()];
        for old in &versions {
            if control.is_cancelled() {
                return Ok(None);
            }
            let mut shown = looker.same_page(old, &params, &page.metadata).await?;
            for (object, found) in page.items.iter().zip(&mut found) {
                let partner = shown.remove(&identity(object));
                found.merge(looker.compare(old, partner, object).await?);
            }
        }
        for (object, found) in page.items.iter().zip(&found) {
            looker.losses.add(&name(object), found);
        }
        token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_none() {
            return Ok(Some(looker.losses));
        }
    }
}

struct Looker<'a> {
    client: &'a Client,
    definition: &'a Definition,
    storage: &'a Version,
    losses: Losses,
}

/// One page of whole objects.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Value>,
}

impl Looker<'_> {
    /// The page of `page`, as another version shows it: the same revision, and the same place (a token holds both, and is
    /// good at every version's endpoint). Where that revision is gone meanwhile, whatever is there now.
    async fn same_page(
        &self,
        version: &Version,
        params: &ListParams,
        page: &ListMeta,
    ) -> Result<HashMap<String, Value>, kube::Error> {
        let mut params = params.clone();
        if params.continue_token.is_none() {
            params.resource_version.clone_from(&page.resource_version);
            params.version_match = Some(VersionMatch::Exact);
        }
        let shown = match self.list(version, None, &params).await {
            Err(error) if ErrorClass::of(&error) == ErrorClass::Expired => match fresh_token(&error) {
                Some(fresh) => self.list(version, None, &from_token(Some(fresh))).await,
                None => self.list(version, None, &from_token(None)).await,
            },
            shown => shown,
        };
        match shown {
            Ok(shown) => Ok(shown
                .items
                .into_iter()
                .map(|item| (identity(&item), item))
                .collect()),
            // Twice in a row: each object is read by itself.
            Err(error) if ErrorClass::of(&error) == ErrorClass::Expired => Ok(HashMap::new()),
            Err(error) => Err(error),
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
        for _ in 0..MOST_READS {
            let (Some(now), Some(shown)) = (
                self.read(self.storage, object).await?,
                self.read(old, object).await?,
            ) else {
                return Ok(Difference::default()); // it is gone
            };
            if are_of_one_moment(&shown, &now) {
                return Ok(between(&shown, &now));
            }
        }
        if self.losses.unseen.len() < MOST_UNSEEN {
            self.losses.unseen.push(Unseen {
                version: old.name.clone(),
                why: format!(
                    "{} changed between any two reads, so that its content at {} and {} cannot be compared: try again",
                    name(object),
                    old.name,
                    self.storage.name
                ),
            });
        }
        Ok(Difference::default())
    }

    /// One object, by a list of its name: that needs no other right, and is as consistent as a get. `None`: it is gone.
    async fn read(&self, version: &Version, object: &Value) -> Result<Option<Value>, kube::Error> {
        let metadata = &object["metadata"];
        let params = ListParams::default().fields(&format!(
            "metadata.name={}",
            metadata["name"].as_str().unwrap_or("")
        ));
        let page = self
            .list(version, metadata["namespace"].as_str(), &params)
            .await?;
        Ok(page.items.into_iter().next())
    }

    #[expect(clippy::disallowed_methods, reason = "it only reads: a list")]
    async fn list(
        &self,
        version: &Version,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Page, kube::Error> {
        let resource = self.definition.resource(&version.name);
        let collection = Request::new(DynamicObject::url_path(&resource, namespace));
        let ask = async || {
            let request = collection.list(params).map_err(kube::Error::BuildRequest)?;
            tokio::time::timeout(TIMEOUT, self.client.request(request))
                .await
                .unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))
        };
        RetryPolicy::default().read(ask).await
    }
}

fn from_token(continue_token: Option<String>) -> ListParams {
    ListParams {
        limit: Some(PAGE),
        continue_token,
        ..ListParams::default()
    }
}

/// The token by which to go on after a 410 (PITFALLS A8).
fn fresh_token(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if status.code == 410 => status.metadata.as_ref()?.continue_.clone(),
        _ => None,
    }
    .filter(|token| !token.is_empty())
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
