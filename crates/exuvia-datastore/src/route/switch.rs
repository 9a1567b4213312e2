//! Saves, removes and restores the `APIService`: each step looks first, so that it can be repeated after a crash.

use std::time::Duration;

use exuvia_write::{Delete, Deleted, ErrorClass};
use kube::api::ApiResource;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Alias, Answers, Error, Observed, Removal, Restoration, Route, Saved};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);
/// How long one call waits for what others do: an API server follows within 300 ms, its discovery within 2 s (PITFALLS D2,
/// D3). Ten times that, because machines are busy; the caller comes back after it.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the automanaged one is deleted in one call to freshen discovery. 4 were needed at most (PITFALLS D3).
const MAX_REFRESHES: u32 = 12;
/// Between two of those: a server that is about to follow needs no second one.
const REFRESH_PAUSE: Duration = Duration::from_millis(400);

/// After a deletion the automanaged one is there within 91 ms (PITFALLS D2). Ten times that.
const AUTOMANAGED_COMES: Duration = Duration::from_secs(1);

/// What came of [`Route::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// No backend is there any more.
    Gone,
    /// One that was not saved is there: somebody put it there. Count how often, and give up some day.
    CameBack,
    /// Somebody changed it since it was saved, and it is still there: save it again.
    Changed,
}

/// What came of [`Route::switch`].
#[derive(Debug)]
pub enum Switched {
    /// CRDs answer on every server that was asked, in discovery, too.
    Done(Answers),
    /// Not everywhere yet: call again.
    NotYet(Answers),
    /// A backend that was not saved is there: somebody put it there. Count how often, and give up some day.
    CameBack,
    /// Somebody changed it since it was saved, and it is still there: save it again.
    Changed,
}

impl Route {
    /// What has to be kept until the switch can no longer be undone.
    ///
    /// # Errors
    ///
    /// [`Error::NoBackend`] where nothing is to be removed, and [`Error::Held`] where the removal would hang.
    pub async fn save(&self) -> Result<Value, Error> {
        match self.observe().await? {
            Observed::Backend(backend) => {
                let finalizers = backend.object().metadata.finalizers.clone().unwrap_or_default();
                if finalizers.is_empty() {
                    Ok(Saved::from_backend(&backend).to_value())
                } else {
                    Err(self.held(finalizers))
                }
            }
            _ => Err(Error::NoBackend {
                name: self.name.clone(),
            }),
        }
    }

