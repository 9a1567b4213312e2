//! Killed before and after each write, and answers that are lost: the next try ends as if nothing had happened.

use exuvia_datastore::route::Switched;
use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_testenv::{ControlPlane, in_time, until};
use serde_json::Value;

use crate::{World, is_automanaged, killed_at, servers};

/// Until it is done, as a controller that comes back.
async fn switch(world: &World, route: &exuvia_datastore::route::Route, saved: &Value) {
    let (kinds, aliases) = (world.kinds(), []);
    let done = in_time("the switch", async {
        loop {
            match route.switch(saved, &kinds, &aliases).await.unwrap() {
                Switched::NotYet(_) => {}
                switched => break switched,
            }
        }
    });
    let switched = done.await;
    assert!(matches!(switched, Switched::Done(_)), "{switched:?}");
}

#[tokio::test]
async fn killed_at_any_write_the_next_process_finishes() {
    let world = World::new("killed").await;
    let (control_plane, _) = servers().await;
    let proxy = control_plane.proxy().await.unwrap();
    let original = world.backend.api_service();
    for fault in [Fault::StallRequest, Fault::StallAnswer] {
        for write in 1.. {
            let saved = world.route.save().await.unwrap();
            // Each has its own connections, as a process has.
            let route = world.route_through(&proxy).await;
            let switching = Box::pin(switch(&world, &route, &saved));
            let struck_there = killed_at(&proxy, write, fault.clone(), switching).await;
            switch(&world, &world.route, &saved).await;
            assert!(is_automanaged(&world.route.observe().await.unwrap()));

            let route = world.route_through(&proxy).await;
            let restoring = Box::pin(async { route.restore(&saved).await.unwrap() });
            let struck_back = killed_at(&proxy, write, fault.clone(), restoring).await;
            world.route.restore(&saved).await.unwrap();
            let restored = world.api_service().await.unwrap();
            assert_eq!(
                restored.data["spec"], original["spec"],
                "{fault:?} of write {write}"
            );
            world.until_backend_answers().await;
            if !struck_there && !struck_back {
                break;
            }
            assert!(
                write > 1 || struck_there && struck_back,
                "each writes once at least"
            );
        }
    }
}

#[tokio::test]
async fn a_lost_answer_does_not_stop_it() {
    let world = World::new("lost").await;
    let (control_plane, _) = servers().await;
    let proxy = control_plane.proxy().await.unwrap();
    let route = world.route_through(&proxy).await;
    let saved = route.save().await.unwrap();
    for method in [http::Method::DELETE, http::Method::PATCH] {
        let lost = Match::method(method).resource("apiservices");
        proxy.inject(Rule::on(lost).times(1).then(Fault::DropAnswer));
    }
    let busy = Match::method(http::Method::PATCH).resource("apiservices");
    proxy.inject(Rule::on(busy).times(2).then(Fault::refuse(503)));
    switch(&world, &route, &saved).await;
    route.restore(&saved).await.unwrap();
    until("the backend answers again", async || {
        world.backend.answers(&world.clients[0]).await.unwrap()
    })
    .await;
    assert_eq!(
        world.api_service().await.unwrap().data["spec"],
        world.backend.api_service()["spec"]
    );
}

/// PITFALLS D11: a server that stands still over the switch may answer from the backend when it goes on.
#[tokio::test]
async fn as_long_as_a_server_stands_still_it_is_not_done() {
    let control_plane = ControlPlane::builder().start().await.unwrap();
    let second = control_plane.another_apiserver_on_host("host-b").await.unwrap();
    let world = World::on(&control_plane, &second, "paused").await;
    let saved = world.route.save().await.unwrap();
    second.process().pause().unwrap();
    let switched = world.route.switch(&saved, &world.kinds(), &[]).await.unwrap();
    let Switched::NotYet(answers) = switched else {
        panic!("{switched:?}")
    };
    let not_yet = answers.not_yet();
    assert_eq!(not_yet.len(), 1, "{not_yet:?}");
    let silent = second.url().trim_start_matches("https://");
    assert!(
        not_yet[0].starts_with(&format!("{silent} did not answer")),
        "{not_yet:?}"
    );
    second.process().resume().unwrap();
    switch(&world, &world.route, &saved).await;
    assert!(!world.backend.answers(&world.clients[1]).await.unwrap());
}
