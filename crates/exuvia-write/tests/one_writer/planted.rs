//! Planted violations: the lint must see each of them, and must not see what is none.

use super::{Source, judge};

fn source(path: &str, text: &str) -> Source {
    Source {
        path: path.to_owned(),
        tree: syn::parse_file(text).unwrap(),
    }
}

/// What the lint says about a function with this body, in a file that begins with `head`.
fn planted(head: &str, body: &str) -> Vec<String> {
    let text = format!("{head}\nasync fn planted() {{ {body} }}");
    judge(&[source("crates/x/src/lib.rs", &text)], "")
}

#[test]
fn every_way_to_write_past_the_writer_is_seen() {
    for (head, body) in [
        // Methods, on whatever they are called.
        ("", "api.create(&Default::default(), &object).await;"),
        ("", "api.replace(name, &pp, &object).await;"),
        ("", "api.replace_status(name, &pp, &object).await;"),
        ("", "api.patch(name, &pp, &patch).await;"),
        ("", "self.pods.patch_status(name, &pp, &patch).await;"),
        ("", "api.patch_metadata(name, &pp, &patch).await;"),
        ("", "api.patch_subresource(\"scale\", name, &pp, &patch).await;"),
        ("", "api.delete(name, &Default::default()).await;"),
        ("", "api.delete_collection(&dp, &lp).await;"),
        ("", "Api::<Pod>::all(client).delete(name, &dp).await;"),
        ("", "pods.evict(name, &ep).await;"),
        // Fully qualified.
        ("", "Api::<Pod>::patch(&api, name, &pp, &patch).await;"),
        ("", "kube::Api::delete(&api, name, &dp).await;"),
        ("", "<Api<Pod>>::replace(&api, name, &pp, &object).await;"),
        ("", "<kube::Api<Pod>>::create(&api, &pp, &object).await;"),
        ("", "let write = Api::<Pod>::create;"),
        // By another name.
        (
            "use kube::Api as K;",
            "K::replace(&api, name, &pp, &object).await;",
        ),
        (
            "use kube::{Api as K, Client};",
            "<K<Pod>>::patch(&api, name, &pp, &patch).await;",
        ),
        (
            "type Pods = kube::Api<Pod>;",
            "Pods::delete(&api, name, &dp).await;",
        ),
        (
            "use kube::Api as A; type B = A<Pod>; use B as C;",
            "C::create(&api, &pp, &object).await;",
        ),
        // What only a write takes.
        ("use kube::api::PostParams;", ""),
        ("use kube::api::{Api, PatchParams as P};", ""),
        ("", "let dp = kube::api::DeleteParams::background();"),
        ("", "let patch = kube::api::Patch::Merge(body);"),
        ("use kube::api::*;", "let patch = Patch::Merge(body);"),
        ("", "entry.commit(&kube::api::PostParams::default()).await;"),
        // Helpers that write on their own.
        ("use kube::runtime::finalizer::finalizer;", ""),
        ("use kube::runtime::events::Recorder;", ""),
        ("use kube_runtime::wait::delete::delete_and_finalize;", ""),
        // Requests of one's own making.
        ("", "client.request::<Pod>(Request::post(url).body(body)?).await;"),
        (
            "",
            "let r = Request::builder().method(\"PATCH\").uri(url).body(body)?; client.request_text(r).await;",
        ),
        ("", "self.client.send(request).await;"),
        (
            "",
            "let r = requests.patch(name, p, patch)?; self.client.send(r.map(Body::from)).await;",
        ),
        ("", "kube::Client::request_status::<Pod>(&client, request).await;"),
        ("use kube::Client as C;", "C::send(&client, request).await;"),
        // Within a macro.
        ("", "tokio::join!(api.patch(name, &pp, &patch), other);"),
        ("", "tokio::select! { done = api.delete(name, &dp) => {} }"),
        (
            "",
            "futures::join!(async { api.create(&kube::api::PostParams::default(), &o).await });",
        ),
    ] {
        assert!(!planted(head, body).is_empty(), "not seen: {head} {body}");
    }
}

#[test]
fn an_alias_in_another_file_is_followed() {
    let files = [
        source("crates/x/src/names.rs", "pub use kube::Api as Door;"),
        source(
            "crates/y/src/lib.rs",
            "use x::names::Door as D; async fn f() { D::replace(&a, n, &p, &o).await; }",
        ),
    ];
    let problems = judge(&files, "");
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("crates/y/src/lib.rs:1: `replace` writes past the writer"),
        "{problems:?}"
    );
}

