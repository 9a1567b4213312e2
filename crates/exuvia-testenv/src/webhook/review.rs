//! What the reviews of admission and conversion are answered with.

use std::{fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

/// Decides by the `request` of an admission review.
pub type Decide = dyn Fn(&Value) -> Admission + Send + Sync;

/// Converts an object to an apiVersion.
pub type Convert = dyn Fn(Value, &str) -> Value + Send + Sync;

/// What an admission webhook decides.
#[derive(Clone, Default)]
pub enum Admission {
    /// Lets the request pass as it is.
    #[default]
    Allow,
    /// Refuses the request with 403 and this message.
    Deny(String),
    /// Lets the request pass with this JSON patch (an array of operations) applied; for `/mutate` only.
    Mutate(Value),
    /// Answers 500 with this text instead of a review.
    Fail(String),
    /// Decides by the review's `request` (`operation`, `object`, `oldObject`, `userInfo`, …). See
    /// [`Admission::by`].
    By(Arc<Decide>),
}

impl Admission {
    /// Refuses the request with this message.
    pub fn deny(message: impl Into<String>) -> Self {
        Self::Deny(message.into())
    }

    /// Decides by the review's `request`. As long as `decide` blocks, that one call waits.
    pub fn by(decide: impl Fn(&Value) -> Self + Send + Sync + 'static) -> Self {
        Self::By(Arc::new(decide))
    }

    /// The review with the response, or why a response is missing.
    pub(crate) fn review(self, body: &[u8]) -> Result<Value, String> {
        #[derive(Deserialize)]
        struct Review {
            request: Uid,
        }
        #[derive(Deserialize)]
        struct Uid {
            uid: String,
        }
        let unreadable = |error| format!("not an AdmissionReview of admission.k8s.io/v1: {error}");
        let Review { request: Uid { uid } } = serde_json::from_slice(body).map_err(unreadable)?;
        let mut response = json!({"uid": uid, "allowed": true});
        let mut admission = self;
        while let Self::By(decide) = &admission {
            let review: Value = serde_json::from_slice(body).map_err(unreadable)?;
            admission = decide(&review["request"]);
        }
        match admission {
            Self::Allow | Self::By(_) => {}
            Self::Fail(text) => return Err(text),
            Self::Deny(message) => {
                response["allowed"] = false.into();
                response["status"] = json!({"code": 403, "reason": "Forbidden", "message": message});
            }
            Self::Mutate(patch) => {
                response["patchType"] = "JSONPatch".into();
                response["patch"] = STANDARD.encode(patch.to_string()).into();
            }
        }
        Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("Allow"),
            Self::Deny(message) => f.debug_tuple("Deny").field(message).finish(),
            Self::Mutate(patch) => f.debug_tuple("Mutate").field(patch).finish(),
            Self::Fail(text) => f.debug_tuple("Fail").field(text).finish(),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}

/// How a conversion webhook converts.
#[derive(Clone, Default)]
pub enum Conversion {
    /// Sets the apiVersion and leaves everything else.
    #[default]
    ChangeApiVersion,
    /// Fails, properly, with this message.
    Fail(String),
    /// Converts an object to the given apiVersion. See [`Conversion::by`].
    By(Arc<Convert>),
}

impl Conversion {
    /// Fails, properly, with this message.
    pub fn fail(message: impl Into<String>) -> Self {
        Self::Fail(message.into())
    }

    /// Converts an object to the given apiVersion, which `convert` has to set, too. As long as it blocks,
    /// that one call waits.
    pub fn by(convert: impl Fn(Value, &str) -> Value + Send + Sync + 'static) -> Self {
        Self::By(Arc::new(convert))
    }

    /// The review with the response, or why a response is missing.
    pub(crate) fn review(&self, body: &[u8]) -> Result<Value, String> {
        #[derive(Deserialize)]
        struct Review {
            request: Asked,
        }
        #[derive(Deserialize)]
        struct Asked {
            uid: String,
            #[serde(rename = "desiredAPIVersion")]
            desired: String,
            objects: Vec<Value>,
        }
        let Review {
            request:
                Asked {
                    uid,
                    desired,
                    mut objects,
                },
        } = serde_json::from_slice(body)
            .map_err(|error| format!("not a ConversionReview of apiextensions.k8s.io/v1: {error}"))?;
        let mut result = json!({"status": "Success"});
        match self {
            Self::ChangeApiVersion => {
                for object in &mut objects {
                    object["apiVersion"] = desired.as_str().into();
                }
            }
            Self::By(convert) => {
                objects = objects
                    .into_iter()
                    .map(|object| convert(object, &desired))
                    .collect();
            }
            Self::Fail(message) => {
                objects.clear();
                result = json!({"status": "Failed", "message": message});
            }
        }
        let response = json!({"uid": uid, "convertedObjects": objects, "result": result});
        Ok(json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}))
    }
}

