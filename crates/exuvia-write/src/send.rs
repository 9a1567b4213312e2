//! The one place that sends: gate, pace, timeout, class, retry, log line and metrics of every write.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, header};
use kube::{Client, Resource, core::request};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Error, ErrorClass, Refusal, Target, Verb, Writer,
    exchange::exchange,
    target::Place,
    writer::{Attempt, Outcome, WriteReport},
};

/// Asks for the object's metadata and nothing else.
const METADATA_ONLY: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// How much of the object an answer is to hold.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    Whole,
    Metadata,
}

/// A write, ready to be sent as often as need be.
pub(crate) struct Call {
    verb: Verb,
    target: Target,
    client: Client,
    request: Request<Bytes>,
    /// The URL path of the object itself, to read it back.
    path: String,
}

/// How to find out, after a request of unknown outcome, whether it was carried out.
#[derive(Clone, Copy)]
pub(crate) enum Proof<'a> {
    /// No need to: it can be repeated.
    Repeat,
    /// It was if this holds for the live object.
    Live(&'a (dyn Fn(&Value) -> bool + Send + Sync)),
    /// It was if this request, a dry-run of the same write without its lock, would change nothing.
    Noop(&'a Request<Bytes>),
    /// Nothing tells, and a repetition would do it twice.
    Never,
}

impl Call {
    pub(crate) fn new(
        verb: Verb,
        place: Place,
        client: Client,
        request: Result<Request<Vec<u8>>, request::Error>,
        extent: Extent,
    ) -> Result<Self, Error> {
        let Place { target, collection } = place;
        let request = ready(verb, &target, request, extent)?;
        let path = format!("{collection}/{}", target.name);
        Ok(Self {
            verb,
            target,
            client,
            request,
            path,
        })
    }

    /// Another request for the same object, to the same end.
    pub(crate) fn variant(
        &self,
        request: Result<Request<Vec<u8>>, request::Error>,
        extent: Extent,
    ) -> Result<Request<Bytes>, Error> {
        ready(self.verb, &self.target, request, extent)
    }

    pub(crate) fn recreated(&self) -> Error {
        Error::Recreated {
            verb: self.verb,
            target: Box::new(self.target.clone()),
        }
    }

    pub(crate) fn refused(&self, why: impl Into<Refusal>) -> Error {
        Error::refused(self.verb, &self.target, why)
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Reads an answer as the type that the caller wants.
    pub(crate) fn answer<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| Error::Answer {
            verb: self.verb,
            target: Box::new(self.target.clone()),
            line: error.line(),
            column: error.column(),
        })
    }
}

fn ready(
    verb: Verb,
    target: &Target,
    request: Result<Request<Vec<u8>>, request::Error>,
    extent: Extent,
) -> Result<Request<Bytes>, Error> {
    let request = request.map_err(|error| failed(verb, target, kube::Error::BuildRequest(error)))?;
    let mut request = request.map(Bytes::from);
    request.headers_mut().insert(header::ACCEPT, extent.accept());
    Ok(request)
}

impl Extent {
    /// As much as an `Api` of that kind gets from its reads.
    pub(crate) fn of<K: Resource>() -> Self {
        if K::metadata_api() {
            Self::Metadata
        } else {
            Self::Whole
        }
    }

    fn accept(self) -> HeaderValue {
        match self {
            Self::Whole => JSON,
            Self::Metadata => METADATA_ONLY,
        }
    }
}

fn failed(verb: Verb, target: &Target, error: kube::Error) -> Error {
    let class = ErrorClass::of_request(&error, target);
    Error::Server {
        verb,
        target: Box::new(target.clone()),
        class,
        source: Box::new(error),
    }
}

impl Writer {
    /// Sends until the outcome is known or the policy has had enough.
    pub(crate) async fn deliver(&self, call: &Call, proof: Proof<'_>) -> Result<Bytes, Error> {
        let mut doubtful = false;
        let mut number = 0;
        loop {
            number += 1;
            let error = match self.attempt(call, number).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let class = error.class();
            // A 409 after an attempt of unknown outcome may well be our own doing: we come second after ourselves.
            if class == ErrorClass::Ambiguous || (doubtful && class == ErrorClass::Conflict) {
                let live = match proof {
                    Proof::Never => return Err(error),
                    Proof::Repeat => None,
                    Proof::Live(holds) => self.live_if(call, holds).await,
                    Proof::Noop(rehearsal) => self.live_unless_changed_by(call, rehearsal, number).await,
                };
                if let Some(live) = live {
                    return Ok(live);
                }
            }
            doubtful |= matches!(class, ErrorClass::Ambiguous | ErrorClass::Transient(_));
            // To send the same lock again after a 409 is pointless; reading again is up to the caller.
            let delay = match class {
                ErrorClass::Conflict => None,
                _ => self.settings.retry.after(number, class),
            };
            match delay {
                Some(delay) => tokio::time::sleep(delay).await,
                None if class == ErrorClass::Gone || error.is_unserved() => {
                    return Err(self.gone(call, error).await);
                }
                None => return Err(error),
            }
        }
    }

