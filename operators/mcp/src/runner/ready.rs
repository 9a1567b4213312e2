//! Waiting until the backend is ready.

use std::time::Duration;

use exuvia_write::{Delete, Writer};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::{Error, pods};
use crate::api::PART_BACKEND;
use crate::{naming, workload};

/// How often it is looked. A roll-out takes seconds at best, and a runner waits once.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Waits until every pod of the backend is new and ready; a pod that would never become so is deleted by its uid. A backend that is
/// gone, or being deleted, is not waited for.
pub(super) async fn wait(
    client: &Client,
    writer: &Writer,
    namespace: &str,
    server: &str,
    backend: &str,
) -> Result<(), Error> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let pods_of: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let which = ListParams::default().labels(&naming::selector(server, PART_BACKEND));
    loop {
        let set = match sets.get_opt(backend).await {
            Ok(Some(set)) if set.metadata.deletion_timestamp.is_none() => set,
            Ok(_) => return Ok(()),
            Err(error) => {
                tracing::warn!(error = %exuvia_write::brief(&error), "cannot read the backend");
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
        };
        if workload::is_stateful_set_ready(&set) {
            return Ok(());
        }
        if pods::may_be_stuck(&set) {
            let listed = pods_of
                .list(&which)
                .await
                .map(|list| list.items)
                .unwrap_or_default();
            for pod in listed.iter().filter(|pod| pods::is_stuck(&set, pod)) {
                tracing::info!(
                    pod = pod.name_any(),
                    "deleting a pod that is stuck on an old revision"
                );
                writer.delete(&pods_of, pod, &Delete::default()).await?;
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
