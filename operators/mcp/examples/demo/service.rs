//! The Service in front of the proxies: no kube-proxy runs here, so connections are passed on to a ready pod by this stand-in.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use mcp_operator::api::{PART_LABEL, PART_PROXY, SERVER_LABEL};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::kit::PROXY_PORT;
use crate::stage::wait;

/// Passes connections on until it is dropped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Service {
    pub(crate) async fn start(client: Client, namespace: &str, server: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("no free port on loopback")?;
        let address = listener.local_addr()?;
        let ready: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        tasks.spawn(follow(pods, server.to_owned(), Arc::clone(&ready)));
        wait("a proxy is behind the Service", async || {
            let is_empty = ready.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            Ok((!is_empty).then_some(()))
        })
        .await?;
        tasks.spawn(accept(listener, ready));
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }
}

/// Keeps the list of pods that are ready and not about to go.
async fn follow(pods: Api<Pod>, server: String, ready: Arc<Mutex<Vec<String>>>) {
    let which = ListParams::default().labels(&format!("{SERVER_LABEL}={server},{PART_LABEL}={PART_PROXY}"));
    loop {
        if let Ok(list) = pods.list(&which).await {
            let addresses = list.items.iter().filter_map(address).collect();
            *ready.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn address(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|fact| fact.type_ == "Ready" && fact.status == "True");
    let is_going = pod.metadata.deletion_timestamp.is_some();
    (is_ready && !is_going).then(|| format!("{}:{PROXY_PORT}", status.pod_ip.as_deref().unwrap_or_default()))
}

async fn accept(listener: TcpListener, ready: Arc<Mutex<Vec<String>>>) {
    let turn = AtomicUsize::new(0);
    let mut connections = JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            return;
        };
        let to = {
            let ready = ready.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = turn.fetch_add(1, Ordering::Relaxed);
            (!ready.is_empty()).then(|| ready[turn % ready.len()].clone())
        };
        connections.spawn(async move {
            let Some(to) = to else { return };
            let Ok(mut pod) = TcpStream::connect(to).await else {
                return;
            };
            let _ = tokio::io::copy_bidirectional(&mut client, &mut pod).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
