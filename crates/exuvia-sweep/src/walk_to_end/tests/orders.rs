//! Sweeps that are told to stop, to wait, to go slower, and to say how far they are.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sweep_that_was_cancelled_before_asks_nothing() {
    let (source, control) = (Script::of(10), Control::new());
    control.cancel();
    let error = run(&source, &control, async |_| Verdict::unchanged())
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
        Verdict::changed()
    })
    .await
    .expect_err("cancelled");
    assert_eq!((begun.get(), finished.get()), (24, 24), "four at a time");
    assert!(error.is_cancelled());
    assert_eq!(error.report().tally.changed, 24);
    assert_eq!(
        error.to_string(),
        "the sweep of widgets.example.dev was cancelled"
    );
}

#[tokio::test(start_paused = true)]
async fn cancel_does_not_wait_for_a_page() {
    struct Never;
    impl Source for Never {
        async fn page(&self, _: ListParams) -> Result<Answer, kube::Error> {
            std::future::pending().await
        }
    }
    let control = Control::new();
    let (settings, progress) = (settings(), watch::Sender::default());
    let sweep = sweep(Never, &settings, &control, &progress, async |_| {
        Verdict::unchanged()
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
    let sweep = sweep(&source, &settings, &control, &progress, async |_| {
        seen.set(seen.get() + 1);
        if seen.get() == 20 {
            control.pause();
        }
        sleep(Duration::from_secs(1)).await;
        Verdict::unchanged()
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
    assert_eq!(report.expect("the end").tally.unchanged, 100);
    assert!(!progress.borrow().paused);
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
        Verdict::unchanged().under(throttled.then_some(Pressure::Throttled(Some(rest))))
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
    let sweep = sweep(&source, &settings, &control, &progress, async |_| {
        sleep(Duration::from_secs(10)).await;
        Verdict::unchanged()
    });
    let outside = async {
        let mut news = progress.subscribe();
        news.wait_for(|p| p.in_flight == 4).await.expect("four at first");
        control.slow_down(Pressure::Throttled(None), Duration::ZERO);
        let halved = news.wait_for(|p| p.concurrency == 2).await.expect("halved");
        assert_eq!((halved.in_flight, halved.done()), (4, 0), "before any verdict");
    };
    let (report, ()) = futures::join!(sweep, outside);
    assert_eq!(report.expect("the end").tally.unchanged, 100);
}

#[tokio::test(start_paused = true)]
async fn no_more_are_begun_per_second_than_allowed_and_skipping_is_free() {
    let settings = Settings {
        qps: NonZeroU32::new(10),
        ..settings()
    };
    for (verdict, seconds) in [(Verdict::unchanged(), 9), (Verdict::skipped(), 0)] {
        let (source, start) = (Script::of(100), Instant::now());
        let worker = async |_| verdict.clone();
        let report = sweep(
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
async fn a_throttled_list_slows_the_pool_down() {
    let source = Script::new([Ok(page(0..10, Some(2))), refusal(429), Ok(page(10..12, None))]);
    let report = run(&source, &Control::new(), async |_| {
        sleep(Duration::from_millis(50)).await;
        Verdict::unchanged()
    })
    .await
    .expect("the end");
    assert_eq!((report.tally.unchanged, report.last_concurrency), (12, 2));
}

#[tokio::test(start_paused = true)]
async fn progress_is_told_ten_times_per_second_at_most_and_in_the_end() {
    let (source, control) = (Script::of(1000), Control::new());
    let (settings, progress) = (settings(), watch::Sender::<Progress>::default());
    let mut news = progress.subscribe();
    let start = Instant::now();
    let sweep = async {
        // Four at a time, 20 ms each: five seconds.
        let report = sweep(&source, &settings, &control, &progress, async |_| {
            sleep(Duration::from_millis(20)).await;
            Verdict::changed()
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
        assert!(pair[1].0 >= pair[0].0 + Duration::from_millis(100));
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
    assert_eq!(end.tally.of(Outcome::Changed), 1000);
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
                Verdict::unchanged()
            })
            .await
        }
    });
    gate.add_permits(10);
    assert!(report.await.expect("no panic").is_ok());
}
