//! `exuvia demo`: starts a real control plane on this machine, and tells a story on it.

mod datastore;
mod storage;
mod writers;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use exuvia_testenv::ControlPlane;
use exuvia_testenv::assets::Assets;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{DemoArgs, DemoStory};
use super::output::{remark, say};
use crate::build_progress;

/// Ends early, with everything it started, on Ctrl-C and on SIGTERM.
pub(super) fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    let code = runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            told = tell(args) => told.map(|()| ExitCode::SUCCESS),
            _ = tokio::signal::ctrl_c() => {
                remark("interrupted: the control plane is stopped and its files are deleted");
                Ok(ExitCode::from(130))
            }
            _ = terminated.recv() => {
                remark("stopped by SIGTERM: the control plane is stopped and its files are deleted");
                Ok(ExitCode::from(143))
            }
        }
    });
    // A build that was cut off ends with this process, so its thread need not be waited for.
    runtime.shutdown_background();
    code
}

async fn tell(args: DemoArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut builder =
        ControlPlane::builder().assets(Assets::from_env()?.report_to(build_progress::on_terminal()));
    if let Some(port) = args.port {
        builder = builder.port(port);
    }
    let control_plane = builder.start().await?;
    let version = control_plane.client()?.apiserver_version().await?.git_version;
    done(&format!(
        "A real control plane is up on {} (Kubernetes {version}, etcd), after {:.1} s",
        control_plane.apiserver().url(),
        started.elapsed().as_secs_f64()
    ));
    let group = match args.story {
        DemoStory::Storage => {
            storage::tell(&args, &control_plane).await?;
            storage::GROUP
        }
        DemoStory::Datastore => {
            datastore::tell(&args, &control_plane).await?;
            datastore::NEW
        }
    };
    if args.keep {
        let kubeconfig = control_plane.admin().kubeconfig()?;
        say(&format!(
            "\nThe control plane stays up until Ctrl-C. In another terminal, with your own kubectl:\n\n    \
             export KUBECONFIG={}\n    kubectl get widgets.{group}\n    exuvia storage audit --etcd-endpoint {}\n\n",
            kubeconfig.display(),
            control_plane.etcd().endpoint()
        ))?;
        std::future::pending::<()>().await;
    }
    Ok(())
}

fn done(what: &str) {
    let mark = if std::io::stdout().is_terminal() {
        "\x1b[32m✔\x1b[0m"
    } else {
        "✔"
    };
    let _ = say(&format!("{mark} {what}\n")); // a closed pipe is fine
}
