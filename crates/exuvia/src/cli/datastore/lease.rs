//! Whether an operator runs that carries a migration out: who holds its Lease, and whether it was renewed in time.

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_api::{DatastoreMigration, DatastorePhase, OPERATOR_ANNOTATION};
use exuvia_runtime::ServerClock;
use exuvia_write::{RetryPolicy, brief};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;

use super::args::LeaseArgs;
use super::migrations;
use crate::cli::args::{OPERATOR_NAME, OPERATOR_NAMESPACE};
use crate::cli::cluster::Cluster;
use crate::cli::output::{remark, seconds};

/// The server tells times in whole seconds, and a busy leader may be late.
const SLACK: Duration = Duration::from_secs(5);
/// A Lease that does not say how long it is valid: what the operator takes by default.
const DURATION: Duration = Duration::from_secs(15);

/// What is known of the operator of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Operator {
    /// The Lease, as namespace/name; without a namespace, any of that name.
    lease: String,
    state: State,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum State {
    Running,
    NotRunning,
    NotKnown,
}

impl Operator {
    /// What to say, unless it runs.
    pub(super) fn trouble(&self) -> Option<&str> {
        (self.state != State::Running).then_some(self.message.as_str())
    }
}

/// Which Lease is looked at, and why that one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// Given, or named by the migration.
    One {
        namespace: String,
        name: String,
        by_migration: bool,
    },
    /// Any of this name: nobody said which.
    Named(String),
}

impl Wanted {
    fn of(given: &LeaseArgs, migration: &DatastoreMigration) -> Self {
        let (namespace, name) = (&given.lease_namespace, &given.lease_name);
        let marked = migration.annotations().get(OPERATOR_ANNOTATION);
        match (namespace, name, marked.and_then(|marked| marked.split_once('/'))) {
            (None, None, Some((namespace, name))) => Self::One {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                by_migration: true,
            },
            (Some(namespace), name, _) => Self::One {
                namespace: namespace.clone(),
                name: name.as_deref().unwrap_or(OPERATOR_NAME).to_owned(),
                by_migration: false,
            },
            (None, name, _) => Self::Named(name.as_deref().unwrap_or(OPERATOR_NAME).to_owned()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::One { namespace, name, .. } => format!("{namespace}/{name}"),
            Self::Named(name) => name.clone(),
        }
    }
}

/// Asks for Leases.
pub(super) struct Operators {
    given: LeaseArgs,
    clock: ServerClock,
}

impl Operators {
    pub(super) fn new(given: &LeaseArgs) -> Self {
        Self {
            given: given.clone(),
            clock: ServerClock::default(),
        }
    }

    /// What is known of the operator of one migration; `None`: there is nothing for one to do.
    pub(super) async fn of(&mut self, cluster: &Cluster, migration: &DatastoreMigration) -> Option<Operator> {
        if !is_needed(migration) {
            return None;
        }
        let wanted = Wanted::of(&self.given, migration);
        let operator = self.look(cluster, &wanted).await;
        Some(handed_over(operator, &wanted, &migration.name_any()))
    }

    /// The same of several, each Lease read once.
    pub(super) async fn of_all(
        &mut self,
        cluster: &Cluster,
        migrations: &[DatastoreMigration],
    ) -> Vec<Option<Operator>> {
        let mut known: BTreeMap<Wanted, Operator> = BTreeMap::new();
        let mut all = Vec::new();
        for migration in migrations {
            if !is_needed(migration) {
                all.push(None);
                continue;
            }
            let wanted = Wanted::of(&self.given, migration);
            if !known.contains_key(&wanted) {
                let found = self.look(cluster, &wanted).await;
                known.insert(wanted.clone(), found);
            }
            all.push(known.get(&wanted).cloned());
        }
        all
    }

