//! Whether the quotas of namespaces leave room for all targets: a dry run sees each object alone (PITFALLS D29).

use std::collections::BTreeMap;

use exuvia_write::{ErrorClass, Name, Redacted, RetryPolicy, redacted};
use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::Error;

/// How many targets are to be created, by namespace and `plural.group`.
pub(super) type Planned = BTreeMap<(String, String), u64>;

/// A quota that leaves less room than is needed.
pub(super) struct Exceeded {
    pub(super) namespace: String,
    pub(super) message: Redacted,
}

/// Reads the quotas of the cluster. Where they may not be read, they are found when the copy meets them.
pub(super) async fn exceeded(client: &Client, planned: &Planned) -> Result<Vec<Exceeded>, Error> {
    if planned.is_empty() {
        return Ok(Vec::new());
    }
    let api: Api<ResourceQuota> = Api::all(client.clone());
    let params = ListParams::default();
    match RetryPolicy::default().read(|| api.list(&params)).await {
        Ok(quotas) => Ok(quotas
            .items
            .iter()
            .flat_map(|quota| of_one(quota, planned))
            .collect()),
        Err(error) if ErrorClass::of(&error) == ErrorClass::Denied => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn of_one(quota: &ResourceQuota, planned: &Planned) -> Vec<Exceeded> {
    let (spec, status) = (
        quota.spec.clone().unwrap_or_default(),
        quota.status.clone().unwrap_or_default(),
    );
    // Scopes choose pods, and nothing else.
    if spec.scopes.is_some() || spec.scope_selector.is_some() {
        return Vec::new();
    }
    let (hard, used) = (spec.hard.unwrap_or_default(), status.used.unwrap_or_default());
    let namespace = quota.namespace().unwrap_or_default();
    let of_namespace = planned.iter().filter(|((of, _), _)| *of == namespace);
    let lacking = of_namespace.filter_map(|((_, resource), needed)| {
        let key = format!("count/{resource}");
        let hard = count(hard.get(&key)?)?;
        let used = used.get(&key).map_or(Some(0), count)?;
        let room = hard.saturating_sub(used);
        (room < *needed).then(|| Exceeded {
            namespace: namespace.clone(),
            message: redacted!(
                "{} {} are to be created, and the quota {} has room for {}: raise it, or delete what is not needed",
                *needed,
                Name(resource),
                Name(&quota.name_any()),
                room
            ),
        })
    });
    lacking.collect()
}

/// A number of objects. One that is written with a suffix is not known: the server will tell.
fn count(quantity: &Quantity) -> Option<u64> {
    quantity.0.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quota_is_exceeded_by_what_is_used_and_what_is_needed_together() {
        let quota: ResourceQuota = serde_json::from_value(json!({
            "metadata": {"name": "few", "namespace": "a"},
            "spec": {"hard": {"count/widgets.example.com": "5", "count/others.example.com": "0"}},
            "status": {"used": {"count/widgets.example.com": "3"}},
        }))
        .unwrap();
        let planned = |namespace: &str, needed| {
            Planned::from([((namespace.to_owned(), "widgets.example.com".to_owned()), needed)])
        };
        assert!(of_one(&quota, &planned("a", 2)).is_empty());
        assert!(of_one(&quota, &planned("b", 3)).is_empty());
        let exceeded = of_one(&quota, &planned("a", 3));
        assert_eq!(
            exceeded[0].message,
            "3 widgets.example.com are to be created, and the quota few has room for 2: raise it, or delete what is not needed"
        );
    }
}
