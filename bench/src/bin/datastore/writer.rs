//! Somebody who writes to the source all the time, and to the target once everything is moved: which writes were acknowledged,
//! which refused, and whether each acknowledged one is in the target in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use exuvia_testenv::Widgets;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

/// So many writes may be under way: on a busy machine one may take longer than the time between two.
const UNDER_WAY: usize = 16;
/// Of ten writes one creates an object, and one deletes an object that was created this many writes before.
const DELETED_AFTER: u64 = 95;

/// What an object must be in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// There, with this size.
    Size(u64),
    /// Not there.
    Gone,
    /// A write to it was neither acknowledged nor refused.
    Unknown,
}

/// What the writer was told.
#[derive(Debug, Default)]
pub(crate) struct Written {
    expected: BTreeMap<String, (u64, Expected)>,
    pub(crate) acknowledged: usize,
    pub(crate) refused: usize,
    /// Neither acknowledged nor refused, in words.
    pub(crate) failed: Vec<String>,
    first_refused: Option<Instant>,
    first_at_target: Option<Instant>,
    began: Option<Instant>,
    ended: Option<Instant>,
}

/// A writer that writes until it is stopped.
pub(crate) struct Writer {
    stop: Arc<AtomicBool>,
    running: tokio::task::JoinHandle<Written>,
}

/// One write.
#[derive(Clone, Copy, Debug)]
enum Write {
    Patch,
    Create,
    Delete,
}

impl Writer {
    /// Writes to `source` so many times per second, and to `target` as soon as `converged` is true.
    pub(crate) fn start(
        client: &Client,
        (source, target): (Widgets, Widgets),
        (objects, per_second): (usize, u32),
        converged: Arc<AtomicBool>,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let sides = [source, target].map(|widgets| {
            let api = widgets.api(client, "v1");
            (widgets, api)
        });
        let every = Duration::from_secs(1) / per_second;
        let running = tokio::spawn(write(sides, objects as u64, every, converged, stop.clone()));
        Self { stop, running }
    }

    pub(crate) async fn stop(self) -> anyhow::Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.running.await.context("the writer failed")
    }
}

async fn write(
    sides: [(Widgets, Api<DynamicObject>); 2],
    objects: u64,
    every: Duration,
    converged: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
) -> Written {
    let mut written = Written {
        began: Some(Instant::now()),
        ..Written::default()
    };
    let mut under_way = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        tokio::select! {
            Some((number, write, name, at_target, came)) = under_way.next() => {
                written.note(number, write, name, at_target, came);
            }
            _ = ticks.tick(), if under_way.len() < UNDER_WAY => {
                number += 1;
                let at_target = converged.load(Ordering::Relaxed);
                let is_refused = written.first_refused.is_some() && written.first_at_target.is_none();
                let made = |number: u64| format!("made-{number}");
                let former = number.checked_sub(DELETED_AFTER).map(made);
                let exists = |name: &String| matches!(written.expected.get(name), Some((_, Expected::Size(_))));
                let (write, name) = match (number % 10, former) {
                    (0, _) => (Write::Create, made(number)),
                    // After the commit sources can be deleted again, and that is not to be in the target.
                    (5, Some(former)) if !is_refused && exists(&former) => (Write::Delete, former),
                    _ => (Write::Patch, object_name(number % objects)),
                };
                let (widgets, api) = sides[usize::from(at_target)].clone();
                under_way.push(async move {
                    let came = one(&widgets, &api, write, &name, number).await;
                    (number, write, name, at_target, came)
                });
            }
        }
    }
    while let Some((number, write, name, at_target, came)) = under_way.next().await {
        written.note(number, write, name, at_target, came);
    }
    written.ended = Some(Instant::now());
    written
}

/// What the objects are called that are there from the beginning.
pub(crate) fn object_name(index: u64) -> String {
    format!("widget-{index:06}")
}

async fn one(
    widgets: &Widgets,
    api: &Api<DynamicObject>,
    write: Write,
    name: &str,
    number: u64,
) -> Result<(), kube::Error> {
    match write {
        Write::Patch => {
            let patch = Patch::Merge(json!({"spec": {"size": number}}));
            api.patch(name, &PatchParams::default(), &patch).await.map(drop)
        }
        Write::Create => {
            let mut widget = widgets.widget("v1", name);
            widget.data["spec"]["size"] = json!(number);
            api.create(&PostParams::default(), &widget).await.map(drop)
        }
        Write::Delete => api.delete(name, &DeleteParams::default()).await.map(drop),
    }
}

impl Written {
    fn note(
        &mut self,
        number: u64,
        write: Write,
        name: String,
        at_target: bool,
        came: Result<(), kube::Error>,
    ) {
        let expected = match came {
            Ok(()) => {
                self.acknowledged += 1;
                if at_target {
                    self.first_at_target.get_or_insert_with(Instant::now);
                }
                match write {
                    Write::Patch | Write::Create => Expected::Size(number),
                    Write::Delete => Expected::Gone,
                }
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.refused += 1;
                self.first_refused.get_or_insert_with(Instant::now);
                return;
            }
            Err(error) => {
                self.failed.push(format!("{write:?} {name}: {error}"));
                Expected::Unknown
            }
        };
        let known = self.expected.entry(name).or_insert((number, expected));
        if known.0 <= number {
            *known = (number, expected);
        }
    }

    /// From the first write that was refused to the first that was acknowledged at the target.
    pub(crate) fn refused_seconds(&self) -> Option<f64> {
        Some((self.first_at_target? - self.first_refused?).as_secs_f64())
    }

    /// How many writes were sent per second.
    pub(crate) fn per_second(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss)]
        let sent = (self.acknowledged + self.refused + self.failed.len()) as f64;
        Some(sent / (self.ended? - self.began?).as_secs_f64())
    }

    /// Every object that was there from the beginning has its target, and every acknowledged write is in it.
    pub(crate) fn check(&self, targets: &[DynamicObject], objects: usize) -> anyhow::Result<()> {
        let sizes: BTreeMap<String, Option<u64>> = targets
            .iter()
            .map(|target| (target.name_any(), target.data["spec"]["size"].as_u64()))
            .collect();
        for index in 0..objects as u64 {
            let name = object_name(index);
            if !sizes.contains_key(&name) {
                bail!("{name} has no target");
            }
        }
        for (name, (_, expected)) in &self.expected {
            let found = sizes.get(name);
            let is_there = match expected {
                Expected::Size(size) => found == Some(&Some(*size)),
                Expected::Gone => found.is_none(),
                Expected::Unknown => true,
            };
            if !is_there {
                bail!("an acknowledged write is lost: {name} must be {expected:?}, and is {found:?}");
            }
        }
        for name in sizes.keys().filter(|name| name.starts_with("made-")) {
            if !self.expected.contains_key(name) {
                bail!("{name} was refused, and has a target");
            }
        }
        Ok(())
    }
}
