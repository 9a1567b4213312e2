//! Which versions can be shed: the same answer for a flag and for a `StorageMigration`.

use crate::definition::Definition;

/// Why these versions cannot be shed from these CRDs; `None`: they can, each from at least one.
///
/// A misspelt version would silently do nothing, and the one that was meant would stay. Versions that the CRD no longer has
/// need not be named: their entries are moved in any case.
pub fn unsheddable(crds: &[&Definition], shed: &[String]) -> Option<String> {
    for (index, version) in shed.iter().enumerate() {
        if shed[..index].contains(version) {
            return Some(format!("{version} is to be shed twice: give it once"));
        }
        let having = crds.iter().filter(|crd| crd.version(version).is_some());
        let mut having = having.peekable();
        match (having.peek(), crds) {
            (None, [crd]) => {
                let names: Vec<&str> = crd.versions.iter().map(|version| version.name.as_str()).collect();
                return Some(format!(
                    "{} has no version {version} to shed: it has {}; entries at a version that is gone are moved in any case",
                    crd.name,
                    names.join(", ")
                ));
            }
            (None, []) => {
                return Some(format!(
                    "only a CRD has versions to shed, so {version} cannot be shed here"
                ));
            }
            (None, _) => {
                return Some(format!(
                    "none of the CRDs to migrate has a version {version} to shed"
                ));
            }
            (Some(crd), _) => {
                let name = crd.name.clone();
                if having.all(|crd| crd.crd.storage == *version) {
                    return Some(format!(
                        "{version} is the storage version of {name}, to which everything is moved: it cannot be shed"
                    ));
                }
            }
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(plural: &str, storage: &str) -> Definition {
        let version = |name: &str| json!({"name": name, "served": true, "storage": name == storage});
        let crd = json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Thing", "plural": plural},
                "versions": [version("v1alpha1"), version("v1")],
            },
        });
        Definition::read(&serde_json::from_value(crd).unwrap())
    }

    #[test]
    fn only_what_a_crd_has_beside_its_storage_version_can_be_shed() {
        let (new, old) = (crd("news", "v1"), crd("olds", "v1alpha1"));
        let why = |crds: &[&Definition], shed: &[&str]| {
            let shed: Vec<String> = shed.iter().map(|version| (*version).to_owned()).collect();
            unsheddable(crds, &shed)
        };
        assert_eq!(why(&[&new], &[]), None);
        assert_eq!(why(&[&new], &["v1alpha1"]), None);
        assert_eq!(
            why(&[&new, &old], &["v1alpha1", "v1"]),
            None,
            "each from one of them"
        );
        for (crds, shed, part) in [
            (&[&new][..], &["v1"][..], "storage version of news.example.com"),
            (&[&new], &["v9"], "no version v9 to shed: it has v1alpha1, v1"),
            (&[&new, &old], &["v9"], "none of the CRDs"),
            (&[&new], &["v1alpha1", "v1alpha1"], "twice"),
            (&[], &["v1"], "only a CRD"),
        ] {
            let why = why(crds, shed).unwrap();
            assert!(why.contains(part), "{why}");
        }
    }
}
