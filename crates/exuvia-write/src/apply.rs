//! Server-side apply, with an optional lock.

use bytes::Bytes;
use http::Request;
use kube::{
    Api,
    api::{ObjectMeta, Patch, PatchParams},
    core::Request as Requests,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Error, Refusal, Verb, Writable, Writer,
    change::Part,
    send::{Call, Extent, Proof},
    target::Place,
};

/// How to apply: as it is, with force, only if nobody wrote since.
///
/// ```
/// use exuvia_write::Apply;
///
/// let gentle = Apply::default();
/// let firm = Apply::default().force().only_at("0a1b2c3d-uid", "12345");
/// # drop((gentle, firm));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Apply {
    force: bool,
    lock: Option<Lock>,
}

/// Which object, in which state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lock {
    uid: String,
    resource_version: String,
}

impl Apply {
    /// Takes over fields that other managers own, rather than to fail with a 409.
    #[must_use]
    pub fn force(mut self) -> Self {
        self.force = true;
        self
    }

    /// Only if it still is this very object, at that resourceVersion; else a 409 (PITFALLS A16).
    ///
    /// Both are needed. The resourceVersion alone would create an object that was deleted in between, and answer 201 (A41).
    #[must_use]
    pub fn only_at(mut self, uid: impl Into<String>, resource_version: impl Into<String>) -> Self {
        self.lock = Some(Lock {
            uid: uid.into(),
            resource_version: resource_version.into(),
        });
        self
    }
}

impl Writer {
    /// Applies an intent: the fields in it become ours, and those we applied before and now leave out are removed.
    ///
    /// The intent is anything that serialises to a partial object with `apiVersion`, `kind` and `metadata.name`. Its
    /// `managedFields`, `uid` and `resourceVersion` are left out: a lock is asked for by [`Apply::only_at`] only, never by what
    /// happens to be in an object that was read.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, client: kube::Client) -> Result<(), exuvia_write::Error> {
    /// # use exuvia_write::Apply;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::Api;
    /// let api: Api<ConfigMap> = Api::namespaced(client, "shop");
    /// let intent = serde_json::json!({
    ///     "apiVersion": "v1", "kind": "ConfigMap",
    ///     "metadata": {"name": "prices"},
    ///     "data": {"apple": "3"},
    /// });
    /// let live: ConfigMap = writer.apply(&api, &intent, &Apply::default()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn apply<K: Writable>(
        &self,
        api: &Api<K>,
        intent: &impl Serialize,
        how: &Apply,
    ) -> Result<K, Error> {
        self.apply_part(api, (Verb::Apply, Part::Main), intent, how).await
    }

    /// As [`apply`](Self::apply), to the status.
    pub async fn apply_status<K: Writable>(
        &self,
        api: &Api<K>,
        intent: &impl Serialize,
        how: &Apply,
    ) -> Result<K, Error> {
        self.apply_part(api, (Verb::ApplyStatus, Part::Status), intent, how)
            .await
    }

    async fn apply_part<K: Writable>(
        &self,
        api: &Api<K>,
        (verb, part): (Verb, Part),
        intent: &impl Serialize,
        how: &Apply,
    ) -> Result<K, Error> {
        let nowhere = || Place::unnamed(api, &ObjectMeta::default(), verb);
        let unfit = |error: serde_json::Error| match nowhere() {
            Ok(place) => Error::refused(verb, &place.target, error),
            Err(error) => error,
        };
        let mut body = serde_json::to_value(intent).map_err(unfit)?;
        let head = Head::deserialize(&body).map_err(unfit)?;
        let place = Place::of(api, &head.metadata.unwrap_or_default().into(), verb)?;
        if head.api_version.is_none() || head.kind.is_none() {
            return Err(Error::refused(verb, &place.target, Refusal::NoType));
        }
        if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
            metadata.remove("uid");
        }
        let client = api.clone().into_client();
        let Some(lock) = &how.lock else {
            let request = self.apply_request(&place, part, &body, how.force, self.settings.dry_run);
            let call = Call::new(verb, place, client, request, Extent::of::<K>())?;
            return call.answer(&self.deliver(&call, Proof::Repeat).await?);
        };
        body["metadata"]["uid"] = json!(lock.uid);
        let rehearsal = self.apply_request(&place, part, &body, how.force, true);
        body["metadata"]["resourceVersion"] = json!(lock.resource_version);
        let request = self.apply_request(&place, part, &body, how.force, self.settings.dry_run);
        let call = Call::new(verb, place, client, request, Extent::of::<K>())?;
        // Values alone do not tell that an apply was carried out, as it also takes fields over and removes others. The
        // server can tell: the same apply again, at any resourceVersion and as a dry-run, would change nothing.
        let rehearsal: Request<Bytes> = call.variant(rehearsal, Extent::of::<K>())?;
        call.answer(&self.deliver(&call, Proof::Noop(&rehearsal)).await?)
    }

    pub(crate) fn apply_request(
        &self,
        place: &Place,
        part: Part,
        body: &Value,
        force: bool,
        dry_run: bool,
    ) -> Result<Request<Vec<u8>>, kube::core::request::Error> {
        let params = PatchParams {
            dry_run,
            force,
            field_manager: Some(self.settings.manager.clone()),
            ..PatchParams::default()
        };
        let requests = Requests::new(place.collection.as_str());
        let patch = Patch::Apply(body);
        match part {
            Part::Main => requests.patch(&place.target.name, &params, &patch),
            Part::Status => requests.patch_subresource("status", &place.target.name, &params, &patch),
        }
    }
}

/// What every intent must say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Name>,
}

#[derive(Deserialize, Default)]
struct Name {
    name: Option<String>,
    namespace: Option<String>,
}

impl From<Name> for ObjectMeta {
    fn from(Name { name, namespace }: Name) -> Self {
        Self {
            name,
            namespace,
            ..Self::default()
        }
    }
}