    /// Deletes what was saved, and nothing else. CRDs answer soon after, see [`answered_by_crds`](Self::answered_by_crds).
    ///
    /// It is never changed into a local one: discovery would show the old backend for good (PITFALLS D3).
    pub async fn remove(&self, saved: &Value) -> Result<Removed, Error> {
        let saved = Saved::from_value(saved)?;
        let writer = self.writer.once(); // each try is decided again
        let until = Instant::now() + PATIENCE;
        loop {
            match Removal::next(&saved, &self.observe().await?) {
                Removal::Done => return Ok(Removed::Gone),
                Removal::CameBack => return Ok(Removed::CameBack),
                Removal::SaveAgain => return Ok(Removed::Changed),
                Removal::Held(finalizers) => return Err(self.held(finalizers)),
                Removal::Wait => {}
                Removal::Delete(backend) => {
                    // The status is written by others at any time, so a conflict only means to look again.
                    let how = Delete::default().only_unchanged();
                    match writer.delete(&self.api(), backend.object(), &how).await {
                        Ok(Deleted::Gone | Deleted::Going(_)) => continue,
                        Err(error) if may_pass(error.class()) && Instant::now() < until => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            if Instant::now() >= until {
                return Err(self.still_there());
            }
            sleep(PAUSE).await;
        }
    }

    /// Deletes the automanaged one, which the API server makes again: the cure for discovery that still shows the old
    /// backend (PITFALLS D3). Anything else is left alone. Whether there was one.
    pub async fn refresh_discovery(&self) -> Result<bool, Error> {
        match self.observe().await? {
            Observed::Local {
                object,
                automanaged: true,
            } => {
                let how = Delete::default().only_unchanged();
                match self.writer.once().delete(&self.api(), &*object, &how).await {
                    Ok(_) => Ok(true),
                    Err(error) if may_pass(error.class()) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            _ => Ok(false),
        }
    }

    /// Removes what was saved and waits until CRDs answer for the kinds on every API server, in discovery, too.
    ///
    /// It can be repeated at any time, also after a crash. `aliases` are as for
    /// [`answered_by_crds`](Self::answered_by_crds).
    pub async fn switch(
        &self,
        saved: &Value,
        kinds: &[ApiResource],
        aliases: &[Alias],
    ) -> Result<Switched, Error> {
        match Box::pin(self.remove(saved)).await? {
            Removed::Gone => {}
            Removed::CameBack => return Ok(Switched::CameBack),
            Removed::Changed => return Ok(Switched::Changed),
        }
        let until = Instant::now() + PATIENCE;
        let (mut refreshes, mut last_refresh) = (0, Instant::now());
        loop {
            let answers = Box::pin(self.answered_by_crds(kinds, aliases)).await?;
            // Last: between the answers and this look nobody has put it back.
            if matches!(self.observe().await?, Observed::Backend(_)) {
                return Ok(Switched::CameBack);
            }
            if answers.all_by_crds() {
                return Ok(Switched::Done(answers));
            }
            if Instant::now() >= until {
                return Ok(Switched::NotYet(answers));
            }
            let is_due = refreshes < MAX_REFRESHES && last_refresh.elapsed() >= REFRESH_PAUSE;
            if answers.is_discovery_stale() && is_due && Box::pin(self.refresh_discovery()).await? {
                (refreshes, last_refresh) = (refreshes + 1, Instant::now());
                tracing::debug!(apiservice = self.name, refreshes, "deleted again for discovery");
            }
            sleep(PAUSE).await;
        }
    }

    /// Puts back what was saved, and waits until its backend is available. A backend that somebody else has put there is
    /// left as it is. It can be repeated at any time, also after a crash.
    ///
    /// # Errors
    ///
    /// [`Error::NotAvailable`]: it is back, but its backend does not answer. Call again.
    pub async fn restore(&self, saved: &Value) -> Result<(), Error> {
        let saved = Saved::from_value(saved)?;
        let writer = self.writer.once();
        let until = Instant::now() + PATIENCE;
        let create_after = Instant::now() + AUTOMANAGED_COMES;
        loop {
            let next = Restoration::next(&self.observe().await?);
            let written = match &next {
                Restoration::Done => return Ok(()),
                Restoration::WaitUntilGone | Restoration::WaitUntilAvailable(_) => Ok(()),
                // The automanaged one is about to come: to write over that one is better.
                Restoration::Create if Instant::now() < create_after => Ok(()),
                Restoration::Create => {
                    let created = writer.create(&self.api(), &saved.to_object()).await;
                    created.map(drop)
                }
                Restoration::Replace(found) => {
                    let api = self.api();
                    let patched = writer.patch(&api, &**found, |object| saved.put_over(object));
                    patched.await.map(drop)
                }
            };
            match written {
                Ok(()) => {}
                Err(error) if may_pass(error.class()) && Instant::now() < until => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= until {
                return Err(match next {
                    Restoration::WaitUntilAvailable(why) => Error::NotAvailable {
                        name: self.name.clone(),
                        why,
                    },
                    _ => self.still_there(),
                });
            }
            sleep(PAUSE).await;
        }
    }

    fn held(&self, finalizers: Vec<String>) -> Error {
        Error::Held {
            name: self.name.clone(),
            finalizers,
        }
    }

    fn still_there(&self) -> Error {
        Error::StillThere {
            what: format!("APIService {}", self.name),
        }
    }
}

/// Whether to look again: somebody wrote meanwhile, or it is not known what became of the request.
fn may_pass(class: ErrorClass) -> bool {
    match class {
        ErrorClass::Conflict
        | ErrorClass::Gone
        | ErrorClass::Throttled(_)
        | ErrorClass::Transient(_)
        | ErrorClass::Ambiguous => true,
        ErrorClass::Missing
        | ErrorClass::Denied
        | ErrorClass::Invalid
        | ErrorClass::Expired
        | ErrorClass::Fatal => false,
    }
}
