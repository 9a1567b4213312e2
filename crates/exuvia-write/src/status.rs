//! `patch_status`: change an object's status, locked only where two writers could erase each other.

use kube::Api;
use serde_json::Value;

use crate::{
    Error, Refusal, Verb, Writable, Writer, Written,
    change::{Change, OnConflict, Part},
    conditions, diff,
    patch::both_forms,
};

impl Writer {
    /// Changes an object's status: only what `mutate` changed goes over the wire, to `/status`.
    ///
    /// Scalars and maps go without a lock, so that writers of different fields do not disturb each other, even from an
    /// old read. As soon as the change holds an array (conditions, say) it is locked, as a merge patch replaces an array
    /// as a whole; on a 409 the object is then read again and `mutate` run on that. So `mutate` must only look at what
    /// it is given, and should change conditions through [`conditions`](crate::conditions).
    ///
    /// The transition time of a condition whose status did not change stays as it was, whatever `mutate` says. No change
    /// sends nothing. A change outside the status is refused, as the server would silently ignore it.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use exuvia_write::conditions;
    /// # use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    /// # use kube::{Api, core::DynamicObject, discovery::ApiResource};
    /// # let kind = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk("example.dev", "v1", "Widget"));
    /// let api: Api<DynamicObject> = Api::namespaced_with(client, "shop", &kind);
    /// let widget = api.get("w").await?;
    /// writer
    ///     .patch_status(&api, &widget, |widget| {
    ///         let ready = conditions::new(widget, "Ready", true, "AllWell", "every part is there");
    ///         conditions::set_in(&mut widget.data, &ready);
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn patch_status<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        mutate: impl FnMut(&mut K),
    ) -> Result<Written<K>, Error> {
        self.patch_status_by(api, object, false, OnConflict::Rerun, mutate)
            .await
    }

    /// As [`patch_status`](Self::patch_status), but always locked, and a 409 comes back: for a status that may only be
    /// changed if everything is still as it was read, such as the `storedVersions` of a CRD.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    /// # use kube::Api;
    /// let api: Api<CustomResourceDefinition> = Api::all(client);
    /// let crd = api.get("widgets.example.dev").await?;
    /// writer
    ///     .patch_status_locked(&api, &crd, |crd| {
    ///         if let Some(stored) = crd.status.as_mut().and_then(|status| status.stored_versions.as_mut()) {
    ///             stored.retain(|version| version == "v1");
    ///         }
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn patch_status_locked<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        mutate: impl FnOnce(&mut K),
    ) -> Result<Written<K>, Error> {
        let mut mutate = Some(mutate);
        self.patch_status_by(api, object, true, OnConflict::Return, |object| {
            if let Some(mutate) = mutate.take() {
                mutate(object);
            }
        })
        .await
    }

    /// As [`patch_status`](Self::patch_status), but always locked: a 409 starts over from a fresh read, as often as the
    /// policy's `conflicts` allows.
    ///
    /// For a status that has one writer at a time, such as the leader of an election: what a former leader had decided is
    /// refused once its successor has written, scalars included, and to start over it would have to pass the
    /// [`gate`](Self::gate) again.
    pub async fn patch_status_with_retry<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        mutate: impl FnMut(&mut K),
    ) -> Result<Written<K>, Error> {
        self.patch_status_by(api, object, true, OnConflict::Rerun, mutate)
            .await
    }

    async fn patch_status_by<K: Writable>(
        &self,
        api: &Api<K>,
        object: &K,
        lock: bool,
        on_conflict: OnConflict,
        mut mutate: impl FnMut(&mut K),
    ) -> Result<Written<K>, Error> {
        self.change(
            api,
            (Verb::PatchStatus, Part::Status),
            object,
            on_conflict,
            |object| {
                let (before, mut after) = both_forms(object, &mut mutate)?;
                conditions::keep_transition_times(&before, &mut after);
                let Some(body) = diff(&before, &after)? else {
                    return Ok(None);
                };
                if let Some(member) = outside_status(&body) {
                    return Err(Refusal::OutsideStatus {
                        member: member.to_owned(),
                    });
                }
                let lock = lock || diff::has_array(&body);
                Ok(Some(Change { body, lock }))
            },
        )
        .await
    }
}

fn outside_status(body: &Value) -> Option<&str> {
    body.as_object()?
        .keys()
        .map(String::as_str)
        .find(|member| *member != "status")
}
