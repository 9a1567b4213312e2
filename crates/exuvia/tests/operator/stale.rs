//! An API server that is behind writes the old version after the trim (PITFALLS A4): the patrol finds it.

use exuvia_api::{Phase, StorageMigration};
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::{ApiServer, ControlPlane, StaleServer, Widgets, until};
use kube::{Api, Client};

use crate::harness::{control_plane, in_phase, label, stored_at, stored_versions};
use crate::oracle::{Stop, assert_all_at, assert_every_trim_was_right, events, on_trims, start_behind};

/// A control plane with a second API server, which stands still over a flip.
struct TwoServers {
    control_plane: ControlPlane,
    second: ApiServer,
    client: Client,
}

impl TwoServers {
    /// Widgets that both servers know; the second has patches of theirs in its sockets when the storage version is flipped.
    async fn flip_behind_its_back(&self, group: &str) -> (Widgets, StaleServer<'_>) {
        let widgets = Widgets::in_group(group);
        widgets.install(&self.client, "v1alpha1").await.unwrap();
        widgets.create(&self.client, "v1alpha1", 6).await.unwrap();
        let other = widgets.api(&self.second.client().unwrap(), "v1");
        until("the second server serves it", async || {
            other.get("widget-0005").await.ok()
        })
        .await;
        let patch = |index: usize| {
            let path = format!("/apis/{group}/v1/namespaces/default/widgets/widget-{index:04}");
            http::Request::patch(path)
                .header("content-type", "application/merge-patch+json")
                .body(b"{}".as_slice().into())
                .unwrap()
        };
        let stale = self
            .second
            .pause_with_queued((0..6).map(patch).collect())
            .await
            .unwrap();
        widgets.flip_storage(&self.client, "v1").await.unwrap();
        (widgets, stale)
    }
}

/// What the operator does when the stale server wakes up.
#[derive(Clone, Copy)]
enum Meanwhile {
    /// It waits for the answer to its trim, and its next write of the CRD meets a conflict.
    Waits,
    /// It was killed when it had noted the trim, and is started again afterwards.
    IsDead,
}

/// PITFALLS A4. Which comes first on the server that wakes up, the queued patches or the news, is up to it: rounds, until it
/// has written one at the old version.
async fn wakes_up_after_the_trim(operator_is: Meanwhile) {
    let control_plane = control_plane().await;
    let second = control_plane.another_apiserver().await.unwrap();
    let client = control_plane.client().unwrap();
    let servers = TwoServers {
        control_plane,
        second,
        client,
    };
    let TwoServers {
        control_plane,
        client,
        ..
    } = &servers;
    let proxy = control_plane.proxy().await.unwrap();
    // The one that is stale is not among those that are asked, so a resourceVersion is taken for a proof at first.
    let known = format!("--apiserver={}", control_plane.apiserver().url());
    let operator = start_behind(&proxy, control_plane, &[&known]);
    for round in 0..10 {
        let (widgets, stale) = servers
            .flip_behind_its_back(&format!("stale-{round}.example.com"))
            .await;
        let name = widgets.crd_name();
        let (about, phase) = match operator_is {
            Meanwhile::Waits => (on_trims(&widgets), ""),
            Meanwhile::IsDead => {
                let migration = Match::any().resource("storagemigrations").object("", &name);
                (migration, r#""phase":"Patrolling""#)
            }
        };
        let stop = Stop::once_stored(&proxy, about, move |request| {
            String::from_utf8_lossy(&request.body).contains(phase)
        });
        label(client, &widgets, Some("true")).await;
        stop.reached().await;
        assert_eq!(stored_versions(client, &widgets).await, ["v1"]);
        let migration = Api::<StorageMigration>::all(client.clone())
            .get(&name)
            .await
            .unwrap();
        assert!(!migration.status.unwrap().pass.unwrap().verified_in_full);
        match operator_is {
            Meanwhile::Waits => {
                drop(proxy.inject(Rule::on(on_trims(&widgets)).nth(1).then(Fault::refuse(409))));
            }
            Meanwhile::IsDead => operator.process.kill().unwrap(),
        }
        assert_eq!(stale.resume().await.unwrap(), [200; 6]);
        let found = stored_at(control_plane, &widgets).await.contains_key("v1alpha1");
        stop.go();
        if let Meanwhile::IsDead = operator_is {
            operator.process.restart().unwrap();
        }
        if !found {
            continue;
        }
        until("it is trimmed once more", async || {
            let values = assert_every_trim_was_right(control_plane, &widgets).await;
            (values.len() == 5).then_some(())
        })
        .await;
        let status = in_phase(client, &name, Phase::Migrated).await;
        assert!(
            status.pass.unwrap().verified_in_full,
            "nobody's word is taken any more"
        );
        assert_all_at(control_plane, &widgets, "v1", 6).await;
        let values = assert_every_trim_was_right(control_plane, &widgets).await;
        assert_eq!(values[2..], [vec!["v1"], vec!["v1", "v1alpha1"], vec!["v1"]]);
        let told = events(client, "NotProven").await;
        for kind in ["StorageMigration", "CustomResourceDefinition"] {
            assert!(told.iter().any(|(about, _)| about == kind), "{told:?}");
        }
        return;
    }
    panic!("in ten rounds the stale server wrote nothing at the old version");
}

#[tokio::test]
async fn what_a_stale_server_writes_after_the_trim_is_found_by_the_patrol() {
    wakes_up_after_the_trim(Meanwhile::Waits).await;
}

#[tokio::test]
async fn the_patrol_comes_though_the_operator_died_after_the_trim() {
    wakes_up_after_the_trim(Meanwhile::IsDead).await;
}
