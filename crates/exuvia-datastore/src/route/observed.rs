//! What is kept of an `APIService`, and what is to be done to remove or restore it: pure decisions.

use std::collections::BTreeMap;

pub use exuvia_sweep::api_service::{AUTOMANAGED_LABEL, ApiService as Observed, Backend};
use exuvia_write::Redacted;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::api::DynamicObject;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use exuvia_sweep::api_service;

use super::Error;

/// What is kept of an `APIService` with a backend, so that it can be put back: nothing that the server writes itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saved {
    /// Its name.
    pub name: String,
    /// The uid that it had, by which it is deleted. One that is put back has another.
    pub uid: String,
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Its owners: without them it would outlive the operator that made it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// Its spec, as it is.
    pub spec: Value,
}

impl Saved {
    /// What [`Route::save`](super::Route::save) gave.
    ///
    /// # Errors
    ///
    /// It is something else.
    pub fn from_value(value: &Value) -> Result<Self, Error> {
        // What serde says may quote a value (PITFALLS B27).
        Self::deserialize(value).map_err(|_| Error::Unreadable)
    }

    /// As it is kept.
    pub fn to_value(&self) -> Value {
        json!(self)
    }

    /// A new object that is what was saved.
    pub fn to_object(&self) -> DynamicObject {
        let mut object = DynamicObject::new(&self.name, &api_service::resource());
        self.put_over(&mut object);
        object
    }

    /// Makes an object what was saved; it keeps its identity.
    pub fn put_over(&self, object: &mut DynamicObject) {
        let metadata = &mut object.metadata;
        metadata.labels = (!self.labels.is_empty()).then(|| self.labels.clone());
        metadata.annotations = (!self.annotations.is_empty()).then(|| self.annotations.clone());
        metadata.owner_references =
            (!self.owner_references.is_empty()).then(|| self.owner_references.clone());
        if !object.data.is_object() {
            object.data = json!({});
        }
        object.data["spec"] = self.spec.clone();
    }

    /// What is to be kept of this one.
    pub fn from_backend(backend: &Backend) -> Self {
        let object = backend.object();
        let mut labels = object.labels().clone();
        // It would make the server take the backend away again (PITFALLS D1).
        labels.remove(AUTOMANAGED_LABEL);
        Self {
            name: object.name_any(),
            uid: backend.uid(),
            labels,
            annotations: object.annotations().clone(),
            owner_references: object.owner_references().to_vec(),
            spec: object.data["spec"].clone(),
        }
    }

    /// Whether somebody has put another backend there since this one was removed. It counts, too, if that somebody was there
    /// before the removal: what would be removed is not what was saved.
    pub fn was_replaced_by(&self, observed: &Observed) -> bool {
        matches!(observed, Observed::Backend(backend) if backend.uid() != self.uid)
    }

    /// The object is the one that was saved, and as it was.
    fn is(&self, backend: &Backend) -> bool {
        *self == Self::from_backend(backend)
    }
}

/// What is to be done so that the saved `APIService` is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// Nothing: it is gone.
    Done,
    /// Delete it, by its uid and only as it is.
    Delete(Backend),
    /// Somebody is deleting it: wait.
    Wait,
    /// Somebody changed it since it was saved: save it again first.
    SaveAgain,
    /// It would not go: its finalizers.
    Held(Vec<String>),
    /// Another one is there, which was not saved.
    CameBack,
}

impl Removal {
    /// Decides by what is there now.
    pub fn next(saved: &Saved, observed: &Observed) -> Self {
        let Observed::Backend(backend) = observed else {
            return Self::Done;
        };
        if saved.was_replaced_by(observed) {
            Self::CameBack
        } else if backend.is_deleting() {
            Self::Wait
        } else if !saved.is(backend) {
            Self::SaveAgain
        } else if backend.object().finalizers().is_empty() {
            Self::Delete(backend.clone())
        } else {
            Self::Held(backend.object().finalizers().to_vec())
        }
    }
}

/// What is to be done so that a backend answers again.
#[derive(Clone, Debug, PartialEq)]
pub enum Restoration {
    /// Nothing: a backend is there and available. Who put it there does not matter.
    Done,
    /// Make it.
    Create,
    /// Write it over this one: nobody sees an error meanwhile (PITFALLS D6).
    Replace(Box<DynamicObject>),
    /// One that is being deleted must go first.
    WaitUntilGone,
    /// It is there, and its backend has not answered yet.
    WaitUntilAvailable(Redacted),
}

