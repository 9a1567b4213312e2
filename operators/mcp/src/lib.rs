//! An operator for MCP servers, and the runner that it starts for each of them.
//!
//! | part | what it does |
//! |---|---|
//! | [`api`] | the custom resources, and the names that people meet |
//! | [`controller`] | `MCPServer`: run config, Deployment of the runner, Service, rights, status |
//! | [`tools`] | `MCPToolConfig`: tells servers which tools clients see |
//! | [`runner`] | `mcp-runner`: applies the backend through the gate, then is its proxy |
//! | [`rights`] | what both may do, and why |

pub mod api;
pub mod cli;
pub mod controller;
pub mod naming;
mod ports;
pub mod rights;
pub mod run_config;
pub mod runner;
mod scale;
pub mod tools;
pub mod workload;
