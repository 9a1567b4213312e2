//! Answers in the place of a list that are not lists.

use exuvia_storage::{End, Options};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use serde_json::json;

use crate::Bench;

/// A gateway in front of the API server answers 200 with its own JSON in the place of each page but the first. Objects on
/// those pages are stored at the old version: it stays in storedVersions.
#[tokio::test]
async fn an_answer_that_is_not_a_list_is_not_the_end_of_the_list() {
    let bench = Bench::flipped("notalist", 6).await;
    let proxy = bench.control_plane.proxy().await.unwrap();
    let next_pages = Match::any()
        .path("/apis/notalist.example.com/*")
        .query("continue=");
    let login = json!({"error": "session expired", "login": "https://sso.example.com"});
    let gateway = Fault::refuse(Answer::status(200).json(&login));
    let gateway = proxy.inject(Rule::on(next_pages).always().then(gateway));
    let options = || Options {
        page_size: 2,
        ..bench.options()
    };
    let said = match bench.engine_through(&proxy, options()).run().await {
        Ok(report) => format!("{:?}", report.end),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("the answer is not a list"), "{said}");
    assert_eq!(bench.stored_versions().await, ["v1alpha1", "v1"]);
    assert!(bench.stored_at("v1alpha1").await > 0);

    gateway.remove();
    let report = bench.engine_through(&proxy, options()).run().await.unwrap();
    assert_eq!(report.end, End::Migrated);
    bench.assert_trimmed_rightly("v1alpha1").await;
}
