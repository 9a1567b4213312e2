//! Starts a control plane: picks ports, writes keys, builds each process's arguments, waits until it is ready.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::access::{Access, Credential, write_private};
use crate::apiserver::{ApiServer, ApiServerCommand};
use crate::assets::{Assets, Binary};
use crate::audit::{self, AuditLog};
use crate::certs::Authority;
use crate::control_plane::ControlPlane;
use crate::etcd::Etcd;
use crate::nodes::Exceptions;
use crate::process::{CommandLine, Janitor, Process};

/// What to start. `ControlPlane::builder().start()` is etcd and kube-apiserver, nothing else.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    assets: Option<Assets>,
    port: Option<u16>,
    etcd_flags: Vec<String>,
    etcd_client_certificates: bool,
    etcd_prefix: Option<String>,
    apiserver_flags: Vec<String>,
    encryption: Option<String>,
    controllers: Vec<String>,
    controller_manager_flags: Vec<String>,
    scheduler: bool,
    kwok: bool,
    pub(crate) exceptions: Exceptions,
}

impl Builder {
    /// Where the binaries come from, instead of what the environment says.
    #[must_use]
    pub fn assets(mut self, assets: Assets) -> Self {
        self.assets = Some(assets);
        self
    }

    /// The API server's port, instead of a free one.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// One more argument for etcd.
    #[must_use]
    pub fn etcd_flag(mut self, flag: impl Into<String>) -> Self {
        self.etcd_flags.push(flag.into());
        self
    }

    /// etcd speaks TLS and wants client certificates, as on most real control planes.
    #[must_use]
    pub fn etcd_client_certificates(mut self) -> Self {
        self.etcd_client_certificates = true;
        self
    }

