//! A namespace that went away without its objects, as people do it to one that is stuck Terminating.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams};
use kube::{Client, ResourceExt};

use crate::Error;

/// Deletes a namespace and takes its finalizers off (`PUT …/finalize`), and waits until it is gone. Without a namespace
/// controller, or before it comes to it, the objects in it stay in etcd (PITFALLS A33).
pub async fn force_finalize_namespace(client: &Client, name: &str) -> Result<(), Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete(name, &DeleteParams::default()).await?;
    while let Some(mut namespace) = namespaces.get_opt(name).await? {
        if namespace.finalizers().is_empty()
            && namespace
                .spec
                .as_ref()
                .is_none_or(|spec| spec.finalizers.is_none())
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        namespace.spec = None;
        let params = PostParams::default();
        let finalized = namespaces.replace_subresource("finalize", name, &params, &namespace);
        match finalized.await {
            // Somebody else wrote it meanwhile, or was faster.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            done => drop(done?),
        }
    }
    Ok(())
}
