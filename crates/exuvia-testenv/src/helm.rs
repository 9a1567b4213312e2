//! The real helm: charts rendered, linted, and installed into a control plane.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tempfile::TempDir;

use crate::access::write_private;
use crate::assets::{Assets, Binary};
use crate::tool;
use crate::{Access, ControlPlane, Error};

/// helm 4 with a separate home directory: it uses no repository, plugin, cache or kubeconfig of the user.
///
/// What helm printed is the result of each call; if it ends with anything but 0, [`Error::ToolFailed`] holds what it
/// said. Paths are relative to this process's directory.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use exuvia_testenv::{ControlPlane, Helm};
///
/// let manifests = Helm::offline()?.template("charts/mine", "mine", "default", &["--set", "replicas=2"]).await?;
///
/// let helm = ControlPlane::shared().await.helm()?;
/// helm.install("charts/mine", "mine", "mine-system", &["--create-namespace"]).await?;
/// helm.uninstall("mine", "mine-system", &[]).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Helm {
    assets: Assets,
    /// Each has its own, so that tests that run at once do not meet.
    home: TempDir,
}

impl ControlPlane {
    /// helm as the administrator.
    pub fn helm(&self) -> Result<Helm, Error> {
        self.helm_as(self.admin())
    }

    /// helm as `user`.
    pub fn helm_as(&self, user: &Access) -> Result<Helm, Error> {
        let home = tempfile::Builder::new()
            .prefix("helm-")
            .tempdir_in(self.directory())
            .map_err(Error::file("create a directory in", self.directory()))?;
        write_private(&home.path().join("kubeconfig"), &user.kubeconfig_text())?;
        Ok(Helm {
            assets: self.assets.clone(),
            home,
        })
    }
}

impl Helm {
    /// helm without a cluster: enough for [`template`](Self::template) and [`lint`](Self::lint).
    pub fn offline() -> Result<Self, Error> {
        Ok(Self {
            assets: Assets::from_env()?,
            home: tool::temporary_directory()?,
        })
    }

    /// The manifests that a chart renders to. `flags` are helm's own, such as `["--set", "replicas=2"]`.
    pub async fn template(
        &self,
        chart: impl AsRef<Path>,
        release: &str,
        namespace: &str,
        flags: &[&str],
    ) -> Result<String, Error> {
        let named = ["template".as_ref(), release.as_ref(), chart.as_ref().as_os_str()];
        self.run_in(namespace, &named, flags).await
    }

    /// Checks a chart; warnings are errors with `["--strict"]`.
    pub async fn lint(&self, chart: impl AsRef<Path>, flags: &[&str]) -> Result<String, Error> {
        let mut args = vec![OsStr::new("lint"), chart.as_ref().as_os_str()];
        args.extend(flags.iter().map(OsStr::new));
        self.run(args).await
    }

    /// Installs a chart as `release`. The namespace must be there, unless `flags` have `--create-namespace`.
    pub async fn install(
        &self,
        chart: impl AsRef<Path>,
        release: &str,
        namespace: &str,
        flags: &[&str],
    ) -> Result<String, Error> {
        let named = ["install".as_ref(), release.as_ref(), chart.as_ref().as_os_str()];
        self.run_in(namespace, &named, flags).await
    }

    /// Brings `release` to another chart or to other values.
    pub async fn upgrade(
        &self,
        chart: impl AsRef<Path>,
        release: &str,
        namespace: &str,
        flags: &[&str],
    ) -> Result<String, Error> {
        let named = ["upgrade".as_ref(), release.as_ref(), chart.as_ref().as_os_str()];
        self.run_in(namespace, &named, flags).await
    }

    /// Removes what `release` installed, and its history.
    pub async fn uninstall(&self, release: &str, namespace: &str, flags: &[&str]) -> Result<String, Error> {
        self.run_in(namespace, &["uninstall".as_ref(), release.as_ref()], flags)
            .await
    }

    async fn run_in(&self, namespace: &str, command: &[&OsStr], flags: &[&str]) -> Result<String, Error> {
        let namespace = ["--namespace", namespace].map(OsStr::new);
        let flags = flags.iter().map(OsStr::new);
        self.run(command.iter().copied().chain(namespace).chain(flags))
            .await
    }

    /// Any other command of helm's, such as `["list", "--all-namespaces"]`.
    pub async fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String, Error> {
        let args: Vec<OsString> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let home = self.home.path();
        let [cache, config, data] = ["cache", "config", "data"].map(|name| home.join(name));
        // Offline this file is not there: helm then knows no cluster.
        let kubeconfig = home.join("kubeconfig");
        let variables = [
            ("HELM_CACHE_HOME", cache.as_os_str()),
            ("HELM_CONFIG_HOME", config.as_os_str()),
            ("HELM_DATA_HOME", data.as_os_str()),
            ("KUBECONFIG", kubeconfig.as_os_str()),
        ];
        tool::run(&self.assets, Binary::Helm, args, home, &variables).await
    }
}
