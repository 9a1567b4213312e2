//! A session of the eras up to 2025-11-25: one child, and who gets which of its messages.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::Value;
use tokio::{
    io::AsyncWriteExt,
    sync::{Semaphore, mpsc, watch},
};

use super::{
    child::{Child, Children, StartError},
    message::{Envelope, Kind},
    stream::Outgoing,
};

/// What a session holds at most for clients that read slowly: the rest stays in the child. A larger message
/// counts as this much.
const MAX_HELD_BYTES: u32 = 2 * 1024 * 1024;

/// Messages of one call that wait for its client. More are held back in the child.
const MAX_WAITING_OF_CALL: usize = 16;

/// Messages that belong to no call and wait for a GET. Then the oldest go.
const MAX_WAITING: usize = 64;

/// A session, and its child.
pub(crate) struct Session {
    input: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    routes: Mutex<Routes>,
    /// For calls, whose messages wait; and for the GET, whose messages are dropped instead: nobody must be able to block calls
    /// by not reading a stream.
    call_share: Arc<Semaphore>,
    get_share: Arc<Semaphore>,
    ended: watch::Sender<bool>,
}

struct Routes {
    calls: Vec<Call>,
    get: Option<mpsc::Sender<Outgoing>>,
    waiting: VecDeque<Outgoing>,
    used: Instant,
}

struct Call {
    id: Value,
    progress: Option<Value>,
    to: mpsc::Sender<Outgoing>,
}

/// Why a message was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    Ended,
    SameId,
}

impl Session {
    pub(crate) fn start(children: &Children) -> Result<Arc<Self>, StartError> {
        let mut child = children.start()?;
        let (input, mut lines) = mpsc::channel::<Vec<u8>>(1);
        let session = Arc::new(Self {
            input: Mutex::new(Some(input)),
            routes: Mutex::new(Routes {
                calls: Vec::new(),
                get: None,
                waiting: VecDeque::new(),
                used: Instant::now(),
            }),
            call_share: Arc::new(Semaphore::new(MAX_HELD_BYTES as usize)),
            get_share: Arc::new(Semaphore::new(MAX_HELD_BYTES as usize)),
            ended: watch::Sender::new(false),
        });
        // Its own task, so that a client that leaves does not leave half a line behind.
        let stdin = child.input.take();
        let writer = session.clone();
        tokio::spawn(async move {
            let Some(mut stdin) = stdin else { return };
            let write = async {
                while let Some(line) = lines.recv().await {
                    if stdin.write_all(&line).await.is_err() {
                        break; // the reader sees its end
                    }
                }
            };
            tokio::select! {
                () = write => {}
                () = writer.has_ended() => {}
            }
        });
        let reader = session.clone();
        tokio::spawn(async move {
            let read = tokio::select! {
                read = reader.read(&mut child) => read,
                () = reader.has_ended() => Ok(()),
            };
            if let Err(error) = read {
                tracing::warn!(%error, "cannot read from the child");
            }
            reader.end();
        });
        Ok(session)
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn has_ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await; // we hold the sender ourselves
    }

