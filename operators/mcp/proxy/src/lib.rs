//! A streaming HTTP proxy for MCP servers, and a bridge to servers that speak stdio.
//!
//! [`Proxy`] stands in front of the pods of one MCP server. It forwards every byte as it comes, holds nothing back, keeps a
//! session on the pod that opened it, and closes the backend's connection when the client has gone. [`bridge::Bridge`] gives
//! a program that speaks MCP on stdin and stdout the same HTTP outside. What is passed and what is refused is in
//! `docs/mcp-proxy.md`.
//!
//! ```
//! use mcp_proxy::{Backend, Backends, Proxy, Settings};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backends = Backends::default();
//! // From a watch: whenever the set of pods has changed, the whole set.
//! backends.set([Backend::new("6f1c2a9e-0d5b-4c1d-9a56-000000000000", "http://127.0.0.1:8080")?.ready(true)]);
//!
//! let settings = Settings { listen: "127.0.0.1:0".parse()?, ..Settings::default() };
//! let proxy = Proxy::bind(settings, backends.clone()).await?;
//! println!("serving on {}", proxy.local_addr());
//! let counters = proxy.counters(); // plain numbers for a registry of metrics
//! proxy.run(async { /* until the signal to stop */ }).await;
//! assert_eq!(counters.snapshot().requests, 0);
//! # Ok(()) }
//! ```

mod answer;
mod backends;
mod body;
pub mod bridge;
mod chunked;
pub mod cli;
mod counters;
mod endpoint;
mod filtering;
mod handle;
mod headers;
mod old_streams;
mod origin;
mod own_stream;
mod peek;
mod pool;
mod proxy;
mod seen;
mod serve;
mod session;
mod settings;
mod source;
mod tools;

pub use self::{
    backends::{Backend, Backends, InvalidBackend},
    counters::{Counters, Snapshot},
    origin::{InvalidOrigin, Origins},
    proxy::Proxy,
    session::POD_PARAMETER,
    settings::Settings,
    tools::Tools,
};
