//! Clients that read and write all the time, and keep book of what the API server said to each write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exuvia_testenv::Widgets;
use exuvia_write::Writer;
use kube::Client;
use kube::api::{DynamicObject, ListParams};
use tokio::task::JoinSet;

/// Two write specs, one writes statuses.
const WRITERS: u16 = 3;
const BETWEEN_WRITES: Duration = Duration::from_millis(40);
const BETWEEN_READS: Duration = Duration::from_millis(100);

/// What the clients were told.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    /// Writes that the API server acknowledged.
    pub(super) acknowledged: u64,
    /// Writes that it refused.
    pub(super) refused: u64,
    /// What it said to the first of these.
    pub(super) refusal: Option<String>,
    pub(super) reads: u64,
    pub(super) failed_reads: u64,
    /// The last acknowledged value by object.
    last: BTreeMap<String, u64>,
}

/// The clients. They end when this is dropped.
pub(super) struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    book: Mutex<Book>,
    widgets: Mutex<Widgets>,
}

impl Shared {
    fn book<T>(&self, note: impl FnOnce(&mut Book) -> T) -> T {
        note(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn widgets(&self) -> Widgets {
        self.widgets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Clients {
    /// Clients of these widgets, of which there are so many.
    pub(super) fn of(client: &Client, widgets: &Widgets, objects: u16) -> Self {
        let shared = Arc::new(Shared {
            client: client.clone(),
            book: Mutex::default(),
            widgets: Mutex::new(widgets.clone()),
        });
        let mut tasks = JoinSet::new();
        for writer in 0..WRITERS {
            tasks.spawn(write(Arc::clone(&shared), writer, objects));
        }
        tasks.spawn(read(Arc::clone(&shared)));
        Self { shared, tasks }
    }

    /// The clients use this group from now on, as after a roll-out.
    pub(super) fn use_group_of(&self, widgets: &Widgets) {
        *self.shared.widgets.lock().unwrap_or_else(PoisonError::into_inner) = widgets.clone();
    }

    /// What they were told up to now.
    pub(super) fn book(&self) -> Book {
        self.shared.book(|book| book.clone())
    }

    /// Lets them end, and compares their book with what is there: how many objects lack the last acknowledged write.
    pub(super) async fn lost(mut self) -> anyhow::Result<usize> {
        // An answer that is under way would be missing in the book.
        self.tasks.shutdown().await;
        let api = self.shared.widgets().api(&self.shared.client, "v1");
        let objects = api.list(&ListParams::default()).await?;
        let values: BTreeMap<String, u64> = objects
            .iter()
            .map(|object| (object.metadata.name.clone().unwrap_or_default(), value_of(object)))
            .collect();
        let last = self.book().last;
        // A write that was cut off after the server had it is newer than the book: it is not lost.
        let is_lost = |(name, value): &(&String, &u64)| values.get(*name).is_none_or(|found| found < *value);
        Ok(last.iter().filter(is_lost).count())
    }
}

fn value_of(object: &DynamicObject) -> u64 {
    let written = [&object.data["spec"]["size"], &object.data["status"]["ready"]];
    written
        .iter()
        .filter_map(|value| value.as_u64())
        .max()
        .unwrap_or_default()
}

async fn write(shared: Arc<Shared>, writer: u16, objects: u16) {
    let through = Writer::named(format!("writer-{writer}")).once();
    let mine: Vec<u16> = (0..objects).filter(|index| index % WRITERS == writer).collect();
    for (value, index) in (10_u64..).zip(mine.iter().cycle()) {
        tokio::time::sleep(BETWEEN_WRITES).await;
        let name = format!("widget-{index:04}");
        let api = shared.widgets().api(&shared.client, "v1");
        let Ok(object) = api.get(&name).await else {
            continue;
        };
        let written = if writer == 0 {
            let ready = |object: &mut DynamicObject| object.data["status"]["ready"] = value.into();
            through.patch_status(&api, &object, ready).await
        } else {
            let size = |object: &mut DynamicObject| object.data["spec"]["size"] = value.into();
            through.patch(&api, &object, size).await
        };
        shared.book(|book| match written {
            Ok(_) => {
                book.acknowledged += 1;
                book.last.insert(name, value);
            }
            Err(error) => {
                book.refused += 1;
                let said = error.status().map(|status| status.message.clone());
                book.refusal
                    .get_or_insert_with(|| said.unwrap_or_else(|| error.to_string()));
            }
        });
    }
}

async fn read(shared: Arc<Shared>) {
    loop {
        let api = shared.widgets().api(&shared.client, "v1");
        let listed = api.list_metadata(&ListParams::default()).await;
        shared.book(|book| {
            book.reads += 1;
            book.failed_reads += u64::from(listed.is_err());
        });
        tokio::time::sleep(BETWEEN_READS).await;
    }
}
