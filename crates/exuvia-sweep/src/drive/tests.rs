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
use kube::core::{ListMeta, Status};
use serde_json::{json, value::to_raw_value};
use tokio::{sync::Semaphore, time::sleep};

use super::*;
use crate::{Outcome, Pressure, ResourceVersion};

const PAGE: u32 = 10;

/// Answers in order, and what was asked.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Page, ListFailure>>>,
    asked: Mutex<Vec<Option<String>>>,
}

impl Script {
    fn new(answers: impl IntoIterator<Item = Result<Page, ListFailure>>) -> Self {
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

impl Source for Script {
    async fn page(&self, params: ListParams) -> Result<Page, ListFailure> {
        self.asked
            .lock()
            .expect("not poisoned")
            .push(params.continue_token);
        let answer = self.answers.lock().expect("not poisoned").pop_front();
        sleep(Duration::from_millis(1)).await;
        answer.expect("no page was asked for after the last")
    }
}

fn page(names: std::ops::Range<u32>, more: Option<u32>) -> Page {
    let items = names
        .clone()
        .map(|n| to_raw_value(&json!({"metadata": {"name": name(n)}})).expect("valid"));
    Page {
        items: Some(items.collect()),
        list: ListMeta {
            resource_version: Some("7".to_owned()),
            continue_: more.map(|_| format!("after {}", names.end)),
            remaining_item_count: more.map(Into::into),
            ..ListMeta::default()
        },
    }
}

fn name(n: u32) -> String {
    format!("object-{n:03}")
}

fn refusal(code: u16) -> Result<Page, ListFailure> {
    Err(kube::Error::Api(Status::failure("no", "").with_code(code).boxed()).into())
}

fn settings() -> Settings {
    Settings {
        resource: "widgets.example.dev".to_owned(),
        page_size: PAGE,
        max_concurrency: 4,
        qps: None,
        retry: RetryPolicy::default(),
    }
}

async fn run<F: Future<Output = Verdict>>(
    source: &Script,
    control: &Control,
    worker: impl Fn(PartialObjectMeta) -> F,
) -> Result<Report, Error> {
    drive(source, &settings(), control, &watch::Sender::default(), worker).await
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
            Verdict::current()
        })
        .await
        .expect("the end");
        let mut seen = seen.into_inner();
        seen.sort();
        assert_eq!(seen, (0..objects).map(name).collect::<Vec<_>>());
        assert_eq!(report.tally.current, u64::from(objects));
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
        Verdict::current()
    })
    .await
    .expect("the end");
    assert_eq!(report.tally.current, 100, "{:?}", report.failures);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_was_cancelled_before_asks_nothing() {
    let (source, control) = (Script::of(10), Control::new());
    control.cancel();
    let error = run(&source, &control, async |_| Verdict::current())
        .await
        .expect_err("cancelled");
    assert!(error.is_cancelled());
    assert_eq!(source.asked().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn cancel_lets_those_in_work_finish_and_begins_no_other() {
    let (source, control) = (Script::of(100), Control::new());
    let (begun, finished) = (Cell::new(0), Cell::new(0));
    let error = run(&source, &control, async |_| {
        begun.set(begun.get() + 1);
        sleep(Duration::from_secs(1)).await;
        if begun.get() >= 22 {
            control.cancel();
        }
        sleep(Duration::from_secs(1)).await;
        finished.set(finished.get() + 1);
        Verdict::rewritten()
    })
    .await
    .expect_err("cancelled");
    assert_eq!((begun.get(), finished.get()), (24, 24), "four at a time");
    assert!(error.is_cancelled());
    assert_eq!(error.report().tally.rewritten, 24);
    assert_eq!(
        error.to_string(),
        "the sweep of widgets.example.dev was cancelled"
    );
}

#[tokio::test(start_paused = true)]
async fn cancel_does_not_wait_for_a_page() {
    struct Never;
    impl Source for Never {
        async fn page(&self, _: ListParams) -> Result<Page, ListFailure> {
            std::future::pending().await
        }
    }
    let control = Control::new();
    let (settings, progress) = (settings(), watch::Sender::default());
    let sweep = drive(&Never, &settings, &control, &progress, async |_| {
        Verdict::current()
    });
    let (ended, ()) = futures::join!(sweep, async {
        sleep(Duration::from_secs(1)).await;
        control.cancel();
    });
    assert!(ended.expect_err("cancelled").is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn pause_holds_objects_and_pages_until_resume() {
    let (source, control) = (Script::of(100), Control::new());
    let (settings, progress) = (settings(), watch::Sender::default());
    let seen = Cell::new(0);
    let sweep = drive(&source, &settings, &control, &progress, async |_| {
        seen.set(seen.get() + 1);
        if seen.get() == 20 {
            control.pause();
        }
        sleep(Duration::from_secs(1)).await;
        Verdict::current()
    });
    let outside = async {
        progress
            .subscribe()
            .wait_for(|p| p.paused && p.in_flight == 0)
            .await
            .expect("paused");
        let before = (seen.get(), source.asked().len());
        sleep(Duration::from_secs(3600)).await;
        assert_eq!((seen.get(), source.asked().len()), before);
        assert_eq!(progress.borrow().done(), 20);
        control.resume();
    };
    let (report, ()) = futures::join!(sweep, outside);
    assert_eq!(report.expect("the end").tally.current, 100);
    assert!(!progress.borrow().paused);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_has_failed_at_that_object_alone() {
    let report = run(&Script::of(30), &Control::new(), async |object| {
        assert!(name_of(&object) != name(13), "thirteen");
        Verdict::current()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.current, report.tally.failed), (29, 1));
    let failure = &report.failures.first[0];
    assert_eq!((failure.name.as_str(), failure.class), ("object-013", "panic"));
    assert_eq!(failure.message, "thirteen");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_named_and_the_others_are_seen() {
    let mut bad = page(0..3, None);
    let item = json!({"metadata": {"namespace": "shop", "name": "odd", "generation": "secret"}});
    bad.items.get_or_insert_default()[1] = to_raw_value(&item).expect("valid");
    let report = run(&Script::new([Ok(bad)]), &Control::new(), async |_| {
        Verdict::current()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.current, report.tally.failed), (2, 1));
    let failure = &report.failures.first[0];
    assert_eq!(
        (failure.namespace.as_deref(), failure.name.as_str()),
        (Some("shop"), "odd")
    );
    assert!(!failure.message.contains("secret"), "{}", failure.message);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_sweep_drops_the_workers() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let source = Script::of(100);
    let control = Control::new();
    let sweep = run(&source, &control, async |_| {
        alive.fetch_add(1, Ordering::SeqCst);
        let _alive = Alive(Arc::clone(&alive));
        std::future::pending().await
    });
    let ended = tokio::time::timeout(Duration::from_secs(1), sweep).await;
    assert!(ended.is_err());
    assert_eq!(Arc::strong_count(&alive), 1, "no worker is left");
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn the_server_is_left_alone_for_as_long_as_it_asks() {
    let rest = Duration::from_secs(7);
    let (start, begun) = (Instant::now(), RefCell::new(Vec::new()));
    let report = run(&Script::of(20), &Control::new(), async |object| {
        begun.borrow_mut().push(Instant::now() - start);
        sleep(Duration::from_millis(10)).await;
        let throttled = name_of(&object) == name(0);
        Verdict::current().under(throttled.then_some(Pressure::Throttled(Some(rest))))
    })
    .await
    .expect("the end");
    let begun = begun.into_inner();
    assert!(begun[3] < Duration::from_millis(100), "{begun:?}");
    assert!(begun[4] >= rest, "{begun:?}");
    assert_eq!(report.last_concurrency, 2);
}

#[tokio::test(start_paused = true)]
async fn pressure_from_outside_is_felt_at_once() {
    let (source, control) = (Script::of(100), Control::new());
    control.slow_down(Pressure::Timeout, Duration::ZERO); // of before: not this sweep's
    let (settings, progress) = (settings(), watch::Sender::<Progress>::default());
    let sweep = drive(&source, &settings, &control, &progress, async |_| {
        sleep(Duration::from_secs(10)).await;
        Verdict::current()
    });
    let outside = async {
        let mut news = progress.subscribe();
        news.wait_for(|p| p.in_flight == 4).await.expect("four at first");
        control.slow_down(Pressure::Throttled(None), Duration::ZERO);
        let halved = news.wait_for(|p| p.concurrency == 2).await.expect("halved");
        assert_eq!((halved.in_flight, halved.done()), (4, 0), "before any verdict");
    };
    let (report, ()) = futures::join!(sweep, outside);
    assert_eq!(report.expect("the end").tally.current, 100);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_begun_per_second_than_allowed_and_skipping_is_free() {
    let settings = Settings {
        qps: NonZeroU32::new(10),
        ..settings()
    };
    for (verdict, seconds) in [(Verdict::current(), 9), (Verdict::skipped(), 0)] {
        let (source, start) = (Script::of(100), Instant::now());
        let worker = async |_| verdict.clone();
        let report = drive(
            &source,
            &settings,
            &Control::new(),
            &watch::Sender::default(),
            worker,
        )
        .await
        .expect("the end");
        assert_eq!(report.tally.of(verdict.outcome()), 100);
        assert_eq!((Instant::now() - start).as_secs(), seconds, "{verdict:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_lost_makes_the_sweep_begin_anew() {
    let source = Script::new([
        Ok(page(0..10, Some(5))),
        refusal(410),
        Ok(page(0..10, Some(5))),
        Ok(page(10..15, None)),
    ]);
    let progress = watch::Sender::<Progress>::default();
    let report = drive(&source, &settings(), &Control::new(), &progress, async |_| {
        Verdict::current()
    })
    .await
    .expect("the end");
    let tokens = source.asked();
    let expected = [None, Some("after 10"), None, Some("after 10")].map(|token| token.map(str::to_owned));
    assert_eq!(tokens, expected);
    assert_eq!(
        (report.tally.current, report.restarts, report.resumed),
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
        Verdict::rewritten()
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
        (report.tally.rewritten, report.list_requests),
        (4, 3),
        "those in work were finished"
    );
}

#[tokio::test(start_paused = true)]
async fn a_throttled_list_slows_the_pool_down() {
    let source = Script::new([Ok(page(0..10, Some(2))), refusal(429), Ok(page(10..12, None))]);
    let report = run(&source, &Control::new(), async |_| {
        sleep(Duration::from_millis(50)).await;
        Verdict::current()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.current, report.last_concurrency), (12, 2));
}

#[tokio::test(start_paused = true)]
async fn progress_is_told_ten_times_per_second_at_most_and_in_the_end() {
    let (source, control) = (Script::of(1000), Control::new());
    let (settings, progress) = (settings(), watch::Sender::<Progress>::default());
    let mut news = progress.subscribe();
    let start = Instant::now();
    let sweep = async {
        // Four at a time, 20 ms each: five seconds.
        let report = drive(&source, &settings, &control, &progress, async |_| {
            sleep(Duration::from_millis(20)).await;
            Verdict::rewritten()
        });
        let report = report.await.expect("the end");
        drop(progress);
        report
    };
    let reading = async {
        let mut all = Vec::new();
        while news.changed().await.is_ok() {
            all.push((Instant::now() - start, news.borrow_and_update().clone()));
        }
        all
    };
    let (report, all) = futures::join!(sweep, reading);
    assert!(all.len() > 30 && all.len() < 60, "{}", all.len());
    let last = all.len() - 1;
    for pair in all[..last].windows(2) {
        assert!(pair[1].0 - pair[0].0 >= Duration::from_millis(100));
        assert!(pair[1].1.done() >= pair[0].1.done());
    }
    let (_, halfway) = &all[all.len() / 2];
    assert_eq!(halfway.total, Some(1000));
    assert_eq!(halfway.first_list, "7".parse::<ResourceVersion>().ok());
    assert!(halfway.rate > 150.0 && halfway.rate < 250.0, "{halfway:?}");
    assert!(
        halfway
            .eta
            .is_some_and(|eta| eta > Duration::from_secs(1) && eta < Duration::from_secs(4))
    );
    let (_, end) = &all[last];
    assert_eq!(
        (end.tally, end.in_flight, end.eta),
        (report.tally, 0, Some(Duration::ZERO))
    );
    assert_eq!(end.tally.of(Outcome::Rewritten), 1000);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_can_be_spawned() {
    let gate = Arc::new(Semaphore::new(0));
    let report = tokio::spawn({
        let gate = Arc::clone(&gate);
        async move {
            let (source, gate) = (Script::of(10), &gate);
            run(&source, &Control::new(), |_| async move {
                gate.acquire().await.expect("open").forget();
                Verdict::current()
            })
            .await
        }
    });
    gate.add_permits(10);
    assert!(report.await.expect("no panic").is_ok());
}
