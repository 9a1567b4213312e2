//! The API server's audit log, parsed: who asked for what, and what was answered.

use std::path::PathBuf;

use serde::Deserialize;

use crate::Error;

/// What is logged: every request but the control plane's own chatter, without bodies.
pub(crate) const POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*"]
- level: Metadata
"#;

/// One line of the audit log.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: String,
    /// The path with its query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// When in the life of the request this was logged: `ResponseStarted` (watches), `ResponseComplete`, `Panic`.
    pub stage: String,
    /// Who asked.
    pub user: AuditUser,
    /// The client's own name for itself.
    #[serde(default)]
    pub user_agent: String,
    /// What was asked for; `None` for paths that are not a resource.
    pub object_ref: Option<ObjectRef>,
    /// The answer's code.
    pub response_status: Option<ResponseStatus>,
    /// When the request came in, as the server wrote it (RFC 3339 with microseconds, so it sorts as text).
    pub request_received_timestamp: String,
    /// When this line was written.
    pub stage_timestamp: String,
}

/// The user of an audit event.
#[derive(Clone, Debug, Deserialize)]
pub struct AuditUser {
    /// The user's name.
    #[serde(default)]
    pub username: String,
}

/// The object of an audit event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// The plural, such as `widgets`.
    pub resource: String,
    /// The namespace, if any.
    pub namespace: String,
    /// The name, empty for lists.
    pub name: String,
    /// The group, empty for the core group.
    pub api_group: String,
    /// The version in the path.
    pub api_version: String,
    /// `status`, `scale` and so on; mostly empty.
    pub subresource: String,
}

/// The answer of an audit event.
#[derive(Clone, Debug, Deserialize)]
pub struct ResponseStatus {
    /// The HTTP code.
    pub code: u16,
}

impl AuditEvent {
    /// Whether the request was meant to change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }

    /// The answer's code, 0 if there was none.
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// The plural of the resource asked for, empty for other paths.
    pub fn resource(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| &object.resource)
    }
}

/// The audit log of all API servers of one control plane.
#[derive(Debug)]
pub struct AuditLog {
    /// Each server writes a separate file here: two servers would overwrite each other's lines.
    pub(crate) directory: PathBuf,
}

impl AuditLog {
    pub(crate) fn file_name(server: &str) -> String {
        format!("audit-{server}.jsonl")
    }

    /// All events so far, in the order in which they were logged. A server logs before it answers.
    pub fn events(&self) -> Result<Vec<AuditEvent>, Error> {
        let unreadable = Error::file("read the audit log in", &self.directory);
        let mut events = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(unreadable)?.flatten() {
            if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "jsonl")
            {
                read(&entry.path(), &mut events)?;
            }
        }
        events.sort_by(|a, b| a.stage_timestamp.cmp(&b.stage_timestamp));
        Ok(events)
    }

    /// The events of one user.
    pub fn of(&self, user: &str) -> Result<Vec<AuditEvent>, Error> {
        Ok(self
            .events()?
            .into_iter()
            .filter(|event| event.user.username == user)
            .collect())
    }
}

fn read(path: &std::path::Path, events: &mut Vec<AuditEvent>) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read the audit log", path))?;
    // The last line may still be in the writing; it has no newline then.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let odd = |e| Error::file("parse the audit log", path)(std::io::Error::other(e));
        events.push(serde_json::from_str::<AuditEvent>(line).map_err(odd)?);
    }
    Ok(())
}
