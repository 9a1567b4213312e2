//! The `FlowSchema` and priority level of our own by which each API server counts the writes to the source under way.

use std::collections::BTreeMap;

use exuvia_api::DATASTORE_LABEL;
use exuvia_write::{Adopted, Delete, Deleted, ErrorClass, RetryPolicy, Writable, Writer};
use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, GroupSubject, LimitResponse, LimitedPriorityLevelConfiguration,
    PolicyRulesWithSubjects, PriorityLevelConfiguration, PriorityLevelConfigurationReference,
    PriorityLevelConfigurationSpec, QueuingConfiguration, ResourcePolicyRule, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use super::error::Error;
use super::objects::is_ours;
use super::policy::Scope;

/// The first that anybody but `exempt` may have. Of several at 2 the one that comes first by name wins; `probes` of the
/// server itself is about health checks only.
const PRECEDENCE: i32 = 2;
/// Writers of the source keep about what the default level for service accounts gives them.
const SHARES: i32 = 40;
/// What a write is to flow control.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
/// Everybody is in one of them.
const EVERYBODY: [&str; 2] = ["system:authenticated", "system:unauthenticated"];

/// What both objects are called.
pub(super) fn name(scope: &Scope) -> String {
    format!("exuvia-{}", scope.uid)
}

/// Which `FlowSchema` counts, as it was last seen: another uid or generation may have let writes pass uncounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counting {
    pub(super) uid: String,
    pub(super) generation: i64,
    /// Levels whose schemas are asked before ours and may take writes to the source: `exempt`, and whatever somebody made.
    pub(super) earlier_levels: Vec<String>,
}

/// The two objects.
pub(super) fn objects(scope: &Scope) -> (PriorityLevelConfiguration, FlowSchema) {
    let metadata = ObjectMeta {
        name: Some(name(scope)),
        labels: Some(BTreeMap::from([(DATASTORE_LABEL.to_owned(), scope.uid.clone())])),
        ..ObjectMeta::default()
    };
    let level = PriorityLevelConfiguration {
        metadata: metadata.clone(),
        spec: PriorityLevelConfigurationSpec {
            type_: "Limited".to_owned(),
            limited: Some(LimitedPriorityLevelConfiguration {
                nominal_concurrency_shares: Some(SHARES),
                // Half of it is anybody's while the source's writers do not need it.
                lendable_percent: Some(50),
                borrowing_limit_percent: None,
                limit_response: LimitResponse {
                    type_: "Queue".to_owned(),
                    queuing: Some(QueuingConfiguration {
                        queues: Some(64),
                        hand_size: Some(6),
                        queue_length_limit: Some(50),
                    }),
                },
            }),
            exempt: None,
        },
        status: None,
    };
    let schema = FlowSchema {
        metadata,
        spec: FlowSchemaSpec {
            matching_precedence: Some(PRECEDENCE),
            priority_level_configuration: PriorityLevelConfigurationReference { name: name(scope) },
            distinguisher_method: None,
            rules: Some(vec![PolicyRulesWithSubjects {
                subjects: EVERYBODY.map(group).into(),
                resource_rules: Some(resource_rules(scope)),
                non_resource_rules: None,
            }]),
        },
        status: None,
    };
    (level, schema)
}

fn group(name: &str) -> Subject {
    Subject {
        kind: "Group".to_owned(),
        group: Some(GroupSubject {
            name: name.to_owned(),
        }),
        service_account: None,
        user: None,
    }
}

/// Group and plural of each kind whose writes are counted.
fn counted_kinds(scope: &Scope) -> impl Iterator<Item = (&str, &str)> {
    let source = scope
        .source
        .iter()
        .map(|kind| (kind.group.as_str(), kind.plural.as_str()));
    let target = scope.target.iter().filter(|_| scope.has_early_targets);
    source.chain(target.map(|(group, plural)| (group.as_str(), plural.as_str())))
}

/// A custom resource has these two subresources and no other; flow control has no wildcard for them.
fn resource_rules(scope: &Scope) -> Vec<ResourcePolicyRule> {
    let mut by_group: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (group, plural) in counted_kinds(scope) {
        let resources = by_group.entry(group).or_default();
        resources.extend([
            plural.to_owned(),
            format!("{plural}/scale"),
            format!("{plural}/status"),
        ]);
    }
    by_group
        .into_iter()
        .map(|(group, mut resources)| {
            resources.sort();
            resources.dedup();
            ResourcePolicyRule {
                api_groups: vec![group.to_owned()],
                resources,
                verbs: WRITES.map(str::to_owned).into(),
                namespaces: Some(vec!["*".to_owned()]),
                cluster_scope: Some(true),
            }
        })
        .collect()
}

