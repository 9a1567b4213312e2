//! Safe writes for controllers built on kube-rs: only what changed goes over the wire, nobody's work is lost, and every
//! error says what to do next.
//!
//! A full `replace` zeroes the fields that the writer's types do not know. An unlocked merge patch of `finalizers` or
//! `conditions` erases another writer's entry. A status patch that changes nothing still costs the server admission and
//! audit. kube leaves all that to its users; a [`Writer`] does not:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use exuvia_write::{ErrorClass, Finalizer, Writer};
//! use k8s_openapi::api::apps::v1::Deployment;
//! use kube::{Api, Config};
//!
//! const CLEANUP: Finalizer = Finalizer::new("till.example.dev/cleanup");
//!
//! let writer = Writer::named("till-operator"); // the field manager
//! let client = writer.connect(Config::infer().await?)?;
//! let api: Api<Deployment> = Api::namespaced(client, "shop");
//!
//! let till = api.get("till").await?;
//! let till = writer.ensure_finalizer(&api, &till, CLEANUP).await?.object;
//! match writer.patch(&api, &till, |till| till.spec.replicas = Some(3)).await {
//!     Ok(written) => println!("{:?}", written.effect),
//!     Err(error) if error.class() == ErrorClass::Conflict => println!("somebody was faster: read it again"),
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The contract
//!
//! | call | guarantees | cannot |
//! |---|---|---|
//! | [`patch`](Writer::patch) | only changed fields and the resourceVersion are sent; unknown fields survive; a 409 is a 409; no change, no request | see unknown fields *within* an array that it changes |
//! | [`patch_with_retry`](Writer::patch_with_retry) | the same, started over from a fresh read on a 409, bounded | undo what the closure did outside the object |
//! | [`patch_status`](Writer::patch_status) | the same on `/status`; writers of different scalars and maps coexist; an array makes it locked and started over; transition times move only with the status; a change elsewhere is refused | keep a stale scalar from winning |
//! | [`patch_status_locked`](Writer::patch_status_locked) | always locked; a 409 is a 409 | |
//! | [`patch_status_with_retry`](Writer::patch_status_with_retry) | always locked; started over from a fresh read on a 409, bounded | undo what the closure did outside the object |
//! | [`ensure_finalizer`](Writer::ensure_finalizer), [`remove_finalizer`](Writer::remove_finalizer) | no entry of anybody's is lost; a vanished object is a success for the removal | |
//! | [`apply`](Writer::apply), [`apply_status`](Writer::apply_status) | never locks by accident; with [`Apply::only_at`] anything but that very object in that very state is a 409: changed, deleted, or deleted and created again | keep a field that the intent leaves out |
//! | [`create_applied`](Writer::create_applied) | makes the object or says that the name is taken; then what it holds is ours as if it was applied, so that a later apply removes what it leaves out | do both in one write: see there what a crash in between leaves |
//! | [`own_as_applied`](Writer::own_as_applied) | the fields of our `Update` entry become those of our `Apply` entry; no field of anybody's changes | unite entries of two versions |
//! | [`create`](Writer::create), [`create_or_adopt`](Writer::create_or_adopt) | a name that is taken is told; nothing is adopted without consent | recognise a lost answer to a `generateName` |
//! | [`rehearse_replace`](Writer::rehearse_replace) | says what a replacement would store; stores nothing | |
//! | [`delete`](Writer::delete) | hits the object of this uid and no other | |
//! | [`rewrite`](Writer::rewrite) | stores the object again, changing nothing | say for sure that this call made the change |
//! | [`rewrite_unmoved`](Writer::rewrite_unmoved) | the same, a 409 if the content is not as it was read | tell a rewrite by somebody else in the same moment from its own |
//! | [`look`](Writer::look) | reads the metadata as etcd has it; "it does not exist" only by a 404 that names the object | |
//! | [`move_ownership`](Writer::move_ownership) | every field keeps its owner; a list that the server ignored is an error | judge whether a path means the same at another version |
//!
//! For all of them: the answer is the server's, so that the next write starts from a fresh resourceVersion. An object
//! without a name, or without a resourceVersion where a lock needs one, is refused before any request. Every request has
//! a timeout. Retries are bounded and jittered and follow `Retry-After` ([`RetryPolicy`]). After a request whose outcome
//! nobody knows (504, cut, timeout) the object is read, and a write that shows in it is a success: it is not sent
//! twice, and a 409 that we caused ourselves is not an error. [`Writer::dry_run`] makes any of them a dry-run,
//! [`Writer::once`] takes the retries away, [`Writer::gate`] is asked right before each request, [`Writer::observe`] is
//! told after it. The log has one line per request, at debug level, and never a body.
//!
//! # What an error means
//!
//! [`ErrorClass`] tells by code, reason and known texts: `Gone` (a 404 that names the object), `Missing` (any other
//! 404: the endpoint, the namespace), `Conflict` (409), `Denied` (401, 403, policies, webhooks),
//! `Invalid` (400, 413, 422), `Expired` (410), `Throttled` (429), `Transient` (503, a 500 without reason, a webhook that
//! is down, 429 "storage is (re)initializing"), `Ambiguous` (504, 502, cut, timeout), `Fatal`. The error as the server
//! gave it is beside it: [`Error::status`].
//!
//! # Footguns that remain
//!
//! Each is pinned by a test in `tests/server/footguns.rs`.
//!
//! - **A stale scalar wins.** `patch_status` does not lock scalars. If two writers own one field, the last one wins, from
//!   however old a read. Use `patch_status_locked`, or give each field one owner.
//! - **A new object of the same name.** Without a lock a status patch hits it, as if it were the old one.
//! - **Arrays go whole.** What a Rust type does not know of an array's elements is lost when that array changes. Use
//!   `DynamicObject` (and [`conditions::set_in`]) for arrays whose elements others extend.
//! - **Assigned conditions.** A closure that does `status.conditions = vec![mine]` erases the others'. Use
//!   [`conditions::set`]:
//!
//!   ```
//!   use exuvia_write::conditions;
//!   # let object = k8s_openapi::api::core::v1::ConfigMap::default();
//!   # let mut list = vec![conditions::new(&object, "Theirs", true, "Fine", "")];
//!   let mine = conditions::new(&object, "Ready", true, "AllWell", "every part is there");
//!   conditions::set(&mut list, mine); // not: list = vec![mine]
//!   assert_eq!(list.len(), 2);
//!   ```
//! - **A closure runs more than once** in `patch_with_retry`, `patch_status` and `patch_status_with_retry`, each time on a fresh read. It must only
//!   look at what it is given, not at a copy from outside.
//! - **A null that is to stay** cannot be sent by a merge patch and is refused. The usual cause is an `Option` without
//!   `skip_serializing_if`.
//! - **404 on `/status`.** The server has the same 404 for an object that is gone and for a kind without a status
//!   subresource. The writer looks, and says [`Error::NoStatus`].
//! - **404 for an object that exists.** Its namespace was finalized by force, and a webhook with a `namespaceSelector` is
//!   asked: the server answers 404 about the namespace. That is [`ErrorClass::Missing`] and never "gone"; so is the 404
//!   of a kind that is not served ([`Error::is_unserved`]). [`Writer::look`] tells for sure.

mod applied;
mod apply;
mod change;
mod class;
pub mod conditions;
mod create;
mod credentials;
mod diff;
mod error;
mod exchange;
mod finalizer;
mod ownership;
mod pace;
mod patch;
mod redact;
mod rehearse;
mod retry;
mod rewrite;
mod send;
mod status;
mod target;
mod writer;
mod written;

pub use apply::Apply;
pub use class::ErrorClass;
pub use create::{Adopted, Delete, Deleted};
pub use credentials::{of_kubeconfig as unusable_kubeconfig, unusable as unusable_credentials};
pub use diff::{Inexpressible, diff};
pub use error::{Error, Refusal, brief};
pub use exchange::read;
pub use finalizer::Finalizer;
pub use ownership::{EntryId, Fate, Plan, field_paths, lost_owners, plan_move, unite_fields};
pub use pace::Pace;
#[doc(hidden)]
pub use redact::safe_part;
pub use redact::{Name, Redacted, SafePart, redact, redact_uncut, show_values, shows_values};
pub use retry::RetryPolicy;
pub use rewrite::Moved;
pub use target::{Target, Verb, resource_name, resource_of};
pub use writer::{Attempt, Outcome, WriteReport, Writer};
pub use written::{Effect, Writable, Written};
