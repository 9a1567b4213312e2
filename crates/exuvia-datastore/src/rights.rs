//! The rights that one migration needs: printed for people to bind, and asked for before anything begins.

mod missing;

use std::collections::BTreeMap;

use exuvia_api::{CleanupSource, DatastoreMigration, Dependents, MigrationMode};
use exuvia_runtime::rights::{Rule, RuleScope};
use exuvia_runtime::servers::ApiServers;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

pub(crate) use self::missing::missing;
use crate::Error;
use crate::kinds::{Kind, Kinds};

const CRDS: &str = "apiextensions.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";

/// What the controller needs before any migration is bound: it reads migrations and says how they stand.
pub fn of_controller() -> Vec<Rule> {
    vec![
        Rule::new(
            "Read the migrations that people created, and watch them.",
            exuvia_api::GROUP,
            ["datastoremigrations"],
            &["get", "list", "watch", "patch"],
        ),
        Rule::new(
            "Report progress.",
            exuvia_api::GROUP,
            ["datastoremigrations/status"],
            &["patch"],
        ),
        Rule::new(
            "Let storage migrations of the same kinds come to their end first.",
            exuvia_api::GROUP,
            ["storagemigrations"],
            &["list"],
        ),
        Rule::new(
            "Find the CRDs of the kinds that are moved.",
            CRDS,
            ["customresourcedefinitions"],
            &["get", "list", "watch"],
        ),
    ]
}

/// What one migration needs, besides what the controller has.
pub fn of_migration(migration: &DatastoreMigration, kinds: &Kinds) -> Vec<Rule> {
    let spec = &migration.spec;
    let mut rules = Vec::new();
    for (group, plurals) in by_group(kinds.sources()) {
        rules.push(Rule::new(
            "Read the objects that are moved, and probe that writes to them are refused.",
            &group,
            plurals.clone(),
            &["get", "list", "watch", "patch", "create"],
        ));
    }
    for (group, plurals) in by_group(kinds.targets()) {
        rules.push(Rule::new(
            "Try, create and verify the copies, and take them back if the migration is undone.",
            &group,
            plurals.clone(),
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ));
        let status: Vec<String> = plurals.iter().map(|plural| format!("{plural}/status")).collect();
        rules.push(Rule::new("Copy their status.", &group, status, &["patch"]));
    }
    if kinds.targets().iter().any(|kind| kind.namespaced) {
        rules.push(Rule::new(
            "Find namespaces whose quotas leave no room, before anything is frozen.",
            "",
            ["resourcequotas"],
            &["list"],
        ));
    }
    // The shield, which keeps the garbage collector away while an APIService is switched, is one too.
    if spec.freeze.admission || !spec.cutover.api_service.is_empty() {
        rules.push(Rule::new(
            "Refuse writes while objects are copied, and let them go again.",
            ADMISSION,
            ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            &["get", "list", "create", "patch", "delete"],
        ));
    }
    if spec.freeze.admission {
        rules.push(Rule::new(
            "Count writes that are under way when the freeze begins.",
            FLOW_CONTROL,
            ["flowschemas", "prioritylevelconfigurations"],
            &["get", "list", "create", "patch", "delete"],
        ));
        rules.push(Rule::path("Read these counts from each API server.", "/metrics"));
        rules.extend(ApiServers::rights("whether it refuses writes"));
    }
    if !spec.cutover.api_service.is_empty() {
        rules.push(
            Rule::new(
                "Remove the APIService of the target group, and put it back if the migration is undone.",
                "apiregistration.k8s.io",
                ["apiservices"],
                &["get", "patch", "delete"],
            )
            .only([spec.cutover.api_service.clone()]),
        );
        rules.push(Rule::new(
            "Create it again if nothing is left of it.",
            "apiregistration.k8s.io",
            ["apiservices"],
            &["create"],
        ));
    }
    if spec.mode == MigrationMode::SyncThenFreeze && !spec.cutover.api_service.is_empty() {
        let names = kinds.targets().into_iter().map(Kind::name);
        rules.push(
            Rule::new(
                "Give the target CRDs a second served version, through which objects are copied, and take it away again.",
                CRDS,
                ["customresourcedefinitions"],
                &["patch"],
            )
            .only(names),
        );
    }
    rules.extend(about_clones(migration, kinds));
    if spec.references.dependents == Dependents::Scan {
        rules.push(Rule::new(
            "Find the objects that moved ones own, of whatever kind, and give them their new owner.",
            "*",
            ["*"],
            &["get", "list", "patch"],
        ));
    }
    rules.extend(about_named_objects(migration, kinds));
    if spec.cleanup.source == CleanupSource::DeleteCrds {
        let names = kinds.sources().into_iter().map(Kind::name);
        rules.push(
            Rule::new(
                "Delete the CRDs of the source when the migration is deleted after its end.",
                CRDS,
                ["customresourcedefinitions"],
                &["delete"],
            )
            .only(names),
        );
    }
    rules
}

