//! API servers on hosts of different names, and the identity Leases by which a cluster knows them (PITFALLS A40).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};

use crate::Error;
use crate::apiserver::ApiServer;
use crate::builder::free_port;
use crate::control_plane::ControlPlane;

/// Ways to get another host name: as root, and as any user where user namespaces are allowed.
const WAYS: [&[&str]; 2] = [&["--uts"], &["--user", "--map-root-user", "--uts"]];

/// Sets the host name and becomes the program, so that the process that is signalled is the program itself. A container's
/// `/proc/sys` may be read-only, and a small image may lack `hostname`.
const RENAMED: &str =
    r#"{ hostname "$0" || echo "$0" >/proc/sys/kernel/hostname; } 2>/dev/null && exec "$@""#;

/// Longer than a server needs on two busy cores.
const PATIENCE: Duration = crate::DEADLINE;

impl ControlPlane {
    /// One more API server on the same etcd, on a host called `host`: it has its own identity Lease, which is there
    /// when this returns. It ends when it is dropped.
    ///
    /// Servers of one host share a Lease: [`another_apiserver`](Self::another_apiserver) adds none.
    pub async fn another_apiserver_on_host(&self, host: &str) -> Result<ApiServer, Error> {
        let port = free_port()?;
        let command = self.apiserver_command.on_host(host);
        let name = format!("kube-apiserver-{host}-{port}");
        let server = ApiServer::start(&command, self.admin(), &name, port).await?;
        hosts_when(self.client()?, |hosts| hosts.iter().any(|known| known == host)).await?;
        Ok(server)
    }

    /// The identity Leases of its API servers; that of a stopped server stays for an hour.
    pub async fn identity_leases(&self) -> Result<Vec<Lease>, Error> {
        let leases: Api<Lease> = Api::namespaced(self.client()?, "kube-system");
        identity_leases(&leases).await
    }
}

async fn identity_leases(leases: &Api<Lease>) -> Result<Vec<Lease>, Error> {
    let servers = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    Ok(leases.list(&servers).await?.items)
}

/// Waits until the hosts that have an identity Lease are as wanted. A controller of the server's own makes the Lease, and
/// readiness does not wait for it.
pub(crate) async fn hosts_when(client: Client, wanted: impl Fn(&[String]) -> bool) -> Result<(), Error> {
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    let asking = async {
        loop {
            let hosts: Vec<String> = identity_leases(&leases)
                .await?
                .iter()
                .filter_map(|lease| lease.labels().get("kubernetes.io/hostname").cloned())
                .collect();
            if wanted(&hosts) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let answer = tokio::time::timeout(PATIENCE, asking).await;
    answer.unwrap_or(Err(Error::NoIdentityLease))
}

/// `program` with `args` on a host of this name: what to run, and with which arguments.
pub(crate) fn renamed(
    host: &str,
    program: &Path,
    args: Vec<OsString>,
) -> Result<(PathBuf, Vec<OsString>), Error> {
    static WAY: OnceLock<Option<&[&str]>> = OnceLock::new();
    let works = |way: &&&[&str]| {
        let mut command = Command::new("unshare");
        command.args(**way).arg("true");
        let silent = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        silent.status().is_ok_and(|status| status.success())
    };
    let way = WAY.get_or_init(|| WAYS.iter().find(works).copied());
    let way = way.ok_or(Error::NoHostNames)?;
    let mut all: Vec<OsString> = way.iter().map(Into::into).collect();
    all.extend(["/bin/sh", "-c", RENAMED, host].map(Into::into));
    all.push(program.into());
    all.extend(args);
    Ok(("unshare".into(), all))
}