impl fmt::Debug for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChangeApiVersion => f.write_str("ChangeApiVersion"),
            Self::Fail(message) => f.debug_tuple("Fail").field(message).finish(),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn admitted(admission: Admission) -> Value {
        let body = json!({"request": {"uid": "u", "object": {"spec": {"size": 7}}}}).to_string();
        admission.review(body.as_bytes()).unwrap()["response"].take()
    }

    #[test]
    fn an_admission_answers_with_the_uid_it_was_asked_with() {
        assert_eq!(admitted(Admission::Allow), json!({"uid": "u", "allowed": true}));
        let denied = admitted(Admission::deny("no"));
        assert_eq!((&denied["uid"], &denied["allowed"]), (&json!("u"), &json!(false)));
        assert_eq!(denied["status"]["message"], "no");
    }

    #[test]
    fn a_patch_is_base64() {
        let patch = json!([{"op": "remove", "path": "/spec"}]);
        let response = admitted(Admission::Mutate(patch.clone()));
        assert_eq!(response["patchType"], "JSONPatch");
        let decoded = STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&decoded).unwrap(), patch);
    }

    #[test]
    fn a_closure_decides_by_the_request() {
        let small = Admission::by(|request| match request["object"]["spec"]["size"].as_u64() {
            Some(0..5) => Admission::Allow,
            size => Admission::deny(format!("too big: {size:?}")),
        });
        assert_eq!(admitted(small)["status"]["message"], "too big: Some(7)");
    }

    #[test]
    fn a_conversion_keeps_number_and_order_of_objects() {
        let body = json!({"request": {
            "uid": "u",
            "desiredAPIVersion": "g/v2",
            "objects": [{"apiVersion": "g/v1", "n": 1}, {"apiVersion": "g/v1", "n": 2}],
        }})
        .to_string();
        let expected = json!([{"apiVersion": "g/v2", "n": 1}, {"apiVersion": "g/v2", "n": 2}]);
        let by_closure = Conversion::by(|mut object, to| {
            object["apiVersion"] = to.into();
            object
        });
        for conversion in [Conversion::ChangeApiVersion, by_closure] {
            let response = conversion.review(body.as_bytes()).unwrap()["response"].take();
            assert_eq!(response["convertedObjects"], expected);
            assert_eq!(response["result"]["status"], "Success");
        }
        let response = Conversion::fail("no").review(body.as_bytes()).unwrap()["response"].take();
        assert_eq!(response["result"], json!({"status": "Failed", "message": "no"}));
    }

    #[test]
    fn anything_else_is_refused_with_a_sentence() {
        assert!(
            Admission::Allow
                .review(b"{}")
                .unwrap_err()
                .starts_with("not an AdmissionReview")
        );
        assert!(
            Conversion::default()
                .review(b"x")
                .unwrap_err()
                .starts_with("not a ConversionReview")
        );
    }
}
