//! Several clusters in one table.

use std::net::TcpListener;

use exuvia_testenv::ControlPlane;
use serde_json::json;

use crate::binary::{exuvia, flipped, json_of, printed, text};
use crate::kubeconfig;

#[tokio::test]
async fn two_clusters_are_one_table_and_one_that_fails_hides_neither() {
    let east = ControlPlane::shared().await;
    let west = ControlPlane::builder().start().await.unwrap();
    let group = "clusters.example.com";
    flipped(&east.client().unwrap(), group, 2).await;
    flipped(&west.client().unwrap(), group, 3).await;
    let file = kubeconfig(&[("east", east.admin()), ("west", west.admin())], Some("nowhere"));
    let plan = async |flags: &[&str]| {
        let always = ["plan", "--groups", group];
        exuvia(file.path().to_owned(), &[&always, flags].concat()).await
    };

    let both = plan(&["--context", "east", "--context", "west", "--context", "east"]).await;
    let said = text(&both.stdout);
    assert!(both.status.success(), "{}", printed(&both));
    assert!(said.starts_with("CONTEXT  CRD "), "{said}");
    let rows: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(rows.len(), 2, "each once: {said}");
    assert!(
        rows[0].starts_with("east ") && rows[1].starts_with("west "),
        "in the order asked for: {said}"
    );
    let both = json_of(&plan(&["--context", "east", "--context", "west", "-o", "json"]).await);
    assert_eq!(
        (
            &both[0]["context"],
            &both[0]["objects"],
            &both[1]["context"],
            &both[1]["objects"]
        ),
        (&json!("east"), &json!(2), &json!("west"), &json!(3))
    );

    let all = plan(&["--all-contexts"]).await;
    let said = text(&all.stdout);
    assert_eq!(all.status.code(), Some(1), "one failed: {}", printed(&all));
    let rows: Vec<&str> = said.lines().skip(1).collect();
    assert_eq!(rows.len(), 3, "{said}");
    assert!(
        rows[2].starts_with("nowhere") && rows[2].contains("error: the API server at https://127.0.0.1:1"),
        "{said}"
    );
    let all = plan(&["--all-contexts", "-o", "json"]).await;
    assert_eq!(all.status.code(), Some(1));
    let all = json_of(&all);
    assert_eq!(all[1]["crd"], "widgets.clusters.example.com");
    assert_eq!(all[2]["context"], "nowhere");
    assert!(
        all[2]["error"].as_str().unwrap().contains("cannot be reached"),
        "{all}"
    );

    let only_east = "east.clusters.example.com";
    flipped(&east.client().unwrap(), only_east, 1).await;
    let both = [
        "plan",
        "--context",
        "east",
        "--context",
        "west",
        "--groups",
        only_east,
    ];
    let said = exuvia(file.path().to_owned(), &both).await;
    assert!(said.status.success(), "{}", printed(&said));
    let said = text(&said.stdout);
    let of_west = said.lines().find(|line| line.starts_with("west ")).unwrap();
    assert!(
        of_west.contains("this cluster has no CRDs in group east.clusters.example.com"),
        "{said}"
    );
    let said = json_of(&exuvia(file.path().to_owned(), &[&both[..], &["-o", "json"]].concat()).await);
    assert_eq!(said.as_array().unwrap().len(), 1, "machines count CRDs: {said}");

    let misspelt = plan(&["--context", "east", "--context", "wset"]).await;
    assert_eq!(misspelt.status.code(), Some(1));
    let said = text(&misspelt.stdout);
    assert!(
        said.contains("invalid context \"wset\": expected") && said.contains("widgets.clusters.example.com"),
        "{said}"
    );
}

/// Each of two servers answers nobody before the other was asked, too.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_asked_at_the_same_time() {
    let servers = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let urls = servers
        .each_ref()
        .map(|server| format!("http://{}", server.local_addr().unwrap()));
    let item = |number: usize| json!({"name": number.to_string(), "cluster": {"server": urls[number]}});
    let context = |number: usize| {
        let name = number.to_string();
        json!({"name": name, "context": {"cluster": name, "user": "me"}})
    };
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": [item(0), item(1)], "contexts": [context(0), context(1)],
        "users": [{"name": "me", "user": {}}],
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.to_string()).unwrap();
    let (asked, both) = std::sync::mpsc::channel();
    for server in servers {
        let asked = asked.clone();
        std::thread::spawn(move || asked.send(server.accept().unwrap().0));
    }
    let path = file.path().to_owned();
    let plan = tokio::spawn(async move { exuvia(path, &["plan", "--all-contexts"]).await });
    let connections = [(); 2].map(|()| {
        both.recv_timeout(exuvia_testenv::DEADLINE)
            .expect("asked although the other has not answered")
    });
    drop(connections); // and the servers are gone, too
    let said = plan.await.unwrap();
    assert_eq!(said.status.code(), Some(1), "{}", printed(&said));
    assert_eq!(
        text(&said.stdout).matches("error: ").count(),
        2,
        "{}",
        printed(&said)
    );
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_read_is_one_sentence_for_all_contexts_too() {
    let said = exuvia("/nonexistent".into(), &["plan", "--all-contexts"]).await;
    let error = text(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{error}");
    assert!(
        error.starts_with("error: ") && error.lines().count() == 1 && error.contains("/nonexistent"),
        "{error}"
    );
}
