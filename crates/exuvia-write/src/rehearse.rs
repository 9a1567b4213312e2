//! `rehearse_replace`: what a full replacement of an object would make of it, without doing it.

use http::{Request, Uri};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
    core::{Request as Requests, request},
};

use crate::{
    Error, Refusal, Verb, Writable, Writer,
    send::{Call, Extent, Proof},
    target::Place,
};

impl Writer {
    /// What a PUT of `wanted` over the live object would store: always a dry-run, whatever else the writer is told.
    ///
    /// This is how to know whether a live object *is* what somebody wants: defaults, conversions and mutating admission are
    /// applied by the server to both sides, so that only real differences remain. A dry-run apply or merge calls objects equal
    /// that are not, and a dry-run create refuses what an update lets pass (PITFALLS D34). `live` gives name, uid and
    /// resourceVersion; a 409 says that it has changed since.
    ///
    /// ```no_run
    /// # async fn example(writer: exuvia_write::Writer, api: kube::Api<k8s_openapi::api::core::v1::ConfigMap>,
    /// #     wanted: k8s_openapi::api::core::v1::ConfigMap) -> Result<(), Box<dyn std::error::Error>> {
    /// let live = api.get("prices").await?;
    /// let outcome = writer.rehearse_replace(&api, &live.metadata, &wanted).await?;
    /// println!("a replacement changes something: {}", outcome.data != live.data);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn rehearse_replace<K: Writable>(
        &self,
        api: &Api<K>,
        live: &ObjectMeta,
        wanted: &K,
    ) -> Result<K, Error> {
        let verb = Verb::Replace;
        let place = Place::of(api, live, verb)?;
        let (Some(uid), Some(version)) = (&live.uid, &live.resource_version) else {
            return Err(Error::refused(verb, &place.target, Refusal::NoResourceVersion));
        };
        let mut body =
            serde_json::to_value(wanted).map_err(|error| Error::refused(verb, &place.target, error))?;
        body["metadata"]["uid"] = uid.as_str().into();
        body["metadata"]["resourceVersion"] = version.as_str().into();
        let body = serde_json::to_vec(&body).map_err(|error| Error::refused(verb, &place.target, error))?;
        let params = PostParams {
            dry_run: true,
            field_manager: Some(self.settings.manager.clone()),
        };
        let request = Requests::new(place.collection.as_str()).replace(&place.target.name, &params, body);
        let request = self.validated(request);
        let call = Call::new(verb, place, api.clone().into_client(), request, Extent::of::<K>())?;
        // Nothing is stored, so it can be asked as often as need be.
        call.answer(&self.deliver(&call, Proof::Repeat).await?)
    }

    /// The request, with the field validation that the writer was told to ask for.
    pub(crate) fn validated(
        &self,
        request: Result<Request<Vec<u8>>, request::Error>,
    ) -> Result<Request<Vec<u8>>, request::Error> {
        let mut request = request?;
        if self.settings.strict {
            let uri = request.uri().to_string();
            let separator = if uri.contains('?') { '&' } else { '?' };
            let uri: Uri = format!("{uri}{separator}fieldValidation=Strict")
                .parse()
                .map_err(|error: http::uri::InvalidUri| request::Error::BuildRequest(error.into()))?;
            *request.uri_mut() = uri;
        }
        Ok(request)
    }
}
