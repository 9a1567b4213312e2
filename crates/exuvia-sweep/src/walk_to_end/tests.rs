//! Sweeps over scripted pages, in simulated time.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use exuvia_write::{ErrorClass, RetryPolicy};
use kube::{
    api::{DynamicObject, ListParams, PartialObjectMeta},
    core::{ListMeta, Status},
};
use serde_json::json;
use tokio::{sync::Semaphore, time::sleep};

use super::*;
use crate::{Outcome, Pressure, ResourceVersion, cursor::Cursor, list::Answer};

mod orders;

const PAGE: u32 = 10;

/// Answers in order, and what was asked.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Answer, kube::Error>>>,
    asked: Mutex<Vec<Option<String>>>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Result<Answer, kube::Error>>) -> Self {
        Self {
            answers: Mutex::new(answers.into_iter().collect()),
            asked: Mutex::default(),
        }
    }

    /// So many objects, ten to a page.
    fn of(objects: u32) -> Self {
        let pages = objects.div_ceil(PAGE).max(1);
        Self::new((0..pages).map(|page| {
            let first = page * PAGE;
            let last = objects.min(first + PAGE);
            let more = objects - last;
            Ok(self::page(first..last, (more > 0).then_some(more)))
        }))
    }

    fn asked(&self) -> Vec<Option<String>> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

impl Source for &Script {
    async fn page(&self, params: ListParams) -> Result<Answer, kube::Error> {
        self.asked
            .lock()
            .expect("not poisoned")
            .push(params.continue_token);
        let answer = self.answers.lock().expect("not poisoned").pop_front();
        sleep(Duration::from_millis(1)).await;
        answer.expect("no page was asked for after the last")
    }
}

fn page(names: std::ops::Range<u32>, more: Option<u32>) -> Answer {
    let items = names
        .clone()
        .map(|n| item(&json!({"metadata": {"name": name(n)}, "spec": {"size": n}})));
    Answer {
        items: items.collect(),
        list: ListMeta {
            resource_version: Some("7".to_owned()),
            continue_: more.map(|_| format!("after {}", names.end)),
            remaining_item_count: more.map(Into::into),
            ..ListMeta::default()
        },
    }
}

fn item(object: &serde_json::Value) -> Item {
    serde_json::from_str(&object.to_string()).expect("an item")
}

fn name(n: u32) -> String {
    format!("object-{n:03}")
}

fn refusal(code: u16) -> Result<Answer, kube::Error> {
    Err(kube::Error::Api(
        Status::failure("no", "").with_code(code).boxed(),
    ))
}

fn settings() -> Settings {
    Settings {
        resource: "widgets.example.dev".to_owned(),
        max_concurrency: 4,
        qps: None,
    }
}

/// A sweep of metadata over `source`.
async fn sweep<S: Source, F: Future<Output = Verdict>>(
    source: S,
    settings: &Settings,
    control: &Control,
    progress: &watch::Sender<Progress>,
    worker: impl Fn(PartialObjectMeta) -> F,
) -> Result<SweepReport, Error> {
    walk_to_end(walk(source), Item::metadata, settings, control, progress, worker).await
}

fn walk<S: Source>(source: S) -> Walk<S> {
    let mut cursor = Cursor::new();
    cursor.retry = RetryPolicy::default();
    Walk::new(source, "widgets.example.dev".to_owned(), cursor)
}

async fn run<F: Future<Output = Verdict>>(
    source: &Script,
    control: &Control,
    worker: impl Fn(PartialObjectMeta) -> F,
) -> Result<SweepReport, Error> {
    sweep(source, &settings(), control, &watch::Sender::default(), worker).await
}

fn name_of(object: &PartialObjectMeta) -> String {
    object.metadata.name.clone().expect("a name")
}

