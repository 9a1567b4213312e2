//! Looks at what a verdict needs: the CRD's objects, the whole cluster's references, the API servers' counters. Each is
//! looked at once, for all versions that are asked about.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use exuvia_sweep::Sweep;
use exuvia_sweep::api_service::Hidden;
use exuvia_write::{Redacted, RetryPolicy, brief, redacted};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};

use super::{Looked, Seen, Verdict, migrations};
use crate::audience::Audience;
use crate::definition::Definition;
use crate::ownership::Owners;
use crate::record::Record;
use crate::references::{Avoid, Extent, OwnerKind, References};
use crate::servers::ApiServers;
use crate::survey::Survey;
use crate::usage::Usage;

/// Versions of one CRD that are to be dropped together.
#[derive(Clone, Debug)]
pub struct Question {
    /// The CRD, freshly read: the record of what was proven is in its status.
    pub crd: CustomResourceDefinition,
    /// The versions.
    pub versions: Vec<String>,
    /// The versions that will be served then, if that is known; otherwise those that are served now and are not asked about.
    pub served_after: Option<Vec<String>>,
    /// The owners of fields of its objects, if they were just looked at.
    pub owners: Option<Owners>,
    /// Why a sweep that was to prove it did not, if it was tried.
    pub unproven: Option<Redacted>,
}

impl Question {
    /// May these versions be dropped, all else staying as it is?
    pub fn new(crd: CustomResourceDefinition, versions: Vec<String>) -> Self {
        Self {
            crd,
            versions,
            served_after: None,
            owners: None,
            unproven: None,
        }
    }

    fn served_after(&self, definition: &Definition) -> Vec<String> {
        self.served_after.clone().unwrap_or_else(|| {
            let stays = |version: &&str| self.versions.iter().all(|asked| asked != version);
            definition.served().filter(stays).map(str::to_owned).collect()
        })
    }
}

/// What to look at.
#[derive(Clone, Default)]
pub struct Look {
    /// Whether to look for ownerReferences: at every object in the cluster.
    pub references: bool,
    /// The API servers to ask for their counters; without them usage is not known.
    pub servers: Option<ApiServers>,
    /// For how long to count requests; open watches count in any case.
    pub watch: Option<Duration>,
    /// The `StorageMigration` that asks at its own end, by name: it is under way only until it has the answer.
    pub asked_by: Option<String>,
    /// Who is told what to do about what holds a version.
    pub audience: Audience,
}

/// What is being looked at, to show progress.
#[derive(Clone, Debug)]
pub enum Looking {
    /// The objects of this CRD.
    Objects(String),
    /// Everything, for references.
    References(Extent),
    /// The API servers' counters, for this long.
    Usage(Option<Duration>),
}

