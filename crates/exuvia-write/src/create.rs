//! `create`, `create_or_adopt` and `delete`: the beginning and the end of an object.

use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions, PropagationPolicy},
    core::Request as Requests,
};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    Error, ErrorClass, Refusal, Verb, Writable, Writer, diff,
    send::{Call, Extent, Proof},
    target::Place,
};

/// What came of [`Writer::create_or_adopt`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopted<K> {
    /// It is new.
    Created(K),
    /// It was there, and the caller takes it for its own. It is as it was found.
    Existing(K),
}

impl<K> Adopted<K> {
    /// The object alone.
    pub fn into_object(self) -> K {
        match self {
            Self::Created(object) | Self::Existing(object) => object,
        }
    }
}

/// What came of [`Writer::delete`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deleted<K> {
    /// The object does not exist any more.
    Gone,
    /// It is on its way: finalizers or a grace period hold it.
    Going(K),
}

/// How to delete.
///
/// ```
/// use exuvia_write::Delete;
/// use kube::api::PropagationPolicy;
///
/// let careful = Delete::default().only_unchanged().propagation(PropagationPolicy::Foreground);
/// # drop(careful);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Delete {
    only_unchanged: bool,
    params: DeleteParams,
}

impl Delete {
    /// Only if nobody wrote since the object was read; else a 409.
    #[must_use]
    pub fn only_unchanged(mut self) -> Self {
        self.only_unchanged = true;
        self
    }

    /// What becomes of the object's dependents.
    #[must_use]
    pub fn propagation(mut self, policy: PropagationPolicy) -> Self {
        self.params.propagation_policy = Some(policy);
        self
    }

    /// How long it may take its leave, in seconds.
    #[must_use]
    pub fn grace_period(mut self, seconds: u32) -> Self {
        self.params.grace_period_seconds = Some(seconds);
        self
    }
}

impl Writer {
    /// Makes an object. One of that name that exists already is a 409, see
    /// [`is_already_exists`](Error::is_already_exists).
    ///
    /// After a request of unknown outcome the object is looked for: one that holds what was sent and bears our field
    /// manager is ours. With `generateName` there is nothing to look for, so such a request is not repeated and
    /// [`ErrorClass::Ambiguous`] comes back.
    pub async fn create<K: Writable>(&self, api: &Api<K>, object: &K) -> Result<K, Error> {
        let call = self.create_call(api, object)?;
        self.create_by(&call, object).await
    }