impl Restoration {
    /// Decides by what is there now.
    pub fn next(observed: &Observed) -> Self {
        match observed {
            Observed::Absent => Self::Create,
            Observed::Local { object, .. } if object.metadata.deletion_timestamp.is_some() => {
                Self::WaitUntilGone
            }
            Observed::Local { object, .. } => Self::Replace(object.clone()),
            Observed::Backend(backend) if backend.is_deleting() => Self::WaitUntilGone,
            Observed::Backend(backend) if backend.is_available() => Self::Done,
            Observed::Backend(backend) => Self::WaitUntilAvailable(backend.why_unavailable()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    fn backend_with(change: impl FnOnce(&mut Value)) -> Observed {
        let mut value = json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {
                "name": "v3.example.com", "uid": "u1", "resourceVersion": "7", "generation": 3,
                "labels": {"app": "calico"}, "annotations": {"a": "b"},
                "managedFields": [{"manager": "operator"}],
            },
            "spec": {"group": "example.com", "version": "v3", "caBundle": "Q0E=", "futureField": 1,
                "service": {"name": "api", "namespace": "calico", "port": 443}},
            "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Passed"}]},
        });
        change(&mut value);
        Observed::from_object(Some(object(value)))
    }

    fn backend() -> Observed {
        backend_with(|_| {})
    }

    fn saved() -> Saved {
        match backend() {
            Observed::Backend(backend) => Saved::from_backend(&backend),
            other => panic!("{other:?}"),
        }
    }

    fn automanaged() -> Observed {
        Observed::from_object(Some(object(json!({
            "metadata": {"name": "v3.example.com", "uid": "u2", "labels": {AUTOMANAGED_LABEL: "true"}},
            "spec": {"group": "example.com", "version": "v3"},
            "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Local"}]},
        }))))
    }

    #[test]
    fn what_is_saved_is_the_users_and_survives_being_kept() {
        let kept = saved().to_value();
        assert_eq!(Saved::from_value(&kept).unwrap(), saved());
        let put_back = json!(saved().to_object());
        assert_eq!(put_back["spec"]["futureField"], 1);
        assert_eq!(put_back["metadata"]["labels"], json!({"app": "calico"}));
        for of_the_server in ["uid", "resourceVersion", "generation", "managedFields"] {
            assert_eq!(put_back["metadata"].get(of_the_server), None);
        }
        assert_eq!(put_back.get("status"), None);
        assert!(matches!(
            Saved::from_value(&json!({"name": 7})),
            Err(Error::Unreadable)
        ));
    }

    #[test]
    fn the_label_of_the_server_is_never_put_back() {
        let marked = backend_with(|value| value["metadata"]["labels"][AUTOMANAGED_LABEL] = "true".into());
        let Observed::Backend(marked) = marked else {
            panic!("it has a backend")
        };
        assert_eq!(Saved::from_backend(&marked), saved());
        let Observed::Local { object, automanaged } = automanaged() else {
            panic!("it has no backend")
        };
        assert!(automanaged);
        let mut over = *object;
        saved().put_over(&mut over);
        assert_eq!(over.labels(), &saved().labels);
        assert_eq!(over.uid().unwrap(), "u2");
        assert_eq!(over.data["spec"], saved().spec);
    }

    #[test]
    fn only_what_was_saved_is_deleted() {
        let Observed::Backend(as_saved) = backend() else {
            panic!("it has a backend")
        };
        assert_eq!(Removal::next(&saved(), &backend()), Removal::Delete(as_saved));
        assert_eq!(Removal::next(&saved(), &Observed::Absent), Removal::Done);
        assert_eq!(Removal::next(&saved(), &automanaged()), Removal::Done);
        let recreated = backend_with(|value| value["metadata"]["uid"] = "u3".into());
        assert_eq!(Removal::next(&saved(), &recreated), Removal::CameBack);
        let changed = backend_with(|value| value["spec"]["caBundle"] = "TkVX".into());
        assert_eq!(Removal::next(&saved(), &changed), Removal::SaveAgain);
        let status_only = backend_with(|value| {
            value["status"]["conditions"][0]["status"] = "False".into();
            value["metadata"]["resourceVersion"] = "8".into();
        });
        assert!(matches!(
            Removal::next(&saved(), &status_only),
            Removal::Delete(_)
        ));
        let held = backend_with(|value| value["metadata"]["finalizers"] = json!(["a/b"]));
        assert_eq!(Removal::next(&saved(), &held), Removal::Held(vec!["a/b".into()]));
        let going =
            backend_with(|value| value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        assert_eq!(Removal::next(&saved(), &going), Removal::Wait);
    }

    #[test]
    fn the_condition_of_the_automanaged_one_does_not_count_for_the_backend() {
        assert_eq!(Restoration::next(&backend()), Restoration::Done);
        assert_eq!(Restoration::next(&Observed::Absent), Restoration::Create);
        assert!(matches!(
            Restoration::next(&automanaged()),
            Restoration::Replace(_)
        ));
        let just_written = backend_with(|value| value["status"]["conditions"][0]["reason"] = "Local".into());
        let waiting = Restoration::next(&just_written);
        assert!(matches!(&waiting, Restoration::WaitUntilAvailable(why) if why.contains("not tried")));
        let broken = backend_with(|value| {
            value["status"]["conditions"][0] = json!({
                "type": "Available", "status": "False", "reason": "ServiceNotFound", "message": "no service",
            });
        });
        let waiting = Restoration::next(&broken);
        let expected = Redacted::from_server("ServiceNotFound: no service");
        assert_eq!(waiting, Restoration::WaitUntilAvailable(expected));
    }
}
