//! Every way to write to an object, as a request that names a field manager.

use kube::Client;
use serde_json::{Value, json};

/// What a request came to: the code, and the server's words.
#[derive(Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) message: String,
}

impl Answer {
    pub(crate) fn is_ok(&self) -> bool {
        self.code == 200
    }

    /// Refused by a policy of ours, with its words.
    pub(crate) fn is_refused(&self, words: &str) -> bool {
        self.code == 403
            && self.message.contains("ValidatingAdmissionPolicy 'exuvia-")
            && self.message.contains(words)
    }
}

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const JSON: &str = "application/json";

/// One way to write.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) what: &'static str,
    pub(crate) method: &'static str,
    /// Below `/apis/<group>/`.
    pub(crate) path: String,
    pub(crate) content_type: &'static str,
    pub(crate) body: Value,
}

impl Write {
    pub(crate) fn new(what: &'static str, method: &'static str, path: impl Into<String>) -> Self {
        Self {
            what,
            method,
            path: path.into(),
            content_type: JSON,
            body: Value::Null,
        }
    }

    pub(crate) fn body(mut self, content_type: &'static str, body: Value) -> Self {
        self.content_type = content_type;
        self.body = body;
        self
    }

    pub(crate) async fn send(&self, client: &Client, group: &str, manager: &str) -> Answer {
        let and = if self.path.contains('?') { '&' } else { '?' };
        let force = if self.content_type == APPLY {
            "&force=true"
        } else {
            ""
        };
        // A DELETE has no such parameter.
        let query = match self.method {
            "DELETE" => String::new(),
            _ => format!("{and}fieldManager={manager}{force}"),
        };
        let body = match &self.body {
            Value::Null => Vec::new(),
            body => body.to_string().into_bytes(),
        };
        let request = http::Request::builder()
            .method(self.method)
            .uri(format!("/apis/{group}/{}{query}", self.path))
            .header("content-type", self.content_type)
            .body(body)
            .unwrap();
        match client.request::<Value>(request).await {
            Ok(_) => Answer {
                code: 200,
                message: String::new(),
            },
            Err(kube::Error::Api(status)) => Answer {
                code: status.code,
                message: status.message.clone(),
            },
            Err(error) => panic!("{}: {error}", self.what),
        }
    }
}

/// Where an object of `default` is.
pub(crate) fn at(version: &str, name: &str) -> String {
    format!("{version}/namespaces/default/widgets/{name}")
}

/// Every update of one widget that has a finalizer `example.com/hold`. `stored` is the object as it is.
pub(crate) fn updates(stored: &Value, name: &str) -> Vec<Write> {
    let mut replaced = stored.clone();
    replaced["spec"]["color"] = json!("put");
    let applied = json!({
        "apiVersion": stored["apiVersion"], "kind": "Widget",
        "metadata": {"name": name}, "spec": {"color": "applied"},
    });
    vec![
        Write::new("PUT", "PUT", at("v1", name)).body(JSON, replaced),
        Write::new("merge patch", "PATCH", at("v1", name)).body(MERGE, json!({"spec": {"color": "merged"}})),
        Write::new("JSON patch", "PATCH", at("v1", name)).body(
            JSON_PATCH,
            json!([{"op": "replace", "path": "/spec/color", "value": "patched"}]),
        ),
        Write::new("apply", "PATCH", at("v1", name)).body(APPLY, applied),
        Write::new("/status", "PATCH", at("v1", name) + "/status")
            .body(MERGE, json!({"status": {"phase": "Seen"}})),
        Write::new("/scale", "PATCH", at("v1", name) + "/scale")
            .body(MERGE, json!({"spec": {"replicas": 7}})),
        Write::new("another version", "PATCH", at("v1alpha1", name))
            .body(MERGE, json!({"spec": {"color": "old"}})),
        Write::new("metadata", "PATCH", at("v1", name))
            .body(MERGE, json!({"metadata": {"labels": {"new": "yes"}}})),
        Write::new("a finalizer more", "PATCH", at("v1", name)).body(
            MERGE,
            json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}),
        ),
    ]
}

pub(crate) fn empty(name: &str) -> Write {
    Write::new("{}", "PATCH", at("v1", name)).body(MERGE, json!({}))
}

pub(crate) fn without_finalizers(name: &str) -> Write {
    Write::new("finalizers removed", "PATCH", at("v1", name))
        .body(MERGE, json!({"metadata": {"finalizers": null}}))
}

#[expect(clippy::needless_pass_by_value, reason = "literals read better")]
pub(crate) fn create(group: &str, name: &str, labels: Value) -> Write {
    let body = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Widget",
        "metadata": {"name": name, "labels": labels}, "spec": {"size": 1},
    });
    Write::new("create", "POST", "v1/namespaces/default/widgets").body(JSON, body)
}

pub(crate) fn delete(name: &str) -> Write {
    Write::new("delete", "DELETE", at("v1", name))
}

pub(crate) fn delete_collection() -> Write {
    Write::new("deletecollection", "DELETE", "v1/namespaces/default/widgets")
}
