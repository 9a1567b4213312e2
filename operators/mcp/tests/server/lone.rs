//! A runner by itself: its run config is a file, and the test says what its environment is. No operator is needed.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::harness::World;
use crate::program::Runner;

/// A run config as a file, and the arguments and environment of a runner that reads it. No operator is needed.
pub(crate) struct Lone {
    directory: tempfile::TempDir,
    number: u16,
}

impl Lone {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            number: 0,
        }
    }

    /// Writes the run config of server `a`.
    pub(crate) fn config(&self, world: &World, image: &str, generation: i64) -> PathBuf {
        let config = json!({
            "name": "a", "namespace": world.namespace, "generation": generation, "image": image, "path": "/mcp",
            "mcpPort": 8080, "proxyPort": 8080,
        });
        let path = self.directory.path().join("runconfig.json");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Starts a runner that reads the file as it is now.
    pub(crate) fn start(&mut self, world: &World, env: &[(&str, &str)], args: &[&str]) -> Runner {
        let kubeconfig = world.control_plane.admin().kubeconfig().unwrap();
        self.start_with(&kubeconfig, env, args)
    }

    /// The same with another way to the server, such as through a fault proxy.
    pub(crate) fn start_with(&mut self, kubeconfig: &Path, env: &[(&str, &str)], args: &[&str]) -> Runner {
        self.number += 1;
        let log = self.directory.path().join(format!("runner-{}.log", self.number));
        let mut env: Vec<_> = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        env.push(("POD_NAME".to_owned(), format!("lone-{}", self.number)));
        let mut all = vec![
            "run".to_owned(),
            format!(
                "--config={}",
                self.directory.path().join("runconfig.json").display()
            ),
        ];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let free = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().to_string()
        };
        Runner::start(&log, kubeconfig, &env, &all, (free(), free()))
    }
}
