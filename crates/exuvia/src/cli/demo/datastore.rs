//! `exuvia demo datastore`: a group is renamed while clients read and write, and a second move is aborted.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::bail;
use exuvia_api::{DatastoreMigration, DatastorePhase, counted, datastore_condition};
use exuvia_testenv::{ControlPlane, Process, Widgets};
use exuvia_write::{Delete, Writer};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, CustomResourceExt};
use serde_json::json;

use super::done;
use super::writers::{Book, Clients};
use crate::cli::args::DemoArgs;
use crate::cli::datastore::status::detail;
use crate::cli::datastore::watch::line;
use crate::cli::output::say;
use crate::cli::table::screen_width;

const OLD: &str = "shop.demo.exuvia.dev";
pub(super) const NEW: &str = "store.demo.exuvia.dev";
const NEVER: &str = "market.demo.exuvia.dev";
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// A machine that is busy needs a while; only a demo that is broken needs this long.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) async fn tell(args: &DemoArgs, control_plane: &ControlPlane) -> anyhow::Result<()> {
    let client = control_plane.client()?;
    let writer = Writer::named("demo");
    let crds = Api::all(client.clone());
    writer.create(&crds, &DatastoreMigration::crd()).await?;
    let groups = [OLD, NEW, NEVER].map(Widgets::in_group);
    let [old, new, _] = &groups;
    for widgets in &groups {
        widgets.install(&client, "v1").await?;
    }
    old.create(&client, "v1", args.objects.into()).await?;
    done(&format!(
        "{OLD} has {}; {NEW} has the same kind, and is empty",
        counted(args.objects.into(), "object")
    ));
    let stage = Stage {
        control_plane,
        migrations: Api::all(client.clone()),
        client,
        writer,
    };
    let _operator = stage.start_operator()?;
    let clients = Clients::of(&stage.client, old, args.objects);
    done("The operator runs. Two clients write specs, one writes statuses, and one reads, all the time");

    stage.create("rename", OLD, NEW, false).await?;
    done("A DatastoreMigration asks to move the kind; this is `exuvia datastore status rename --watch`:");
    stage
        .follow("rename", |phase, _| phase == DatastorePhase::Complete)
        .await?;
    clients.use_group_of(new);
    stage.show_stored(&groups).await?;
    show_book(&clients.book())?;
    done(&format!(
        "The clients use {NEW} now, as after a roll-out; reads were served all the time"
    ));
    stage.delete("rename").await?;
    done("The DatastoreMigration is deleted, and with it the old kind (cleanup.source: DeleteCRDs)");
    stage.show_stored(&groups).await?;
    match clients.lost().await? {
        0 => done("Each object has the last write that was acknowledged: none is lost"),
        lost => bail!("{lost} objects lack a write that was acknowledged"),
    }

    let clients = Clients::of(&stage.client, new, args.objects);
    stage.create("second-thoughts", NEW, NEVER, true).await?;
    done("A second one moves the kind on, and is to wait before its commit (cutover.hold)");
    stage
        .follow("second-thoughts", |_, held| held == datastore_condition::VERIFIED)
        .await?;
    stage.show_stored(&groups).await?;
    stage.delete("second-thoughts").await?;
    done("It is deleted before the commit, which is `exuvia datastore abort`: everything is undone");
    stage.show_stored(&groups).await?;
    stage.writes_pass(&clients).await?;
    show_book(&clients.book())?;
    match clients.lost().await? {
        0 => done(&format!(
            "Writes to {NEW} pass again, and none that was acknowledged is lost"
        )),
        lost => bail!("{lost} objects lack a write that was acknowledged"),
    }
    Ok(())
}

struct Stage<'a> {
    control_plane: &'a ControlPlane,
    migrations: Api<DatastoreMigration>,
    client: Client,
    writer: Writer,
}