    /// Keeps everything below another key than `/registry`.
    #[must_use]
    pub fn etcd_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.etcd_prefix = Some(prefix.into());
        self
    }

    /// One more argument for kube-apiserver, such as `--etcd-compaction-interval=10s`.
    #[must_use]
    pub fn apiserver_flag(mut self, flag: impl Into<String>) -> Self {
        self.apiserver_flags.push(flag.into());
        self
    }

    /// Serves only some built-in APIs: core, events, networking, and those for CRDs, policies, rights and Leases. That makes 38
    /// resources that can be listed, instead of 64. It takes less processor time to start, and a look at everything in the cluster is shorter.
    #[must_use]
    pub fn few_apis(mut self) -> Self {
        let served = FEW_APIS.map(|api| format!("{api}=true")).join(",");
        self.apiserver_flags.extend([
            format!("--runtime-config=api/all=false,{served}"),
            // These watch resources that are not served, and would keep everything waiting.
            "--disable-admission-plugins=Priority,RuntimeClass,DefaultIngressClass,DefaultStorageClass,\
             PersistentVolumeClaimResize,StorageObjectInUseProtection,PodTopologyLabels"
                .to_owned(),
        ]);
        self
    }

    /// Encrypts at rest: the text of an `EncryptionConfiguration`. Rewrite [`ENCRYPTION_FILE`] in the control plane's
    /// directory and restart the API server to rotate keys.
    #[must_use]
    pub fn encryption(mut self, configuration: impl Into<String>) -> Self {
        self.encryption = Some(configuration.into());
        self
    }

    /// Starts kube-controller-manager with these controllers, such as `garbage-collector-controller`.
    #[must_use]
    pub fn controllers<S: Into<String>>(mut self, controllers: impl IntoIterator<Item = S>) -> Self {
        self.controllers.extend(controllers.into_iter().map(Into::into));
        self
    }

    /// One more argument for kube-controller-manager.
    #[must_use]
    pub fn controller_manager_flag(mut self, flag: impl Into<String>) -> Self {
        self.controller_manager_flags.push(flag.into());
        self
    }

    /// Starts kube-scheduler and kwok: nodes that exist only as objects run pods that exist only as objects, so that
    /// roll-outs really happen. Make the nodes with [`ControlPlane::add_nodes`].
    #[must_use]
    pub fn fake_nodes(mut self) -> Self {
        self.scheduler = true;
        self.kwok = true;
        self
    }

    /// Finds or builds the binaries, starts everything and waits until it is ready (about 3 s).
    pub async fn start(self) -> Result<ControlPlane, Error> {
        let this = self.clone();
        let programs = tokio::task::spawn_blocking(move || this.programs())
            .await
            .map_err(|e| Error::Client(e.into()))??;
        if let Some(port) = self.port {
            drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|_| Error::PortInUse { port })?);
        }
        // Between our asking for a free port and the server's taking it, somebody else may: then once more.
        for _ in 0..3 {
            match self.start_once(&programs).await {
                Err(Error::NotUp { tail, .. }) if tail.contains("address already in use") => {}
                started => return started,
            }
        }
        self.start_once(&programs).await
    }

    fn programs(&self) -> Result<Programs, Error> {
        let assets = match &self.assets {
            Some(assets) => assets.clone(),
            None => Assets::from_env()?,
        };
        let if_wanted = |wanted: bool, binary| wanted.then(|| assets.find(binary)).transpose();
        Ok(Programs {
            etcd: assets.find(Binary::Etcd)?,
            apiserver: assets.find(Binary::KubeApiserver)?,
            controller_manager: if_wanted(!self.controllers.is_empty(), Binary::KubeControllerManager)?,
            scheduler: if_wanted(self.scheduler, Binary::KubeScheduler)?,
            kwok: if_wanted(self.kwok, Binary::Kwok)?,
            assets,
        })
    }

    async fn start_once(&self, programs: &Programs) -> Result<ControlPlane, Error> {
        let directory = tempfile::Builder::new()
            .prefix("exuvia-testenv-")
            .tempdir()
            .map_err(Error::file("create a directory in", std::env::temp_dir()))?;
        let janitor = Janitor::watch(directory.path())?;
        let authority = Authority::new()?;
        let admin = Access {
            user: "admin".to_owned(),
            url: String::new(),
            ca_pem: authority.ca_pem().to_owned(),
            credential: Credential::Certificate(authority.client("admin", &["system:masters"])?),
            directory: directory.path().to_owned(),
        };
        let files = Files::write(directory.path(), &authority, self.encryption.as_deref())?;

        let etcd = self.start_etcd(&programs.etcd, &files, &authority)?;
        let apiserver_command = ApiServerCommand {
            program: programs.apiserver.clone(),
            args: self.apiserver_args(&etcd, &files),
            host: None,
        };
        let port = self.port.map_or_else(free_port, Ok)?;
        // Nothing waits for etcd here: the API server does, and reports it if etcd never comes up.
        let apiserver = match ApiServer::start(&apiserver_command, &admin, "kube-apiserver", port).await {
            Err(_) if etcd.process.exit_code().is_some() => return Err(etcd_ended(&etcd)),
            started => started?,
        };
        // Who counts identity Leases right away must not find none.
        let without = |flag: &String| flag.contains("APIServerIdentity=false");
        if !self.apiserver_flags.iter().any(without) {
            crate::identity::hosts_when(apiserver.client()?, |hosts| !hosts.is_empty()).await?;
        }

        let client_of = |user: &str| -> Result<String, Error> {
            let pair = authority.client(user, &["system:masters"])?;
            let credential = Credential::Certificate(pair);
            let access = Access {
                user: user.to_owned(),
                credential,
                ..apiserver.admin().clone()
            };
            Ok(access.kubeconfig()?.display().to_string())
        };
        let start = |name: &'static str, program: &Option<PathBuf>, args: Vec<String>| {
            let Some(program) = program else { return Ok(None) };
            let log = directory.path().join(format!("{name}.log"));
            let args = args.into_iter().map(Into::into).collect();
            Process::start(CommandLine {
                name,
                program: program.clone(),
                args,
                log,
            })
            .map(Some)
        };
        let controller_manager = start(
            "kube-controller-manager",
            &programs.controller_manager,
            self.controller_manager_args(&client_of("system:kube-controller-manager")?, &files),
        )?;
        let scheduler = start(
            "kube-scheduler",
            &programs.scheduler,
            vec![
                format!("--kubeconfig={}", client_of("system:kube-scheduler")?),
                "--leader-elect=false".into(),
                "--secure-port=0".into(),
            ],
        )?;
        let kwok = start(
            "kwok",
            &programs.kwok,
            crate::nodes::kwok_args(&client_of("kwok")?, directory.path(), &self.exceptions)?,
        )?;
        Ok(ControlPlane {
            controller_manager,
            scheduler,
            kwok,
            apiserver,
            etcd,
            apiserver_command,
            authority,
            audit: AuditLog {
                directory: directory.path().to_owned(),
            },
            assets: programs.assets.clone(),
            directory,
            _janitor: janitor,
        })
    }

    fn start_etcd(&self, program: &Path, files: &Files, authority: &Authority) -> Result<Etcd, Error> {
        let scheme = if self.etcd_client_certificates {
            "https"
        } else {
            "http"
        };
        let endpoint = format!("{scheme}://127.0.0.1:{}", free_port()?);
        let peer = format!("http://127.0.0.1:{}", free_port()?);
        let mut args = vec![
            format!("--data-dir={}", files.directory.join("etcd").display()),
            format!("--listen-client-urls={endpoint}"),
            format!("--advertise-client-urls={endpoint}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let identity = if self.etcd_client_certificates {
            args.extend([
                format!("--cert-file={}", files.path("server.crt")),
                format!("--key-file={}", files.path("server.key")),
                format!("--trusted-ca-file={}", files.path("ca.crt")),
                "--client-cert-auth".to_owned(),
            ]);
            Some(authority.client("etcd-client", &[])?)
        } else {
            None
        };
        if let Some(pair) = &identity {
            write_private(&files.directory.join("etcd-client.crt"), &pair.cert_pem)?;
            write_private(&files.directory.join("etcd-client.key"), &pair.key_pem)?;
        }
        args.extend(self.etcd_flags.iter().cloned());
        let process = Process::start(CommandLine {
            name: "etcd",
            program: program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            log: files.directory.join("etcd.log"),
        })?;
        let prefix = self.etcd_prefix.clone().unwrap_or_else(|| "/registry".to_owned());
        Ok(Etcd {
            process,
            endpoint,
            ca_pem: authority.ca_pem().to_owned(),
            identity,
            prefix,
        })
    }

    fn apiserver_args(&self, etcd: &Etcd, files: &Files) -> Vec<String> {
        let mut args: Vec<String> = [
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1", // without it the server dies on a machine with no route
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition", // no controllers to undo them
            "--service-account-issuer=https://kubernetes.default.svc",
            "--endpoint-reconciler-type=none", // loopback addresses are refused in EndpointSlices
            "--allow-privileged=true",
            "--profiling=false",
        ]
        .map(str::to_owned)
        .into();
        args.extend([
            format!("--etcd-servers={}", etcd.endpoint),
            format!("--etcd-prefix={}", etcd.prefix),
            format!("--tls-cert-file={}", files.path("server.crt")),
            format!("--tls-private-key-file={}", files.path("server.key")),
            format!("--client-ca-file={}", files.path("ca.crt")),
            format!("--service-account-key-file={}", files.path("server.crt")),
            format!("--service-account-signing-key-file={}", files.path("server.key")),
            format!("--audit-policy-file={}", files.path("audit-policy.yaml")),
        ]);
        if etcd.identity.is_some() {
            args.extend([
                format!("--etcd-cafile={}", files.path("ca.crt")),
                format!("--etcd-certfile={}", files.path("etcd-client.crt")),
                format!("--etcd-keyfile={}", files.path("etcd-client.key")),
            ]);
        }
        if self.encryption.is_some() {
            args.push(format!(
                "--encryption-provider-config={}",
                files.path(ENCRYPTION_FILE)
            ));
        }
        args.extend(self.apiserver_flags.iter().cloned());
        args
    }

    fn controller_manager_args(&self, kubeconfig: &str, files: &Files) -> Vec<String> {
        let mut args = vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--controllers={}", self.controllers.join(",")),
            format!("--service-account-private-key-file={}", files.path("server.key")),
            format!("--root-ca-file={}", files.path("ca.crt")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        args.extend(self.controller_manager_flags.iter().cloned());
        args
    }
}

/// What [`Builder::few_apis`] serves. Without networking an API server ends: it cannot check the IP addresses of Services.
const FEW_APIS: [&str; 12] = [
    "api/v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apiregistration.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "coordination.k8s.io/v1",
    "discovery.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
];

/// The file in [`ControlPlane::directory`] that holds what [`Builder::encryption`] was given.
pub const ENCRYPTION_FILE: &str = "encryption.yaml";

struct Programs {
    etcd: PathBuf,
    apiserver: PathBuf,
    controller_manager: Option<PathBuf>,
    scheduler: Option<PathBuf>,
    kwok: Option<PathBuf>,
    /// Where they were found, for what is looked for later.
    assets: Assets,
}

/// The files that processes are pointed at.
struct Files {
    directory: PathBuf,
}

impl Files {
    fn write(directory: &Path, authority: &Authority, encryption: Option<&str>) -> Result<Self, Error> {
        let server = authority.server()?;
        let write = |name: &str, content: &str| write_private(&directory.join(name), content);
        write("ca.crt", authority.ca_pem())?;
        write("server.crt", &server.cert_pem)?;
        write("server.key", &server.key_pem)?; // also signs service-account tokens: one key fewer
        write("audit-policy.yaml", audit::POLICY)?;
        if let Some(configuration) = encryption {
            write(ENCRYPTION_FILE, configuration)?;
        }
        Ok(Self {
            directory: directory.to_owned(),
        })
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::NoPort)?;
    Ok(listener.local_addr().map_err(Error::NoPort)?.port())
}

fn etcd_ended(etcd: &Etcd) -> Error {
    Error::NotUp {
        process: "etcd",
        why: format!("ended with exit code {}", etcd.process.exit_code().unwrap_or(-1)),
        log: etcd.process.log_path().to_owned(),
        tail: etcd.process.log_tail(5),
    }
}
