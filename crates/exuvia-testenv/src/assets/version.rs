//! Which binaries there are, at which version, and from which pinned Go module each is built.

use std::str::FromStr;

use crate::Error;

/// A Kubernetes version whose control plane can be built here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeVersion {
    /// The default.
    #[default]
    V1_37,
    /// An older version that is supported.
    V1_34,
}

impl KubeVersion {
    pub(super) const ALL: [Self; 2] = [Self::V1_37, Self::V1_34];

    /// The full version, such as `1.37.1`.
    pub fn full(self) -> &'static str {
        match self {
            Self::V1_37 => "1.37.1",
            Self::V1_34 => "1.34.4",
        }
    }

    /// The minor version, such as `1.37`.
    pub fn minor(self) -> &'static str {
        &self.full()[..4]
    }
}

impl FromStr for KubeVersion {
    type Err = Error;

    fn from_str(wanted: &str) -> Result<Self, Error> {
        let plain = wanted.trim_start_matches('v');
        Self::ALL
            .into_iter()
            .find(|version| plain == version.full() || plain == version.minor())
            .ok_or_else(|| Error::UnknownKubeVersion {
                wanted: wanted.to_owned(),
            })
    }
}

/// A program of the control plane, or a tool that tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// The store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// Garbage collector, workload controllers, the in-tree storage version migrator.
    KubeControllerManager,
    /// Binds pods to nodes.
    KubeScheduler,
    /// The command-line client.
    Kubectl,
    /// Fake nodes whose pods become ready, so that roll-outs progress.
    Kwok,
    /// Installs charts.
    Helm,
    /// Checks and unit-tests Prometheus rules.
    Promtool,
    /// Checks GitHub workflows.
    Actionlint,
}

/// The `go.mod` and `go.sum` that pin a build, compiled in so that an installed binary can build, too.
pub(crate) struct Module {
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
}

macro_rules! module {
    ($directory:literal) => {
        Module {
            go_mod: include_str!(concat!("../../control-plane/", $directory, "/go.mod")),
            go_sum: include_str!(concat!("../../control-plane/", $directory, "/go.sum")),
        }
    };
}

impl Binary {
    /// All of them, in the order in which a control plane needs them.
    pub const ALL: [Self; 9] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::KubeScheduler,
        Self::Kwok,
        Self::Helm,
        Self::Promtool,
        Self::Actionlint,
    ];

    /// The file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::Helm => "helm",
            Self::Promtool => "promtool",
            Self::Actionlint => "actionlint",
        }
    }

    /// The version that is built, of the Go module: Prometheus 3.15.0 is `0.315.0` there.
    pub fn version(self, kube: KubeVersion) -> &'static str {
        match self {
            Self::Etcd => "3.7.0",
            Self::Kwok => "0.8.0",
            Self::Helm => "4.3.1",
            Self::Promtool => "0.315.0",
            Self::Actionlint => "1.7.12",
            _ => kube.full(),
        }
    }

    /// The cache's subdirectory: binaries of one module and version lie together.
    pub(crate) fn directory(self, kube: KubeVersion) -> String {
        let module = match self {
            Self::Etcd => "etcd",
            Self::Kwok => "kwok",
            Self::Helm => "helm",
            Self::Promtool => "promtool",
            Self::Actionlint => "actionlint",
            _ => "kubernetes",
        };
        format!("{module}-{}", self.version(kube))
    }

    pub(crate) fn is_shipped_by_envtest(self) -> bool {
        matches!(self, Self::Etcd | Self::KubeApiserver | Self::Kubectl)
    }

    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::KubeScheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::Helm => "helm.sh/helm/v4/cmd/helm",
            Self::Promtool => "github.com/prometheus/prometheus/cmd/promtool",
            Self::Actionlint => "github.com/rhysd/actionlint/cmd/actionlint",
        }
    }

    pub(crate) fn module(self, kube: KubeVersion) -> Module {
        match (self, kube) {
            (Self::Etcd, _) => module!("etcd"),
            (Self::Kwok, _) => module!("kwok"),
            (Self::Helm, _) => module!("helm"),
            (Self::Promtool, _) => module!("promtool"),
            (Self::Actionlint, _) => module!("actionlint"),
            (_, KubeVersion::V1_37) => module!("kubernetes-1.37"),
            (_, KubeVersion::V1_34) => module!("kubernetes-1.34"),
        }
    }

    /// Build tags. promtool needs no service discovery but Kubernetes', which it always has: without the others' SDKs
    /// a fifth fewer packages are compiled.
    pub(crate) fn tags(self) -> &'static str {
        match self {
            Self::Promtool => "remove_all_sd",
            _ => "",
        }
    }

    /// Linker flags. Most take their version from the linker; unstamped, Kubernetes' `/version` says `v0.0.0-master`.
    pub(crate) fn ldflags(self, kube: KubeVersion) -> String {
        let mut flags = "-s -w".to_owned();
        let mut set = |variable: &str, value: &str| flags.push_str(&format!(" -X {variable}={value}"));
        match self {
            Self::Etcd | Self::Kwok | Self::Promtool | Self::Actionlint => {}
            Self::Helm => set(
                "helm.sh/helm/v4/internal/version.version",
                &format!("v{}", self.version(kube)),
            ),
            Self::KubeApiserver | Self::KubeControllerManager | Self::KubeScheduler | Self::Kubectl => {
                let (major, minor) = kube.minor().split_once('.').expect("a minor version has a dot");
                for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                    set(&format!("{package}.gitVersion"), &format!("v{}", kube.full()));
                    set(&format!("{package}.gitMajor"), major);
                    set(&format!("{package}.gitMinor"), minor);
                    set(&format!("{package}.gitTreeState"), "clean");
                }
            }
        }
        flags
    }
}
