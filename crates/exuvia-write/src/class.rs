//! What a failed request means for its caller: one of ten classes, by HTTP code, reason and a few known texts.

use std::{error::Error as StdError, fmt, time::Duration};

use kube::core::{Status, response::reason};

use crate::Target;

/// What a failed request means for its caller.
///
/// The class says what to do next, which neither the HTTP code nor the reason does alone: a 429 may mean "slow
/// down" or "the storage is not up yet", a 500 may be worth a retry or may never go away.
///
/// ```
/// use exuvia_write::ErrorClass;
/// use kube::core::Status;
///
/// // A 404 that names no object is about the endpoint. (kube's own `is_not_found` misses one whose body is plain text.)
/// let plain = kube::Error::Api(Status::failure("404 page not found", "Failed to parse error data").with_code(404).boxed());
/// assert_eq!(ErrorClass::of(&plain), ErrorClass::Missing);
/// assert_eq!(ErrorClass::of(&plain).as_str(), "missing");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// 404 that names the object: it does not exist.
    ///
    /// Of a write, the very object that was to be written. A bare kube error has no target to compare with: there it is
    /// the object that the server names, whichever that is.
    Gone,
    /// 404 that is not about the object: something that the request needs is not there. The endpoint is not served (see
    /// [`Error::is_unserved`](crate::Error::is_unserved)), or the object's namespace is gone. The object may well exist
    /// (PITFALLS A33).
    Missing,
    /// 409: another writer wrote first, owns the field, or made an object of that name. Read again and decide again.
    Conflict,
    /// 401, 403, or an admission policy or webhook said no. Repeating it will not help.
    Denied,
    /// 400, 413, 422: the server understood and cannot take it as it is.
    Invalid,
    /// 410: a list token or a watch is too old. Never says that an object is gone (PITFALLS A8).
    Expired,
    /// 429: slow down, for as long as the server says.
    Throttled(Option<Duration>),
    /// The same request may well pass in a while: 503, a webhook that is down, a storage that is being set up, a
    /// connection that could not be made. As a rule nothing was carried out; a server that could not encode its answer
    /// says the same, so a 409 to the next try is looked into.
    Transient(Option<Duration>),
    /// It is not known whether it was carried out (504, connection cut, our own timeout): read again first.
    Ambiguous,
    /// Anything else: repeating it will not help.
    Fatal,
}

impl ErrorClass {
    /// Every class by its [`as_str`](Self::as_str) name: the bounded set of values that a metric label may take.
    pub const NAMES: [&'static str; 10] = [
        "gone",
        "missing",
        "conflict",
        "denied",
        "invalid",
        "expired",
        "throttled",
        "transient",
        "ambiguous",
        "fatal",
    ];

    /// The class of an error from a kube client.
    pub fn of(error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status),
            // The request left, and what happened to it is unknown.
            kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => Self::Ambiguous,
            kube::Error::Service(cause) => of_transport(cause.as_ref()),
            _ => Self::Fatal,
        }
    }

    /// The class of an error that a request about `target` met: a 404 about anything else says nothing about it.
    pub(crate) fn of_request(error: &kube::Error, target: &Target) -> Self {
        let class = Self::of(error);
        let is_named = matches!(error, kube::Error::Api(status) if names(status, target));
        if class == Self::Gone && !is_named {
            Self::Missing
        } else {
            class
        }
    }

    /// The class of a `Status` that the server sent.
    pub fn of_status(status: &Status) -> Self {
        let retry_after = status
            .details
            .as_ref()
            .filter(|details| details.retry_after_seconds > 0)
            .map(|details| Duration::from_secs(details.retry_after_seconds.into()));
        let code = if status.code == 0 {
            code_of(&status.reason)
        } else {
            status.code
        };
        match code {
            // A policy answers 422 (PITFALLS A15) and a webhook whatever it likes: both are a "no", not a bad object.
            400..=428 if says_denied(&status.message) => Self::Denied,
            401 | 403 => Self::Denied,
            404 if names_an_object(status) => Self::Gone,
            404 => Self::Missing,
            408 | 502 | 504 => Self::Ambiguous,
            409 => Self::Conflict,
            410 => Self::Expired,
            400 | 413 | 422 => Self::Invalid,
            // Not throttling: the server has no storage for the kind yet (PITFALLS A24).
            429 if status.message.contains("storage is (re)initializing") => Self::Transient(retry_after),
            429 => Self::Throttled(retry_after),
            500 => of_internal(status, retry_after),
            503 => Self::Transient(retry_after),
            _ => Self::Fatal,
        }
    }

    /// How long the server asked to be left alone, if it did.
    pub fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Throttled(after) | Self::Transient(after) => after,
            _ => None,
        }
    }

    /// A name for metrics and logs, one of [`NAMES`](Self::NAMES).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Missing => "missing",
            Self::Conflict => "conflict",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
            Self::Throttled(_) => "throttled",
            Self::Transient(_) => "transient",
            Self::Ambiguous => "ambiguous",
            Self::Fatal => "fatal",
        }
    }

    /// A name in `CamelCase` for conditions and events, as bounded as [`as_str`](Self::as_str).
    pub fn reason(self) -> &'static str {
        match self {
            Self::Gone => "Gone",
            Self::Missing => "Missing",
            Self::Conflict => "Conflict",
            Self::Denied => "Denied",
            Self::Invalid => "Invalid",
            Self::Expired => "Expired",
            Self::Throttled(_) => "Throttled",
            Self::Transient(_) => "Transient",
            Self::Ambiguous => "Ambiguous",
            Self::Fatal => "Fatal",
        }
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A `Status` inside a 200 answer, or made by a client, may carry a reason and no code.
fn code_of(reason: &str) -> u16 {
    match reason {
        reason::UNAUTHORIZED => 401,
        reason::FORBIDDEN => 403,
        reason::NOT_FOUND => 404,
        reason::ALREADY_EXISTS | reason::CONFLICT => 409,
        reason::GONE | reason::EXPIRED => 410,
        reason::REQUEST_ENTITY_TOO_LARGE => 413,
        reason::BAD_REQUEST => 400,
        reason::INVALID => 422,
        reason::TOO_MANY_REQUESTS => 429,
        reason::SERVER_TIMEOUT | reason::STORAGE_READ_ERROR | reason::INTERNAL_ERROR => 500,
        reason::SERVICE_UNAVAILABLE => 503,
        reason::TIMEOUT => 504,
        _ => 0,
    }
}