/// Makes both, or makes them right. `false`: the server has no flow control, or we may not.
pub(super) async fn ensure(client: &Client, writer: &Writer, scope: &Scope) -> Result<bool, Error> {
    let (level, schema) = objects(scope);
    let made = async {
        // The level first: a schema without its level counts nothing.
        ensure_one(client, writer, scope, &level, |live, wanted| {
            live.spec.clone_from(&wanted.spec);
        })
        .await?;
        ensure_one(client, writer, scope, &schema, |live, wanted| {
            live.spec.clone_from(&wanted.spec);
        })
        .await
    };
    match made.await {
        Ok(()) => Ok(true),
        // Nothing was sent: that says nothing about the server.
        Err(Error::Write(error)) if error.reason() == "GateClosed" => Err(error.into()),
        Err(error) if matches!(error.class(), ErrorClass::Missing | ErrorClass::Denied) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn ensure_one<K>(
    client: &Client,
    writer: &Writer,
    scope: &Scope,
    wanted: &K,
    take_spec: impl Fn(&mut K, &K),
) -> Result<(), Error>
where
    K: Writable<DynamicType = ()> + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let what = || format!("{} {}", K::kind(&()), wanted.name_any());
    let live = match api.get_opt(&wanted.name_any()).await {
        Ok(Some(live)) => live,
        Ok(None) => match writer
            .create_or_adopt(&api, wanted, |found| is_ours(found, scope))
            .await?
        {
            Adopted::Created(_) => return Ok(()),
            Adopted::Existing(live) => live,
        },
        Err(error) => return Err(Error::read(what())(error)),
    };
    if !is_ours(&live, scope) {
        return Err(Error::Foreign { what: what() });
    }
    writer
        .patch_with_retry(&api, &live, |live| take_spec(live, wanted))
        .await?;
    Ok(())
}

/// Whether any of them is there.
pub(super) async fn exists(client: &Client, scope: &Scope) -> Result<bool, Error> {
    Ok(exists_one::<FlowSchema>(client, scope).await?
        || exists_one::<PriorityLevelConfiguration>(client, scope).await?)
}

async fn exists_one<K>(client: &Client, scope: &Scope) -> Result<bool, Error>
where
    K: Writable<DynamicType = ()> + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let name = name(scope);
    match RetryPolicy::default().read(|| api.get_opt(&name)).await {
        Ok(live) => Ok(live.is_some_and(|live| is_ours(&live, scope))),
        Err(error) if matches!(ErrorClass::of(&error), ErrorClass::Missing | ErrorClass::Denied) => Ok(false),
        Err(error) => Err(Error::read(format!("{} {name}", K::kind(&())))(error)),
    }
}

/// Removes both. The schema first: then its writers go back to the level that they had.
pub(super) async fn remove(client: &Client, writer: &Writer, scope: &Scope) -> Result<(), Error> {
    remove_one::<FlowSchema>(client, writer, scope).await?;
    remove_one::<PriorityLevelConfiguration>(client, writer, scope).await
}

async fn remove_one<K>(client: &Client, writer: &Writer, scope: &Scope) -> Result<(), Error>
where
    K: Writable<DynamicType = ()> + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let name = name(scope);
    let live = match RetryPolicy::default().read(|| api.get_opt(&name)).await {
        Ok(live) => live.filter(|live| is_ours(live, scope)),
        // The kind is not served, or was never ours to touch: then we have made none.
        Err(error) if matches!(ErrorClass::of(&error), ErrorClass::Missing | ErrorClass::Denied) => None,
        Err(error) => return Err(Error::read(format!("{} {name}", K::kind(&())))(error)),
    };
    let Some(live) = live else { return Ok(()) };
    match writer.delete(&api, &live, &Delete::default()).await? {
        Deleted::Gone => Ok(()),
        Deleted::Going(_) => Err(Error::Leaving {
            what: format!("{} {name}", K::kind(&())),
        }),
    }
}

/// The schema as it stands; `None` with a reason: it does not count what it must.
pub(super) async fn counting(client: &Client, scope: &Scope) -> Result<Counting, String> {
    let schemas: Api<FlowSchema> = Api::all(client.clone());
    let list = schemas.list(&ListParams::default()).await;
    let list = list
        .map_err(|_| "the FlowSchemas cannot be read".to_owned())?
        .items;
    of_list(&list, scope)
}

