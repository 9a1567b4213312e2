//! Who uses a version, as far as it can be seen: managers of fields by name, requests by number only.

use exuvia_runtime::servers::ApiServers;
use exuvia_sweep::Sweep;
use exuvia_write::{Name, Redacted, redacted};
use kube::Client;
use serde::Serialize;

use super::{Counts, Usage};
use crate::definition::Definition;
use crate::ownership::Owner;
use crate::record::Record;
use crate::survey::Survey;

/// Whether the manager has written at the version since the migration on record: it will do so again.
pub fn still_writes(owner: &Owner, record: Option<&Record>) -> bool {
    record.is_some_and(|record| owner.last > Some(record.at))
}

/// A manager of fields at the version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manager {
    /// Its name, as in managedFields.
    pub manager: String,
    /// What it owns, and when it last wrote.
    #[serde(flatten)]
    pub owner: Owner,
}

/// What one API server counts for the version. Counters have no names: they do not tell who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerCounts {
    /// The API server.
    pub server: String,
    /// Why its counters cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Redacted>,
    /// The counters.
    #[serde(flatten)]
    pub counts: Option<Counts>,
}

/// Who uses one version of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Users {
    /// Who owns fields at it.
    pub writers: Vec<Manager>,
    /// How often each API server was asked for it.
    pub servers: Vec<ServerCounts>,
}

impl Users {
    /// Whether no field is owned at the version, and every API server says that nobody asked for it.
    pub fn is_unused(&self) -> bool {
        let is_zero = |counts: &Counts| counts.watches == 0 && counts.total() == 0;
        let mut servers = self.servers.iter();
        self.writers.is_empty() && servers.all(|server| server.counts.as_ref().is_some_and(is_zero))
    }

    /// Looks at the metadata of all objects, and asks each of the API servers. An error if the objects cannot be listed.
    pub async fn look(
        client: &Client,
        definition: &Definition,
        version: &str,
        servers: &ApiServers,
    ) -> Result<Self, Redacted> {
        let Some(endpoint) = definition.endpoint() else {
            return Err(redacted!(
                "the objects of {} cannot be listed, because no version of it is served: serve one",
                Name(&definition.name)
            ));
        };
        let (group, plural) = (definition.group.as_str(), definition.plural.as_str());
        // Before our own requests for objects, which would be counted.
        let usage = Usage::observe(servers, client, &[(group, plural)], None).await;
        let survey = Survey::of(Sweep::of(client.clone(), &definition.resource(endpoint)))
            .await
            .map_err(|error| Redacted::from_error(&error))?;
        let manager = |(manager, owner): (&str, &Owner)| Manager {
            manager: manager.to_owned(),
            owner: owner.clone(),
        };
        let counts = usage
            .at(group, plural, version)
            .map(|(server, counts)| ServerCounts {
                server: server.to_owned(),
                unreadable: counts.as_ref().err().map(|unread| unread.why.clone()),
                counts: counts.ok(),
            });
        Ok(Self {
            writers: survey
                .owners
                .at(&definition.api_version(version))
                .map(manager)
                .collect(),
            servers: counts.collect(),
        })
    }
}
