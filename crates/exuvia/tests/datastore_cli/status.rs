//! `exuvia datastore status`: tables, bars, the freeze timer; and following one to its end.

use std::process::Command;

use exuvia_api::{DATASTORE_FINALIZER, OPERATOR_ANNOTATION};
use exuvia_testenv::until;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, Patch, PatchParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::binary::{self, json_of, printed, text};
use crate::terminal::AtTerminal;
use crate::world::World;

fn copying(frozen_for: i64) -> Value {
    let frozen_at = Timestamp::now() - SignedDuration::from_secs(frozen_for);
    json!({
        "phase": "Migrating", "step": "Copying", "message": "copying Widget", "frozenAt": frozen_at.to_string(),
        "progress": {
            "totalTypes": 1, "completedTypes": 0, "typeProgress": "0 / 1", "currentType": "Widget", "total": 3, "migrated": 1,
            "skipped": 0, "conflicts": 0, "types": [
                {"kind": "Widget", "mapping": "all", "total": 3, "migrated": 1, "skipped": 0, "conflicts": 0},
            ],
        },
    })
}

#[tokio::test]
async fn a_migration_that_nobody_looked_at_says_so_and_one_that_runs_shows_bars_and_a_timer() {
    let world = World::new("shown").await;
    world.create(world.manifest()).await;
    let said = text(&world.exuvia(&["status", "shown"]).await.stdout);
    assert!(said.contains("no operator has looked at it yet"), "{said}");
    world.set_status(copying(600)).await;
    let said = text(&world.exuvia(&["status", "shown"]).await.stdout);
    assert!(
        said.contains("Widget (all)  [=========>                    ] 1/3\n"),
        "{said}"
    );
    assert!(
        said.contains("frozen for 10m") && said.contains("left of 15m before everything is undone"),
        "{said}"
    );
    let all = text(&world.exuvia(&["status"]).await.stdout);
    let row = all.lines().find(|line| line.starts_with("shown ")).unwrap();
    assert!(
        row.contains("Migrating/Copying") && row.contains("0 / 1") && row.contains("10m"),
        "{all}"
    );
    let answer = json_of(&world.exuvia(&["status", "shown", "-o", "json"]).await);
    assert_eq!(
        (&answer["name"], &answer["status"]["phase"]),
        (&json!("shown"), &json!("Migrating"))
    );
    // One that is not there: which one is meant?
    let output = world.exuvia(&["status", "showm"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        printed(&output),
        "error: DatastoreMigration \"showm\" not found: did you mean shown?\n"
    );
}

/// Whether somebody will carry it out shows in the Lease of the operator, by the server's clock.
#[tokio::test]
async fn where_no_operator_runs_status_and_abort_say_so() {
    let world = World::new("alone").await;
    let mut manifest = world.manifest();
    manifest["metadata"]["annotations"] = json!({OPERATOR_ANNOTATION: "default/alone"});
    manifest["metadata"]["finalizers"] = json!([DATASTORE_FINALIZER]);
    world.create(manifest).await;
    world.set_status(copying(5)).await;
    let status = async |args: &[&str]| {
        let output = world.exuvia(&[&["status", "alone"], args].concat()).await;
        assert!(output.status.success(), "{}", printed(&output));
        text(&output.stdout)
    };
    let said = status(&[]).await;
    assert!(
        said.contains(
            "the Lease default/alone does not exist, so no operator holds it: nothing will happen until one runs"
        ) && said.contains("`kubectl annotate datastoremigration alone exuvia.dev/operator-`"),
        "{said}"
    );
    // One that nobody holds, with a time from a clock that is wrong.
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "default");
    let mut lease: Lease = serde_json::from_value(json!({
        "metadata": {"name": "alone"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 3600, "renewTime": "2001-01-01T00:00:00.000000Z"},
    }))
    .unwrap();
    lease = leases.create(&PostParams::default(), &lease).await.unwrap();
    let said = status(&[]).await;
    assert!(
        said.contains("no operator holds the Lease default/alone since 20") && !said.contains("2001"),
        "{said}"
    );
    let output = world.exuvia(&["abort", "alone"]).await;
    let said = printed(&output);
    assert!(
        output.status.success() && said.contains("note: no operator holds the Lease default/alone since "),
        "{said}"
    );
    // A user who may not read it is not told more than is known.
    let reader = world.control_plane.user("alone-reader", &[]).unwrap();
    bind_reader(&world.client).await;
    let output = binary::exuvia(reader.kubeconfig().unwrap(), &["datastore", "status", "alone"]).await;
    let said = printed(&output);
    assert!(
        said.contains(
            "whether an operator runs is not known, because the Lease default/alone cannot be read"
        ),
        "{said}"
    );
    // Somebody holds it.
    lease.spec.as_mut().unwrap().holder_identity = Some("pod-1".to_owned());
    leases
        .replace("alone", &PostParams::default(), &lease)
        .await
        .unwrap();
    assert!(!status(&[]).await.contains("Lease"));
    let answer: Value = serde_json::from_str(&status(&["-o", "json"]).await).unwrap();
    assert_eq!(
        answer["operator"],
        json!({"lease": "default/alone", "state": "Running"})
    );
    // The one that is given is looked at.
    let said = status(&["--lease-namespace", "default", "--lease-name", "other"]).await;
    assert!(said.contains("the Lease default/other does not exist"), "{said}");
    let none = json!({"metadata": {"finalizers": null}});
    let (api, params) = (world.api(), PatchParams::default());
    api.patch("alone", &params, &Patch::Merge(none)).await.unwrap();
}

