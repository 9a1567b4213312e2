//! Built-in resources by name. They are rewritten and verified like CRDs' objects, so that a new encryption key or encoding
//! reaches every one of them.

use kube::Client;
use kube::api::ApiResource;
use kube::discovery::{ApiCapabilities, ApiGroup, Discovery, verbs};

use crate::Error;

/// A built-in resource by plural, or by `plural.group`. Never one that a CRD defines: that has versions to look after.
pub async fn find(
    client: &Client,
    name: &str,
    is_crd: impl Fn(&str, &str) -> bool,
) -> Result<ApiResource, Error> {
    let (plural, wanted) = name
        .split_once('.')
        .map_or((name, None), |(plural, group)| (plural, Some(group)));
    let mut discovery = Discovery::new(client.clone());
    if let Some(group) = wanted {
        // Another group's server may be down, which does not matter here.
        discovery = discovery.filter(&[group]);
    }
    let discovery = discovery.run().await?;
    let of_plural: Vec<(ApiResource, ApiCapabilities)> = discovery
        .groups()
        .filter(|group| wanted.is_none_or(|wanted| wanted == group.name()))
        .filter(|group| !is_crd(group.name(), plural))
        .flat_map(ApiGroup::recommended_resources)
        .filter(|(resource, _)| resource.plural == plural)
        .collect();
    let is_stored =
        |can: &ApiCapabilities| can.supports_operation(verbs::LIST) && can.supports_operation(verbs::PATCH);
    if !of_plural.is_empty() && !of_plural.iter().any(|(_, can)| is_stored(can)) {
        return Err(Error::NotStored {
            name: name.to_owned(),
        });
    }
    let mut found: Vec<ApiResource> = of_plural.into_iter().map(|(resource, _)| resource).collect();
    // One in the core group has no other name than its plural; `events` is the one such case.
    let core = found.iter().position(|resource| resource.group.is_empty());
    match (found.len(), core) {
        (0, _) => Err(Error::NotFound {
            name: name.to_owned(),
        }),
        (1, _) => Ok(found.remove(0)),
        (_, Some(core)) => Ok(found.remove(core)),
        (_, None) => {
            let names: Vec<String> = found.iter().map(resource_name).collect();
            Err(Error::Ambiguous {
                name: name.to_owned(),
                candidates: names.join(" or "),
            })
        }
    }
}

/// What a resource is called: its plural, with the group behind it unless that is the core group.
pub fn resource_name(resource: &ApiResource) -> String {
    exuvia_write::resource_name(&resource.plural, &resource.group)
}
