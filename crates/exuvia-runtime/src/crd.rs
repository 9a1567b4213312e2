//! A controller's own CRD: whether it is there and served.

use std::borrow::Cow;

use exuvia_write::Redacted;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use kube::{
    Api, Resource,
    api::{ListParams, ObjectMeta},
    core::ClusterResourceScope,
};
use serde::Deserialize;
use tokio::sync::watch;

use crate::{Seen, runtime::Shared, watch::follow_and_tell};

/// What is known of a CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Crd {
    Unknown,
    Missing,
    /// It is served. Another uid is another CRD, whose objects are others.
    Established(String),
}

/// Publishes each change of this CRD's state, for ever. Why it cannot be known is told of the health check.
pub(crate) async fn follow_crd(shared: &Shared, name: &str, check: &str, tell: &watch::Sender<Crd>) {
    let config = ListParams::default().fields(&format!("metadata.name={name}"));
    let api: Api<SlimCrd> = Api::all(shared.client.clone());
    let on = |seen: Seen<SlimCrd>| {
        tell.send_if_modified(|known| {
            let now = match seen {
                Seen::Applied(crd) => crd.state(),
                Seen::Deleted(_) => Crd::Missing,
                Seen::Synced if *known == Crd::Unknown => Crd::Missing,
                Seen::Synced => return false,
            };
            let changed = *known != now;
            *known = now;
            changed
        });
    };
    let troubled = |error: &Redacted| {
        if *tell.borrow() == Crd::Unknown {
            let note = format!("cannot see whether its crd {name} is installed: {error}");
            shared.health.note(check, &note);
        }
    };
    let resource = "customresourcedefinitions";
    follow_and_tell(api, config, &shared.metrics, resource, on, &troubled).await;
}

/// As much of a CRD as matters here: its schemas, often a hundred kilobytes, are passed over.
#[derive(Debug, Clone, Deserialize)]
struct SlimCrd {
    metadata: ObjectMeta,
    #[serde(default)]
    status: SlimStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct SlimStatus {
    #[serde(default)]
    conditions: Option<Vec<CustomResourceDefinitionCondition>>,
}

impl SlimCrd {
    fn state(&self) -> Crd {
        let established = self
            .status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Established" && condition.status == "True");
        // One that is being deleted counts until it is gone: its objects may wait for us to take a finalizer off.
        if established {
            Crd::Established(self.metadata.uid.clone().unwrap_or_default())
        } else {
            Crd::Missing
        }
    }
}

impl Resource for SlimCrd {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::kind(&())
    }
    fn group((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::group(&())
    }
    fn version((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::version(&())
    }
    fn plural((): &()) -> Cow<'_, str> {
        CustomResourceDefinition::plural(&())
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
