//! A small operator: it marks every widget of namespace `default`, and only the leader writes.
//!
//!     cargo run -p exuvia-runtime --example operator
//!
//! It waits until the CRD `widgets.operator.example.com` is installed. Ctrl-C ends it.

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use exuvia_runtime::{
    Claim, Controller, Health, LeaseSettings, LogFormat, LogLevel, Metrics, Next, Queue, Runtime,
    RuntimeSettings, Seen, Signal, Synced, bind, elect, follow, serve, start_logging,
};
use exuvia_write::Writer;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, Config, ResourceExt};
use tokio::sync::watch;

/// What every widget gets.
pub(crate) const MARK: &str = "operator.example.com/marked";

#[tokio::main]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref()),
    }
}

/// Prints the error with its causes, each once: some errors repeat what is below them.
fn fail(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

async fn start() -> Result<(), Box<dyn Error>> {
    let log_level = start_logging(LogFormat::Text, "info")?;
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    run(Config::infer().await?, "[::]:8080", log_level, ctrl_c).await
}

struct Marker {
    api: Api<DynamicObject>,
    writer: Writer,
    metrics: Metrics,
}

impl Controller for Marker {
    type Error = exuvia_write::Error;

    fn name(&self) -> &'static str {
        "marker"
    }

    fn crd(&self) -> &'static str {
        "widgets.operator.example.com"
    }

    async fn watch(&self, queue: Queue, synced: Synced) {
        let all = ListParams::default();
        follow(
            self.api.clone(),
            all,
            &self.metrics,
            self.crd(),
            |seen| match seen {
                Seen::Applied(widget) => queue.add(widget.name_any()),
                Seen::Synced => synced.done(),
                Seen::Deleted(_) => {}
            },
        )
        .await;
    }

    fn forget(&self) {} // it remembers nothing between two reconciles

    async fn reconcile(&self, key: &str, _: Signal) -> Result<Next, Self::Error> {
        let Ok(widget) = self.api.get(key).await else {
            return Ok(Next::Retry);
        };
        // Only what changed is sent, and nothing if the mark is there already.
        let mark = |widget: &mut DynamicObject| {
            widget.annotations_mut().insert(MARK.to_owned(), "yes".to_owned());
        };
        self.writer.patch(&self.api, &widget, mark).await?;
        Ok(Next::Await)
    }
}

/// Runs the operator until `stop`. `listen` is the address of `/livez`, `/readyz` and `/metrics`.
pub(crate) async fn run(
    config: Config,
    listen: &str,
    log_level: LogLevel,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Box<dyn Error>> {
    let (health, metrics, claim) = (Health::new(), Metrics::new("0.1.0"), Claim::none());
    metrics.observe_claim("widget-operator", &claim);
    let elector = Writer::named("widget-operator").observe(metrics.observe_writes());
    let writer = elector.clone().gate(claim.gate()); // no write without the lease
    let client = writer.connect(config)?;

    // It leaves in two steps: first the controllers drain, then the lease is given back and the HTTP server ends.
    let (leave, left) = watch::channel(false);
    let gone = |mut left: watch::Receiver<bool>| async move { drop(left.wait_for(|left| *left).await) };
    let listener = bind(listen).await?;
    let server = tokio::spawn(serve(
        listener,
        health.clone(),
        metrics.clone(),
        log_level,
        gone(left.clone()),
    ));
    let lease_settings = LeaseSettings {
        namespace: "default".to_owned(),
        name: "widget-operator".to_owned(),
        identity: format!("widget-operator_{}", std::process::id()),
        duration: Duration::from_secs(15),
    };
    let election = tokio::spawn(elect(
        client.clone(),
        elector,
        lease_settings,
        claim.clone(),
        gone(left),
    ));

    let settings = RuntimeSettings {
        concurrency: 4,
        max_backoff: Duration::from_secs(300),
        grace: Duration::from_secs(25),
    };
    let mut runtime = Runtime::new(client.clone(), claim, health, &metrics, settings);
    let widgets = ApiResource::from_gvk(&GroupVersionKind::gvk("operator.example.com", "v1", "Widget"));
    runtime.add(Marker {
        api: Api::namespaced_with(client, "default", &widgets),
        writer,
        metrics: metrics.clone(),
    }); // another controller is one more of these
    runtime.run(stop).await;

    leave.send(true)?;
    election.await?;
    server.await?;
    Ok(())
}
