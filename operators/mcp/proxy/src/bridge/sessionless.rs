//! A request of the era without sessions (2026-07-28): one child to itself, and closing the response cancels it.
//!
//! The child ends with its request. What it says after its answer, such as a log message, is about that request: the next client must
//! not get it, and nobody could tell it from what is about theirs.

use std::{io, sync::Arc};

use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    child::{Child, Children, StartError},
    message::{self, Envelope, Kind},
    stream::Outgoing,
};

/// Messages that wait for the client. More are held back in the child.
const MAX_WAITING: usize = 2;

/// Sends one request to a child. The child is told if the receiver is dropped before the answer.
pub(crate) fn call(
    children: &Arc<Children>,
    request: &Envelope,
    line: Vec<u8>,
) -> Result<mpsc::Receiver<Outgoing>, StartError> {
    let mut child = children.unused()?;
    let (to, messages) = mpsc::channel(MAX_WAITING);
    let id = request.id.clone().unwrap_or_default();
    let progress = request.wanted_progress().cloned();
    let children = children.clone();
    tokio::spawn(async move {
        match converse(&mut child, &line, &id, progress.as_ref(), &to).await {
            Ok(Outcome::Answered) => {
                drop(child);
                children.prepare();
            }
            Ok(Outcome::ClientGone) => {
                // It need not answer any more, so nobody could tell when it is free again: it ends after this.
                let _ = child.say(&message::cancelled(&id)).await;
            }
            Ok(Outcome::ChildGone) => tracing::warn!("the child ended before it answered"),
            Err(error) => tracing::warn!(%error, "cannot speak to the child"),
        }
    });
    Ok(messages)
}

enum Outcome {
    Answered,
    ClientGone,
    ChildGone,
}

async fn converse(
    child: &mut Child,
    line: &[u8],
    id: &Value,
    progress: Option<&Value>,
    to: &mpsc::Sender<Outgoing>,
) -> io::Result<Outcome> {
    child.say(line).await?;
    loop {
        let Some(lines) = &mut child.output else {
            return Ok(Outcome::ChildGone);
        };
        let line = tokio::select! {
            line = lines.next() => line?,
            () = to.closed() => return Ok(Outcome::ClientGone),
        };
        let Some(line) = line else {
            return Ok(Outcome::ChildGone);
        };
        let envelope = match serde_json::from_slice::<Envelope>(&line) {
            Ok(envelope) if line.starts_with(b"{") => envelope,
            _ => {
                tracing::warn!(
                    bytes = line.len(),
                    "the child wrote a line that is not a JSON-RPC message"
                );
                continue;
            }
        };
        let last = envelope.kind() == Kind::Response;
        let is_ours = if last {
            envelope.id.as_ref() == Some(id)
        } else if envelope.is("notifications/progress") {
            progress.is_some() && envelope.param("progressToken") == progress
        } else {
            true
        };
        if !is_ours {
            continue; // not about anything that was asked
        }
        let outgoing = Outgoing {
            message: line,
            last,
            error: envelope.error_code(),
            _share: None,
        };
        if to.send(outgoing).await.is_err() {
            return Ok(if last {
                Outcome::Answered
            } else {
                Outcome::ClientGone
            });
        }
        if last {
            return Ok(Outcome::Answered);
        }
    }
}
