//! CRDs whose objects no list shows: no version of them is served, or another server answers.

use std::collections::BTreeSet;

use exuvia_write::{Redacted, resource_name};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ApiResource;
use kube::{Api, Client};
use serde::Deserialize;

use crate::Pages;
use crate::api_service::{self, Hidden};
use crate::catalog::{BETWEEN_SEARCHES, Catalog, MAX_SEARCHES, Unseen};

/// Their schemas weigh, and are not kept.
const PAGE: u32 = 50;

/// What decides whether a CRD's objects can be listed.
#[derive(Clone, Debug, Deserialize)]
struct Crd {
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
struct Spec {
    group: String,
    names: Names,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Clone, Debug, Deserialize)]
struct Names {
    plural: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Version {
    served: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

impl Crd {
    /// Whether objects of it were ever accepted. The server sets this condition once and never takes it back, whatever
    /// becomes of the names: a CRD that does not have it has no objects.
    fn may_have_objects(&self) -> bool {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.any(|condition| condition.r#type == "Established" && condition.status == "True")
    }

    fn is_served(&self) -> bool {
        self.spec.versions.iter().any(|version| version.served)
    }

    fn name(&self) -> String {
        resource_name(&self.spec.names.plural, &self.spec.group)
    }

    fn is(&self, resource: &ApiResource) -> bool {
        resource.group == self.spec.group && resource.plural == self.spec.names.plural
    }
}

/// The CRDs as they were before discovery was read: one that is made later has no objects that the look could have seen.
pub(crate) struct Crds(Result<Vec<Crd>, Unseen>);

impl Crds {
    pub(crate) async fn read(client: &Client) -> Self {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let all = Pages::of(&api).page_size(PAGE).collect().await;
        Self(all.map_err(|error| Unseen::new("customresourcedefinitions.apiextensions.k8s.io", &error)))
    }

    /// Those whose objects cannot be listed. One that discovery shows late is added to the resources that can be.
    pub(crate) async fn concealed(self, client: &Client, resources: &mut Vec<ApiResource>) -> Vec<Unseen> {
        let crds = match self.0 {
            Ok(crds) => crds,
            Err(unseen) => return vec![unseen],
        };
        let mut concealed = Vec::new();
        for crd in crds.iter().filter(|crd| crd.may_have_objects()) {
            if resources.iter().any(|resource| crd.is(resource)) {
                continue;
            }
            match in_discovery(client, crd).await {
                Ok(Some(found)) => resources.push(found),
                Ok(None) => {}
                Err(why) => concealed.push(unlisted(crd.name(), why)),
            }
        }
        match Hidden::all(client).await {
            Err(error) => {
                let api_services = api_service::resource();
                let name = resource_name(&api_services.plural, &api_services.group);
                concealed.push(Unseen::new(name, &error));
            }
            Ok(hidden) => {
                let names: BTreeSet<String> = crds.iter().map(Crd::name).collect();
                concealed.extend(behind_others(resources, &names, &hidden));
            }
        }
        concealed
    }
}

/// CRDs that are listed at a version at which another server answers.
fn behind_others(resources: &[ApiResource], crds: &BTreeSet<String>, hidden: &[Hidden]) -> Vec<Unseen> {
    let behind = resources.iter().filter_map(|resource| {
        let name = resource_name(&resource.plural, &resource.group);
        let by = hidden
            .iter()
            .find(|hidden| (&hidden.group, &hidden.version) == (&resource.group, &resource.version))?;
        let why = Redacted::ours(by.to_string());
        crds.contains(&name).then(|| unlisted(name, why))
    });
    behind.collect()
}

/// Where the CRD can be listed after all; `None`: it is gone. Discovery may be a moment late.
async fn in_discovery(client: &Client, crd: &Crd) -> Result<Option<ApiResource>, Redacted> {
    const UNSERVED: &str = "no version of it is served";
    if !crd.is_served() {
        return Err(UNSERVED.into());
    }
    let Spec { group, names, .. } = &crd.spec;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for _ in 0..MAX_SEARCHES {
        match Catalog::find(client, group, &names.plural).await {
            Ok(Some(found)) => return Ok(Some(found)),
            Ok(None) => {}
            Err(error) => return Err(Redacted::from_server(&exuvia_write::brief(&error))),
        }
        match crds.get_opt(&crd.name()).await {
            Ok(None) => return Ok(None),
            Ok(Some(now)) if now.spec.versions.iter().all(|version| !version.served) => {
                return Err(UNSERVED.into());
            }
            Ok(Some(_)) => {}
            Err(error) => return Err(Redacted::from_server(&exuvia_write::brief(&error))),
        }
        tokio::time::sleep(BETWEEN_SEARCHES).await;
    }
    Err("it is served, but not in discovery".into())
}

fn unlisted(what: String, why: impl Into<Redacted>) -> Unseen {
    Unseen {
        what,
        why: why.into(),
        forbidden: false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_that_was_never_established_has_no_objects() {
        let crd = |conditions: serde_json::Value| -> Crd {
            serde_json::from_value(json!({
                "spec": {"group": "example.com", "names": {"plural": "widgets", "kind": "Widget"},
                         "versions": [{"name": "v1", "served": false, "storage": true, "schema": {}}]},
                "status": {"conditions": conditions, "storedVersions": ["v1"]},
            }))
            .unwrap()
        };
        let refused =
            json!([{"type": "NamesAccepted", "status": "False"}, {"type": "Established", "status": "False"}]);
        assert!(!crd(refused).may_have_objects());
        assert!(!crd(json!(null)).may_have_objects());
        let renamed =
            json!([{"type": "NamesAccepted", "status": "False"}, {"type": "Established", "status": "True"}]);
        assert!(crd(renamed.clone()).may_have_objects());
        assert!(!crd(renamed).is_served());
    }

    #[test]
    fn only_crds_can_be_hidden_and_only_at_the_version_that_is_listed() {
        let resource = |group: &str, version: &str| ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: format!("{group}/{version}"),
            kind: "Widget".to_owned(),
            plural: "widgets".to_owned(),
        };
        let hidden = |group: &str| Hidden {
            group: group.to_owned(),
            version: "v1".to_owned(),
            service: "ns/api".to_owned(),
        };
        let resources = [
            resource("a.io", "v1"),
            resource("b.io", "v2"),
            resource("c.io", "v1"),
        ];
        let crds = ["widgets.a.io", "widgets.b.io"].map(str::to_owned).into();
        let found = behind_others(
            &resources,
            &crds,
            &[hidden("a.io"), hidden("b.io"), hidden("c.io")],
        );
        let found: Vec<&str> = found.iter().map(|unseen| unseen.what.as_str()).collect();
        assert_eq!(found, ["widgets.a.io"]);
    }
}
