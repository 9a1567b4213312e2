//! A control plane with Exuvia's CRDs, the real binary as its operator, and ways to look at both.

use exuvia_api::{OPT_IN_LABEL, Phase, StorageMigration, StorageMigrationSpec, StorageMigrationStatus};
use exuvia_testenv::{Access, ControlPlane, Process, Widgets};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) use exuvia_testenv::until;

pub(crate) use crate::shared::*;

/// The real binary, running as an operator.
pub(crate) struct Operator {
    pub(crate) process: Process,
}

/// Settings that make a test short; what a test gives comes after them and wins.
const SHORT: [&str; 6] = [
    // These tests are about storage migration, and do without the other one's CRD.
    "--enable-datastore-migration=false",
    "--listen=127.0.0.1:0",
    "--settle=200ms",
    "--lease-duration=1s",
    "--max-backoff=1s",
    "--groups=example.com",
];

/// For a test with one operator on a machine that others keep busy: with a short lease it would lose its leadership.
pub(crate) const LONG_LEASE: &str = "--lease-duration=30s";

impl Operator {
    /// Starts it as `access`, with [`SHORT`] settings and these on top. A flag that is given twice counts once.
    pub(crate) fn start(control_plane: &ControlPlane, access: &Access, name: &str, args: &[&str]) -> Self {
        Self::start_with(control_plane, access, name, &[], args)
    }

    /// As [`start`](Self::start), with these variables, `NAME=value`, in its environment.
    pub(crate) fn start_with(
        control_plane: &ControlPlane,
        access: &Access,
        name: &str,
        variables: &[&str],
        args: &[&str],
    ) -> Self {
        let log = control_plane.directory().join(format!("{name}.log"));
        let kubeconfig = access.kubeconfig().unwrap();
        let flag = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
        let given: Vec<String> = args.iter().map(|arg| flag(arg)).collect();
        let defaults = SHORT.iter().filter(|arg| !given.contains(&flag(arg)));
        let mut all: Vec<String> = variables.iter().map(|variable| (*variable).to_owned()).collect();
        all.extend([
            env!("CARGO_BIN_EXE_exuvia").to_owned(),
            "operator".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--pod-name={name}"),
        ]);
        all.extend(defaults.chain(args).map(|arg| (*arg).to_owned()));
        // It replaces itself by what it starts, so that the process is the operator's.
        let process = Process::run("exuvia", "/usr/bin/env", all, log).unwrap();
        Self { process }
    }

    /// Everything it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.process.log_path()).unwrap_or_default()
    }

    /// Waits until the log says so, and since when this was asked for: restarts write to the same file.
    pub(crate) async fn logs(&self, text: &str) {
        until(&format!("the operator logs {text:?}"), async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    /// Where it listens.
    async fn address(&self) -> String {
        until("the operator says where it listens", async || {
            let log = self.log();
            let line = log.lines().rfind(|line| line.contains("operator starts"))?;
            // As text or as JSON.
            let address = line.split("listen").nth(1)?.trim_start_matches(['=', '"', ':']);
            let end = address
                .find(|c: char| c.is_whitespace() || c == '"')
                .unwrap_or(address.len());
            Some(address[..end].to_owned())
        })
        .await
    }

    /// What it answers to a GET: code and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.ask("GET", path, "").await
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let address = self.address().await;
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (code, body.to_owned())
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn ready(&self) {
        until("the operator is ready", async || {
            (self.get("/readyz").await.0 == 200).then_some(())
        })
        .await;
    }
}

/// A control plane in which Exuvia's CRDs are installed.
pub(crate) async fn control_plane() -> ControlPlane {
    let control_plane = ControlPlane::builder().few_apis().start().await.unwrap();
    install_crds(&control_plane.client().unwrap()).await;
    control_plane
}

pub(crate) async fn install_crds(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &StorageMigration::crd())
        .await
        .unwrap();
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until("StorageMigrations are served", async || {
        migrations.list(&kube::api::ListParams::default()).await.ok()
    })
    .await;
}

/// Widgets with `count` objects, stored at v1alpha1 and flipped to v1; labelled if asked.
pub(crate) async fn flipped(client: &Client, group: &str, count: usize, labelled: bool) -> Widgets {
    let widgets = Widgets::flipped(client, group, count).await.unwrap();
    if labelled {
        label(client, &widgets, Some("true")).await;
    }
    widgets
}

/// Sets, or takes off, the label by which a CRD opts in.
pub(crate) async fn label(client: &Client, widgets: &Widgets, value: Option<&str>) {
    merge_crd(
        client,
        widgets,
        json!({"metadata": {"labels": {OPT_IN_LABEL: value}}}),
    )
    .await;
}

pub(crate) async fn merge_crd(client: &Client, widgets: &Widgets, patch: Value) {
    widgets.merge_crd(client, patch).await.unwrap();
}

pub(crate) async fn stored_versions(client: &Client, widgets: &Widgets) -> Vec<String> {
    widgets.stored_versions(client).await.unwrap()
}

/// Makes a `StorageMigration` by hand.
pub(crate) async fn by_hand(client: &Client, name: &str, spec: StorageMigrationSpec) -> StorageMigration {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let migration = StorageMigration::new(name, spec);
    migrations
        .create(&PostParams::default(), &migration)
        .await
        .unwrap()
}

/// The status of a migration, once it is as wanted.
pub(crate) async fn status_when(
    client: &Client,
    name: &str,
    what: &str,
    wanted: impl Fn(&StorageMigrationStatus) -> bool,
) -> StorageMigrationStatus {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    until(&format!("{name}: {what}"), async || {
        let migration = migrations.get_opt(name).await.ok().flatten();
        let status = migration.and_then(|migration| migration.status);
        status.clone().filter(&wanted).ok_or(status)
    })
    .await
}

/// The status of a migration, once it is in this phase.
pub(crate) async fn in_phase(client: &Client, name: &str, phase: Phase) -> StorageMigrationStatus {
    status_when(client, name, phase.as_str(), |status| status.phase == Some(phase)).await
}

/// How many objects etcd holds at each version.
pub(crate) async fn stored_at(
    control_plane: &ControlPlane,
    widgets: &Widgets,
) -> std::collections::BTreeMap<String, usize> {
    widgets.stored_at(control_plane).await.unwrap()
}

/// The names of all migrations.
pub(crate) async fn migration_names(client: &Client) -> Vec<String> {
    let migrations: Api<StorageMigration> = Api::all(client.clone());
    let all = migrations.list(&kube::api::ListParams::default()).await.unwrap();
    all.iter().map(ResourceExt::name_any).collect()
}
