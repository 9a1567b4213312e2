//! The control plane on which contestants meet, and the contests.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::bail;
use exuvia_testenv::proxy::{Answer, Fault, Match, Proxy, Rule};
use exuvia_testenv::webhook::{Endpoint, WebhookServer};
use exuvia_testenv::{ControlPlane, Widgets};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::bystander::Bystander;
use crate::contestants::{Contestant, Run};
use crate::measured::Measured;

/// With more connections a bare client gets no more done on two cores; see the caps in bench/README.md.
pub(crate) const CONNECTIONS: usize = 32;
const OBJECT_BYTES: usize = 2_000; // of payload; with metadata about 2.5 kB

pub(crate) struct Arena {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    webhooks: WebhookServer,
    rounds: AtomicUsize,
    /// The bystander's 99th percentile in milliseconds on an idle cluster, before there is any object.
    at_rest: f64,
}

impl Arena {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let controllers = [
            "storage-version-migrator-controller",
            "garbage-collector-controller",
        ];
        let control_plane = ControlPlane::builder().controllers(controllers).start().await?;
        let at_rest = Bystander::at_rest(control_plane.client()?).await;
        Self::on(control_plane, at_rest).await
    }

    /// Nobody else writes here, so that every revision of etcd is the migration's.
    pub(crate) async fn without_rivals() -> anyhow::Result<Self> {
        Self::on(ControlPlane::builder().start().await?, 0.0).await
    }

    async fn on(control_plane: ControlPlane, at_rest: f64) -> anyhow::Result<Self> {
        let client = control_plane.client()?;
        let webhooks = control_plane.webhooks().await?;
        webhooks.delay(Endpoint::Validate, Duration::from_millis(10));
        Ok(Self {
            control_plane,
            client,
            webhooks,
            rounds: AtomicUsize::new(0),
            at_rest,
        })
    }

    /// A validating webhook that takes 10 ms, for every update of a widget.
    pub(crate) async fn add_slow_webhook(&self) -> anyhow::Result<()> {
        let configuration = serde_json::from_value(json!({
            "metadata": {"name": "slow"},
            "webhooks": [{
                "name": "slow.example.com",
                "clientConfig": self.webhooks.client_config(Endpoint::Validate),
                "rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["widgets"], "operations": ["UPDATE"]}],
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            }],
        }))?;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &configuration).await?;
        tokio::time::sleep(Duration::from_secs(2)).await; // the server's informer
        Ok(())
    }

    pub(crate) async fn remove_slow_webhook(&self) -> anyhow::Result<()> {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        api.delete("slow", &DeleteParams::default()).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    pub(crate) async fn run(
        &self,
        contestant: Contestant,
        objects: usize,
        exuvia: &Path,
        contest: &'static str,
    ) -> anyhow::Result<Measured> {
        let widgets = self.flipped(objects).await?;
        let run = |verify: &str| -> anyhow::Result<Run<'_>> {
            Ok(Run {
                program: exuvia,
                kubeconfig: self.control_plane.admin().kubeconfig()?,
                args: vec![widgets.crd_name(), "--verify".into(), verify.into()],
                settle: Duration::ZERO, // waiting for servers is not counted
            })
        };
        let contest_of = async || -> anyhow::Result<Measured> {
            Ok(match contestant {
                Contestant::Bare => self.bare(&widgets).await?,
                Contestant::InTree => self.in_tree(&widgets).await?,
                Contestant::Proof => Measured {
                    contestant: "proof",
                    ..self.exuvia(run("proof")?).await?.0
                },
                Contestant::Full => Measured {
                    contestant: "full",
                    ..self.exuvia(run("full")?).await?.0
                },
            })
        };
        let measured = self.beside_a_bystander(objects, contest_of).await?;
        self.check_and_remove(&widgets, objects).await?;
        Ok(measured.shown(contest))
    }

    /// With at most so many objects in work at once: what that costs, and what a bystander has of it.
    pub(crate) async fn run_capped(
        &self,
        cap: usize,
        objects: usize,
        exuvia: &Path,
    ) -> anyhow::Result<Measured> {
        let widgets = self.flipped(objects).await?;
        let run = || -> anyhow::Result<Run<'_>> {
            Ok(Run {
                program: exuvia,
                kubeconfig: self.control_plane.admin().kubeconfig()?,
                args: vec![widgets.crd_name(), "--max-concurrency".into(), cap.to_string()],
                settle: Duration::ZERO,
            })
        };
        let capped = async || -> anyhow::Result<Measured> {
            Ok(Measured {
                contestant: "capped",
                ..self.exuvia(run()?).await?.0
            })
        };
        let measured = self.beside_a_bystander(objects, capped).await?;
        self.check_and_remove(&widgets, objects).await?;
        Ok(measured.shown("caps"))
    }

    /// Many CRDs of a few objects each by one command, which settle together: the wait is counted.
    pub(crate) async fn run_fleet(
        &self,
        crds: usize,
        objects: usize,
        exuvia: &Path,
        settle: Duration,
    ) -> anyhow::Result<Measured> {
        let fleet: Vec<Widgets> = (0..crds)
            .map(|index| Widgets::in_group(format!("c{index}.fleet.example.com")))
            .collect();
        futures::stream::iter(&fleet)
            .map(|widgets| self.fill(widgets, objects))
            .buffer_unordered(4)
            .try_collect::<()>()
            .await?;
        let flips = fleet
            .iter()
            .map(|widgets| widgets.flip_storage(&self.client, "v1"));
        futures::future::try_join_all(flips).await?;
        let run = || -> anyhow::Result<Run<'_>> {
            Ok(Run {
                program: exuvia,
                kubeconfig: self.control_plane.admin().kubeconfig()?,
                args: ["--all", "--groups", "fleet.example.com"]
                    .map(str::to_owned)
                    .into(),
                settle,
            })
        };
        let all = async || -> anyhow::Result<Measured> {
            let (measured, reports) = self.exuvia(run()?).await?;
            if reports.len() != crds {
                bail!("{} of {crds} CRDs were migrated", reports.len());
            }
            Ok(Measured {
                contestant: "--all",
                crds: Some(crds),
                ..measured
            })
        };
        let measured = self.beside_a_bystander(crds * objects, all).await?;
        for widgets in &fleet {
            self.check_and_remove(widgets, objects).await?;
        }
        Ok(measured.shown("fleet"))
    }

    /// Adds what etcd and somebody else noticed.
    async fn beside_a_bystander(
        &self,
        objects: usize,
        contest: impl AsyncFnOnce() -> anyhow::Result<Measured>,
    ) -> anyhow::Result<Measured> {
        let revision = self.control_plane.etcd().revision().await?;
        let bystander = Bystander::start(self.client.clone());
        let mut measured = contest().await?;
        let (during, writes) = bystander.stop().await;
        let revisions = self.control_plane.etcd().revision().await? - revision;
        measured.objects = objects;
        measured.bystander_p99_ms = (self.at_rest, during);
        #[allow(clippy::cast_precision_loss)]
        {
            measured.etcd_writes_per_object = (revisions as f64 - writes as f64) / objects as f64;
        }
        Ok(measured)
    }

    /// Through the recording proxy: requests and bytes per object; with `throttled`, every 20th write is answered 429.
    pub(crate) async fn run_on_the_wire(
        &self,
        objects: usize,
        exuvia: &Path,
        throttled: bool,
    ) -> anyhow::Result<Measured> {
        let widgets = self.flipped(objects).await?;
        let proxy: Proxy = self.control_plane.proxy().await?;
        if throttled {
            for nth in 1..=objects as u64 / 20 {
                let answer = Answer::status(429).retry_after(1);
                proxy.inject(
                    Rule::on(Match::writes())
                        .nth(nth * 20)
                        .then(Fault::Refuse(answer)),
                );
            }
        }
        let kubeconfig = self.control_plane.admin().clone().at(proxy.url()).kubeconfig()?;
        let run = Run {
            program: exuvia,
            kubeconfig,
            args: vec![widgets.crd_name()],
            settle: Duration::ZERO,
        };
        let (mut measured, _) = self.exuvia(run).await?;
        let requests = proxy.requests();
        #[allow(clippy::cast_precision_loss)]
        {
            let bytes: u64 = requests
                .iter()
                .map(|request| request.bytes_in + request.bytes_out)
                .sum();
            measured.requests_per_object = Some(requests.len() as f64 / objects as f64);
            measured.bytes_per_object = Some(bytes as f64 / objects as f64);
        }
        measured.objects = objects;
        self.check_and_remove(&widgets, objects).await?;
        Ok(measured.shown(if throttled { "throttled" } else { "wire" }))
    }

    /// A new group with this many objects at v1alpha1, and the storage version flipped.
    async fn flipped(&self, objects: usize) -> anyhow::Result<Widgets> {
        self.flipped_with(objects, |_| {}).await
    }

    /// The same with a changed CRD.
    pub(crate) async fn flipped_with(
        &self,
        objects: usize,
        change: impl FnOnce(&mut Value),
    ) -> anyhow::Result<Widgets> {
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        let widgets = Widgets::in_group(format!("round{round}.example.com"));
        let mut crd = widgets.crd("v1alpha1");
        change(&mut crd);
        widgets.install_crd(&self.client, crd).await?;
        self.create(&widgets, objects).await?;
        widgets.flip_storage(&self.client, "v1").await?;
        Ok(widgets)
    }

    /// Installs the CRD and makes this many objects at v1alpha1.
    async fn fill(&self, widgets: &Widgets, objects: usize) -> anyhow::Result<()> {
        widgets.install(&self.client, "v1alpha1").await?;
        self.create(widgets, objects).await
    }

    async fn create(&self, widgets: &Widgets, objects: usize) -> anyhow::Result<()> {
        let api = widgets.api(&self.client, "v1alpha1");
        let payload = "x".repeat(OBJECT_BYTES);
        futures::stream::iter(0..objects)
            .map(|index| {
                let mut widget = widgets.widget("v1alpha1", &format!("widget-{index:06}"));
                widget.data["spec"]["payload"] = json!(payload);
                let api = api.clone();
                async move { api.create(&PostParams::default(), &widget).await.map(drop) }
            })
            .buffer_unordered(CONNECTIONS)
            .try_collect::<()>()
            .await?;
        Ok(())
    }

    pub(crate) async fn check_and_remove(&self, widgets: &Widgets, objects: usize) -> anyhow::Result<()> {
        let counts = self
            .control_plane
            .stored(widgets.group(), "widgets")
            .count_by_version()
            .await?;
        if counts.get(&format!("{}/v1", widgets.group())) != Some(&objects) {
            bail!("not all {objects} objects are stored at v1: {counts:?}");
        }
        let crds: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        crds.delete(&widgets.crd_name(), &DeleteParams::default()).await?;
        while crds.get_opt(&widgets.crd_name()).await?.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}