    /// Makes an object, or takes the one of that name that `ours` says yes to. It is then as it was found: patch or
    /// apply what is missing. Any other is [`Error::Foreign`].
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<k8s_openapi::api::core::v1::ConfigMap>,
    /// #     wanted: k8s_openapi::api::core::v1::ConfigMap) -> Result<(), exuvia_write::Error> {
    /// # use kube::ResourceExt;
    /// let map = writer
    ///     .create_or_adopt(&api, &wanted, |found| found.labels().get("app").is_some_and(|app| app == "till"))
    ///     .await?
    ///     .into_object();
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_or_adopt<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        ours: impl Fn(&K) -> bool,
    ) -> Result<Adopted<K>, Error> {
        let call = self.create_call(api, object)?;
        let mut round = 0;
        loop {
            round += 1;
            let exists = match self.create_by(&call, object).await {
                Ok(object) => return Ok(Adopted::Created(object)),
                Err(error) if error.is_already_exists() && !call.target().name.is_empty() => error,
                Err(error) => return Err(error),
            };
            match self.read(&call).await {
                Ok(found) => {
                    let found: K = call.answer(&found)?;
                    return if ours(&found) {
                        Ok(Adopted::Existing(found))
                    } else {
                        Err(Error::Foreign {
                            target: Box::new(call.target().clone()),
                        })
                    };
                }
                // It went in between: there is room for ours now.
                Err(error) if error.class() == ErrorClass::Gone => {}
                Err(error) => return Err(error),
            }
            match self.settings.retry.after(round, ErrorClass::Conflict) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(exists),
            }
        }
    }

    fn create_call<K: Writable>(&self, api: &Api<K>, object: &K) -> Result<Call, Error> {
        let verb = Verb::Create;
        let named_by_server = object.meta().name.is_none() && object.meta().generate_name.is_some();
        let place = if named_by_server {
            Place::unnamed(api, object.meta(), verb)?
        } else {
            Place::of(api, object.meta(), verb)?
        };
        let body = serde_json::to_vec(object).map_err(|error| Error::refused(verb, &place.target, error))?;
        let params = PostParams {
            dry_run: self.settings.dry_run,
            field_manager: Some(self.settings.manager.clone()),
        };
        let request = self.validated(Requests::new(place.collection.as_str()).create(&params, body));
        Call::new(verb, place, api.clone().into_client(), request, Extent::of::<K>())
    }

    async fn create_by<K: Writable>(&self, call: &Call, object: &K) -> Result<K, Error> {
        let ours = |live: &Value| {
            let Ok(mut wanted) = serde_json::to_value(object) else {
                return false;
            };
            // Where the status is a subresource, a new object comes without.
            if let Some(members) = wanted.as_object_mut() {
                members.remove("status");
            }
            let entries = live.pointer("/metadata/managedFields").and_then(Value::as_array);
            let manager = self.settings.manager.as_str();
            diff::holds(live, &wanted)
                && entries.is_some_and(|entries| entries.iter().any(|entry| entry["manager"] == manager))
        };
        let proof = if call.target().name.is_empty() {
            Proof::Never
        } else {
            Proof::Live(&ours)
        };
        call.answer(&self.deliver(call, proof).await?)
    }

    /// Deletes exactly this object, by its uid: another one of the same name is left alone.
    ///
    /// "Gone" is the answer whenever no object has that uid any more, no matter who deleted it. With
    /// [`Delete::only_unchanged`] a 409 comes back if somebody wrote since.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<k8s_openapi::api::core::v1::ConfigMap>)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// # use exuvia_write::{Delete, Deleted};
    /// let map = api.get("prices").await?;
    /// match writer.delete(&api, &map, &Delete::default()).await? {
    ///     Deleted::Gone => {}
    ///     Deleted::Going(map) => println!("held by {:?}", map.metadata.finalizers),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn delete<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        how: &Delete,
    ) -> Result<Deleted<K>, Error> {
        let verb = Verb::Delete;
        let place = Place::of(api, object.meta(), verb)?;
        let Some(uid) = &object.meta().uid else {
            return Err(Error::refused(verb, &place.target, Refusal::NoUid));
        };
        let version = object
            .meta()
            .resource_version
            .clone()
            .filter(|_| how.only_unchanged);
        if how.only_unchanged && version.is_none() {
            return Err(Error::refused(verb, &place.target, Refusal::NoResourceVersion));
        }
        let preconditions = Preconditions {
            uid: Some(uid.clone()),
            resource_version: version,
        };
        let params = DeleteParams {
            dry_run: self.settings.dry_run,
            preconditions: Some(preconditions),
            ..how.params.clone()
        };
        let request = Requests::new(place.collection.as_str()).delete(&place.target.name, &params);
        // The answer is a Status as often as the object, and a Status has no metadata to ask for.
        let call = Call::new(verb, place, api.clone().into_client(), request, Extent::Whole)?;
        match self.deliver(&call, Proof::Repeat).await {
            Ok(answer) => {
                let kind: Kind = call.answer(&answer)?;
                if kind.kind.as_deref() == Some("Status") {
                    return Ok(Deleted::Gone);
                }
                let object: K = call.answer(&answer)?;
                let going = object.meta().deletion_timestamp.is_some();
                Ok(if going {
                    Deleted::Going(object)
                } else {
                    Deleted::Gone
                })
            }
            Err(error) if error.class() == ErrorClass::Gone => Ok(Deleted::Gone),
            Err(error) if error.class() == ErrorClass::Conflict => match self.read(&call).await {
                Ok(live) => {
                    let live: K = call.answer(&live)?;
                    if live.meta().uid.as_ref() == Some(uid) {
                        Err(error)
                    } else {
                        Ok(Deleted::Gone)
                    }
                }
                Err(unread) if unread.class() == ErrorClass::Gone => Ok(Deleted::Gone),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }
}

#[derive(Deserialize)]
struct Kind {
    kind: Option<String>,
}
