//! Events: what people see in `kubectl describe`, each once and never too long.

use std::{fmt, time::Duration};

use exuvia_write::{ErrorClass, Redacted, Writer};
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client};

/// All of an event as it is sent: 1 KiB, but for what the server fills in. It refuses a note of more than 1024 bytes, and with it the event (PITFALLS B11);
/// what is longer belongs into a status, which there is one of, and not into events, of which there are many.
const EVENT_BYTES: usize = 1000;
/// So much of a note stays, however long the names around it are.
const LEAST_NOTE_BYTES: usize = 64;
/// The same for action, reason and instance.
const WORD_BYTES: usize = 128;
/// So much of the object's name is in the event's, which may have 253 characters; all of it is in `regarding`.
const NAME_BYTES: usize = 100;
/// An event is not worth a longer wait.
const PATIENCE: Duration = Duration::from_secs(10);

/// What kind of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Publishes events.
///
/// An event's name follows from the object, the reason and the note, so that one that is published again, after a restart
/// or a lost answer, is the same. Whatever goes wrong is logged and nothing else.
#[derive(Clone)]
pub struct Events {
    client: Client,
    writer: Writer,
    instance: String,
}

impl Events {
    /// Events by the writer's field manager, from this instance of it (mostly the pod's name).
    pub fn new(client: Client, writer: Writer, reporting_instance: String) -> Self {
        Self {
            client,
            writer,
            instance: reporting_instance,
        }
    }

    /// Says that something happened to `about`: `reason` and `action` in `CamelCase`, `note` for people.
    pub async fn publish(
        &self,
        about: &ObjectReference,
        kind: EventKind,
        reason: &str,
        action: &str,
        note: impl Into<Redacted>,
    ) {
        let event = self.event(about, kind, reason, action, &note.into());
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        match tokio::time::timeout(PATIENCE, self.writer.create(&api, &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.is_already_exists() => {}
            // The object's namespace is gone: nobody is left to read it.
            Ok(Err(error)) if error.class() == ErrorClass::Missing && !error.is_unserved() => {
                tracing::debug!(reason, %error, "failed to publish event");
            }
            Ok(Err(error)) => tracing::warn!(reason, %error, "failed to publish event"),
            Err(_) => tracing::warn!(reason, "failed to publish event: no answer within {PATIENCE:?}"),
        }
    }

    fn event(
        &self,
        about: &ObjectReference,
        kind: EventKind,
        reason: &str,
        action: &str,
        note: &str,
    ) -> Event {
        let note = cut(note, EVENT_BYTES);
        let reason = cut(reason, WORD_BYTES);
        let mut event = Event {
            action: Some(cut(action, WORD_BYTES)),
            event_time: Some(MicroTime(Timestamp::now())),
            regarding: Some(about.clone()),
            reporting_controller: Some(self.writer.field_manager().to_owned()),
            reporting_instance: Some(cut(&self.instance, WORD_BYTES)),
            type_: Some(kind.as_str().to_owned()),
            ..Event::default()
        };
        event.metadata.name = Some(name(about, &reason, &note));
        event.metadata.namespace = Some(match about.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => namespace.to_owned(),
            _ => "default".to_owned(),
        });
        event.reason = Some(reason);
        event.note = Some(note);
        shorten_note(&mut event);
        event
    }
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

/// Cuts the note until the event as a whole is short enough. Its name, which follows from all of the note, stays.
fn shorten_note(event: &mut Event) {
    let bytes = serde_json::to_vec(event).map_or(0, |event| event.len());
    let over = bytes.saturating_sub(EVENT_BYTES);
    if let Some(note) = event.note.as_mut().filter(|_| over > 0) {
        *note = cut(note, note.len().saturating_sub(over).max(LEAST_NOTE_BYTES));
    }
}

/// At most so many bytes, whole characters, and an ellipsis if something is missing.
fn cut(text: &str, bytes: usize) -> String {
    const ELLIPSIS: &str = "…";
    if text.len() <= bytes {
        return text.to_owned();
    }
    let room = bytes - ELLIPSIS.len();
    let end = (0..=room).rev().find(|end| text.is_char_boundary(*end));
    format!("{}{ELLIPSIS}", &text[..end.unwrap_or_default()])
}

/// `<object>.<hash>`, a valid name whatever the object's is (a `ClusterRole` may be called `system:node`).
fn name(about: &ObjectReference, reason: &str, note: &str) -> String {
    let object: String = about
        .name
        .as_deref()
        .unwrap_or_default()
        .to_ascii_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') {
                c
            } else {
                '-'
            }
        })
        .take(NAME_BYTES)
        .collect();
    let object = object.trim_matches(['.', '-']);
    let object = if object.is_empty() { "event" } else { object };
    let uid = about.uid.as_deref().unwrap_or_default();
    format!("{object}.{:016x}", hash([uid, reason, note]))
}

/// FNV-1a: the standard library's hashes may be others in its next release, and then a restart would repeat events.
fn hash(parts: [&str; 3]) -> u64 {
    // 0xff is in no UTF-8 text, so it keeps the parts apart.
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.to_owned()),
            uid: Some("u".to_owned()),
            ..ObjectReference::default()
        }
    }

    #[test]
    fn text_is_cut_between_characters_and_only_if_it_is_too_long() {
        assert_eq!(cut("four", 4), "four");
        assert_eq!(cut("fives", 4), "f…");
        assert_eq!(cut("äöüß", 7), "äö…");
        assert_eq!(cut("äöüß", 6), "ä…");
        let long = cut(&"ß".repeat(5000), EVENT_BYTES);
        assert!(long.len() < 1024 && long.ends_with('…'));
    }

    #[test]
    fn an_event_is_short_whatever_its_note_holds_and_one_that_is_short_is_left_alone() {
        let event = |note: &str| {
            let mut event = Event {
                regarding: Some(about(&"long.".repeat(50))),
                note: Some(note.to_owned()),
                ..Event::default()
            };
            shorten_note(&mut event);
            event
        };
        for note in ["x".repeat(1023), "\"".repeat(1023), "ß".repeat(511)] {
            let event = event(&note);
            let sent = serde_json::to_string(&event).expect("an event");
            assert!(sent.len() < 1024, "{}: {sent}", sent.len());
            assert!(event.note.is_some_and(|note| note.ends_with('…')));
        }
        assert_eq!(event("short").note.as_deref(), Some("short"));
    }

    #[test]
    fn names_are_valid_and_differ_by_reason_note_and_uid() {
        let plain = name(&about("widget"), "Done", "all of it");
        assert_eq!(plain, name(&about("widget"), "Done", "all of it"));
        assert_eq!(plain.len(), "widget.".len() + 16);
        assert_ne!(plain, name(&about("widget"), "Donea", "ll of it"));
        assert_ne!(plain, name(&about("widget"), "Done", "none of it"));
        let another = ObjectReference {
            uid: Some("v".to_owned()),
            ..about("widget")
        };
        assert_ne!(plain, name(&another, "Done", "all of it"));
        assert!(name(&about("system:node"), "", "").starts_with("system-node."));
        assert!(name(&about(":"), "", "").starts_with("event."));
        let long = name(&about(&"a.".repeat(200)), "", "");
        assert!(long.len() <= 253 && !long.contains(".."), "{long}");
    }
}
