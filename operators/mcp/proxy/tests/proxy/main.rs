//! The proxy and the bridge against real HTTP servers, real processes and the official SDK's client.

#![allow(clippy::unwrap_used)]

mod bridge;
mod clients;
mod command_line;
mod echo;
mod harness;
mod ids;
mod memory;
mod own_streams;
mod passing;
mod rollout;
mod sessions;
mod streaming;
mod times;
mod tools;
