//! A server that has had enough.

use exuvia_sweep::Control;
use exuvia_testenv::proxy::{Answer, Fault, Match, Recorded, Rule};
use exuvia_write::Writer;

use crate::{rewrite, setup, soon};

#[tokio::test]
async fn the_pool_halves_when_objects_are_throttled() {
    let setup = setup("throttled.example.com", 40).await;
    let enough = Fault::refuse(Answer::status(429).without_retry_after());
    let rule = setup
        .proxy
        .inject(Rule::on(Match::writes()).nth(5).times(4).then(enough));
    let sweep = setup.sweep().max_concurrency(4);
    let mut progress = sweep.progress();
    let (writer, api) = (&Writer::named("exuvia-sweep-test").once(), &setup.api());
    let work = sweep.run(async |object| rewrite(writer, api, &object.metadata).await);
    let halved = async {
        progress
            .wait_for(|now| now.tally.failed > 0)
            .await
            .unwrap()
            .concurrency
    };
    let (report, concurrency) = soon(async { tokio::join!(work, halved) }).await;
    let report = report.unwrap();
    assert!(concurrency < 4, "{concurrency}");
    assert_eq!((rule.applied(), report.failures.by_class["throttled"]), (4, 4));
    assert_eq!((report.tally.unchanged, report.peak_concurrency), (36, 4));
}

#[tokio::test]
async fn a_writer_that_waits_and_tries_again_tells_the_pool_at_once() {
    let setup = setup("patient.example.com", 40).await;
    let enough = Fault::refuse(Answer::status(429).retry_after(1));
    let rule = setup.proxy.inject(Rule::on(Match::writes()).nth(10).then(enough));
    let control = Control::new();
    let writer = Writer::named("exuvia-sweep-test").observe(control.brake());
    let sweep = setup.sweep().max_concurrency(4).controlled_by(&control);
    let mut progress = sweep.progress();
    let (writer, api) = (&writer, &setup.api());
    let work = sweep.run(async |object| rewrite(writer, api, &object.metadata).await);
    let halved = async {
        progress
            .wait_for(|now| now.concurrency == 2)
            .await
            .unwrap()
            .done()
    };
    let (report, done) = soon(async { tokio::join!(work, halved) }).await;
    let report = report.unwrap();
    assert_eq!(rule.applied(), 1);
    assert!(done < 40, "{done}");
    assert_eq!(report.tally.unchanged, 40, "the writer tried again");
}

#[tokio::test]
async fn dropping_the_sweep_ends_its_requests() {
    let setup = setup("dropped.example.com", 10).await;
    setup
        .proxy
        .inject(Rule::on(Match::writes()).then(Fault::StallRequest));
    let (writer, api) = (Writer::named("exuvia-sweep-test"), setup.api());
    let sweep = setup.sweep();
    let running = tokio::spawn(async move {
        let (writer, api) = (&writer, &api);
        sweep
            .run(|object| async move { rewrite(writer, api, &object.metadata).await })
            .await
    });
    soon(setup.proxy.wait_for(Recorded::is_write)).await;
    running.abort();
    assert!(soon(running).await.unwrap_err().is_cancelled());
    soon(
        setup
            .proxy
            .wait_for(|request| request.is_write() && request.finished),
    )
    .await;
}
