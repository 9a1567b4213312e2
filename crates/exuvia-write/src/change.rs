//! Locked and unlocked merge patches of one object, with the loop that reads again and starts over on a 409.

use std::borrow::Cow;

use http::Request;
use kube::{
    Api,
    api::{Patch, PatchParams},
    core::Request as Requests,
};
use serde_json::{Value, json};

use crate::{
    Effect, Error, ErrorClass, Outcome, Refusal, Verb, Writable, Writer, Written, diff,
    send::{Call, Extent, Proof},
    target::Place,
};

/// Which part of an object a patch is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
}

/// What a patch is to do.
pub(crate) struct Change {
    /// The merge patch, without a lock.
    pub(crate) body: Value,
    /// Whether it may only meet the object as it was read.
    pub(crate) lock: bool,
}

/// What to do when somebody else was faster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnConflict {
    Return,
    Rerun,
}

impl Writer {
    /// Works out a change from the object, sends it, and on a 409 (if asked to) starts over from a fresh read.
    pub(crate) async fn change<K: Writable>(
        &self,
        api: &Api<K>,
        (verb, part): (Verb, Part),
        object: &K,
        on_conflict: OnConflict,
        mut plan: impl FnMut(&K) -> Result<Option<Change>, Refusal>,
    ) -> Result<Written<K>, Error> {
        let mut current = Cow::Borrowed(object);
        let mut round = 0;
        loop {
            round += 1;
            let place = Place::of(api, current.meta(), verb)?;
            let change =
                plan(current.as_ref()).map_err(|refusal| Error::refused(verb, &place.target, refusal))?;
            let Some(change) = change else {
                self.report(verb, &place.target, 0, Outcome::Unsent, std::time::Duration::ZERO);
                return Ok(Written {
                    object: current.into_owned(),
                    effect: Effect::Unsent,
                });
            };
            let locked = change.lock;
            let call = self.patch_call(api, place, (verb, part), current.as_ref(), &change)?;
            let holds = |live: &Value| diff::holds(live, &change.body);
            let error = match self.deliver(&call, Proof::Live(&holds)).await {
                Ok(answer) => {
                    let object: K = call.answer(&answer)?;
                    let effect = Effect::between(current.meta(), object.meta());
                    return Ok(Written { object, effect });
                }
                Err(error) => error,
            };
            let again = locked && on_conflict == OnConflict::Rerun && error.class() == ErrorClass::Conflict;
            match self.settings.retry.after(round, error.class()).filter(|_| again) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(error),
            }
            current = Cow::Owned(self.read_again(&call, current.as_ref()).await?);
        }
    }

    /// A fresh read of the same object; one that was created again under the same name is another object.
    pub(crate) async fn read_again<K: Writable>(&self, call: &Call, stale: &K) -> Result<K, Error> {
        let fresh: K = call.answer(&self.read(call).await?)?;
        let known = stale.meta().uid.is_some();
        if known && fresh.meta().uid != stale.meta().uid {
            return Err(call.recreated());
        }
        Ok(fresh)
    }

    fn patch_call<K: Writable>(
        &self,
        api: &Api<K>,
        place: Place,
        (verb, part): (Verb, Part),
        object: &K,
        change: &Change,
    ) -> Result<Call, Error> {
        let params = PatchParams {
            dry_run: self.settings.dry_run,
            field_manager: Some(self.settings.manager.clone()),
            ..PatchParams::default()
        };
        let request = if change.lock {
            let Some(version) = object.meta().resource_version.as_deref() else {
                return Err(Error::refused(verb, &place.target, Refusal::NoResourceVersion));
            };
            let mut locked = change.body.clone();
            locked["metadata"]["resourceVersion"] = json!(version);
            merge_request(&place, part, &params, &locked)
        } else {
            merge_request(&place, part, &params, &change.body)
        };
        Call::new(verb, place, api.clone().into_client(), request, Extent::of::<K>())
    }
}

pub(crate) fn merge_request(
    place: &Place,
    part: Part,
    params: &PatchParams,
    body: &Value,
) -> Result<Request<Vec<u8>>, kube::core::request::Error> {
    let requests = Requests::new(place.collection.as_str());
    let patch = Patch::Merge(body);
    match part {
        Part::Main => requests.patch(&place.target.name, params, &patch),
        Part::Status => requests.patch_subresource("status", &place.target.name, params, &patch),
    }
}
