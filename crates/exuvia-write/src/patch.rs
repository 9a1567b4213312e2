//! `patch`: change an object's spec and metadata, under a lock and field by field.

use kube::Api;
use serde_json::Value;

use crate::{
    Error, Refusal, Verb, Writable, Writer, Written,
    change::{Change, OnConflict, Part},
    diff,
};

impl Writer {
    /// Changes an object: only what `mutate` changed goes over the wire, and only if nobody wrote since `object` was read.
    ///
    /// The two serialised forms are compared, so that a field which the Rust type does not know is in neither and
    /// survives. No change sends nothing. A 409 comes back as [`ErrorClass::Conflict`](crate::ErrorClass::Conflict).
    /// A change of `status` that the server ignored is an error.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use k8s_openapi::api::apps::v1::Deployment;
    /// # use kube::{Api, ResourceExt};
    /// let api: Api<Deployment> = Api::namespaced(client, "shop");
    /// let deployment = api.get("till").await?;
    /// writer
    ///     .patch(&api, &deployment, |deployment| {
    ///         deployment.annotations_mut().insert("example.dev/marked".into(), "yes".into());
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn patch<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        mutate: impl FnOnce(&mut K),
    ) -> Result<Written<K>, Error> {
        let mut mutate = Some(mutate);
        self.patch_by(api, object, OnConflict::Return, |object| {
            if let Some(mutate) = mutate.take() {
                mutate(object);
            }
        })
        .await
    }

    /// As [`patch`](Self::patch), but on a 409 the object is read again and `mutate` run on that, as often as the
    /// policy's `conflicts` allows. An object that was deleted and created again meanwhile is
    /// [`Error::Recreated`], not silently taken for the same.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::Api;
    /// let api: Api<ConfigMap> = Api::namespaced(client, "shop");
    /// let counter = api.get("counter").await?;
    /// writer
    ///     .patch_with_retry(&api, &counter, |counter| {
    ///         // Runs again on each fresh read: it must only look at what it is given.
    ///         let data = counter.data.get_or_insert_default();
    ///         let count: u64 = data.get("count").and_then(|count| count.parse().ok()).unwrap_or(0);
    ///         data.insert("count".into(), (count + 1).to_string());
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn patch_with_retry<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        mutate: impl FnMut(&mut K),
    ) -> Result<Written<K>, Error> {
        self.patch_by(api, object, OnConflict::Rerun, mutate).await
    }

    async fn patch_by<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        on_conflict: OnConflict,
        mut mutate: impl FnMut(&mut K),
    ) -> Result<Written<K>, Error> {
        let mut status = None;
        let written = self
            .change(api, (Verb::Patch, Part::Main), object, on_conflict, |object| {
                let (before, after) = both_forms(object, &mut mutate)?;
                let body = diff(&before, &after)?.map(without_lock);
                status = body.as_ref().and_then(|body| body.get("status")).cloned();
                Ok(body
                    .filter(|body| *body != Value::Object(serde_json::Map::new()))
                    .map(|body| Change { body, lock: true }))
            })
            .await?;
        match status {
            Some(status) if !self.settings.dry_run => check_status(api, written, &status),
            _ => Ok(written),
        }
    }
}

/// The object as it is and as `mutate` leaves it.
pub(crate) fn both_forms<K: Writable>(
    object: &K,
    mutate: impl FnOnce(&mut K),
) -> Result<(Value, Value), Refusal> {
    let before = serde_json::to_value(object)?;
    let mut mutated = object.clone();
    mutate(&mut mutated);
    let after = serde_json::to_value(&mutated)?;
    Ok((before, after))
}

/// The lock is ours to set: what `mutate` did to the resourceVersion does not count.
fn without_lock(mut body: Value) -> Value {
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        if metadata.is_empty()
            && let Some(members) = body.as_object_mut()
        {
            members.remove("metadata");
        }
    }
    body
}

/// Where a kind has a status subresource, its own endpoint ignores a change of the status with 200.
fn check_status<K: Writable>(api: &Api<K>, written: Written<K>, wanted: &Value) -> Result<Written<K>, Error> {
    let place = crate::target::Place::of(api, written.object.meta(), Verb::Patch)?;
    let answer = serde_json::to_value(&written.object)
        .map_err(|error| Error::refused(Verb::Patch, &place.target, error))?;
    if diff::holds(answer.get("status").unwrap_or(&Value::Null), wanted) {
        Ok(written)
    } else {
        Err(Error::StatusIgnored {
            target: Box::new(place.target),
        })
    }
}
