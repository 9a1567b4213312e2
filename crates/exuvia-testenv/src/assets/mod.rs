//! Finds the control plane's binaries: `KUBEBUILDER_ASSETS`, the cache, `setup-envtest`'s directory, or builds them.

mod build;
mod version;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use build::Progress;
pub use version::{Binary, KubeVersion};

use crate::Error;

/// Where binaries are looked for and built.
#[derive(Clone, Debug)]
pub struct Assets {
    kube: KubeVersion,
    cache: PathBuf,
    ready: Option<PathBuf>,
    envtest: Option<PathBuf>,
    /// Where `go` is looked for, in the form of `PATH`.
    path: OsString,
    report: BuildObserver,
}

/// Called as a build goes on.
#[derive(Clone)]
struct BuildObserver(Arc<dyn Fn(Progress<'_>) + Send + Sync>);

impl std::fmt::Debug for BuildObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BuildObserver(..)")
    }
}

impl Assets {
    /// As the environment says: `EXUVIA_KUBE_VERSION`, `EXUVIA_TESTENV_CACHE`, `KUBEBUILDER_ASSETS`, `PATH`.
    pub fn from_env() -> Result<Self, Error> {
        let directory = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let home = directory("HOME");
        let under_home = |path: &str| home.as_ref().map(|home| home.join(path));
        let cache = directory("EXUVIA_TESTENV_CACHE")
            .or_else(|| directory("XDG_CACHE_HOME").map(|cache| cache.join("exuvia-testenv")))
            .or_else(|| under_home(".cache/exuvia-testenv"))
            .ok_or(Error::NoCacheDirectory)?;
        let data = directory("XDG_DATA_HOME").or_else(|| under_home(".local/share"));
        let kube = match std::env::var("EXUVIA_KUBE_VERSION") {
            Ok(wanted) if !wanted.is_empty() => wanted.parse()?,
            _ => KubeVersion::default(),
        };
        Ok(Self {
            kube,
            cache,
            ready: directory("KUBEBUILDER_ASSETS"),
            envtest: data.map(|data| data.join("kubebuilder-envtest/k8s")),
            path: std::env::var_os("PATH").unwrap_or_default(),
            report: BuildObserver(Arc::new(build::print_to_stderr)),
        })
    }

    /// Looks only in `cache`, and builds into it with the `go` found in `path` (in the form of `PATH`).
    pub fn only_in(cache: impl Into<PathBuf>, path: impl Into<OsString>) -> Self {
        Self {
            kube: KubeVersion::default(),
            cache: cache.into(),
            ready: None,
            envtest: None,
            path: path.into(),
            report: BuildObserver(Arc::new(build::print_to_stderr)),
        }
    }

    /// Tells `report` how a build goes on, instead of standard error.
    #[must_use]
    pub fn report_to(mut self, report: impl Fn(Progress<'_>) + Send + Sync + 'static) -> Self {
        self.report = BuildObserver(Arc::new(report));
        self
    }

    /// Takes ready binaries from this directory, as `KUBEBUILDER_ASSETS` does.
    #[must_use]
    pub fn ready_binaries(mut self, directory: impl Into<PathBuf>) -> Self {
        self.ready = Some(directory.into());
        self
    }

    /// The Kubernetes version that is looked for.
    pub fn kube_version(&self) -> KubeVersion {
        self.kube
    }

    /// The directory that keeps what was built.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The path of a binary, after building it if it is nowhere to be found.
    ///
    /// This blocks, for minutes if it builds: call it before a runtime starts, or from `spawn_blocking`.
    pub fn find(&self, binary: Binary) -> Result<PathBuf, Error> {
        if let Some(path) = self.find_ready(binary)? {
            return Ok(path);
        }
        build::find_or_build(self, binary)
    }

    /// The path of a binary that is there already; `None` means that [`find`](Self::find) would build it.
    pub fn find_ready(&self, binary: Binary) -> Result<Option<PathBuf>, Error> {
        if let Some(directory) = &self.ready {
            let path = directory.join(binary.name());
            if path.is_file() {
                return Ok(Some(path));
            }
            if binary.is_shipped_by_envtest() {
                return Err(Error::NotInAssets {
                    binary: binary.name(),
                    directory: directory.clone(),
                });
            }
        }
        if let Some(path) = build::finished(&self.cache.join(binary.directory(self.kube)), binary)? {
            return Ok(Some(path));
        }
        Ok(self.find_in_envtest(binary))
    }

    /// `setup-envtest` keeps directories such as `1.37.1-linux-amd64`: the newest patch of our minor is taken.
    fn find_in_envtest(&self, binary: Binary) -> Option<PathBuf> {
        let mut found: Vec<_> = std::fs::read_dir(self.envtest.as_ref()?)
            .ok()?
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let patch: u32 = name
                    .split('-')
                    .next()?
                    .strip_prefix(self.kube.minor())?
                    .strip_prefix('.')?
                    .parse()
                    .ok()?;
                let program = entry.path().join(binary.name());
                program.is_file().then_some((patch, program))
            })
            .collect();
        found.sort();
        found.pop().map(|(_, program)| program)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
