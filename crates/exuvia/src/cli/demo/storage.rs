//! `exuvia demo storage`: the story of a storage version flip, told by a real API server and by etcd's own bytes.

use std::time::Duration;

use anyhow::bail;
use exuvia_storage::{End, Engine, Options};
use exuvia_testenv::{ControlPlane, Widgets};
use exuvia_write::{Apply, Writer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::DynamicObject;
use kube::{Api, Client};

use super::done;
use crate::cli::args::DemoArgs;
use crate::cli::output::say;

pub(super) const GROUP: &str = "demo.exuvia.dev";

pub(super) async fn tell(args: &DemoArgs, control_plane: &ControlPlane) -> anyhow::Result<()> {
    let client = control_plane.client()?;
    let widgets = Widgets::in_group(GROUP);
    widgets.install(&client, "v1alpha1").await?;
    done(&format!(
        "The CRD {} is installed, with storage version v1alpha1",
        widgets.crd_name()
    ));
    widgets.create(&client, "v1alpha1", args.objects.into()).await?;
    done(&match args.objects {
        1 => "1 object is created".to_owned(),
        objects => format!("{objects} objects are created"),
    });
    widgets.flip_storage(&client, "v1").await?;
    done("The storage version is flipped to v1, as an operator's upgrade does");

    show_stored(control_plane, &client, &widgets).await?;
    let refusal = drop_old_version(&client, &widgets).await?;
    done("Dropping v1alpha1 from the CRD now is refused by the API server:");
    say(&format!("    {refusal}\n\n"))?;

    migrate(control_plane, &widgets).await?;
    show_stored(control_plane, &client, &widgets).await?;
    widgets.drop_version(&client, "v1alpha1").await?;
    done("v1alpha1 is dropped from the CRD, and the API server lets it go");
    apply(&client, &widgets).await?;
    done("Server-side apply to an object from before works, too");

    Ok(())
}

/// `exuvia storage migrate --patrol`, as a library call.
async fn migrate(control_plane: &ControlPlane, widgets: &Widgets) -> anyhow::Result<()> {
    let config = control_plane.admin().config()?;
    let writer = Writer::named("exuvia");
    let options = Options {
        // One server, on this machine, that has shown the flip already: no need for the 60 s that a cluster wants.
        settle: Duration::from_secs(2),
        api_servers: vec![control_plane.apiserver().url().parse()?],
        patrol: true,
        ..Options::default()
    };
    let client = writer.connect(config.clone())?;
    let mut engine = Engine::new(&config, client, writer, widgets.crd_name(), options).watched_by(
        crate::cli::bars::show(widgets.crd_name(), &indicatif::MultiProgress::new()),
    );
    let report = engine.run().await?;
    if report.end != End::Migrated {
        bail!("the migration did not end well: {:?}", report.end);
    }
    done("exuvia storage migrate --patrol:");
    say(&crate::cli::summary::Summary::of(report, engine.record()).text())
}

/// What breaks after the drop if managedFields still name the old version: HTTP 500, for any manager.
async fn apply(client: &Client, widgets: &Widgets) -> anyhow::Result<()> {
    let mut intent = DynamicObject::new("widget-0000", &widgets.resource("v1"));
    intent.data = serde_json::json!({"spec": {"size": 2}});
    let writer = Writer::named("demo");
    writer
        .apply(&widgets.api(client, "v1"), &intent, &Apply::default().force())
        .await?;
    Ok(())
}

/// Counts from etcd's bytes: the API cannot tell at which version an object is stored.
async fn show_stored(control_plane: &ControlPlane, client: &Client, widgets: &Widgets) -> anyhow::Result<()> {
    let counts = control_plane.stored(GROUP, "widgets").count_by_version().await?;
    let mut text = "\n    what etcd holds          objects\n".to_owned();
    for version in ["v1alpha1", "v1"] {
        let api_version = format!("{GROUP}/{version}");
        let count = counts.get(&api_version).copied().unwrap_or_default();
        text.push_str(&format!("    {api_version:<24} {count:>7}\n"));
    }
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let stored = crds
        .get(&widgets.crd_name())
        .await?
        .status
        .and_then(|status| status.stored_versions);
    say(&format!(
        "{text}    status.storedVersions    {}\n\n",
        stored.unwrap_or_default().join(", ")
    ))
}

/// Tries to drop v1alpha1 and returns what the server said to that.
async fn drop_old_version(client: &Client, widgets: &Widgets) -> anyhow::Result<String> {
    match widgets.drop_version(client, "v1alpha1").await {
        Err(exuvia_testenv::Error::Refused { message, .. }) => Ok(message),
        Err(error) => Err(error.into()),
        Ok(()) => bail!("the API server let v1alpha1 go although objects are stored at it"),
    }
}