    /// A kind without a status subresource answers `/status` with the very 404 that it has for an object that is gone
    /// (custom resources), or with that of an endpoint that is not served (built-ins). To take the one for the other
    /// would be to give an object up, so the object itself is asked for.
    async fn gone(&self, call: &Call, error: Error) -> Error {
        let on_status = call.request.uri().path().strip_prefix(&call.path) == Some("/status");
        if on_status && self.read(call).await.is_ok() {
            Error::NoStatus {
                verb: call.verb,
                target: Box::new(call.target.clone()),
            }
        } else {
            error
        }
    }

    /// The live object, if the write shows in it. A read that fails tells nothing, and the write is tried again.
    async fn live_if(&self, call: &Call, holds: &(dyn Fn(&Value) -> bool + Send + Sync)) -> Option<Bytes> {
        let live = self.read(call).await.ok()?;
        let object = serde_json::from_slice(&live).ok()?;
        holds(&object).then_some(live)
    }

    /// The live object, if `rehearsal` leaves it exactly as it is, resourceVersion and ownership included.
    async fn live_unless_changed_by(
        &self,
        call: &Call,
        rehearsal: &Request<Bytes>,
        number: u32,
    ) -> Option<Bytes> {
        let live = self.read(call).await.ok()?;
        self.admit(call, number, true).ok()?;
        let rehearsed = self.exchange(&call.client, rehearsal.clone()).await.ok()?;
        let object = |body: &[u8]| serde_json::from_slice::<Value>(body).ok();
        (object(&live)? == object(&rehearsed)?).then_some(live)
    }

    /// Reads the call's object back, to the same extent as the call's answer.
    pub(crate) async fn read(&self, call: &Call) -> Result<Bytes, Error> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = call.path.parse().map_err(|error| {
            failed(
                call.verb,
                &call.target,
                kube::Error::HttpError(http::Error::from(error)),
            )
        })?;
        if let Some(accept) = call.request.headers().get(header::ACCEPT) {
            request.headers_mut().insert(header::ACCEPT, accept.clone());
        }
        let mut number = 0;
        loop {
            number += 1;
            let error = match self.exchange(&call.client, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => failed(call.verb, &call.target, error),
            };
            match self.settings.retry.after(number, error.class()) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(error),
            }
        }
    }

    async fn attempt(&self, call: &Call, number: u32) -> Result<Bytes, Error> {
        if let Some(pace) = &self.settings.pace {
            pace.turn().await;
        }
        let began = Instant::now();
        self.admit(call, number, self.settings.dry_run)?;
        let answer = self.exchange(&call.client, call.request.clone()).await;
        let outcome = match &answer {
            Ok(_) => Outcome::Written,
            Err(error) => Outcome::Failed(ErrorClass::of_request(error, &call.target)),
        };
        self.report(call.verb, &call.target, number, outcome, began.elapsed());
        answer.map_err(|error| failed(call.verb, &call.target, error))
    }

    /// Asks the gate. Nothing but the request itself may come after it.
    fn admit(&self, call: &Call, number: u32, dry_run: bool) -> Result<(), Error> {
        let Some(gate) = &self.settings.gate else {
            return Ok(());
        };
        let attempt = Attempt {
            verb: call.verb,
            target: &call.target,
            dry_run,
            number,
        };
        gate(&attempt).map_err(|why| {
            self.report(call.verb, &call.target, number, Outcome::Gated, Duration::ZERO);
            call.refused(Refusal::GateClosed(why))
        })
    }

    /// One log line and one call of the observer. Never a body: it may be a secret (PITFALLS B27).
    pub(crate) fn report(
        &self,
        verb: Verb,
        target: &Target,
        attempt: u32,
        outcome: Outcome,
        duration: Duration,
    ) {
        let dry_run = self.settings.dry_run;
        tracing::debug!(
            verb = verb.as_str(),
            resource = target.resource,
            version = target.version,
            namespace = target.namespace,
            name = target.name,
            dry_run,
            attempt,
            outcome = outcome.as_str(),
            ?duration,
            "write"
        );
        if let Some(observer) = &self.settings.observer {
            observer(&WriteReport {
                verb,
                target,
                dry_run,
                attempt,
                outcome,
                duration,
            });
        }
    }

    async fn exchange(&self, client: &Client, request: Request<Bytes>) -> Result<Bytes, kube::Error> {
        exchange(client, request, self.settings.timeout).await
    }
}
