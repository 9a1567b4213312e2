//! Writes whose point is to change nothing that anybody can see, `rewrite` and `move_ownership`, and the reads that go with them.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api, Resource,
    api::{GetParams, ObjectMeta, PatchParams, TypeMeta},
    core::Request as Requests,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Effect, Error, ErrorClass, Outcome, Plan, Refusal, Verb, Writable, Writer, Written,
    change::{Part, merge_request},
    send::{Call, Extent, Proof},
    target::Place,
};

/// What came of [`Writer::move_ownership`].
#[derive(Debug, Clone, PartialEq)]
pub struct Moved {
    /// The object's metadata as the server has it now.
    pub metadata: ObjectMeta,
    /// Whether anything moved; [`Effect::Unsent`] if there was nothing to move.
    pub effect: Effect,
    /// What was planned and, unless nothing was sent, carried out.
    pub plan: Plan,
    /// Whether the server has exactly the entries that were sent. If not, the same write also changed the object (a
    /// webhook stamped it, a default is new) and the server noted that as well.
    pub exact: bool,
}

/// A metadata-only answer.
#[derive(Deserialize)]
struct Partial {
    metadata: ObjectMeta,
}

impl Writer {
    /// Sends an empty merge patch, upon which the server encodes the object again and stores it if the bytes differ.
    ///
    /// This is how an object gets to the storage version (PITFALLS A1). The `Api` chooses the version of the endpoint,
    /// which must be a served one (A10). Unlocked, so never a 409 for a write in between; unknown and outdated fields do
    /// not matter (`fieldValidation=Ignore`); the answer holds metadata only.
    ///
    /// [`Effect::Changed`] says that the object was written since `metadata` was read, by this call or by somebody else.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<kube::core::DynamicObject>)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// # use exuvia_write::Effect;
    /// for item in api.list_metadata(&kube::api::ListParams::default().limit(500)).await? {
    ///     writer.dry_run().rewrite(&api, &item.metadata).await?; // would it pass?
    ///     let written = writer.rewrite(&api, &item.metadata).await?;
    ///     println!("{:?} {}", item.metadata.name, written.effect == Effect::Changed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rewrite<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
    ) -> Result<Written<ObjectMeta>, Error> {
        self.rewrite_part(api, Part::Main, metadata).await
    }

    /// As [`rewrite`](Self::rewrite), through `/status`: passes by policies and webhooks that look at the object's own
    /// endpoint only (PITFALLS A28). That is somebody's policy evaded, so only do it if its owner asked for it.
    pub async fn rewrite_through_status<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
    ) -> Result<Written<ObjectMeta>, Error> {
        self.rewrite_part(api, Part::Status, metadata).await
    }

    /// As [`rewrite`](Self::rewrite), by a server-side apply of nothing: we own nothing before and after.
    ///
    /// The difference: a default that only the endpoint's version has is not stored, and the generation does not move. The
    /// server shows the default anyway, because the stored version has it now, and the next write stores it
    /// (PITFALLS A52). Not for an object without managedFields: an apply would give all its fields an owner,
    /// `before-first-apply`. It fails where an entry names a version that is gone (A7). With `lock` it is a 409 unless the object
    /// is still at `metadata`'s resourceVersion.
    pub async fn rewrite_by_apply<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        types: &TypeMeta,
        metadata: &ObjectMeta,
        lock: bool,
    ) -> Result<Written<ObjectMeta>, Error> {
        let place = Place::of(api, metadata, Verb::Rewrite)?;
        let Some(uid) = &metadata.uid else {
            return Err(Error::refused(Verb::Rewrite, &place.target, Refusal::NoUid));
        };
        // Without the uid, an object that is gone would be created (A41).
        let mut named = json!({"name": metadata.name, "uid": uid});
        // An explicit null would not be nothing.
        if let Some(namespace) = &metadata.namespace {
            named["namespace"] = json!(namespace);
        }
        if let Some(version) = metadata.resource_version.as_ref().filter(|_| lock) {
            named["resourceVersion"] = json!(version);
        }
        let body = json!({"apiVersion": types.api_version, "kind": types.kind, "metadata": named});
        let request = self.apply_request(&place, Part::Main, &body, false, self.settings.dry_run);
        let client = api.clone().into_client();
        let call = Call::new(Verb::Rewrite, place, client, request, Extent::Metadata)?;
        let Partial { metadata: object } = call.answer(&self.deliver(&call, Proof::Repeat).await?)?;
        let effect = Effect::between(metadata, &object);
        Ok(Written { object, effect })
    }

    /// As [`rewrite`](Self::rewrite), only if the object is still at `metadata`'s resourceVersion; otherwise a 409.
    ///
    /// With nobody in between, [`Effect::Changed`] says that this very write stored the object again: whatever etcd held
    /// before was not what the server would write now. That is what a verification wants to know.
    ///
    /// Two things to know. A write in between that changed *nothing but the encoding* (another rewrite) may slip past the
    /// lock while the server's cache lags: 200 with the newer resourceVersion, so `Changed` (seen 10 times in 800; with a
    /// change of content 0 in 800). [`Effect::Unchanged`] is never wrong: it is what etcd has. And after an attempt of
    /// unknown outcome, which was repeated, a 409 may be our own doing, as an empty patch leaves nothing to recognise it
    /// by; use [`once`](Self::once) to be told instead.
    pub async fn rewrite_unmoved<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
    ) -> Result<Written<ObjectMeta>, Error> {
        let Some(version) = &metadata.resource_version else {
            let place = Place::of(api, metadata, Verb::Rewrite)?;
            return Err(Error::refused(
                Verb::Rewrite,
                &place.target,
                Refusal::NoResourceVersion,
            ));
        };
        let body = json!({"metadata": {"resourceVersion": version}});
        self.rewrite_with(api, Part::Main, metadata, &body).await
    }

    /// Reads the metadata of that very object, as etcd has it and not a cache: `None` only if the server answers with a 404
    /// that names the object.
    ///
    /// This is how to make sure that an object is gone: a write may answer 404 because its namespace is gone or its
    /// endpoint is not served, while the object exists (PITFALLS A33). An object of another uid under the name is
    /// returned too; compare. The gate is not asked and the observer not told, as nothing is written.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<kube::core::DynamicObject>,
    /// #     metadata: kube::api::ObjectMeta) -> Result<(), exuvia_write::Error> {
    /// let live = writer.look(&api, &metadata).await?;
    /// let is_gone = live.is_none_or(|live| live.uid != metadata.uid);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
    ) -> Result<Option<ObjectMeta>, Error> {
        let verb = Verb::Look;
        let place = Place::of(api, metadata, verb)?;
        let request = Requests::new(place.collection.as_str()).get(&place.target.name, &GetParams::default());
        let call = Call::new(verb, place, api.clone().into_client(), request, Extent::Metadata)?;
        match self.read(&call).await {
            Ok(live) => {
                let Partial { metadata } = call.answer(&live)?;
                Ok(Some(metadata))
            }
            Err(error) if error.class() == ErrorClass::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads that very object, whole, as etcd has it. An object of another uid under the name is returned too; compare.
    pub async fn get<K: Writable>(&self, api: &Api<K>, metadata: &ObjectMeta) -> Result<K, Error> {
        let verb = Verb::Look;
        let place = Place::of(api, metadata, verb)?;
        let request = Requests::new(place.collection.as_str()).get(&place.target.name, &GetParams::default());
        let call = Call::new(verb, place, api.clone().into_client(), request, Extent::of::<K>())?;
        call.answer(&self.read(&call).await?)
    }

    async fn rewrite_part<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        part: Part,
        metadata: &ObjectMeta,
    ) -> Result<Written<ObjectMeta>, Error> {
        self.rewrite_with(api, part, metadata, &json!({})).await
    }

    async fn rewrite_with<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        part: Part,
        metadata: &ObjectMeta,
        body: &Value,
    ) -> Result<Written<ObjectMeta>, Error> {
        let call = self.metadata_call(api, (Verb::Rewrite, part), metadata, body)?;
        let Partial { metadata: object } = call.answer(&self.deliver(&call, Proof::Repeat).await?)?;
        let effect = Effect::between(metadata, &object);
        Ok(Written { object, effect })
    }

    /// Gives managedFields entries another version, or takes them away, as `plan` says, in a write that also encodes the
    /// object again (as [`rewrite`](Self::rewrite) does).
    ///
    /// An entry that names a version which is gone makes every later server-side apply to the object fail, by any manager
    /// (PITFALLS A7). The list goes with the object's resourceVersion; on a 409 the metadata is read and planned again, as
    /// often as the policy's `conflicts` allows. The server ignores a list that it does not like and answers 200 (A22),
    /// so the answer is looked at: [`Error::OwnershipIgnored`].
    ///
    /// If the plan is empty nothing is sent, and the object is not encoded again either: call `rewrite` for that.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<kube::core::DynamicObject>,
    /// #     metadata: kube::api::ObjectMeta) -> Result<(), exuvia_write::Error> {
    /// use exuvia_write::{Effect, Fate, plan_move};
    ///
    /// let old = ["example.dev/v1alpha1".to_owned()].into();
    /// let moved = writer
    ///     .move_ownership(&api, &metadata, |entries| plan_move(entries, &old, "example.dev/v1", |_| Fate::Move))
    ///     .await?;
    /// if moved.effect == Effect::Unsent {
    ///     writer.rewrite(&api, &moved.metadata).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn move_ownership<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        metadata: &ObjectMeta,
        mut plan: impl FnMut(&[ManagedFieldsEntry]) -> Plan,
    ) -> Result<Moved, Error> {
        let verb = Verb::MoveOwnership;
        let mut current = metadata.clone();
        let mut round = 0;
        loop {
            round += 1;
            let plan = plan(entries(&current));
            if plan.is_empty() {
                let place = Place::of(api, &current, verb)?;
                self.report(verb, &place.target, 0, Outcome::Unsent, Duration::ZERO);
                return Ok(Moved {
                    metadata: current,
                    effect: Effect::Unsent,
                    plan,
                    exact: true,
                });
            }
            let Some(version) = &current.resource_version else {
                let place = Place::of(api, &current, verb)?;
                return Err(Error::refused(verb, &place.target, Refusal::NoResourceVersion));
            };
            let body = json!({"metadata": {"resourceVersion": version, "managedFields": plan.body()}});
            let call = self.metadata_call(api, (verb, Part::Main), &current, &body)?;
            let taken = |live: &Value| {
                Partial::deserialize(live).is_ok_and(|live| plan.ignored(entries(&live.metadata)).is_none())
            };
            let error = match self.deliver(&call, Proof::Live(&taken)).await {
                Ok(answer) => {
                    let Partial { metadata } = call.answer(&answer)?;
                    if let Some(entry) = plan.ignored(entries(&metadata)) {
                        return Err(Error::OwnershipIgnored {
                            target: Box::new(call.target().clone()),
                            entry,
                        });
                    }
                    let effect = Effect::between(&current, &metadata);
                    let exact = plan.matches(entries(&metadata));
                    return Ok(Moved {
                        metadata,
                        effect,
                        plan,
                        exact,
                    });
                }
                Err(error) => error,
            };
            let again = error.class() == ErrorClass::Conflict;
            match self.settings.retry.after(round, error.class()).filter(|_| again) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(error),
            }
            let Partial { metadata: fresh } = call.answer(&self.read(&call).await?)?;
            if current.uid.is_some() && fresh.uid != current.uid {
                return Err(call.recreated());
            }
            current = fresh;
        }
    }

    fn metadata_call<K: Resource + Clone>(
        &self,
        api: &Api<K>,
        (verb, part): (Verb, Part),
        metadata: &ObjectMeta,
        body: &Value,
    ) -> Result<Call, Error> {
        let place = Place::of(api, metadata, verb)?;
        let params = PatchParams {
            dry_run: self.settings.dry_run,
            field_manager: Some(self.settings.manager.clone()),
            ..PatchParams::default()
        }
        .validation_ignore();
        let request = merge_request(&place, part, &params, body);
        Call::new(verb, place, api.clone().into_client(), request, Extent::Metadata)
    }
}

fn entries(metadata: &ObjectMeta) -> &[ManagedFieldsEntry] {
    metadata.managed_fields.as_deref().unwrap_or_default()
}