    async fn look(&mut self, cluster: &Cluster, wanted: &Wanted) -> Operator {
        self.clock.ask(&cluster.client).await;
        let found = match wanted {
            Wanted::One { namespace, name, .. } => one(cluster, namespace, name).await,
            Wanted::Named(name) => named(cluster, name).await,
        };
        judge(wanted, found, self.clock.now())
    }
}

/// Whether an operator has something to do for it, now or soon.
fn is_needed(migration: &DatastoreMigration) -> bool {
    let at_rest = matches!(
        migrations::phase(migration),
        DatastorePhase::Complete | DatastorePhase::Failed
    );
    !at_rest || migration.metadata.deletion_timestamp.is_some()
}

/// Says that no operator runs, where a command has asked for something that one must do.
pub(super) async fn remark_if_nobody_runs(
    cluster: &Cluster,
    given: &LeaseArgs,
    migration: &DatastoreMigration,
) {
    let mut operators = Operators::new(given);
    let wanted = Wanted::of(given, migration);
    let operator = operators.look(cluster, &wanted).await;
    let operator = handed_over(operator, &wanted, &migration.name_any());
    if let Some(trouble) = operator.trouble() {
        remark(&format!("note: {trouble}"));
    }
}

async fn one(cluster: &Cluster, namespace: &str, name: &str) -> Result<Vec<Lease>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), namespace);
    let found = RetryPolicy::default().read(|| leases.get_opt(name)).await?;
    Ok(found.into_iter().collect())
}

/// Those of this name in all namespaces, or in the operator's usual one for people who may not list them all.
async fn named(cluster: &Cluster, name: &str) -> Result<Vec<Lease>, kube::Error> {
    let leases: Api<Lease> = Api::all(cluster.client.clone());
    let params = ListParams::default().fields(&format!("metadata.name={name}"));
    match RetryPolicy::default().read(|| leases.list(&params)).await {
        Ok(found) => Ok(found.items),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            match one(cluster, OPERATOR_NAMESPACE, name).await {
                // In which namespace it is was not told, and the others may not be looked at.
                Ok(found) if found.is_empty() => Err(kube::Error::Api(status)),
                found => found,
            }
        }
        Err(error) => Err(error),
    }
}

/// What Leases say. Pure.
fn judge(wanted: &Wanted, found: Result<Vec<Lease>, kube::Error>, now: Timestamp) -> Operator {
    let lease = wanted.shown();
    let (state, message) = match found {
        Err(error) => (
            State::NotKnown,
            format!(
                "whether an operator runs is not known, because the Lease {lease} cannot be read: {}",
                brief(&error)
            ),
        ),
        Ok(leases) if leases.iter().any(|lease| is_held(lease, now)) => (State::Running, String::new()),
        Ok(leases) => (State::NotRunning, not_running(wanted, &leases)),
    };
    Operator {
        lease,
        state,
        message,
    }
}

fn is_held(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else {
        return false;
    };
    let is_anyones = spec
        .holder_identity
        .as_ref()
        .is_some_and(|holder| !holder.is_empty());
    let lasts = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(DURATION, Duration::from_secs);
    let age = renewed(lease).map(|at| Duration::try_from(now.duration_since(at)).unwrap_or_default());
    is_anyones && age.is_some_and(|age| age <= lasts + SLACK)
}

/// When it was last renewed, by the server's clock: `renewTime` is the operator's, and may be wrong.
fn renewed(lease: &Lease) -> Option<Timestamp> {
    let renewals = lease.metadata.managed_fields.iter().flatten().filter(|entry| {
        let fields = entry.fields_v1.as_ref();
        fields.is_some_and(|fields| fields.0["f:spec"].get("f:renewTime").is_some())
    });
    let by_server = renewals
        .filter_map(|entry| entry.time.as_ref())
        .map(|time| time.0);
    let by_holder = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    by_server.max().or_else(|| by_holder.map(|time| time.0))
}

fn not_running(wanted: &Wanted, leases: &[Lease]) -> String {
    let shown = wanted.shown();
    let consequence = "nothing will happen until one runs";
    let Some(last) = leases.iter().max_by_key(|lease| renewed(lease)) else {
        // Without leader election nobody makes a Lease.
        let elsewhere = match wanted {
            Wanted::One { namespace, .. } => format!(
                "the Lease {shown} does not exist, so no operator holds it: {consequence} (`kubectl -n {namespace} get pods` shows \
                 whether one was started); one with --leader-elect=false has no Lease"
            ),
            Wanted::Named(name) => format!(
                "no namespace has a Lease {name}, so no operator holds it: {consequence}; if yours has a Lease of another name, \
                 give --lease-name; one with --leader-elect=false has none"
            ),
        };
        return elsewhere;
    };
    let namespace = last.namespace().unwrap_or_default();
    let since = renewed(last)
        .map(|at| format!(" since {}", seconds(at)))
        .unwrap_or_default();
    format!(
        "no operator holds the Lease {namespace}/{}{since}: {consequence} (`kubectl -n {namespace} get pods` shows what became of \
         it)",
        last.name_any()
    )
}

