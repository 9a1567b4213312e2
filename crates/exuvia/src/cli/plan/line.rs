//! One CRD's line: what it stores, what that means, what to do next.

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_storage::definition::Definition;
use exuvia_storage::record::Record;
use exuvia_storage::{EXCLUDE_ANNOTATION, MissingRule, OptIn, Owner, exclusion, redact_uncut};
use exuvia_sweep::Sweep;
use exuvia_sweep::api_service::Hidden;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use serde::Serialize;

use super::advice::Advice;
use super::blockers::{self, Blocker, ToldByMigration, blockers};
use super::ownership::Ownership;
use crate::cli::args::ClusterArgs;
use crate::cli::output::seconds;
use crate::cli::table::{Part, Row};

/// One CRD's line.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    /// The kubeconfig's context, if one was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) context: Option<String>,
    pub(super) crd: String,
    storage_version: String,
    stored_versions: Vec<String>,
    /// `None`: it cannot be counted.
    objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opted_in: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    excluded: Option<String>,
    /// Why it does not take part although something about it looks as if it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
    verdict: String,
    /// The command to run next; `-`: none.
    next: String,
    /// What has to be done by hand before.
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<String>,
    /// What the command costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<String>,
    /// The rule that is missing to look at its objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) missing_rule: Option<MissingRule>,
    /// What a sweep of ours has proven about the CRD as it is now.
    #[serde(skip_serializing_if = "Option::is_none")]
    proven: Option<Record>,
    /// By version, who owns fields at it; only where every object was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners: Option<BTreeMap<String, BTreeMap<String, Owner>>>,
    /// What holds old versions; only where every object was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    blockers: Option<Vec<Blocker>>,
    /// What the operator's migration of it says, if it was asked for and there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    migration: Option<ToldByMigration>,
    /// What others of the same CRD say, which are duplicates as a rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_migrations: Vec<ToldByMigration>,
}

/// How long an API server may take to count the objects of one CRD. It answers within a second, unless it waits for a
/// conversion webhook that is down: then it would take as long as all retries together, about 20 s (PITFALLS A24).
const COUNTED_WITHIN: Duration = Duration::from_secs(5);

/// How many objects there are, if the server says; or why they cannot be listed.
async fn count(definition: &Definition, sweep: &Sweep) -> Result<Option<u64>, String> {
    match tokio::time::timeout(COUNTED_WITHIN, sweep.count()).await {
        Ok(Ok(count)) => Ok(count.objects),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => {
            let webhook = if definition.webhook_conversion {
                ": its conversion webhook may be down"
            } else {
                ""
            };
            let seconds = COUNTED_WITHIN.as_secs();
            Err(format!(
                "its objects could not be listed within {seconds} s{webhook}"
            ))
        }
    }
}

/// What a row shows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) context: bool,
    pub(super) opted_in: bool,
    pub(super) owners: bool,
    pub(super) blockers: bool,
}

impl Line {
    /// Looks at one CRD. A CRD whose objects cannot be listed has a line like any other. With `look`, the metadata of
    /// all objects is looked at; `migrations` are what is known of it otherwise, first the one that does the work.
    pub(super) async fn read(
        client: &Client,
        crd: &CustomResourceDefinition,
        look: bool,
        migrations: Vec<ToldByMigration>,
    ) -> Self {
        let mut migrations = migrations.into_iter();
        let migration = migrations.next();
        let definition = &Definition::read(crd);
        let record = Record::read(crd);
        let mut objects = None;
        let mut seen = None;
        let mut unlisted = None;
        if let Some(endpoint) = definition.endpoint() {
            tracing::debug!(crd = definition.name, "looking at objects");
            let sweep = Sweep::of(client.clone(), &definition.resource(endpoint));
            match count(definition, &sweep).await {
                Ok(_) if look => match Ownership::look(definition, sweep).await {
                    Ok(look) => (objects, seen) = (Some(look.objects), Some(look)),
                    Err(error) => unlisted = Some(error.to_string()),
                },
                Ok(count) => objects = count,
                Err(why) => unlisted = Some(why),
            }
        }
        let mut advice = Advice::on(definition, record.as_ref(), seen.as_ref());
        // A user who may not read them is told so by the command that the advice names.
        let hidden = Hidden::among(client, &definition.group, definition.served()).await;
        let hidden = hidden.unwrap_or_default();
        if !hidden.is_empty() {
            advice.hide(&hidden);
            objects = None; // another server's
        }
        let held = |seen: &Ownership| blockers(definition, record.as_ref(), seen, migration.as_ref());
        let missing_rule = unlisted.as_deref().and_then(MissingRule::named_in);
        let verdict = match (&unlisted, &missing_rule) {
            (Some(_), Some(_)) => format!("{}; not allowed to list its objects", advice.verdict),
            (Some(why), None) => redact_uncut(&format!("{}; {why}", advice.verdict)),
            (None, _) => advice.verdict,
        };
        Self {
            context: None,
            crd: definition.name.clone(),
            storage_version: definition.crd.storage.clone(),
            stored_versions: definition.crd.stored.clone(),
            objects,
            opted_in: None,
            excluded: None,
            note: None,
            verdict,
            next: advice.command.unwrap_or_else(|| "-".to_owned()),
            first: advice.first,
            price: advice.price,
            missing_rule,
            blockers: seen.as_ref().map(held),
            owners: seen.map(|seen| seen.owners.by_version),
            migration,
            other_migrations: migrations.collect(),
            proven: record.map(|record| Record {
                at: seconds(record.at),
                ..record
            }),
        }
    }

