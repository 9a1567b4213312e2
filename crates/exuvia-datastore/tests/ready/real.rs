//! Calico's manifest on Calico's own CRDs, which are not part of this repository: run by hand, with a directory of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use exuvia_api::DatastorePhase;
use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use serde_json::Value;

use crate::calico::api_server;
use crate::fixtures::{Move, documents};
use crate::stage::Stage;

/// A directory with the CRDs of both groups, in any files below it.
const DIRECTORY: &str = "EXUVIA_CALICO_CRDS";

/// Whether everything of `part` is in `whole`; otherwise the first field that is not.
fn lacks(whole: &Value, part: &Value, path: &str) -> Option<String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().find_map(|(key, part)| {
            lacks(
                whole.get(key).unwrap_or(&Value::Null),
                part,
                &format!("{path}.{key}"),
            )
        }),
        (whole, part) if whole == part => None,
        _ => Some(path.to_owned()),
    }
}

/// `EXUVIA_CALICO_CRDS=… cargo test -p exuvia-datastore --test ready -- --ignored real --nocapture`
#[tokio::test]
#[ignore = "needs Calico's own CRDs"]
async fn the_manifest_moves_objects_between_the_real_crds() {
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    let mut ready = Move::read("calico");
    ready.crds = documents(&directory);
    ready
        .crds
        .retain(|document| document["kind"] == "CustomResourceDefinition");
    assert_eq!(ready.crds.len(), 44, "both groups");
    for wait in &mut ready.migration.spec.cutover.wait_for {
        wait.optional = true;
    }
    let stage = Stage::new(ready).await;
    let backend = api_server(&stage, "projectcalico.org").await;

    let mut bad = crate::calico::v1("FelixConfiguration", "node.node-a");
    bad["spec"] = serde_json::json!({"iptablesLockTimeout": "1s"});
    stage.create(&bad).await;
    let migration = stage.start().await;
    let mut engine = stage.engine(&migration);
    assert_eq!(stage.drive(&mut engine).await, Ended::Held(Hold::Blocked));
    for blocker in engine.blockers() {
        println!("named: {} {} ({})", blocker.kind, blocker.name, blocker.message);
    }
    assert_eq!(engine.blockers().len(), 1);
    assert_eq!(stage.policies(&migration).await, 0);
    stage.delete(&bad).await;
    let since = std::time::Instant::now();
    assert_eq!(stage.goes_on(&mut engine, Hold::Blocked).await, Ended::Done);
    assert_eq!(stage.phase().await, DatastorePhase::Complete);
    assert!(!backend.answers(&stage.client).await.unwrap());

    let mut added: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for expected in &stage.ready.expected {
        let found = stage.shown(expected).await;
        assert_eq!(lacks(&found, expected, ""), None, "{found}");
        let keys = |object: &Value| -> Vec<String> {
            let spec = object["spec"].as_object().unwrap();
            spec.keys().cloned().collect()
        };
        let known = keys(expected);
        let new = keys(&found).into_iter().filter(|key| !known.contains(key));
        let kind = expected["kind"].as_str().unwrap().to_owned();
        added.entry(kind).or_default().extend(new);
    }
    added.retain(|_, fields| !fields.is_empty());
    println!(
        "{} objects moved in {:?}",
        stage.ready.expected.len(),
        since.elapsed()
    );
    println!("defaults that the real CRDs added: {added:?}");
}
