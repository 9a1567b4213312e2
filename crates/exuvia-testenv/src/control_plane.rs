//! The whole control plane: what it is started with, and what it hands out.

use std::path::Path;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::json;
use tempfile::TempDir;

use crate::Error;
use crate::access::{Access, Credential};
use crate::apiserver::{ApiServer, ApiServerCommand};
use crate::assets::Assets;
use crate::audit::AuditLog;
use crate::builder::{Builder, free_port};
use crate::certs::Authority;
use crate::etcd::{Etcd, StoredReader};
use crate::process::{Janitor, Process};
use crate::proxy::Proxy;
use crate::webhook::WebhookServer;

/// A running control plane. Everything ends when it is dropped, and when this process ends in any way.
#[derive(Debug)]
pub struct ControlPlane {
    // Fields are dropped from top to bottom: clients of the API server, it, its store, its files.
    pub(crate) controller_manager: Option<Process>,
    pub(crate) scheduler: Option<Process>,
    pub(crate) kwok: Option<Process>,
    pub(crate) apiserver: ApiServer,
    pub(crate) etcd: Etcd,
    pub(crate) apiserver_command: ApiServerCommand,
    pub(crate) authority: Authority,
    pub(crate) audit: AuditLog,
    /// Where helm is found.
    pub(crate) assets: Assets,
    pub(crate) directory: TempDir,
    pub(crate) _janitor: Janitor,
}

static SHARED: tokio::sync::OnceCell<ControlPlane> = tokio::sync::OnceCell::const_new();

impl ControlPlane {
    /// What to start, if a plain etcd and kube-apiserver are not enough.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// etcd and kube-apiserver, started on first use and shared by all tests of this process: keep apart by group
    /// and namespace names. It ends with the process.
    ///
    /// # Panics
    /// If it does not start: a test can do nothing else.
    pub async fn shared() -> &'static Self {
        match SHARED.get_or_try_init(|| Self::builder().start()).await {
            Ok(control_plane) => control_plane,
            Err(error) => panic!("{error}"),
        }
    }

    /// The administrator.
    pub fn admin(&self) -> &Access {
        self.apiserver.admin()
    }

    /// An administrator's client for the current runtime.
    pub fn client(&self) -> Result<kube::Client, Error> {
        self.admin().client()
    }

    /// A user with a certificate and no rights but those of `system:authenticated` and its groups.
    pub fn user(&self, name: &str, groups: &[&str]) -> Result<Access, Error> {
        let pair = self.authority.client(name, groups)?;
        Ok(Access {
            user: name.to_owned(),
            credential: Credential::Certificate(pair),
            ..self.admin().clone()
        })
    }

    /// A user with a certificate, bound to a `ClusterRole` made of exactly these rules (as in its `rules` list).
    pub async fn user_with_rules(&self, name: &str, rules: &serde_json::Value) -> Result<Access, Error> {
        let user = self.user(name, &[])?;
        self.bind(
            name,
            rules,
            json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}]),
        )
        .await?;
        Ok(user)
    }

    async fn bind(
        &self,
        name: &str,
        rules: &serde_json::Value,
        subjects: serde_json::Value,
    ) -> Result<(), Error> {
        use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
        let client = self.client()?;
        let parse = |e: serde_json::Error| Error::Client(e.into());
        let role: ClusterRole =
            serde_json::from_value(json!({"metadata": {"name": name}, "rules": rules})).map_err(parse)?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": subjects,
        }))
        .map_err(parse)?;
        Api::all(client.clone())
            .create(&PostParams::default(), &role)
            .await?;
        Api::all(client).create(&PostParams::default(), &binding).await?;
        Ok(())
    }

    /// A service account (made if it is not there) with a fresh token, good for an hour.
    pub async fn service_account(&self, namespace: &str, name: &str) -> Result<Access, Error> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client()?, namespace);
        if accounts.get_opt(name).await?.is_none() {
            let mut account = ServiceAccount::default();
            account.metadata.name = Some(name.to_owned());
            accounts.create(&PostParams::default(), &account).await?;
        }
        let request = TokenRequest::default();
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token).unwrap_or_default();
        Ok(Access {
            user: format!("system:serviceaccount:{namespace}:{name}"),
            credential: Credential::Token(token),
            ..self.admin().clone()
        })
    }

    /// The API server.
    pub fn apiserver(&self) -> &ApiServer {
        &self.apiserver
    }

    /// One more API server on the same etcd; it ends when it is dropped.
    pub async fn another_apiserver(&self) -> Result<ApiServer, Error> {
        let port = free_port()?;
        ApiServer::start(
            &self.apiserver_command,
            self.admin(),
            &format!("kube-apiserver-{port}"),
            port,
        )
        .await
    }

    /// A fault proxy in front of the API server; who asks it without a token is the administrator.
    pub async fn proxy(&self) -> Result<Proxy, Error> {
        self.proxy_as(self.admin()).await
    }

    /// A fault proxy in front of the API server; who asks it without a token is `user`.
    pub async fn proxy_as(&self, user: &Access) -> Result<Proxy, Error> {
        Proxy::start(
            &self.authority,
            self.apiserver.address(),
            user.credential().clone(),
        )
        .await
    }

    /// A webhook server that the API server trusts.
    pub async fn webhooks(&self) -> Result<WebhookServer, Error> {
        WebhookServer::start(&self.authority).await
    }

    /// etcd.
    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Custom resources as they lie in etcd.
    pub fn stored(&self, group: &str, plural: &str) -> StoredReader<'_> {
        self.etcd.stored(group, plural)
    }

    /// kube-controller-manager, if it was asked for.
    pub fn controller_manager(&self) -> Option<&Process> {
        self.controller_manager.as_ref()
    }

    /// kube-scheduler, if it was asked for.
    pub fn scheduler(&self) -> Option<&Process> {
        self.scheduler.as_ref()
    }

    /// kwok, if it was asked for.
    pub fn kwok(&self) -> Option<&Process> {
        self.kwok.as_ref()
    }

    /// The audit log of all its API servers.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// The authority that signs everybody's certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Where logs, keys and kubeconfigs lie; removed at the end.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}