    /// Ends the child. Whoever waits for an answer learns that none will come.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut routes = self.routes();
        routes.calls.clear();
        routes.get = None;
        routes.waiting.clear();
    }

    /// Whether it may be forgotten: its child has ended, or nobody has used it for so long.
    pub(crate) fn is_over(&self, idle: Duration) -> bool {
        if *self.ended.borrow() {
            return true;
        }
        let routes = self.routes();
        let is_used = routes.get.as_ref().is_some_and(|get| !get.is_closed())
            || routes.calls.iter().any(|call| !call.to.is_closed());
        !is_used && routes.used.elapsed() > idle
    }

    /// Passes a message on. A request gets what the child says to it.
    pub(crate) async fn say(
        &self,
        envelope: &Envelope,
        line: Vec<u8>,
    ) -> Result<Option<mpsc::Receiver<Outgoing>>, NotTaken> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let input = input.ok_or(NotTaken::Ended)?;
        let answers = match (envelope.kind(), &envelope.id) {
            (Kind::Request, Some(id)) => Some(self.expect(id, envelope.wanted_progress())?),
            _ => None,
        };
        self.routes().used = Instant::now();
        input.send(line).await.map_err(|_| NotTaken::Ended)?;
        Ok(answers)
    }

    fn expect(&self, id: &Value, progress: Option<&Value>) -> Result<mpsc::Receiver<Outgoing>, NotTaken> {
        let mut routes = self.routes();
        if routes.calls.iter().any(|call| call.id == *id) {
            return Err(NotTaken::SameId);
        }
        let (to, answers) = mpsc::channel(MAX_WAITING_OF_CALL);
        routes.calls.push(Call {
            id: id.clone(),
            progress: progress.cloned(),
            to,
        });
        Ok(answers)
    }

    /// Opens the stream of messages that belong to no call. A client that comes again replaces its old stream.
    pub(crate) fn listen(&self) -> Option<mpsc::Receiver<Outgoing>> {
        if *self.ended.borrow() {
            return None;
        }
        let (to, messages) = mpsc::channel(MAX_WAITING);
        let mut routes = self.routes();
        while let Some(outgoing) = routes.waiting.pop_front() {
            let _ = to.try_send(outgoing); // it has room for all of them
        }
        routes.used = Instant::now();
        routes.get = Some(to);
        Some(messages)
    }

    async fn read(&self, child: &mut Child) -> io::Result<()> {
        let Some(mut lines) = child.output.take() else {
            return Ok(());
        };
        while let Some(line) = lines.next().await? {
            match serde_json::from_slice::<Envelope>(&line) {
                Ok(envelope) if line.starts_with(b"{") => self.route(&envelope, line).await,
                _ => tracing::warn!(
                    bytes = line.len(),
                    "the child wrote a line that is not a JSON-RPC message"
                ),
            }
        }
        Ok(())
    }

    async fn route(&self, envelope: &Envelope, message: Bytes) {
        let last = envelope.kind() == Kind::Response;
        let to = {
            let mut routes = self.routes();
            routes.used = Instant::now();
            if last {
                let at = routes
                    .calls
                    .iter()
                    .position(|call| Some(&call.id) == envelope.id.as_ref());
                match at {
                    Some(at) => Some(routes.calls.swap_remove(at).to),
                    None => return, // answered already, or never asked
                }
            } else if envelope.is("notifications/progress") {
                let token = envelope.param("progressToken");
                let call = routes
                    .calls
                    .iter()
                    .find(|call| call.progress.is_some() && call.progress.as_ref() == token);
                match call {
                    Some(call) => Some(call.to.clone()),
                    None => return, // of a call that has ended
                }
            } else {
                routes.best_call()
            }
        };
        let size = u32::try_from(message.len())
            .unwrap_or(u32::MAX)
            .min(MAX_HELD_BYTES);
        let outgoing = |share| Outgoing {
            message,
            last,
            error: envelope.error_code(),
            _share: share,
        };
        if let Some(to) = to {
            let share = self.call_share.clone().acquire_many_owned(size).await.ok();
            let _ = to.send(outgoing(share)).await; // without its client, an answer of this era is lost
            return;
        }
        let Ok(share) = self.get_share.clone().try_acquire_many_owned(size) else {
            tracing::warn!("a message of the child is dropped, because nobody reads the session's stream");
            return;
        };
        self.routes().to_stream(outgoing(Some(share)));
    }
}

impl Routes {
    /// On stdio, only answers and progress say which call they belong to. With one call in work the rest belongs to it, or
    /// does no harm there; with more, it goes to the stream that is made for it.
    fn best_call(&self) -> Option<mpsc::Sender<Outgoing>> {
        let mut live = self.calls.iter().filter(|call| !call.to.is_closed());
        let first = live.next()?;
        let has_stream = self.get.as_ref().is_some_and(|get| !get.is_closed());
        (live.next().is_none() || !has_stream).then(|| first.to.clone())
    }

    fn to_stream(&mut self, outgoing: Outgoing) {
        let outgoing = match &self.get {
            None => outgoing,
            Some(get) => match get.try_send(outgoing) {
                Ok(()) => return,
                Err(mpsc::error::TrySendError::Closed(outgoing)) => outgoing,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    tracing::warn!(
                        "a message of the child is dropped, because nobody reads the session's stream"
                    );
                    return;
                }
            },
        };
        if self.waiting.len() == MAX_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back(outgoing);
    }
}