    /// Of the cluster with this context.
    pub(super) fn of(self, context: Option<String>) -> Self {
        Self { context, ..self }
    }

    /// A command that is copied must act on the cluster that was looked at.
    pub(super) fn on(mut self, cluster: &ClusterArgs) -> Self {
        self.next = cluster.in_commands(&self.next);
        self.first = self.first.map(|first| cluster.in_commands(&first));
        self
    }

    /// Whether it takes part, and why not where that may surprise.
    pub(super) fn judged_by(mut self, opt_in: &OptIn, definition: &Definition) -> Self {
        let OptIn { label, .. } = opt_in;
        self.opted_in = Some(opt_in.includes(definition));
        self.excluded = exclusion(definition).map(str::to_owned);
        let reason = definition.annotations.get(EXCLUDE_ANNOTATION);
        self.note = match definition.labels.get(&label.key) {
            _ if reason.is_some_and(|reason| reason.trim().is_empty()) => Some(format!(
                "the annotation {EXCLUDE_ANNOTATION} excludes it, but gives no reason: write the reason as its value, or remove \
                 the annotation"
            )),
            Some(value) if *value != label.value => Some(format!(
                "the label {}={value} does not opt in: its value must be {:?}",
                label.key, label.value
            )),
            _ => None,
        };
        self
    }

    fn cells(&self, shown: Shown) -> Vec<Vec<Part>> {
        let text = |text: String| vec![Part::Text(text)];
        let mut cells = Vec::new();
        if shown.context {
            cells.push(text(self.context.clone().unwrap_or_default()));
        }
        let objects = self
            .objects
            .map_or_else(|| "?".to_owned(), |objects| objects.to_string());
        cells.extend(
            [
                self.crd.clone(),
                self.storage_version.clone(),
                self.stored_versions.join(","),
                objects,
            ]
            .map(text),
        );
        if shown.opted_in {
            let opted_in = match (&self.excluded, self.opted_in) {
                (Some(_), _) => "excluded",
                (None, Some(true)) => "yes",
                (None, _) => "no",
            };
            cells.push(text(opted_in.to_owned()));
        }
        if shown.owners {
            let at = |(version, managers): (&String, &BTreeMap<String, Owner>)| {
                let version = version.rsplit('/').next().unwrap_or_default();
                let managers: Vec<&str> = managers.keys().map(String::as_str).collect();
                format!("{version}: {}", managers.join(" "))
            };
            let owners = self.owners.iter().flatten().map(at);
            cells.push(text(owners.collect::<Vec<_>>().join("; ")));
        }
        cells.push(text(self.verdict.clone()));
        let mut next = Vec::new();
        if let Some(first) = &self.first {
            let then = if self.next == "-" { "" } else { ", then" };
            next.push(Part::Text(format!("{first}{then}")));
        }
        if self.next != "-" || next.is_empty() {
            next.push(Part::Command(self.next.clone()));
        }
        if let Some(price) = &self.price {
            next.push(Part::Text(format!("(price: {price})")));
        }
        cells.push(next);
        cells
    }

    pub(super) fn row(&self, shown: Shown) -> Row {
        let mut below = Vec::new();
        if shown.blockers {
            below.extend(self.blockers.iter().flat_map(|held| blockers::lines(held)));
            let told = self.migration.iter().chain(&self.other_migrations);
            below.extend(told.flat_map(ToldByMigration::lines));
        }
        Row {
            cells: self.cells(shown),
            below,
        }
    }
}
