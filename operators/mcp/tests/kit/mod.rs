//! What the tests and the demo share: runner pods that really run, and the layout of a roll-out without the freeze.
#![allow(dead_code)] // each of the two uses its own part

pub(crate) mod live;
pub(crate) mod runner_pods;

/// The ports of all servers and their proxies: pods have addresses of their own. Not 8080, which anybody may use on all addresses.
pub(crate) const MCP_PORT: u16 = 18474;
pub(crate) const PROXY_PORT: u16 = 18473;
pub(crate) const ADMIN_PORT: u16 = 18475;

/// The controllers without which nothing rolls out.
pub(crate) const CONTROLLERS: [&str; 4] = [
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "garbage-collector-controller",
];