/// The pure part of [`counting`].
fn of_list(schemas: &[FlowSchema], scope: &Scope) -> Result<Counting, String> {
    let name = name(scope);
    let (_, wanted) = objects(scope);
    let Some(ours) = schemas.iter().find(|schema| schema.name_any() == name) else {
        return Err(format!("FlowSchema {name} does not exist"));
    };
    if ours.spec != wanted.spec || ours.metadata.deletion_timestamp.is_some() {
        return Err(format!("FlowSchema {name} was changed by somebody"));
    }
    let conditions = ours
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let is_dangling = conditions
        .filter(|condition| condition.type_ == "Dangling")
        .any(|condition| condition.status.as_deref() != Some("False"));
    if is_dangling {
        return Err(format!("FlowSchema {name} has lost its priority level"));
    }
    let precedence = |schema: &FlowSchema| {
        let given = schema.spec.matching_precedence;
        (given.unwrap_or(1000), schema.name_any())
    };
    let groups: Vec<&str> = counted_kinds(scope).map(|(group, _)| group).collect();
    let mut earlier_levels: Vec<String> = schemas
        .iter()
        .filter(|schema| precedence(schema) < precedence(ours))
        .map(|schema| &schema.spec)
        .filter(|spec| may_take_writes(spec, &groups))
        .map(|spec| spec.priority_level_configuration.name.clone())
        .chain(["exempt".to_owned()])
        .collect();
    earlier_levels.sort();
    earlier_levels.dedup();
    Ok(Counting {
        uid: ours.uid().unwrap_or_default(),
        generation: ours.metadata.generation.unwrap_or_default(),
        earlier_levels,
    })
}

fn may_take_writes(spec: &FlowSchemaSpec, groups: &[&str]) -> bool {
    let mut rules = spec
        .rules
        .iter()
        .flatten()
        .flat_map(|rule| rule.resource_rules.iter().flatten());
    rules.any(|rule| {
        let group = |group: &String| group == "*" || groups.contains(&group.as_str());
        let verb = |verb: &String| verb == "*" || WRITES.contains(&verb.as_str());
        rule.api_groups.iter().any(group) && rule.verbs.iter().any(verb)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::policy::FrozenKind;
    use super::*;

    fn scope() -> Scope {
        Scope {
            uid: "m".into(),
            source: vec![FrozenKind {
                group: "old.example.com".into(),
                plural: "widgets".into(),
                ..FrozenKind::default()
            }],
            ..Scope::default()
        }
    }

    fn schema(name: &str, precedence: i32, group: &str, verb: &str) -> FlowSchema {
        let (_, mut schema) = objects(&scope());
        schema.metadata.name = Some(name.to_owned());
        let spec = &mut schema.spec;
        spec.matching_precedence = Some(precedence);
        spec.priority_level_configuration.name = format!("level-of-{name}");
        let rule = &mut spec.rules.as_mut().unwrap()[0].resource_rules.as_mut().unwrap()[0];
        rule.api_groups = vec![group.to_owned()];
        rule.verbs = vec![verb.to_owned()];
        schema
    }

    #[test]
    fn a_schema_that_is_asked_first_and_takes_our_writers_is_counted_too() {
        let (_, ours) = objects(&scope());
        let schemas = [
            ours,
            schema("a-first-by-name", 2, "*", "update"),
            schema("a-reader", 2, "old.example.com", "list"),
            schema("a-stranger", 2, "new.example.com", "*"),
            schema("z-last-by-name", 2, "*", "*"),
            schema("later", 100, "*", "*"),
        ];
        let counting = of_list(&schemas, &scope()).unwrap();
        assert_eq!(counting.earlier_levels, ["exempt", "level-of-a-first-by-name"]);
    }

    /// A write to one of our copies that passed before the freeze would change it after the last look.
    #[test]
    fn targets_that_exist_before_the_freeze_are_counted_too() {
        let scope = Scope {
            target: vec![("new.example.com".into(), "widgets".into())],
            has_early_targets: true,
            ..scope()
        };
        let (_, ours) = objects(&scope);
        let rules = ours.spec.rules.as_ref().unwrap()[0]
            .resource_rules
            .as_ref()
            .unwrap();
        let groups: Vec<_> = rules.iter().flat_map(|rule| &rule.api_groups).collect();
        assert_eq!(groups, ["new.example.com", "old.example.com"]);
        let schemas = [ours, schema("a-stranger", 2, "new.example.com", "*")];
        let counting = of_list(&schemas, &scope).unwrap();
        assert_eq!(counting.earlier_levels, ["exempt", "level-of-a-stranger"]);
    }

    #[test]
    fn a_schema_that_is_gone_changed_or_dangling_counts_nothing() {
        use k8s_openapi::api::flowcontrol::v1::{FlowSchemaCondition, FlowSchemaStatus};
        assert!(of_list(&[], &scope()).unwrap_err().contains("does not exist"));
        let changed = schema("exuvia-m", 2, "old.example.com", "create");
        assert!(of_list(&[changed], &scope()).unwrap_err().contains("changed"));
        let (_, mut dangling) = objects(&scope());
        dangling.status = Some(FlowSchemaStatus {
            conditions: Some(vec![FlowSchemaCondition {
                type_: "Dangling".into(),
                status: Some("True".into()),
                ..FlowSchemaCondition::default()
            }]),
        });
        assert!(
            of_list(&[dangling], &scope())
                .unwrap_err()
                .contains("priority level")
        );
    }
}