#[test]
fn what_does_not_write_is_not_blamed() {
    for (head, body) in [
        ("", "writer.patch(&api, &object, |o| o.size = 1).await;"),
        ("", "self.writer.dry_run().create(&api, &object).await;"),
        (
            "",
            "context.writer().patch_status(&api, &object, set_ready).await;",
        ),
        (
            "",
            "Writer::named(\"x\").once().patch(&api, &object, change).await;",
        ),
        ("", "tokio::join!(writer.patch(&api, &object, change), other);"),
        (
            "",
            "text.replace(\"a\", \"b\"); options.create(true); map.remove(key); cache.delete(key);",
        ),
        (
            "",
            "api.get(name).await; api.list(&lp).await; api.watch(&wp, rv).await;",
        ),
        (
            "",
            "client.request::<Info>(Request::get(\"/version\").body(vec![])?).await;",
        ),
        (
            "",
            "let request = Request::get(\"/metrics\").body(vec![])?; client.request_text(request).await;",
        ),
        (
            "",
            "let list = requests.list_metadata(&lp)?; self.client.send(list.map(Body::from)).await;",
        ),
        ("", "sender.send(event).await;"),
        (
            "use crate::finalizer; use kube::api::{Api, ListParams, PropagationPolicy};",
            "",
        ),
        (
            "#[cfg(test)] mod tests { async fn f() { api.create(&PostParams::default(), &o).await; } }",
            "",
        ),
        (
            "#[tokio::test] async fn t() { api.patch(name, &pp, &patch).await; }",
            "",
        ),
        ("#[cfg(test)] use kube::api::PostParams;", ""),
    ] {
        let problems = planted(head, body);
        assert!(problems.is_empty(), "{head} {body}: {problems:?}");
    }
}

#[test]
fn code_that_is_left_out_of_tests_is_not_left_out_here() {
    let head = "#[cfg(not(test))] mod real { async fn f() { api.create(&pp, &o).await; } }";
    assert_eq!(planted(head, "").len(), 1);
}

#[test]
fn an_exception_needs_a_reason_and_a_use() {
    let file = || {
        [source(
            "crates/x/src/lib.rs",
            "async fn f() { api.create(&pp, &o).await; }",
        )]
    };
    assert_eq!(
        judge(
            &file(),
            "# why\ncrates/x/src/lib.rs create: the demo sets its own scene"
        ),
        [""; 0]
    );
    assert_eq!(
        judge(&file(), "crates/x/src/lib.rs create:").len(),
        2,
        "no reason"
    );
    assert_eq!(
        judge(
            &file(),
            "crates/x/src/lib.rs create: a\ncrates/x/src/lib.rs delete: b"
        )
        .len(),
        1,
        "no use"
    );
    assert_eq!(judge(&file(), "crates/y/src/lib.rs create: elsewhere").len(), 2);
}

/// Which files of a workspace are read, on a small one with a violation in each place.
#[test]
fn test_code_is_left_out_and_nothing_else_is() {
    let root = tempfile::tempdir().unwrap();
    let violation = "async fn f() { api.create(&pp, &o).await; }";
    let plain = format!("#[cfg(test)] mod tests; #[cfg(test)] mod checks; mod deep; {violation}");
    for (path, text) in [
        ("crates/a/src/lib.rs", plain.as_str()),
        ("crates/a/src/tests.rs", violation),
        ("crates/a/src/checks/mod.rs", violation),
        ("crates/a/src/checks/more.rs", violation),
        ("crates/a/src/deep.rs", "#[cfg(test)] mod probe;"),
        ("crates/a/src/deep/probe.rs", violation),
        ("crates/a/src/deep/real.rs", violation),
        ("crates/a/tests/it.rs", violation),
        ("crates/a/benches/b.rs", violation),
        ("crates/a/build.rs", violation),
        ("crates/a/examples/e.rs", violation),
        ("crates/exuvia-write/src/lib.rs", violation),
        ("crates/exuvia-testenv/src/lib.rs", violation),
        ("operators/mcp/src/main.rs", violation),
        ("xtask/src/main.rs", violation),
        ("target/debug/build/x/out/y.rs", violation),
    ] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut blamed: Vec<String> = judge(&super::sources(root.path()), "")
        .into_iter()
        .map(|problem| problem.split_once(':').unwrap().0.to_owned())
        .collect();
    blamed.sort();
    assert_eq!(
        blamed,
        [
            "crates/a/build.rs",
            "crates/a/examples/e.rs",
            "crates/a/src/deep/real.rs",
            "crates/a/src/lib.rs",
            "operators/mcp/src/main.rs",
            "xtask/src/main.rs",
        ]
    );
}