/// Answers all questions with one look, in their order.
///
/// The counters of the API servers are read last: our own requests are over by then, and go to another version than those
/// in question wherever there is one.
///
/// ```no_run
/// use exuvia_storage::droppable::{Answer, Look, Question, look};
/// use exuvia_storage::servers::ApiServers;
/// # async fn example(config: kube::Config, client: kube::Client) -> Result<(), kube::Error> {
/// let crds = kube::Api::all(client.clone());
/// let question = Question::new(crds.get("widgets.example.com").await?, vec!["v1alpha1".into()]);
/// let what = Look {
///     references: true,
///     servers: Some(ApiServers::new(&config, &[], &[])),
///     ..Look::default()
/// };
/// let verdicts = look(&client, &[question], &what, &|_| {}).await;
/// if verdicts[0].answer != Answer::Yes {
///     println!("{}", verdicts[0]); // what holds it, and what is not known
/// }
/// # Ok(())
/// # }
/// ```
pub async fn look(
    client: &Client,
    questions: &[Question],
    look: &Look,
    progress: &(dyn Fn(Looking) + Send + Sync),
) -> Vec<Verdict> {
    let definitions: Vec<Definition> = questions
        .iter()
        .map(|question| Definition::read(&question.crd))
        .collect();
    let mut hidden = all_hidden(client, &definitions).await;
    let mut owners: BTreeMap<&str, Result<Owners, Redacted>> = BTreeMap::new();
    for (question, definition) in questions.iter().zip(&definitions) {
        let name = definition.name.as_str();
        if let Some(seen) = &question.owners {
            owners.insert(name, Ok(seen.clone()));
        } else if !owners.contains_key(name) {
            progress(Looking::Objects(name.to_owned()));
            let asked = asked_of(questions, name);
            owners.insert(name, survey(client, definition, &asked).await);
        }
    }
    let mut migrations = migrations::migrations(client).await;
    if let Ok(migrations) = &mut migrations {
        migrations.retain(|migration| Some(&migration.name) != look.asked_by.as_ref());
    }
    let references = if look.references {
        Some(references(client, questions, &definitions, progress).await)
    } else {
        None
    };
    progress(Looking::Usage(look.watch));
    let resources: BTreeSet<(&str, &str)> = definitions
        .iter()
        .map(|definition| (definition.group.as_str(), definition.plural.as_str()))
        .collect();
    let resources: Vec<(&str, &str)> = resources.into_iter().collect();
    let usage = match &look.servers {
        Some(servers) => Usage::observe(servers, client, &resources, look.watch).await,
        None => Usage::default(),
    };

    // The look may have taken minutes: what is on record counts as it is now.
    let mut fresh: BTreeMap<&str, Result<CustomResourceDefinition, Redacted>> = BTreeMap::new();
    for (question, definition) in questions.iter().zip(&definitions) {
        if !fresh.contains_key(definition.name.as_str()) {
            fresh.insert(&definition.name, read_again(client, &question.crd).await);
        }
    }
    // It counts, too, if it was there at the beginning: what was listed since may be another server's.
    for (name, again) in all_hidden(client, &definitions).await {
        let before = hidden.remove(name);
        hidden.insert(name, both(before, again));
    }
    let mut verdicts = Vec::new();
    for (question, definition) in questions.iter().zip(&definitions) {
        let (crd, unproven) = match fresh.get(definition.name.as_str()) {
            Some(Err(why)) => (without_record(&question.crd), Some(why.clone())),
            Some(Ok(crd)) => (crd.clone(), question.unproven.clone()),
            None => continue,
        };
        let definition = &Definition::read(&crd);
        let record = Record::read(&crd);
        let seen = Seen {
            definition,
            record: record.as_ref(),
            unproven: unproven.as_ref(),
            owners: owners
                .get(definition.name.as_str())
                .map_or(Looked::No, |owners| looked(Some(owners))),
            references: looked(references.as_ref()),
            usage: Looked::At(&usage),
            migrations: match &migrations {
                Ok(migrations) => Looked::At(migrations),
                Err(why) => Looked::Failed(why),
            },
            hidden: match hidden.get(definition.name.as_str()) {
                Some(Ok(hidden)) => Looked::At(hidden),
                Some(Err(why)) => Looked::Failed(why),
                None => Looked::No,
            },
            served_after: &question.served_after(definition),
            audience: look.audience,
        };
        verdicts.extend(question.versions.iter().map(|version| seen.judge(version)));
    }
    verdicts
}

/// By CRD, the versions at which another server answers.
async fn all_hidden<'a>(client: &Client, definitions: &'a [Definition]) -> BTreeMap<&'a str, HiddenOf> {
    let mut hidden = BTreeMap::new();
    for definition in definitions {
        let name = definition.name.as_str();
        if !hidden.contains_key(name) {
            let among = Hidden::among(client, &definition.group, definition.served()).await;
            hidden.insert(name, among.map_err(|error| Redacted::from_server(&brief(&error))));
        }
    }
    hidden
}

/// The versions of one CRD at which another server answers, or why that is not known.
type HiddenOf = Result<Vec<Hidden>, Redacted>;

/// What two looks have seen.
fn both(first: Option<HiddenOf>, second: HiddenOf) -> HiddenOf {
    let (mut all, second) = (first.unwrap_or(Ok(Vec::new()))?, second?);
    all.extend(second);
    all.sort();
    all.dedup();
    Ok(all)
}

/// All versions of the CRD that are asked about, in whatever question.
fn asked_of(questions: &[Question], crd: &str) -> Vec<String> {
    let of_crd = questions.iter().filter(|question| question.crd.name_any() == crd);
    of_crd.flat_map(|question| question.versions.clone()).collect()
}

async fn read_again(
    client: &Client,
    crd: &CustomResourceDefinition,
) -> Result<CustomResourceDefinition, Redacted> {
    let name = crd.name_any();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    match RetryPolicy::default().read(|| api.get(&name)).await {
        Ok(fresh) if fresh.metadata.uid == crd.metadata.uid => Ok(fresh),
        Ok(_) => Err("the CRD was deleted and created again meanwhile".into()),
        Err(error) => Err(redacted!(
            "the CRD cannot be read again: {}",
            Redacted::from_server(&brief(&error))
        )),
    }
}

