//! What to say of a name that does not belong to any CRD.

use exuvia_storage::definition::Definition;
use exuvia_usage::nearest;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

/// The names of a CRD.
struct Known<'a> {
    name: String,
    others: Vec<&'a str>,
}

/// One sentence, with what may have been meant.
pub(super) fn no_such_crd(name: &str, all: &[CustomResourceDefinition]) -> String {
    let known: Vec<Known<'_>> = all
        .iter()
        .map(|crd| {
            let names = &crd.spec.names;
            let mut others = vec![names.plural.as_str(), names.kind.as_str()];
            others.extend(names.singular.as_deref());
            others.extend(names.short_names.iter().flatten().map(String::as_str));
            Known {
                name: crd.name_any(),
                others,
            }
        })
        .collect();
    match meant_of(name, &known) {
        Some(meant) => format!("CRD {name:?} not found: did you mean {meant}?"),
        None => format!("CRD {name:?} not found: `exuvia plan` shows all CRDs of the cluster"),
    }
}

/// The CRDs that may be meant by a name that was not found, joined by "or".
pub(super) fn meant(name: &str, all: &[Definition]) -> Option<String> {
    let known: Vec<Known<'_>> = all
        .iter()
        .map(|crd| Known {
            name: crd.name.clone(),
            others: vec![&crd.plural, &crd.kind],
        })
        .collect();
    meant_of(name, &known)
}

fn meant_of(name: &str, known: &[Known<'_>]) -> Option<String> {
    let is_called = |crd: &&Known<'_>| crd.others.iter().any(|other| other.eq_ignore_ascii_case(name));
    let by_other_name: Vec<&str> = known
        .iter()
        .filter(is_called)
        .map(|crd| crd.name.as_str())
        .collect();
    let meant = if by_other_name.is_empty() {
        nearest(name, known.iter().map(|crd| crd.name.as_str()))
    } else {
        by_other_name
    };
    (!meant.is_empty()).then(|| meant.join(" or "))
}
