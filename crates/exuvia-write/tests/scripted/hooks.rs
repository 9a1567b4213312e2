//! The gate, the observer, the log line, the pace: what happens around every request.

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use exuvia_write::{Error, ErrorClass, Outcome, Refusal, RetryPolicy, Verb, WriteReport};
use serde_json::json;
use tokio::time::Instant;

use super::{Answer, Script, map, read, set_apple, status, writer};

#[tokio::test]
async fn nothing_passes_a_closed_gate() {
    let script = Script::of([]);
    let writer = writer().gate(|attempt| Err(format!("{} by a follower", attempt.verb)));
    let object = read("1", &json!({}));
    let error = writer
        .patch(&script.api(), &object, set_apple("3"))
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Refused { why: Refusal::GateClosed(why), .. } if why == "patch by a follower")
    );
    assert_eq!(
        (error.class(), error.reason()),
        (ErrorClass::Denied, "GateClosed")
    );
    writer.rewrite(&script.api(), &object.metadata).await.unwrap_err();
    writer
        .dry_run()
        .rewrite(&script.api(), &object.metadata)
        .await
        .unwrap_err();
    assert!(script.sent().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_closes_meanwhile_stops_the_retries() {
    let script = Script::of([
        status(503, "ServiceUnavailable"),
        status(503, "ServiceUnavailable"),
    ]);
    let asked = Arc::new(AtomicU32::new(0));
    let seen = asked.clone();
    let writer = writer().gate(move |attempt| {
        seen.store(attempt.number, Ordering::Relaxed);
        if attempt.number > 2 {
            Err("deposed".to_owned())
        } else {
            Ok(())
        }
    });
    let error = writer
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!((error.reason(), asked.load(Ordering::Relaxed)), ("GateClosed", 3));
    assert_eq!(script.sent().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn every_request_is_observed_and_so_is_a_write_that_needed_none() {
    let script = Script::of([
        status(503, "ServiceUnavailable"),
        Answer::Json(200, map("2", &json!({"apple": "3"}))),
    ]);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let writer = writer().observe(move |report| {
        let target = report.target.to_string();
        seen.lock()
            .unwrap()
            .push((report.verb, target, report.attempt, report.outcome));
    });
    let object = read("1", &json!({}));
    writer
        .patch(&script.api(), &object, set_apple("3"))
        .await
        .unwrap();
    writer.patch(&script.api(), &object, |_| {}).await.unwrap();
    let row = |attempt, outcome| (Verb::Patch, "configmaps shop/prices".to_owned(), attempt, outcome);
    assert_eq!(
        *reports.lock().unwrap(),
        [
            row(1, Outcome::Failed(ErrorClass::Transient(None))),
            row(2, Outcome::Written),
            row(0, Outcome::Unsent),
        ]
    );
}

#[tokio::test]
async fn an_observer_that_is_added_hears_the_same_as_the_one_before() {
    let script = Script::of([Answer::Json(200, map("2", &json!({"apple": "3"})))]);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let heard = heard.clone();
        move |report: &WriteReport<'_>| heard.lock().unwrap().push((who, report.outcome))
    };
    let writer = writer().observe(note("first")).also_observe(note("second"));
    let object = read("1", &json!({}));
    writer
        .patch(&script.api(), &object, set_apple("3"))
        .await
        .unwrap();
    let written = Outcome::Written;
    assert_eq!(*heard.lock().unwrap(), [("first", written), ("second", written)]);
}

/// PITFALLS B27. In a separate process: tracing asks once per call site who wants to know, and what it is told while
/// another test comes by that does not, it remembers for the whole process.
#[tokio::test(start_paused = true)]
async fn a_write_leaves_one_log_line_per_request_and_no_secret_in_it() {
    const ALONE: &str = "EXUVIA_TEST_ALONE";
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    if std::env::var_os(ALONE).is_none() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "hooks::a_write_leaves_one_log_line_per_request_and_no_secret_in_it",
            ])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let log = Log::default();
    let writes_to = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writes_to.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    // The last answer does not fit the type, and would be quoted by serde.
    let script = Script::of([
        Answer::Json(200, map("2", &json!({"apple": "hunter2"}))),
        Answer::Json(200, map("3", &json!("hunter2"))),
    ]);
    let object = read("1", &json!({}));
    writer()
        .patch(&script.api(), &object, set_apple("hunter2"))
        .await
        .unwrap();
    let error = writer()
        .patch(&script.api(), &object, set_apple("hunter2"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Answer { .. }));
    assert!(error.to_string().contains("was carried out"), "{error}");
    assert!(!format!("{error:?} {error}").contains("hunter2"));

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!log.contains("hunter2"), "{log}");
    let ours: Vec<&str> = log.lines().filter(|line| line.contains("exuvia_write")).collect();
    assert_eq!(ours.len(), 2, "{log}");
    for part in [
        "DEBUG",
        "verb=\"patch\"",
        "resource=\"configmaps\"",
        "name=\"prices\"",
        "outcome=\"written\"",
    ] {
        assert!(ours[0].contains(part), "{part} in {}", ours[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_rate_limit() {
    let script = Script::of((0..5).map(|_| Answer::Json(200, map("1", &json!({})))));
    let writer = writer().rate_limit(10, 2);
    let object = read("1", &json!({}));
    let began = Instant::now();
    for _ in 0..5 {
        writer
            .clone()
            .rewrite(&script.api(), &object.metadata)
            .await
            .unwrap();
    }
    assert_eq!(began.elapsed(), Duration::from_millis(300));
}

#[tokio::test]
async fn a_writer_can_be_told_never_to_try_again() {
    let script = Script::of([status(503, "ServiceUnavailable")]);
    let error = writer()
        .once()
        .patch(&script.api(), &read("1", &json!({})), set_apple("3"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Transient(None));
    assert_eq!(writer().once().retry_policy(), &RetryPolicy::ONCE);
    assert_eq!(script.sent().len(), 1);
}
