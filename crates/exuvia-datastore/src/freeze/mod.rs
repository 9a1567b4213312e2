//! Keeps writers away from the source of a migration while it is copied, and proves that none is under way.
//!
//! ``text
//! count_writers  long before: each server counts the writes to the source
//! set(Frozen)    policies and bindings
//! probe          until every server denies, asked itself
//! drained        until nothing from before is under way
//! …              the copy, the commit
//! set(Committed) the target is free
//! set(Converged) dependents name the targets: the source can be deleted
//! remove         nothing is left; or retire: the source stays as it is
//! ``

mod abandoned;
mod cel;
mod counting;
mod drain;
mod error;
mod flags;
mod flow;
mod gauges;
mod objects;
mod path;
mod policy;
mod probe;
mod tight;

use std::time::Duration;

use exuvia_runtime::servers::ApiServers;
use exuvia_write::Writer;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

pub use abandoned::{Abandoned, abandoned, freezer_of, left_frozen, release};
pub use drain::{Drain, Drained, SCHEMA_COUNTS_AFTER, WRITE_ENDS_WITHIN, WithoutCount};
pub use error::Error;
pub use flags::{
    FlagGoal, FlagNow, FlagPlaces, Restored, RetiredFlag, freeze_flag, leave_flag, read_flag, restore_flag,
    save_flag, thaw_flag,
};
pub use objects::{Observed, PartState, Piece, Standing, thaw};
pub use path::InvalidPath;
pub use policy::{FIELD_MANAGER, Form, FrozenKind, Part, Scope};
pub use probe::Probed;
pub use tight::{Tight, tight, tight_without_count};

/// The freeze of one migration. It remembers what each API server has shown, so keep it for as long as the migration runs.
pub struct Freeze {
    client: Client,
    writer: Writer,
    servers: ApiServers,
    scope: Scope,
    memory: counting::Memory,
    counts_after: Duration,
    drains_within: Duration,
}

impl std::fmt::Debug for Freeze {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Freeze")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl Freeze {
    /// For what `scope` says. Whatever the writer's name is, [`FIELD_MANAGER`] writes.
    pub fn new(client: Client, writer: &Writer, servers: ApiServers, scope: Scope) -> Self {
        Self {
            client,
            writer: writer.acting_as(FIELD_MANAGER),
            servers,
            scope,
            memory: counting::Memory::default(),
            counts_after: SCHEMA_COUNTS_AFTER,
            drains_within: WRITE_ENDS_WITHIN,
        }
    }

    /// How long a server must have had our `FlowSchema` before its gauges count: for somebody who knows that no older request
    /// is left. [`SCHEMA_COUNTS_AFTER`] by default.
    #[must_use]
    pub fn gauges_count_after(mut self, age: Duration) -> Self {
        self.counts_after = age;
        self
    }

    /// How long a write may be under way after its server was seen to deny: for somebody who knows that none takes longer.
    /// [`WRITE_ENDS_WITHIN`] by default.
    #[must_use]
    pub fn drains_within(mut self, time: Duration) -> Self {
        self.drains_within = time;
        self
    }

    /// What is frozen.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// Who we are, as the API server sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub username: String,
    /// The groups.
    pub groups: Vec<String>,
}

/// Asks the server who we are.
#[expect(
    clippy::disallowed_methods,
    reason = "a review is a question in the form of a create: the server answers it and stores nothing"
)]
pub async fn whoami(client: &Client) -> Result<Identity, Error> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, question) = (PostParams::default(), SelfSubjectReview::default());
    let answer = exuvia_write::RetryPolicy::default()
        .read(|| reviews.create(&params, &question))
        .await
        .map_err(Error::read("our own user name"))?;
    let user = answer
        .status
        .and_then(|status| status.user_info)
        .unwrap_or_default();
    Ok(Identity {
        username: user
            .username
            .filter(|name| !name.is_empty())
            .ok_or(Error::Nobody)?,
        groups: user.groups.unwrap_or_default(),
    })
}
