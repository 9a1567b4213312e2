//! The `exuvia` command line as a library, so that its reference can be generated from it.

#[cfg(feature = "demo")]
pub mod build_progress;
pub mod cli;