/// What is needed to try objects where the target itself does not tell.
fn about_clones(migration: &DatastoreMigration, kinds: &Kinds) -> Vec<Rule> {
    let spec = &migration.spec;
    // With the APIService absent, which is known only later, the clones of statuses are among them.
    let cloned = kinds.tried_at_clones(spec, !spec.cutover.api_service.is_empty());
    let plurals: Vec<String> = cloned
        .into_iter()
        .map(|kind| crate::route::Clones::plural(&kind.resource.plural))
        .collect();
    if plurals.is_empty() {
        return Vec::new();
    }
    // The group has the migration's uid in it, which is not known before the migration exists. The names are ours alone.
    vec![
        Rule::new(
            "Try objects at clones of the target CRDs: statuses, and whatever another API server answers for.",
            CRDS,
            ["customresourcedefinitions"],
            &["create", "delete"],
        ),
        Rule::new("Try objects at these clones.", "*", plurals, &["create", "get"]),
    ]
}

/// What is needed for objects that the spec names and does not move.
fn about_named_objects(migration: &DatastoreMigration, kinds: &Kinds) -> Vec<Rule> {
    let (spec, mut rules) = (&migration.spec, Vec::new());
    for rule in &spec.references.rewrite {
        rules.push(Rule::new(
            "Change the objects that references.rewrite names.",
            &rule.within.group,
            [kinds.plural_of_other(&rule.within.group, &rule.within.kind)],
            &["get", "list", "patch"],
        ));
    }
    for flag in &spec.freeze.flags {
        rules.push(
            Rule::new(
                "Set a flag of freeze.flags, and let it go again.",
                &flag.group,
                [kinds.plural_of_other(&flag.group, &flag.kind)],
                &["get", "patch"],
            )
            .only([flag.name.clone()]),
        );
    }
    for wait in &spec.cutover.wait_for {
        rules.push(Rule::new(
            "See when objects are as cutover.waitFor wants them.",
            &wait.group,
            [kinds.plural_of_other(&wait.group, &wait.kind)],
            &["list", "watch"],
        ));
    }
    rules
}

fn by_group(kinds: Vec<&Kind>) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for kind in kinds {
        let plurals = groups.entry(kind.resource.group.clone()).or_default();
        plurals.push(kind.resource.plural.clone());
    }
    groups
}

/// Whether our policies can be looked for. Rights are bound only while there are migrations; to be asked costs nobody a refusal.
#[cfg(feature = "controller")]
pub(crate) async fn may_list_policies(client: &Client) -> Result<bool, Error> {
    let resources = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"];
    let rule = Rule::new("Find locks that were left.", ADMISSION, resources, &["list"]);
    for question in questions(&rule) {
        if !is_allowed(client, &question).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One question for each verb on each resource of a rule.
fn questions(rule: &Rule) -> Vec<SelfSubjectAccessReviewSpec> {
    let mut questions = Vec::new();
    for verb in &rule.rule.verbs {
        for path in rule.rule.non_resource_urls.iter().flatten() {
            questions.push(SelfSubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb: Some(verb.clone()),
                }),
                resource_attributes: None,
            });
        }
        for group in rule.rule.api_groups.iter().flatten() {
            for resource in rule.rule.resources.iter().flatten() {
                let (resource, subresource) = match resource.split_once('/') {
                    Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
                    None => (resource.as_str(), None),
                };
                let attributes = ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource,
                    verb: Some(verb.clone()),
                    name: rule.rule.resource_names.iter().flatten().next().cloned(),
                    namespace: rule.scope.namespace().map(str::to_owned),
                    ..ResourceAttributes::default()
                };
                questions.push(SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    non_resource_attributes: None,
                });
            }
        }
    }
    if rule.scope == RuleScope::Own {
        questions.clear(); // the runtime's own namespace is the runtime's matter
    }
    questions
}

fn said(question: &SelfSubjectAccessReviewSpec) -> (String, String) {
    if let Some(path) = &question.non_resource_attributes {
        return (
            path.verb.clone().unwrap_or_default(),
            path.path.clone().unwrap_or_default(),
        );
    }
    let attributes = question.resource_attributes.clone().unwrap_or_default();
    let mut resource = exuvia_write::resource_name(
        &attributes.resource.unwrap_or_default(),
        &attributes.group.unwrap_or_default(),
    );
    if let Some(subresource) = attributes.subresource {
        resource = format!("{resource}/{subresource}");
    }
    (attributes.verb.unwrap_or_default(), resource)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a review is a question in the form of a create: the server answers it and stores nothing"
)]
async fn is_allowed(client: &Client, question: &SelfSubjectAccessReviewSpec) -> Result<bool, Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: question.clone(),
        ..SelfSubjectAccessReview::default()
    };
    let (params, policy) = (PostParams::default(), exuvia_write::RetryPolicy::default());
    let answer = policy.read(|| reviews.create(&params, &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
