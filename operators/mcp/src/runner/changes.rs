//! How the gate left the backend, and waiting until it is otherwise.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use exuvia_runtime::{Metrics, Seen, follow_metadata};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DynamicObject, ListParams, ObjectMeta, PartialObjectMeta};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

/// How the gate left the backend's two objects.
pub(super) struct Left {
    pub(super) set: Expected,
    pub(super) service: Expected,
}

/// What an object must be like for nothing to be done.
pub(super) enum Expected {
    /// Anything.
    Any,
    /// Anything else: somebody was faster than we could look.
    Otherwise,
    /// There.
    There,
    /// Not there: until somebody else makes it, and that is their affair.
    Absent,
    /// Exactly this.
    As(Box<Mark>),
}

/// What changes when anybody changes an object, but not with its status.
#[derive(PartialEq)]
pub(super) struct Mark {
    uid: Option<String>,
    generation: Option<i64>,
    /// Of an object without generations.
    version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owners: Option<Vec<OwnerReference>>,
}

impl Mark {
    fn new(object: &ObjectMeta) -> Self {
        let object = object.clone();
        Self {
            uid: object.uid,
            version: object.resource_version.filter(|_| object.generation.is_none()),
            generation: object.generation,
            labels: object.labels,
            annotations: object.annotations,
            owners: object.owner_references,
        }
    }
}

impl Expected {
    pub(super) fn exactly(object: Option<&DynamicObject>) -> Self {
        object.map_or(Self::Absent, |object| {
            Self::As(Box::new(Mark::new(&object.metadata)))
        })
    }

    fn holds(&self, found: Option<&ObjectMeta>) -> bool {
        match (self, found) {
            (Self::Any | Self::Absent, _) | (Self::There, Some(_)) => true,
            // It is decided when it is gone.
            (Self::As(_), Some(found)) if found.deletion_timestamp.is_some() => true,
            (Self::As(mark), Some(found)) => **mark == Mark::new(found),
            (Self::Otherwise, _) | (Self::There | Self::As(_), None) => false,
        }
    }
}

impl Left {
    /// They are left alone: only that the backend goes is of interest.
    pub(super) fn alone(set: Option<&DynamicObject>) -> Self {
        Self {
            set: set.map_or(Expected::Absent, |_| Expected::There),
            service: Expected::Any,
        }
    }
}

/// Waits until one of the two is not as it was left.
pub(super) async fn until_changed(
    client: &Client,
    namespace: &str,
    backend: &str,
    left: &Left,
    metrics: &Metrics,
) {
    tokio::select! {
        () = one::<StatefulSet>(client, namespace, backend, &left.set, metrics, "statefulsets.apps") => {}
        () = one::<Service>(client, namespace, backend, &left.service, metrics, "services") => {}
    }
}

async fn one<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    expected: &Expected,
    metrics: &Metrics,
    resource: &'static str,
) where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Send + 'static,
    PartialObjectMeta<K>: DeserializeOwned,
{
    if matches!(expected, Expected::Any) {
        return std::future::pending().await;
    }
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let which = ListParams::default().fields(&format!("metadata.name={name}"));
    let changed = Notify::new();
    let mut is_there = false;
    let watch = follow_metadata(api, which, metrics, resource, |seen| {
        let holds = match seen {
            Seen::Applied(object) => {
                is_there = true;
                expected.holds(Some(&object.metadata))
            }
            Seen::Deleted(_) => {
                is_there = false;
                expected.holds(None)
            }
            // Deleted before the watch began.
            Seen::Synced => is_there || expected.holds(None),
        };
        if !holds {
            changed.notify_one();
        }
    });
    tokio::select! {
        () = watch => {}
        () = changed.notified() => {}
    }
}

/// After so long without a change, the next one is answered at once.
const QUIET: Duration = Duration::from_secs(120);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The time between two decisions: none at first, then more and more. If somebody else writes the backend all the time, an admission
/// webhook or another controller, that is not answered as often.
#[derive(Default)]
pub(super) struct Pause {
    last: Option<Instant>,
    pause: Duration,
}

impl Pause {
    pub(super) fn next(&mut self, now: Instant) -> Duration {
        let last = self.last.replace(now);
        self.pause = match last {
            Some(last) if now.duration_since(last) < QUIET => {
                (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
            }
            _ => Duration::ZERO,
        };
        self.pause
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(metadata: &serde_json::Value) -> DynamicObject {
        serde_json::from_value(json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata}))
            .unwrap()
    }

    #[test]
    fn a_change_of_the_status_does_not_count_and_what_somebody_else_makes_is_theirs() {
        let set = object(&json!({"uid": "u", "generation": 1, "resourceVersion": "5"}));
        let left = Left {
            set: Expected::exactly(Some(&set)),
            service: Expected::Any,
        };
        for (found, holds) in [
            (json!({"uid": "u", "generation": 1, "resourceVersion": "6"}), true),
            (
                json!({"uid": "u", "generation": 2, "resourceVersion": "6"}),
                false,
            ),
            (
                json!({"uid": "v", "generation": 1, "resourceVersion": "6"}),
                false,
            ),
            (
                json!({"uid": "u", "generation": 1, "annotations": {"a": "b"}}),
                false,
            ),
            (
                json!({"uid": "u", "generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
                true,
            ),
        ] {
            assert_eq!(left.set.holds(Some(&object(&found).metadata)), holds, "{found}");
        }
        assert!(!left.set.holds(None));
        let service = object(&json!({"uid": "u", "resourceVersion": "5"}));
        let exactly = Expected::exactly(Some(&service));
        assert!(exactly.holds(Some(&service.metadata)));
        assert!(!exactly.holds(Some(
            &object(&json!({"uid": "u", "resourceVersion": "6"})).metadata
        )));
        let alone = Left::alone(Some(&set));
        assert!(alone.set.holds(Some(&service.metadata)) && !alone.set.holds(None));
        let nothing = Left::alone(None);
        assert!(nothing.set.holds(Some(&service.metadata)) && nothing.set.holds(None));
    }

    #[test]
    fn the_pause_grows_while_changes_come_and_a_quiet_time_ends_it() {
        let start = Instant::now();
        let mut pause = Pause::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pause.next(at(0)), Duration::ZERO);
        assert_eq!(pause.next(at(1)), FIRST_PAUSE);
        assert_eq!(pause.next(at(2)), FIRST_PAUSE * 2);
        for second in 3..20 {
            pause.next(at(second));
        }
        assert_eq!(pause.next(at(20)), LONGEST_PAUSE);
        assert_eq!(pause.next(at(20) + QUIET), Duration::ZERO);
    }
}