/// Lets that user read migrations.
async fn bind_reader(client: &kube::Client) {
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "alone-reader"},
        "rules": [{"apiGroups": ["exuvia.dev"], "resources": ["datastoremigrations"], "verbs": ["get", "list"]}],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "alone-reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "alone-reader"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "alone-reader"}],
    }))
    .unwrap();
    let params = PostParams::default();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.create(&params, &role).await.unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&params, &binding).await.unwrap();
}

#[tokio::test]
async fn a_watch_in_a_pipe_has_a_line_for_each_change_and_ends_with_the_migration() {
    for (name, end, code) in [("ends", "Complete", 0), ("fails", "Failed", 1)] {
        let world = World::new(name).await;
        world.create(world.manifest()).await;
        world.set_status(copying(1)).await;
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .args(["datastore", "status", name, "--watch", "--interval", "100ms"])
            .env("KUBECONFIG", world.kubeconfig())
            .stdout(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let read = || std::fs::read_to_string(log.path()).unwrap();
        until("it follows", async || !read().is_empty()).await;
        world
            .set_status(json!({"phase": end, "step": "", "message": "the end", "frozenAt": null}))
            .await;
        let ended = tokio::task::spawn_blocking(move || child.wait().unwrap())
            .await
            .unwrap();
        assert_eq!(ended.code(), Some(code), "{}", read());
        assert_eq!(
            read(),
            format!(
                "{name}: Migrating/Copying, 1 of 3 objects: copying Widget\n{name}: {end}, 1 of 3 objects: the end\n"
            )
        );
    }
}

#[tokio::test]
async fn a_watch_at_a_terminal_is_drawn_over_and_ctrl_c_is_fine() {
    let world = World::new("drawn").await;
    world.create(world.manifest()).await;
    world.set_status(copying(5)).await;
    let args = ["datastore", "status", "drawn", "--watch", "--interval", "100ms"];
    let watch = AtTerminal::start(world.kubeconfig(), 100, 30, &args);
    watch
        .until("it draws twice", |raw| raw.matches("frozen for ").count() > 1)
        .await;
    let pid = Pid::from_raw(watch.child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let (code, raw) = watch.end();
    assert_eq!(code, Some(0), "{raw}");
    assert!(raw.starts_with("\u{1b}[2J\u{1b}[H"), "{raw}");
    assert!(world.live().await.is_some());
}

#[tokio::test]
async fn a_watch_ends_when_the_migration_is_gone() {
    let world = World::new("gone").await;
    world.create(world.manifest()).await;
    let args = ["datastore", "status", "gone", "--watch", "--interval", "100ms"];
    let watch = AtTerminal::start(world.kubeconfig(), 100, 30, &args);
    watch.until("it draws", |raw| raw.contains("no operator")).await;
    let delete = world.api();
    delete
        .delete("gone", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let (code, raw) = watch.end();
    assert_eq!(code, Some(0), "{raw}");
    assert!(raw.contains("gone is gone"), "{raw}");
}
