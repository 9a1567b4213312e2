//! What the writer decides, on answers given one by one: no server needed, and time stands still.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod decisions;
mod hooks;
mod refusals;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, client::Body};
use serde_json::{Value, json};

/// An answer of the script's.
pub(crate) enum Answer {
    Json(u16, Value),
    Text(u16, &'static str, Option<u32>),
    /// No answer, ever.
    Silence,
}

/// A request as it was on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) accept: String,
    pub(crate) content_type: String,
    pub(crate) body: Value,
}

#[derive(Clone)]
pub(crate) struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Script {
    pub(crate) fn of(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            sent: Arc::default(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let script = script.clone();
            async move { script.answer(request).await }
        });
        Client::new(service, "default")
    }

    pub(crate) fn api(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client(), "shop")
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().unwrap().clone()
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (head, body) = request.into_parts();
        let header = |name: &str| {
            head.headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let body = body.collect().await?.to_bytes();
        self.sent.lock().unwrap().push(Sent {
            method: head.method.to_string(),
            uri: head.uri.to_string(),
            accept: header("accept"),
            content_type: header("content-type"),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        });
        let next = self.answers.lock().unwrap().pop_front();
        let (code, body, after) = match next.expect("a request that the script does not know") {
            Answer::Json(code, body) => (code, body.to_string(), None),
            Answer::Text(code, text, after) => (code, text.to_owned(), after),
            Answer::Silence => std::future::pending().await,
        };
        let mut response = Response::builder().status(code);
        if let Some(seconds) = after {
            response = response.header("retry-after", seconds);
        }
        Ok(response.body(Body::from(body.into_bytes())).unwrap())
    }
}

/// A config map as the server would have it.
pub(crate) fn map(resource_version: &str, data: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "prices", "namespace": "shop", "uid": "u1", "resourceVersion": resource_version},
        "data": data,
    })
}

pub(crate) fn read(resource_version: &str, data: &Value) -> ConfigMap {
    serde_json::from_value(map(resource_version, data)).unwrap()
}

pub(crate) fn status(code: u16, reason: &str) -> Answer {
    Answer::Json(
        code,
        json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": "m"}),
    )
}

/// The server's answer that `prices` does not exist.
pub(crate) fn not_found() -> Answer {
    let details = json!({"name": "prices", "kind": "configmaps"});
    Answer::Json(
        404,
        json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "details": details}),
    )
}

pub(crate) fn set_apple(price: &str) -> impl FnMut(&mut ConfigMap) {
    move |map| {
        map.data
            .get_or_insert_default()
            .insert("apple".to_owned(), price.to_owned());
    }
}

pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn writer() -> exuvia_write::Writer {
    exuvia_write::Writer::named("till").timeout(TIMEOUT)
}
