//! Whether the quotas of namespaces leave room for all targets: a dry run sees each object alone (PITFALLS D29).

use std::collections::BTreeMap;

use exuvia_api::counted;
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
    /// `plural.group` of what does not fit.
    pub(super) resource: String,
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
            resource: resource.clone(),
            message: redacted!(
                "{} of {} {} to be created, and the quota {} has room for {}: raise it, or delete what is not needed",
                Name(&counted(*needed, "object")),
                Name(resource),
                if *needed == 1 { "is" } else { "are" },
                Name(&quota.name_any()),
                room
            ),
        })
    });
    lacking.collect()
}

/// A number of objects, rounded down. The API server writes 1000 as `1k`.
fn count(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.as_str();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let below = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let power = |base: u128, exponent: u32| Some((base.checked_pow(exponent)?, 1));
    let (times, by) = match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1_000),
        "k" => power(1_000, 1)?,
        "M" => power(1_000, 2)?,
        "G" => power(1_000, 3)?,
        "T" => power(1_000, 4)?,
        "P" => power(1_000, 5)?,
        "E" => power(1_000, 6)?,
        "Ki" => power(1_024, 1)?,
        "Mi" => power(1_024, 2)?,
        "Gi" => power(1_024, 3)?,
        "Ti" => power(1_024, 4)?,
        "Pi" => power(1_024, 5)?,
        "Ei" => power(1_024, 6)?,
        exponent => match exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()? {
            up @ 0.. => power(10, up.unsigned_abs())?,
            down => (1, 10_u128.checked_pow(down.unsigned_abs())?),
        },
    };
    u64::try_from(digits.checked_mul(times)? / below.checked_mul(by)?).ok()
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
        assert_eq!(exceeded[0].resource, "widgets.example.com");
        assert_eq!(
            exceeded[0].message,
            "3 objects of widgets.example.com are to be created, and the quota few has room for 2: raise it, or delete what is not needed"
        );
    }

    #[test]
    fn a_number_of_objects_is_read_as_the_api_server_writes_it() {
        for (text, expected) in [
            ("0", Some(0)),
            ("15", Some(15)),
            ("1k", Some(1_000)),
            ("1.5k", Some(1_500)),
            ("2M", Some(2_000_000)),
            ("1Ki", Some(1_024)),
            ("5e3", Some(5_000)),
            ("5E3", Some(5_000)),
            ("50e-1", Some(5)),
            ("1E", Some(1_000_000_000_000_000_000)),
            ("3500m", Some(3)),
            ("-1", None),
            ("", None),
            (".", None),
            ("1x", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(count(&Quantity(text.to_owned())), expected, "{text}");
        }
    }
}