fn without_record(crd: &CustomResourceDefinition) -> CustomResourceDefinition {
    let mut crd = crd.clone();
    Record::erase(&mut crd);
    crd
}

fn looked<T>(seen: Option<&Result<T, Redacted>>) -> Looked<'_, &T> {
    match seen {
        Some(Ok(seen)) => Looked::At(seen),
        Some(Err(why)) => Looked::Failed(why),
        None => Looked::No,
    }
}

/// The version at which a CRD's objects are looked at while others are in question: the storage version if it is served and
/// not in question, or else another one that is not, or else any.
fn endpoint<'a>(definition: &'a Definition, asked: &[String]) -> Option<&'a str> {
    let is_free = |version: &&str| asked.iter().all(|asked| asked != version);
    definition
        .endpoint()
        .filter(is_free)
        .or_else(|| definition.served().find(is_free))
        .or_else(|| definition.endpoint())
}

async fn survey(client: &Client, definition: &Definition, asked: &[String]) -> Result<Owners, Redacted> {
    let Some(endpoint) = endpoint(definition, asked) else {
        return Err("no version is served: serve one".into());
    };
    let sweep = Sweep::of(client.clone(), &definition.resource(endpoint));
    match Survey::of(sweep).await {
        Ok(survey) => Ok(survey.owners),
        Err(error) => Err(Redacted::from_error(&error)),
    }
}

async fn references(
    client: &Client,
    questions: &[Question],
    definitions: &[Definition],
    progress: &(dyn Fn(Looking) + Send + Sync),
) -> Result<References, Redacted> {
    let kinds: Vec<OwnerKind> = definitions
        .iter()
        .map(|definition| OwnerKind {
            group: definition.group.clone(),
            kind: definition.kind.clone(),
        })
        .collect();
    let asked = questions.iter().zip(definitions);
    let avoid: Vec<Avoid> = asked
        .flat_map(|(question, definition)| {
            question.versions.iter().map(|version| Avoid {
                group: definition.group.clone(),
                plural: definition.plural.clone(),
                version: version.clone(),
            })
        })
        .collect();
    References::look(client, &kinds, &avoid, &|extent| {
        progress(Looking::References(extent));
    })
    .await
    .map_err(|error| Redacted::from_server(&brief(&error)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// v1 is the storage version.
    fn crd(served: &[&str]) -> CustomResourceDefinition {
        let version =
            |name: &str| json!({"name": name, "served": served.contains(&name), "storage": name == "v1"});
        serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [version("v1alpha1"), version("v1beta1"), version("v1")],
            },
        }))
        .unwrap()
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Our own requests must not look like a client's.
    #[test]
    fn objects_are_looked_at_through_a_version_that_is_not_in_question() {
        for (served, asked, wanted) in [
            (&["v1alpha1", "v1beta1", "v1"][..], &["v1alpha1"][..], Some("v1")),
            (&["v1alpha1", "v1beta1"], &["v1alpha1"], Some("v1beta1")),
            (&["v1alpha1", "v1"], &["v1"], Some("v1alpha1")),
            (&["v1alpha1"], &["v1alpha1"], Some("v1alpha1")),
            (&[], &["v1alpha1"], None),
        ] {
            let definition = Definition::read(&crd(served));
            assert_eq!(
                endpoint(&definition, &names(asked)),
                wanted,
                "{served:?} {asked:?}"
            );
        }
    }

    #[test]
    fn versions_that_are_dropped_together_are_not_served_afterwards() {
        let crd = crd(&["v1alpha1", "v1beta1"]);
        let definition = Definition::read(&crd);
        let mut question = Question::new(crd, names(&["v1alpha1"]));
        assert_eq!(question.served_after(&definition), ["v1beta1"]);
        question.versions.push("v1beta1".into());
        assert!(question.served_after(&definition).is_empty());
        question.served_after = Some(names(&["v1"]));
        assert_eq!(
            question.served_after(&definition),
            ["v1"],
            "as the manifests have it"
        );
    }

    /// The operator spawns it.
    #[test]
    fn the_look_can_be_spawned() {
        fn spawned(client: Client) -> tokio::task::JoinHandle<Vec<Verdict>> {
            tokio::spawn(async move { look(&client, &[], &Look::default(), &|_| {}).await })
        }
        let _ = spawned; // that it compiles is the test
    }
}