impl Stage<'_> {
    /// The operator of this very binary. It ends with the demo.
    fn start_operator(&self) -> anyhow::Result<Process> {
        let kubeconfig = self.control_plane.admin().kubeconfig()?;
        let mut args: Vec<OsString> = [
            "operator",
            "--enable-storage-migration=false",
            "--lease-namespace=default",
            "--listen=127.0.0.1:0",
            "--pod-name=demo",
            "--kubeconfig",
        ]
        .map(OsString::from)
        .into();
        args.push(kubeconfig.into());
        let log = self.control_plane.directory().join("operator.log");
        Ok(Process::run("operator", std::env::current_exe()?, args, log)?)
    }

    async fn create(&self, name: &str, from: &str, to: &str, hold: bool) -> anyhow::Result<()> {
        let migration = serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration", "metadata": {"name": name},
            "spec": {
                "mappings": [{
                    "name": "widgets", "status": "Copy",
                    "from": {"group": from, "version": "v1", "kinds": ["Widget"]},
                    "to": {"group": to, "version": "v1"},
                }],
                // No webhook slows writes down here, so none is under way for longer than this.
                "freeze": {"drain": "2s"},
                "cutover": {"hold": hold},
                "cleanup": {"source": "DeleteCRDs"},
            },
        }))?;
        self.writer.create(&self.migrations, &migration).await?;
        Ok(())
    }

    /// Shows bars until the migration is as wanted.
    async fn follow(
        &self,
        name: &str,
        is_there: impl Fn(DatastorePhase, &str) -> bool,
    ) -> anyhow::Result<()> {
        let mut drawn = Drawn::default();
        let following = async {
            loop {
                let migration = self.migrations.get(name).await?;
                drawn.show(&migration)?;
                let status = migration.status.clone().unwrap_or_default();
                let phase = status.phase.unwrap_or_default();
                if is_there(phase, &status.step) {
                    return anyhow::Ok(());
                }
                if phase == DatastorePhase::Failed {
                    bail!("the migration has failed: {}", status.message);
                }
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
        };
        self.in_time(following).await
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        let migration = self.migrations.get(name).await?;
        self.writer
            .delete(&self.migrations, &migration, &Delete::default())
            .await?;
        self.in_time(async {
            while self.migrations.get_opt(name).await?.is_some() {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            Ok(())
        })
        .await
    }

    /// A policy that is gone refuses for about a second more.
    async fn writes_pass(&self, clients: &Clients) -> anyhow::Result<()> {
        let before = clients.book().acknowledged;
        self.in_time(async {
            while clients.book().acknowledged == before {
                tokio::time::sleep(BETWEEN_LOOKS).await;
            }
            Ok(())
        })
        .await
    }

    async fn in_time(&self, what: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let log = self.control_plane.directory().join("operator.log");
        tokio::time::timeout(PATIENCE, what).await.unwrap_or_else(|_| {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            let last = log.lines().last().unwrap_or("nothing").to_owned();
            bail!("the migration makes no progress; the operator's last words: {last}")
        })
    }

    /// Counts from etcd's bytes.
    async fn show_stored(&self, groups: &[Widgets]) -> anyhow::Result<()> {
        let mut text = "\n    what etcd holds              objects\n".to_owned();
        for widgets in groups {
            let stored = self.control_plane.stored(widgets.group(), "widgets");
            let counts: BTreeMap<String, usize> = stored.count_by_version().await?;
            let count: usize = counts.values().sum();
            text.push_str(&format!("    {:<28} {count:>7}\n", widgets.group()));
        }
        say(&(text + "\n"))
    }
}

/// What was last drawn: a terminal is drawn over, a pipe gets a line for what changed.
#[derive(Default)]
struct Drawn {
    text: String,
}

impl Drawn {
    fn show(&mut self, migration: &DatastoreMigration) -> anyhow::Result<()> {
        let is_terminal = std::io::stdout().is_terminal();
        let (text, over) = if is_terminal {
            let text = detail(migration, Timestamp::now(), screen_width());
            let lines: Vec<String> = text.lines().map(|line| format!("    {line}\n")).collect();
            let over = match self.text.lines().count() {
                0 => String::new(),
                lines => format!("\x1b[{lines}F\x1b[J"),
            };
            (lines.concat(), over)
        } else {
            (format!("    {}\n", line(migration)), String::new())
        };
        if text == self.text {
            return Ok(());
        }
        say(&format!("{over}{text}"))?;
        self.text = text;
        Ok(())
    }
}

fn show_book(book: &Book) -> anyhow::Result<()> {
    say(&format!(
        "    writes acknowledged {:>6}\n    writes refused      {:>6}\n    reads failed        {:>6} of {}\n",
        book.acknowledged, book.refused, book.failed_reads, book.reads
    ))?;
    let refusal = book.refusal.as_deref().unwrap_or("none was refused");
    say(&format!("    the first refusal: {refusal}\n\n"))
}
