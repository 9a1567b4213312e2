//! The queue on a clock that only moves when nobody has anything to do.

use futures::FutureExt;

use super::*;
use crate::Metrics;

const MAX: Duration = Duration::from_secs(300);

fn queue() -> (Queue, Metrics) {
    let metrics = Metrics::new("test");
    let work = Arc::new(WorkQueue::new(MAX, metrics.of_queue("test")));
    metrics.observe_queue(&work);
    (Queue(work), metrics)
}

impl Queue {
    async fn take(&self) -> String {
        self.0.next().await.0
    }

    /// What could be taken now.
    fn at_once(&self) -> Option<String> {
        self.take().now_or_never()
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_waits_is_not_added_twice_and_keys_keep_their_order() {
    let (queue, _) = queue();
    for key in ["a", "b", "a", "c", "b"] {
        queue.add(key);
    }
    assert_eq!(queue.take().await, "a");
    assert_eq!(queue.take().await, "b");
    assert_eq!(queue.take().await, "c");
    assert_eq!(queue.at_once(), None);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_changes_while_it_is_worked_on_comes_once_more_and_not_before() {
    let (queue, _) = queue();
    queue.add("a");
    let (key, changed) = queue.0.next().await;
    assert!(changed.notified().now_or_never().is_none());
    queue.add("a");
    queue.add("a");
    assert_eq!(queue.at_once(), None, "never twice at once");
    assert!(changed.notified().now_or_never().is_some());
    assert!(
        changed.notified().now_or_never().is_none(),
        "two at once are one change"
    );
    queue.add("a");
    assert!(
        changed.notified().now_or_never().is_some(),
        "the next one is another"
    );
    queue.0.done(&key, Fate::After(Duration::from_secs(60)));
    assert_eq!(queue.at_once(), Some("a".to_owned()));
    queue.0.done("a", Fate::Rest);
    assert_eq!(queue.at_once(), None);
    assert!(
        queue.0.state().entries.is_empty(),
        "nothing is remembered of what rests"
    );
}

#[tokio::test(start_paused = true)]
async fn a_delayed_key_comes_in_time_or_when_it_changes() {
    let (queue, _) = queue();
    queue.add("a");
    queue.take().await;
    let delay = Duration::from_secs(60);
    assert_eq!(queue.0.done("a", Fate::After(delay)), Some(delay));
    let began = Instant::now();
    assert_eq!(queue.take().await, "a");
    assert_eq!(began.elapsed(), delay);
    queue.0.done("a", Fate::After(delay));
    queue.add("a");
    assert_eq!(queue.at_once(), Some("a".to_owned()));
    queue.0.done("a", Fate::Rest);
    tokio::time::advance(2 * delay).await;
    assert_eq!(queue.at_once(), None, "the delay was forgotten");
    queue.add("b");
    queue.take().await;
    queue.0.done("b", Fate::After(Duration::MAX));
    assert_eq!(queue.at_once(), None);
}

#[tokio::test(start_paused = true)]
async fn failures_are_further_and_further_apart_up_to_a_limit_until_a_success() {
    let (queue, metrics) = queue();
    queue.add("a");
    let mut full = BASE;
    for failure in 1..=20 {
        let began = Instant::now();
        queue.take().await;
        let waited = began.elapsed();
        if failure > 1 {
            assert!(
                waited <= full && waited >= full / 2,
                "{failure}: {waited:?} of {full:?}"
            );
            full = (full * 2).min(MAX);
        }
        queue.0.done("a", Fate::BackOff);
    }
    assert_eq!(full, MAX);
    assert!(
        metrics
            .encode()
            .contains("workqueue_retries_total{name=\"test\"} 20")
    );
    queue.take().await;
    queue.0.done("a", Fate::After(Duration::ZERO));
    queue.take().await;
    let again = queue.0.done("a", Fate::BackOff).unwrap();
    assert!(again <= BASE, "the success has reset it: {again:?}");
}

/// A controller that writes each failure into the status of its object wakes itself.
#[tokio::test(start_paused = true)]
async fn a_key_that_fails_and_wakes_itself_still_waits_for_its_back_off() {
    let (queue, _) = queue();
    queue.add("a");
    queue.take().await;
    let began = Instant::now();
    for _ in 0..10 {
        queue.add("a"); // while it runs
        queue.0.done("a", Fate::BackOff);
        queue.add("a"); // and after
        queue.take().await;
    }
    let (least, most) = (BASE * 10 / 2, BASE * 10);
    assert!(
        began.elapsed() >= least,
        "at most one in 250 ms, and 500 ms later on: {:?}",
        began.elapsed()
    );
    assert!(
        began.elapsed() <= most,
        "but it does not wait for its back-off: {:?}",
        began.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_not_let_finish_comes_again_and_keeps_its_failures() {
    let (queue, _) = queue();
    queue.add("a");
    queue.take().await;
    queue.0.done("a", Fate::BackOff);
    queue.take().await;
    queue.0.done("a", Fate::Again);
    assert_eq!(queue.at_once(), Some("a".to_owned()));
    let third = queue.0.done("a", Fate::BackOff).unwrap();
    assert!(third > BASE / 2, "it is the second failure: {third:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cleared_queue_is_empty_and_takes_nothing_back() {
    let (queue, _) = queue();
    queue.add("ready");
    queue.add("running");
    queue.add("due");
    queue.take().await;
    queue.0.done("ready", Fate::After(Duration::from_secs(1)));
    queue.take().await;
    queue.0.clear();
    assert_eq!(queue.0.done("running", Fate::BackOff), None);
    tokio::time::advance(MAX).await;
    assert_eq!(queue.at_once(), None);
    queue.add("new");
    assert_eq!(queue.at_once(), Some("new".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_hears_of_a_key_that_is_due_before_the_one_it_waits_for() {
    let (queue, _) = queue();
    queue.add("late");
    queue.take().await;
    queue.0.done("late", Fate::After(Duration::from_secs(3600)));
    let began = Instant::now();
    let waiter = tokio::spawn({
        let queue = queue.clone();
        async move { queue.take().await }
    });
    tokio::task::yield_now().await;
    queue.add("now");
    assert_eq!(waiter.await.unwrap(), "now");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_scrape_shows_what_waits_and_what_takes_long() {
    let (queue, metrics) = queue();
    queue.add("a");
    queue.add("b");
    queue.add("c");
    tokio::time::advance(Duration::from_secs(2)).await;
    queue.take().await;
    tokio::time::advance(Duration::from_secs(3)).await;
    queue.take().await;
    tokio::time::advance(Duration::from_secs(4)).await;
    let text = metrics.encode();
    for line in [
        "workqueue_depth{name=\"test\"} 1",
        "workqueue_adds_total{name=\"test\"} 3",
        "workqueue_unfinished_work_seconds{name=\"test\"} 11.0",
        "workqueue_longest_running_processor_seconds{name=\"test\"} 7.0",
        "workqueue_queue_duration_seconds_sum{name=\"test\"} 7.0",
        "workqueue_queue_duration_seconds_count{name=\"test\"} 2",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}
