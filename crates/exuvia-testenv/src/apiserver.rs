//! kube-apiserver: its arguments, its readiness, and a second one on the same etcd.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;
use crate::access::Access;
use crate::http::HttpClient;
use crate::process::{CommandLine, Process};

/// A running kube-apiserver.
#[derive(Debug)]
pub struct ApiServer {
    process: Process,
    admin: Access,
    /// Readiness is asked over a separate connection.
    client: HttpClient,
}

/// What a kube-apiserver is started with.
#[derive(Clone, Debug)]
pub(crate) struct ApiServerCommand {
    pub(crate) program: PathBuf,
    /// Everything but the port.
    pub(crate) args: Vec<String>,
    /// The name of the host that it believes to be on, if it is to be another one than ours.
    pub(crate) host: Option<String>,
}

impl ApiServerCommand {
    /// The same on a host of another name.
    pub(crate) fn on_host(&self, host: &str) -> Self {
        Self {
            host: Some(host.to_owned()),
            ..self.clone()
        }
    }
}

impl ApiServer {
    pub(crate) async fn start(
        command: &ApiServerCommand,
        admin: &Access,
        log_name: &str,
        port: u16,
    ) -> Result<Self, Error> {
        let mut args = command.args.clone();
        args.push(format!("--secure-port={port}"));
        let audit = admin.directory.join(crate::audit::AuditLog::file_name(log_name));
        args.push(format!("--audit-log-path={}", audit.display()));
        let args = args.into_iter().map(Into::into).collect();
        let (program, args) = match &command.host {
            Some(host) => crate::identity::renamed(host, &command.program, args)?,
            None => (command.program.clone(), args),
        };
        let process = Process::start(CommandLine {
            name: "kube-apiserver",
            program,
            args,
            log: admin.directory.join(format!("{log_name}.log")),
        })?;
        let crate::Credential::Certificate(identity) = admin.credential() else {
            unreachable!("the administrator has a certificate")
        };
        let client = HttpClient::new(admin.ca_pem(), Some(identity))?;
        let server = Self {
            process,
            admin: admin.clone().at(format!("https://127.0.0.1:{port}")),
            client,
        };
        server.ready().await?;
        Ok(server)
    }

    /// The process, to pause, kill or restart; after a restart wait for [`ready`](Self::ready).
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The address, such as `https://127.0.0.1:34567`.
    pub fn url(&self) -> &str {
        self.admin.url()
    }

    /// The socket address.
    pub fn address(&self) -> std::net::SocketAddr {
        let port = self
            .url()
            .rsplit(':')
            .next()
            .and_then(|port| port.parse().ok())
            .unwrap_or_default();
        (std::net::Ipv4Addr::LOCALHOST, port).into()
    }

    /// The administrator of this very server.
    pub fn admin(&self) -> &Access {
        &self.admin
    }

    /// An administrator's client of this very server, for the current runtime.
    pub fn client(&self) -> Result<kube::Client, Error> {
        self.admin.client()
    }

    /// Waits until `/readyz` says ok.
    pub async fn ready(&self) -> Result<(), Error> {
        let url = format!("{}/readyz", self.url());
        wait_until_up(&self.process, async || {
            self.client
                .get(&url)
                .await
                .is_ok_and(|answer| answer.status().is_success())
        })
        .await
    }
}

/// Asks until the answer is yes; an error with the log's tail if the process ends or three minutes pass.
async fn wait_until_up(process: &Process, is_up: impl AsyncFn() -> bool) -> Result<(), Error> {
    const LIMIT: Duration = Duration::from_secs(180); // start-up takes 3 s; a busy machine may need twenty times that
    let failed = |why: String| Error::NotUp {
        process: process.name(),
        why,
        log: process.log_path().to_owned(),
        tail: process.log_tail(5),
    };
    let asking = async {
        loop {
            if let Some(code) = process.exit_code() {
                return Err(failed(format!("ended with exit code {code}")));
            }
            if is_up().await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, asking)
        .await
        .unwrap_or_else(|_| Err(failed(format!("was not ready after {} s", LIMIT.as_secs()))))
}
