//! Readers and a writer that know nothing of the migration, from before it until after its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Api;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;

/// Probes that run until they are ended.
pub(crate) struct Probes {
    stop: Arc<AtomicBool>,
    readers: Vec<JoinHandle<Reads>>,
    writer: JoinHandle<Writes>,
}

/// What a reader saw.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    pub(crate) answered: usize,
    /// What was not answered with 200, in words.
    pub(crate) failed: Vec<String>,
}

/// What a writer was told.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// The last number that was acknowledged.
    pub(crate) last: i64,
    pub(crate) acknowledged: usize,
    /// How often writes that were acknowledged turned into ones that were not.
    pub(crate) pauses: usize,
    /// What was neither acknowledged, refused, nor about an object that is not copied yet.
    pub(crate) failed: Vec<String>,
}

impl Probes {
    /// Lists of `read`, one reader each, and patches of the object `name` of `written`: ever higher numbers in a label.
    pub(crate) fn start(read: Vec<Api<DynamicObject>>, written: Api<DynamicObject>, name: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let readers = read.into_iter().map(|api| tokio::spawn(reads(api, stop.clone())));
        Self {
            readers: readers.collect(),
            writer: tokio::spawn(writes(written, name.to_owned(), stop.clone())),
            stop,
        }
    }

    pub(crate) async fn end(self) -> (Vec<Reads>, Writes) {
        self.stop.store(true, Ordering::Relaxed);
        let mut reads = Vec::new();
        for reader in self.readers {
            reads.push(reader.await.unwrap());
        }
        (reads, self.writer.await.unwrap())
    }
}

async fn reads(api: Api<DynamicObject>, stop: Arc<AtomicBool>) -> Reads {
    let mut seen = Reads::default();
    while !stop.load(Ordering::Relaxed) {
        match api.list(&ListParams::default()).await {
            Ok(_) => seen.answered += 1,
            Err(error) => seen.failed.push(error.to_string()),
        }
        // Everything else has to be done on the same two cores.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    seen
}

async fn writes(api: Api<DynamicObject>, name: String, stop: Arc<AtomicBool>) -> Writes {
    let (mut told, mut number, mut is_paused) = (Writes::default(), 0, false);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let patch = Patch::Merge(json!({"metadata": {"labels": {"number": format!("n{number}")}}}));
        match api.patch(&name, &PatchParams::default(), &patch).await {
            Ok(_) => {
                (told.last, is_paused) = (number, false);
                told.acknowledged += 1;
            }
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
                told.pauses += usize::from(!is_paused);
                is_paused = true;
            }
            Err(error) => told.failed.push(error.to_string()),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    told
}