#[tokio::test(start_paused = true)]
async fn every_object_is_seen_once() {
    for objects in [0, 1, 9, 10, 11, 95] {
        let source = Script::of(objects);
        let seen = RefCell::new(Vec::new());
        let report = run(&source, &Control::new(), async |object| {
            seen.borrow_mut().push(name_of(&object));
            sleep(Duration::from_millis(5)).await;
            Verdict::unchanged()
        })
        .await
        .expect("the end");
        let mut seen = seen.into_inner();
        seen.sort();
        assert_eq!(seen, (0..objects).map(name).collect::<Vec<_>>());
        assert_eq!(report.tally.unchanged, u64::from(objects));
        assert_eq!(report.peak_concurrency, objects.min(4) as usize);
        assert_eq!(report.pages, u64::from(objects.div_ceil(PAGE).max(1)));
        assert_eq!(
            report.first_list.map(|version| version.to_string()).as_deref(),
            Some("7")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_never_a_third_page_in_memory() {
    let source = Script::of(100);
    let finished = Cell::new(0);
    let report = run(&source, &Control::new(), async |_| {
        sleep(Duration::from_secs(1)).await; // any page that is asked for has come
        let listed = 10 * source.asked().len();
        assert!(listed >= 20, "the next page is fetched meanwhile");
        assert!(
            listed - finished.get() <= 20 + 4,
            "{listed} listed, {} finished",
            finished.get()
        );
        finished.set(finished.get() + 1);
        Verdict::unchanged()
    })
    .await
    .expect("the end");
    assert_eq!(report.tally.unchanged, 100, "{:?}", report.failures);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_has_failed_at_that_object_alone() {
    let report = run(&Script::of(30), &Control::new(), async |object| {
        assert!(name_of(&object) != name(13), "thirteen");
        Verdict::unchanged()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.unchanged, report.tally.failed), (29, 1));
    let failure = &report.failures.first[0];
    assert_eq!((failure.name.as_str(), failure.class), ("object-013", "panic"));
    assert_eq!(failure.message, "thirteen");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_named_and_the_others_are_seen() {
    let mut bad = page(0..3, None);
    let item = json!({"metadata": {"namespace": "shop", "name": "odd", "generation": "secret"}});
    bad.items[1] = self::item(&item);
    let report = run(&Script::new([Ok(bad)]), &Control::new(), async |_| {
        Verdict::unchanged()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.unchanged, report.tally.failed), (2, 1));
    let failure = &report.failures.first[0];
    assert_eq!(
        (failure.namespace.as_deref(), failure.name.as_str()),
        (Some("shop"), "odd")
    );
    assert!(!failure.message.contains("secret"), "{}", failure.message);
}

#[tokio::test(start_paused = true)]
async fn whole_objects_are_handed_over_and_one_that_does_not_fit_is_named() {
    let mut odd = page(0..3, None);
    odd.items[1] = item(&json!({"metadata": {"name": "odd", "labels": 7}}));
    let source = Script::new([Ok(odd)]);
    let sizes = RefCell::new(Vec::new());
    let report = walk_to_end(
        walk(&source),
        Item::read::<DynamicObject>,
        &settings(),
        &Control::new(),
        &watch::Sender::default(),
        async |object: DynamicObject| {
            sizes.borrow_mut().push(object.data["spec"]["size"].clone());
            Verdict::changed()
        },
    )
    .await
    .expect("the end");
    assert_eq!(sizes.into_inner(), [0, 2]);
    assert_eq!((report.tally.changed, report.tally.failed), (2, 1));
    let failure = &report.failures.first[0];
    assert_eq!((failure.name.as_str(), failure.class), ("odd", "unreadable"));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_lost_makes_the_sweep_start_over() {
    let source = Script::new([
        Ok(page(0..10, Some(5))),
        refusal(410),
        Ok(page(0..10, Some(5))),
        Ok(page(10..15, None)),
    ]);
    let progress = watch::Sender::<Progress>::default();
    let report = sweep(&source, &settings(), &Control::new(), &progress, async |_| {
        Verdict::unchanged()
    })
    .await
    .expect("the end");
    let tokens = source.asked();
    let expected = [None, Some("after 10"), None, Some("after 10")].map(|token| token.map(str::to_owned));
    assert_eq!(tokens, expected);
    assert_eq!(
        (report.tally.unchanged, report.restarts, report.resumed),
        (25, 1, 0)
    );
    assert_eq!(
        (progress.borrow().restarts, progress.borrow().total),
        (1, Some(25))
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_for_good_ends_the_sweep_with_what_was_done() {
    let source = Script::new([Ok(page(0..10, Some(90))), refusal(503), refusal(403)]);
    let error = run(&source, &Control::new(), async |_| {
        sleep(Duration::from_secs(5)).await;
        Verdict::changed()
    })
    .await
    .expect_err("no list");
    assert!(
        matches!(
            error,
            Error::List {
                class: ErrorClass::Denied,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "cannot list widgets.example.dev: no (http 403)"
    );
    assert_eq!(error.reason(), "Denied");
    let report = error.report();
    assert_eq!(
        (report.tally.changed, report.list_requests),
        (4, 3),
        "those in work were finished"
    );
}