/// Adds the way to another operator, if the migration names one that does not run.
fn handed_over(mut operator: Operator, wanted: &Wanted, migration: &str) -> Operator {
    let is_marked = matches!(
        wanted,
        Wanted::One {
            by_migration: true,
            ..
        }
    );
    if operator.state == State::NotRunning && is_marked {
        operator.message.push_str(&format!(
            "; if that operator is gone for good, another one carries it on after `kubectl annotate datastoremigration \
             {migration} {OPERATOR_ANNOTATION}-`"
        ));
    }
    operator
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-17T10:00:00Z";

    fn lease(holder: &str, renewed_by_server: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "exuvia", "namespace": "exuvia-system", "managedFields": [
                {"manager": "exuvia", "operation": "Update", "time": renewed_by_server, "fieldsV1": {"f:spec": {"f:renewTime": {}}}},
                {"manager": "kubectl", "operation": "Update", "time": NOW, "fieldsV1": {"f:metadata": {}}},
            ]},
            // The clock of the operator's machine is an hour behind.
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-11-17T09:00:00.000000Z"},
        }))
        .expect("a lease")
    }

    fn asked(found: Result<Vec<Lease>, kube::Error>) -> Operator {
        let wanted = Wanted::Named("exuvia".to_owned());
        judge(&wanted, found, NOW.parse().expect("a time"))
    }

    #[test]
    fn a_lease_that_is_renewed_in_time_by_the_servers_clock_is_held() {
        let operator = asked(Ok(vec![lease("pod-1", "2026-11-17T09:59:50Z")]));
        assert_eq!((operator.state, operator.trouble()), (State::Running, None));
    }

    #[test]
    fn one_that_nobody_holds_or_renews_says_since_when_and_that_nothing_will_happen() {
        for (holder, renewed) in [("pod-1", "2026-11-17T09:58:00Z"), ("", "2026-11-17T09:59:59Z")] {
            let operator = asked(Ok(vec![lease(holder, renewed)]));
            let said = operator.trouble().expect("trouble");
            assert!(
                said.starts_with(&format!(
                    "no operator holds the Lease exuvia-system/exuvia since {renewed}: nothing will happen until one runs"
                )),
                "{said}"
            );
        }
        let said = asked(Ok(Vec::new()));
        let said = said.trouble().expect("trouble");
        assert!(said.starts_with("no namespace has a Lease exuvia,"), "{said}");
    }

    #[test]
    fn one_of_several_is_enough() {
        let held = lease("pod-1", "2026-11-17T09:59:50Z");
        let operator = asked(Ok(vec![lease("", NOW), held]));
        assert_eq!(operator.state, State::Running);
    }

    #[test]
    fn one_that_cannot_be_read_is_not_known() {
        let status = kube::core::Status::failure("leases is forbidden", "Forbidden").with_code(403);
        let operator = asked(Err(kube::Error::Api(Box::new(status))));
        assert_eq!(operator.state, State::NotKnown);
        assert!(
            operator
                .trouble()
                .is_some_and(|said| said.contains("is not known"))
        );
    }

    #[test]
    fn the_migration_names_its_operator_unless_another_is_given() {
        let migration: DatastoreMigration = serde_json::from_value(json!({
            "apiVersion": "exuvia.dev/v1beta1", "kind": "DatastoreMigration",
            "metadata": {"name": "move", "annotations": {OPERATOR_ANNOTATION: "shop/till"}}, "spec": {"mappings": []},
        }))
        .expect("a migration");
        let wanted = |namespace: Option<&str>, name: Option<&str>| {
            let given = LeaseArgs {
                lease_name: name.map(str::to_owned),
                lease_namespace: namespace.map(str::to_owned),
            };
            Wanted::of(&given, &migration)
        };
        assert_eq!(wanted(None, None).shown(), "shop/till");
        assert_eq!(wanted(Some("a"), None).shown(), "a/exuvia");
        assert_eq!(wanted(Some("a"), Some("b")).shown(), "a/b");
        assert_eq!(wanted(None, Some("b")), Wanted::Named("b".to_owned()));
        let gone = judge(&wanted(None, None), Ok(Vec::new()), NOW.parse().expect("a time"));
        let said = handed_over(gone, &wanted(None, None), "move").message;
        assert!(
            said.contains("kubectl annotate datastoremigration move exuvia.dev/operator-"),
            "{said}"
        );
    }
}
