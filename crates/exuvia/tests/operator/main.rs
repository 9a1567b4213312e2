//! The operator: the real binary against a real control plane, looked at from outside.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::similar_names)] // a role has rules, and an opted-in CRD may be opted out
#![allow(clippy::disallowed_methods, reason = "tests set up their world")]

#[path = "../rendered/mod.rs"]
mod rendered;

mod answers;
mod beside;
mod by_hand;
mod changed;
mod chaos;
mod crash;
mod faults;
mod foreign_words;
mod harness;
mod healthy;
mod leader;
mod life;
mod not_a_list;
mod observability;
mod optin;
mod oracle;
mod packaged;
mod progress;
mod proof;
mod rights;
mod secrets;
mod shared;
mod shed;
mod stale;
mod storage;
mod verdict;