/// Whether the `Status` is about an object at all, and not about an endpoint.
pub(crate) fn names_an_object(status: &Status) -> bool {
    status
        .details
        .as_ref()
        .is_some_and(|details| !details.name.is_empty())
}

/// Whether the `Status` is about this very object. The server gives the resource, `widgets`, as the `kind`.
fn names(status: &Status, target: &Target) -> bool {
    let (plural, group) = target
        .resource
        .split_once('.')
        .unwrap_or((target.resource.as_str(), ""));
    status.details.as_ref().is_some_and(|details| {
        details.name == target.name && details.kind == plural && details.group == group
    })
}

fn says_denied(message: &str) -> bool {
    (message.contains("admission webhook \"") && message.contains("denied the request"))
        || (message.contains("ValidatingAdmissionPolicy '") && message.contains("denied request"))
}

fn of_internal(status: &Status, retry_after: Option<Duration>) -> ErrorClass {
    let message = status.message.as_str();
    if message.contains("invalid group/version") {
        // The object, or one of its managedFields entries, is at a version that is gone (PITFALLS A7, A26).
        return ErrorClass::Fatal;
    }
    if message.contains("conversion webhook") || message.contains("failed calling webhook") {
        return ErrorClass::Transient(retry_after);
    }
    if message.contains("etcdserver: ") || status.reason == reason::SERVER_TIMEOUT {
        // The store may have committed and then failed to say so.
        return ErrorClass::Ambiguous;
    }
    match status.reason.as_str() {
        reason::INTERNAL_ERROR => ErrorClass::Ambiguous,
        reason::STORAGE_READ_ERROR => ErrorClass::Fatal,
        // No reason at all, or a body that is not a Status (PITFALLS A24).
        _ => ErrorClass::Transient(retry_after),
    }
}

