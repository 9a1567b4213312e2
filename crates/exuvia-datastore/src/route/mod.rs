//! Who answers for the target group: an `APIService` with a backend, or the target CRDs.
//!
//! An `APIService` with a backend hides CRDs of its group-version (PITFALLS A14, D1). The way to the CRDs is to delete it; the
//! API server then makes an automanaged one by itself (D2). The way back is one write over that one (D6). Nothing here
//! remembers anything: what was there before is what [`Route::save`] gave, and its caller keeps it.
//!
//! ```no_run
//! use exuvia_datastore::route::{Route, Switched};
//! # use exuvia_runtime::servers::ApiServers;
//! # use exuvia_write::Writer;
//! # use kube::{Client, api::ApiResource};
//!
//! # async fn example(client: Client, writer: Writer, servers: ApiServers, kinds: Vec<ApiResource>)
//! #     -> Result<(), exuvia_datastore::route::Error> {
//! let route = Route::new(client, writer, servers, "v3.projectcalico.org")?;
//! let mut aliases = Vec::new();
//! route.alias_uids(&kinds, |alias| aliases.push(alias)).await?;
//! let saved = route.save().await?; // keep it before anything is removed
//! match route.switch(&saved, &kinds, &aliases).await? {
//!     Switched::Done(_) => println!("the CRDs answer"),
//!     other => {
//!         println!("{other:?}: back to how it was");
//!         route.restore(&saved).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod aliases;
mod answers;
mod asking;
mod clones;
mod discovery;
mod error;
mod observed;
mod second;
mod switch;

use std::fmt;

use exuvia_runtime::servers::ApiServers;
use exuvia_write::Writer;
use kube::api::{ApiResource, DynamicObject};
use kube::{Api, Client};

pub use self::aliases::Alias;
pub use self::answers::{Answers, ServerAnswer, Verdict};
pub use self::clones::Clones;
pub use self::error::Error;
pub use self::observed::{AUTOMANAGED_LABEL, Backend, Observed, Removal, Restoration, Saved};
pub use self::second::{Ensured, Marked, SecondVersion};
pub use self::switch::{Removed, Switched};

/// The way to the objects of one group-version.
#[derive(Clone)]
pub struct Route {
    client: Client,
    writer: Writer,
    servers: ApiServers,
    name: String,
    group: String,
    version: String,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Route")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Route {
    /// The route of this `APIService`. Everything is written by `writer`; `servers` are asked one by one who answers.
    ///
    /// # Errors
    ///
    /// The name is not one of an `APIService`.
    pub fn new(
        client: Client,
        writer: Writer,
        servers: ApiServers,
        api_service: &str,
    ) -> Result<Self, Error> {
        match api_service.split_once('.') {
            Some((version, group)) if !version.is_empty() && !group.is_empty() => Ok(Self {
                client,
                writer,
                servers,
                name: api_service.to_owned(),
                group: group.to_owned(),
                version: version.to_owned(),
            }),
            _ => Err(Error::InvalidName {
                name: api_service.to_owned(),
            }),
        }
    }

    /// The name of the `APIService`.
    pub fn api_service(&self) -> &str {
        &self.name
    }

    /// What is there now.
    pub async fn observe(&self) -> Result<Observed, Error> {
        let read = self.api().get_opt(&self.name).await;
        let found = read.map_err(Error::reading(&self.name))?;
        Ok(Observed::from_object(found))
    }

    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &exuvia_sweep::api_service::resource())
    }

    /// The kinds belong to the group-version of this route.
    fn check(&self, kinds: &[ApiResource]) -> Result<(), Error> {
        let elsewhere = |kind: &&ApiResource| kind.group != self.group || kind.version != self.version;
        match kinds.iter().find(elsewhere) {
            None => Ok(()),
            Some(kind) => Err(Error::Elsewhere {
                name: self.name.clone(),
                kind: format!("{} {}", kind.api_version, kind.kind),
            }),
        }
    }
}

fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: format!("{group}/{version}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