/// A request that never left (no connection) is safe to repeat; the outcome of any other is unknown.
fn of_transport(error: &(dyn StdError + 'static)) -> ErrorClass {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let unconnected = error
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(hyper_util::client::legacy::Error::is_connect);
        if unconnected {
            return ErrorClass::Transient(None);
        }
        cause = error.source();
    }
    ErrorClass::Ambiguous
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;

    use super::*;

    fn class(code: u16, reason: &str, message: &str) -> ErrorClass {
        ErrorClass::of_status(&Status::failure(message, reason).with_code(code))
    }

    #[test]
    fn the_code_decides_where_the_body_is_plain_text() {
        let unparsed = "Failed to parse error data";
        for (code, expected) in [
            (400, ErrorClass::Invalid),
            (401, ErrorClass::Denied),
            (403, ErrorClass::Denied),
            (404, ErrorClass::Missing),
            (405, ErrorClass::Fatal),
            (409, ErrorClass::Conflict),
            (410, ErrorClass::Expired),
            (413, ErrorClass::Invalid),
            (422, ErrorClass::Invalid),
            (429, ErrorClass::Throttled(None)),
            (500, ErrorClass::Transient(None)),
            (502, ErrorClass::Ambiguous),
            (503, ErrorClass::Transient(None)),
            (504, ErrorClass::Ambiguous),
            (507, ErrorClass::Fatal),
        ] {
            assert_eq!(class(code, unparsed, "text"), expected, "{code}");
        }
    }

    #[test]
    fn the_reason_decides_where_the_code_is_missing() {
        assert_eq!(class(0, "NotFound", ""), ErrorClass::Missing);
        assert_eq!(class(0, "Conflict", ""), ErrorClass::Conflict);
        assert_eq!(class(0, "AlreadyExists", ""), ErrorClass::Conflict);
        assert_eq!(class(0, "Expired", ""), ErrorClass::Expired);
        assert_eq!(class(0, "Timeout", ""), ErrorClass::Ambiguous);
        assert_eq!(class(0, "", ""), ErrorClass::Fatal);
    }

    /// PITFALLS A24.
    #[test]
    fn a_storage_that_is_being_set_up_is_not_throttling() {
        let message = "storage is (re)initializing";
        assert_eq!(
            class(429, "TooManyRequests", message),
            ErrorClass::Transient(None)
        );
        assert_eq!(
            class(429, "TooManyRequests", "slow down"),
            ErrorClass::Throttled(None)
        );
    }

    /// PITFALLS A7, A24, A26.
    #[test]
    fn a_500_is_told_apart_by_its_text() {
        let conversion = "conversion webhook for example.dev/v1, Kind=Widget failed: connection refused";
        assert_eq!(class(500, "", conversion), ErrorClass::Transient(None));
        assert_eq!(
            class(500, "InternalError", conversion),
            ErrorClass::Transient(None)
        );
        assert_eq!(class(500, "", "anything"), ErrorClass::Transient(None));
        let webhook = "Internal error occurred: failed calling webhook \"w\": connection refused";
        assert_eq!(class(500, "InternalError", webhook), ErrorClass::Transient(None));
        assert_eq!(class(500, "InternalError", "who knows"), ErrorClass::Ambiguous);
        assert_eq!(
            class(500, "", "etcdserver: request timed out"),
            ErrorClass::Ambiguous
        );
        assert_eq!(class(500, "ServerTimeout", "try again"), ErrorClass::Ambiguous);
        let mine = "request to convert CR to an invalid group/version: example.dev/v1alpha1";
        assert_eq!(class(500, "", mine), ErrorClass::Fatal);
    }

    /// PITFALLS A15.
    #[test]
    fn a_policy_that_denies_with_422_denies() {
        let policy = "ValidatingAdmissionPolicy 'freeze' with binding 'freeze' denied request: frozen";
        assert_eq!(class(422, "Invalid", policy), ErrorClass::Denied);
        let webhook = "admission webhook \"w.example.dev\" denied the request: no";
        assert_eq!(class(400, "BadRequest", webhook), ErrorClass::Denied);
        assert_eq!(
            class(422, "Invalid", "spec.size: Invalid value: -1"),
            ErrorClass::Invalid
        );
    }

    fn details(group: &str, kind: &str, name: &str) -> StatusDetails {
        StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        }
    }

    /// PITFALLS A33.
    #[test]
    fn an_object_is_gone_only_by_a_404_that_names_it() {
        let target = |resource: &str, name: &str| Target {
            resource: resource.to_owned(),
            version: "v1".to_owned(),
            namespace: Some("shop".to_owned()),
            name: name.to_owned(),
        };
        let not_found = |details: StatusDetails| {
            let status = Status::failure("not found", "NotFound").with_code(404);
            kube::Error::Api(status.with_details(details).boxed())
        };
        let widget = target("widgets.example.dev", "w");
        for (error, class) in [
            (
                not_found(details("example.dev", "widgets", "w")),
                ErrorClass::Gone,
            ),
            (
                not_found(details("example.dev", "widgets", "v")),
                ErrorClass::Missing,
            ),
            (
                not_found(details("example.org", "widgets", "w")),
                ErrorClass::Missing,
            ),
            (not_found(details("", "namespaces", "w")), ErrorClass::Missing),
            (not_found(details("", "", "")), ErrorClass::Missing),
        ] {
            assert_eq!(ErrorClass::of_request(&error, &widget), class, "{error:?}");
        }
        let map = not_found(details("", "configmaps", "m"));
        assert_eq!(
            ErrorClass::of_request(&map, &target("configmaps", "m")),
            ErrorClass::Gone
        );
        // Without a target the server's word is all there is.
        assert_eq!(ErrorClass::of(&map), ErrorClass::Gone);
        assert_eq!(
            ErrorClass::of(&not_found(details("", "", ""))),
            ErrorClass::Missing
        );
    }

    #[test]
    fn the_servers_delay_is_kept() {
        let details = StatusDetails {
            retry_after_seconds: 7,
            ..details("", "", "")
        };
        let status = Status::failure("busy", "TooManyRequests")
            .with_code(429)
            .with_details(details);
        let class = ErrorClass::of_status(&status);
        assert_eq!(class, ErrorClass::Throttled(Some(Duration::from_secs(7))));
        assert_eq!(class.retry_after(), Some(Duration::from_secs(7)));
    }

    #[test]
    fn names_are_bounded() {
        for class in [
            ErrorClass::Gone,
            ErrorClass::Missing,
            ErrorClass::Conflict,
            ErrorClass::Denied,
            ErrorClass::Invalid,
            ErrorClass::Expired,
            ErrorClass::Throttled(None),
            ErrorClass::Transient(None),
            ErrorClass::Ambiguous,
            ErrorClass::Fatal,
        ] {
            assert!(ErrorClass::NAMES.contains(&class.as_str()));
            assert_eq!(class.reason().to_lowercase(), class.as_str());
        }
    }
}
