//! The table of verdicts: everything that is seen to be fine is a yes, and each thing that is not makes it another answer.

use std::collections::BTreeMap;
use std::time::Duration;

use exuvia_api::Phase;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::ownership::Owner;
use crate::references::{Dependents, Unseen};
use crate::usage::{Counts, Unasked, Unread};

/// All that is seen of a cluster in which nothing holds v1alpha1.
struct World {
    definition: Definition,
    record: Option<Record>,
    unproven: Option<Redacted>,
    owners: Result<Owners, Redacted>,
    references: Option<Result<References, Redacted>>,
    usage: Usage,
    migrations: Result<Vec<Migration>, Redacted>,
    hidden: Result<Vec<Hidden>, Redacted>,
    served_after: Vec<String>,
    audience: Audience,
}

impl World {
    fn clear() -> Self {
        let crd: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com", "uid": "u", "generation": 3},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1", "served": true, "storage": true},
                             {"name": "v1alpha1", "served": true, "storage": false}],
            },
            "status": {"storedVersions": ["v1"]},
        }))
        .unwrap();
        let record = Record {
            uid: "u".into(),
            generation: 3,
            storage_version: "v1".into(),
            verified: Verified::Full,
            r1: None,
            at: Timestamp::from_second(1_800_000_000).unwrap(),
            patrolled: true,
            patrolled_at: None,
            left: Vec::new(),
        };
        Self {
            definition: Definition::read(&crd),
            record: Some(record),
            unproven: None,
            owners: Ok(Owners::default()),
            references: Some(Ok(References::default())),
            usage: Usage::counted("https://a", None, Ok(Counts::default())),
            migrations: Ok(Vec::new()),
            hidden: Ok(Vec::new()),
            served_after: vec!["v1".into()],
            audience: Audience::CommandLine,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut world = Self::clear();
        change(&mut world);
        world
    }

    fn judge(&self, version: &str) -> Verdict {
        let seen = Seen {
            definition: &self.definition,
            record: self.record.as_ref(),
            unproven: self.unproven.as_ref(),
            owners: match &self.owners {
                Ok(owners) => Looked::At(owners),
                Err(why) => Looked::Failed(why),
            },
            references: match &self.references {
                Some(Ok(references)) => Looked::At(references),
                Some(Err(why)) => Looked::Failed(why),
                None => Looked::No,
            },
            usage: Looked::At(&self.usage),
            migrations: match &self.migrations {
                Ok(migrations) => Looked::At(migrations),
                Err(why) => Looked::Failed(why),
            },
            hidden: match &self.hidden {
                Ok(hidden) => Looked::At(hidden),
                Err(why) => Looked::Failed(why),
            },
            served_after: &self.served_after,
            audience: self.audience,
        };
        seen.judge(version)
    }

    /// No, and only for this reason.
    #[track_caller]
    fn assert_held(&self, holds: Holds, words: &str) {
        let verdict = self.judge("v1alpha1");
        assert_eq!(verdict.answer, Answer::No, "{verdict}");
        assert_eq!(verdict.holders.len(), 1, "{verdict}");
        assert_eq!(verdict.holders[0].holds, holds, "{verdict}");
        assert!(verdict.to_string().contains(words), "{verdict}");
    }

    /// Not known, only for this reason, and with a way to find out.
    #[track_caller]
    fn assert_not_known(&self, what: Holds, words: &str, command: &str) {
        let verdict = self.judge("v1alpha1");
        assert_eq!(verdict.answer, Answer::NotKnown, "{verdict}");
        assert_eq!(verdict.unknown.len(), 1, "{verdict}");
        let unknown = &verdict.unknown[0];
        assert_eq!(unknown.what, what, "{verdict}");
        assert!(unknown.why.contains(words), "{verdict}");
        assert!(unknown.command.contains(command), "{verdict}");
    }
}

fn unseen(what: &str, forbidden: bool) -> Unseen {
    Unseen {
        what: what.into(),
        why: "no answer".into(),
        forbidden,
    }
}

#[test]
fn yes_if_everything_was_looked_at_and_nothing_holds_it() {
    let verdict = World::clear().judge("v1alpha1");
    assert_eq!(verdict.answer, Answer::Yes, "{verdict}");
    let looked_at: Vec<Holds> = verdict.clear.iter().map(|clear| clear.what).collect();
    for what in [
        Holds::Bytes,
        Holds::Served,
        Holds::Ownership,
        Holds::References,
        Holds::Usage,
    ] {
        assert!(looked_at.contains(&what), "{what} in {verdict}");
    }
}

#[test]
fn bytes_a_patrol_of_an_earlier_run_is_told_with_its_own_time() {
    let world = World::with(|world| {
        let record = world.record.as_mut().unwrap();
        record.patrolled_at = Some(Timestamp::from_second(1_799_999_000).unwrap());
    });
    let said = world.judge("v1alpha1").to_string();
    let then = Timestamp::from_second(1_799_999_000).unwrap();
    assert!(
        said.contains(&format!("patrolled before that ({then})")),
        "{said}"
    );
    let same = World::with(|world| {
        let record = world.record.as_mut().unwrap();
        record.patrolled_at = Some(record.at);
    });
    let said = same.judge("v1alpha1").to_string();
    assert!(
        said.contains("and patrolled (") && !said.contains("before"),
        "{said}"
    );
}

#[test]
fn served_one_stays_and_several_stay() {
    let world = World::with(|world| world.served_after = vec!["v1beta1".into(), "v1".into()]);
    let said = world.judge("v1alpha1").to_string();
    assert!(said.contains("v1beta1, v1 stay served"), "{said}");
}

#[test]
fn bytes_the_storage_version_and_what_stored_versions_lists_are_held() {
    let verdict = World::clear().judge("v1");
    assert_eq!(verdict.answer, Answer::No, "{verdict}");
    assert!(
        verdict.to_string().contains("it is the storage version"),
        "{verdict}"
    );
    World::with(|world| {
        world.definition.crd.stored = vec!["v1alpha1".into(), "v1".into()];
        world.record = None;
    })
    .assert_held(Holds::Bytes, "exuvia storage migrate widgets.example.com");
}

/// PITFALLS A39.
#[test]
fn bytes_without_a_record_a_clean_list_proves_nothing() {
    World::with(|world| world.record = None).assert_not_known(
        Holds::Bytes,
        "anybody",
        "exuvia storage droppable widgets.example.com v1alpha1 --prove",
    );
    World::with(|world| {
        world.record = None;
        world.unproven = Some("stalled (Failures): 1 object".into());
    })
    .assert_not_known(Holds::Bytes, "stalled (Failures)", "remove the cause");
}

#[test]
fn migration_one_that_is_not_patrolled_or_under_way_holds() {
    World::with(|world| world.record.as_mut().unwrap().patrolled = false).assert_held(
        Holds::Migration,
        "exuvia storage migrate widgets.example.com --patrol",
    );
    let migration = |resource: &str, phase, begun| Migration {
        name: "m".into(),
        resource: resource.into(),
        phase,
        begun,
    };
    for phase in Phase::ALL {
        let held = phase != Phase::Migrated;
        for (resource, held) in [("widgets.example.com", held), ("gadgets.example.com", false)] {
            let world = World::with(|world| world.migrations = Ok(vec![migration(resource, phase, true)]));
            if held {
                world.assert_held(Holds::Migration, phase.as_str());
            } else {
                assert_eq!(world.judge("v1alpha1").answer, Answer::Yes);
            }
        }
    }
    let suspended = migration("widgets.example.com", Phase::Suspended, true);
    World::with(|world| world.migrations = Ok(vec![suspended])).assert_held(
        Holds::Migration,
        r#"to go on, run `kubectl patch storagemigration m --type merge -p '{"spec":{"suspend":false}}'`"#,
    );
    // A second one for the same resource is stalled for good, and never begins.
    for phase in [Phase::Suspended, Phase::Stalled] {
        let idle = migration("widgets.example.com", phase, false);
        let world = World::with(|world| world.migrations = Ok(vec![idle]));
        assert_eq!(world.judge("v1alpha1").answer, Answer::Yes, "it has done nothing");
    }
    World::with(|world| world.migrations = Err("503".into())).assert_not_known(
        Holds::Migration,
        "503",
        "ask again",
    );
}

#[test]
fn ownership_each_manager_holds_and_unlisted_objects_are_not_known() {
    let owner = Owner {
        objects: 2,
        last: None,
        example: "default/a".into(),
    };
    let managers = BTreeMap::from([("laggard".to_owned(), owner)]);
    let owners = |version: &str| Owners {
        by_version: BTreeMap::from([(version.to_owned(), managers.clone())]),
    };
    World::with(|world| world.owners = Ok(owners("example.com/v1alpha1"))).assert_held(
        Holds::Ownership,
        "laggard owns fields at it on 2 objects (such as default/a)",
    );
    // The migration on record was at 1_800_000_000.
    for (second, still_writes) in [(1_799_999_999, false), (1_800_000_001, true)] {
        let mut owners = owners("example.com/v1alpha1");
        for owner in owners.by_version.values_mut().flat_map(BTreeMap::values_mut) {
            owner.last = Timestamp::from_second(second).ok();
        }
        let verdict = World::with(|world| world.owners = Ok(owners))
            .judge("v1alpha1")
            .to_string();
        assert_eq!(
            verdict.contains("it still writes at this version"),
            still_writes,
            "{verdict}"
        );
    }
    World::with(|world| {
        world.owners = Ok(owners("example.com/v1alpha1"));
        let annotation = (exuvia_api::EXCLUDE_ANNOTATION.to_owned(), "not ours".to_owned());
        world.definition.annotations.extend([annotation]);
    })
    .assert_held(
        Holds::Ownership,
        "widgets.example.com --include-excluded --shed v1alpha1",
    );
    let elsewhere = World::with(|world| world.owners = Ok(owners("example.com/v1")));
    assert_eq!(elsewhere.judge("v1alpha1").answer, Answer::Yes);
    World::with(|world| world.owners = Err("forbidden".into())).assert_not_known(
        Holds::Ownership,
        "forbidden",
        "allow `list` on widgets.example.com",
    );
}

#[test]
fn references_hold_and_what_could_not_be_listed_is_named_up_to_a_bound() {
    let owner = |kind: &str| OwnerKind {
        group: "example.com".into(),
        kind: kind.into(),
    };
    let dependents = Dependents {
        objects: 7,
        examples: vec!["default/a".into()],
    };
    let references =
        |kind: &str, version: &str| References::found(owner(kind), version, "configmaps", &dependents);
    World::with(|world| world.references = Some(Ok(references("Widget", "v1alpha1"))))
        .assert_held(Holds::References, "--owner-references");
    for (kind, version) in [("Widget", "v1"), ("Gadget", "v1alpha1")] {
        let other = World::with(|world| world.references = Some(Ok(references(kind, version))));
        assert_eq!(other.judge("v1alpha1").answer, Answer::Yes, "{kind} {version}");
    }
    World::with(|world| world.references = None).assert_not_known(
        Holds::References,
        "not looked at (--no-references)",
        "exuvia storage droppable widgets.example.com v1alpha1",
    );
    World::with(|world| world.references = Some(Err("no discovery".into()))).assert_not_known(
        Holds::References,
        "no discovery",
        "exuvia storage droppable",
    );
    let partly = |unseen: Vec<Unseen>| {
        World::with(|world| {
            let mut references = References::default();
            references.unseen = unseen;
            world.references = Some(Ok(references));
        })
    };
    partly(vec![unseen("secrets", true)]).assert_not_known(
        Holds::References,
        "secrets (forbidden)",
        "allow `list` on secrets",
    );
    partly(vec![unseen("down.io/v1", false)]).assert_not_known(
        Holds::References,
        "down.io/v1 (no answer)",
        "repair down.io/v1",
    );
    let many = (0..9).map(|n| unseen(&format!("r{n}"), true)).collect();
    partly(many).assert_not_known(Holds::References, "r4 (forbidden), and 4 more", "r4, and 4 more");
    // What was found holds, whatever could not be seen.
    let world = World::with(|world| {
        let mut found = references("Widget", "v1alpha1");
        found.unseen.push(unseen("secrets", true));
        world.references = Some(Ok(found));
    });
    assert_eq!(world.judge("v1alpha1").answer, Answer::No);
}

/// PITFALLS A37.
#[test]
fn usage_an_open_watch_holds_and_requests_do_if_they_came_while_we_watched() {
    let asked = |watches, requests: u64| Counts {
        watches,
        requests: BTreeMap::from([("LIST".to_owned(), requests)]),
    };
    let minute = Some(Duration::from_secs(60));
    let usage =
        |within, counts| World::with(|world| world.usage = Usage::counted("https://a", within, Ok(counts)));
    usage(None, asked(2, 0)).assert_held(Holds::Usage, "2 watches are open on https://a");
    usage(minute, asked(0, 3)).assert_held(Holds::Usage, "within 60 s (3 LIST)");
    let since_start = usage(None, asked(0, 3)).judge("v1alpha1");
    assert_eq!(since_start.answer, Answer::Yes, "{since_start}");
    let quiet = usage(minute, Counts::default()).judge("v1alpha1");
    assert!(quiet.to_string().contains("no request within 60 s"), "{quiet}");

    for (forbidden, uncounted, command) in [
        (true, false, "allow `get` on the path /metrics"),
        (false, true, "--disabled-metrics"),
        (false, false, "make this API server reachable"),
    ] {
        let unread = Unread {
            why: "no".into(),
            forbidden,
            uncounted,
        };
        World::with(|world| world.usage = Usage::counted("https://a", None, Err(unread))).assert_not_known(
            Holds::Usage,
            "/metrics of https://a",
            command,
        );
    }
    World::with(|world| world.usage = Usage::default()).assert_not_known(
        Holds::Usage,
        "no API server was asked",
        "exuvia storage droppable",
    );
    let unserved = World::with(|world| {
        world.usage = Usage::default();
        world.definition.versions[1].served = false;
    });
    assert_eq!(
        unserved.judge("v1alpha1").answer,
        Answer::Yes,
        "it cannot be asked for"
    );
}

/// A watch may be open on a server that was not asked.
#[test]
fn usage_is_not_known_while_a_server_may_not_have_been_asked() {
    let world = |unasked| World::with(|world| world.usage.unasked = Some(unasked));
    let missing = |leases| Unasked::Missing { asked: 1, leases };
    world(missing(2)).assert_not_known(
        Holds::Usage,
        "kube-system has 2 identity Leases, and 1 answered",
        "`exuvia storage droppable widgets.example.com v1alpha1 --apiserver URL`",
    );
    world(missing(0)).assert_not_known(Holds::Usage, "no identity Leases", "`served: false` for v1alpha1");
    world(Unasked::NotCounted).assert_not_known(
        Holds::Usage,
        "may not be listed",
        "allow `list` on leases.coordination.k8s.io in namespace kube-system",
    );
    let mut of_operator = world(missing(3));
    of_operator.audience = Audience::StorageMigration;
    of_operator.assert_not_known(
        Holds::Usage,
        "3 identity Leases",
        "start the operator with one --apiserver URL",
    );
    let mut unserved = world(missing(2));
    unserved.definition.versions[1].served = false;
    assert_eq!(
        unserved.judge("v1alpha1").answer,
        Answer::Yes,
        "it cannot be asked for"
    );
}

#[test]
fn served_never_yes_if_nothing_would_be_served() {
    World::with(|world| world.served_after.clear())
        .assert_held(Holds::Served, "no version that stays is served");
    World::with(|world| {
        world.served_after.clear();
        world.definition.versions[0].served = false;
    })
    .assert_held(Holds::Served, "the only version that is served");
}

#[test]
fn of_several_answers_the_worst_counts() {
    use Answer::{No, NotKnown, Yes};
    assert_eq!(Answer::of_all([]), Yes);
    assert_eq!(Answer::of_all([Yes, NotKnown, Yes]), NotKnown);
    assert_eq!(Answer::of_all([NotKnown, No, Yes]), No);
}

#[test]
fn machines_get_the_same_answer() {
    let world = World::with(|world| world.record = None);
    let json = json!(world.judge("v1alpha1"));
    assert_eq!(json["answer"], "notKnown");
    assert_eq!(json["unknown"][0]["what"], "bytes");
    assert_eq!(json["holders"], json!([]));
}

#[test]
fn where_another_server_answers_nothing_is_known() {
    let hidden = Hidden {
        group: "example.com".into(),
        version: "v1".into(),
        service: "ns/api".into(),
    };
    World::with(|world| world.hidden = Ok(vec![hidden])).assert_not_known(
        Holds::Bytes,
        "the APIService v1.example.com sends requests to the Service ns/api",
        "delete the APIService v1.example.com",
    );
    World::with(|world| world.hidden = Err("forbidden".into())).assert_not_known(
        Holds::Bytes,
        "cannot be read: forbidden",
        "allow `get` on apiservices.apiregistration.k8s.io",
    );
}

/// The garbage collector cannot see such a dependent either, until its CRD is served again.
#[test]
fn references_of_objects_that_no_list_shows_are_not_known() {
    let mut concealed = References::default();
    concealed.concealed = vec![unseen("gadgets.example.com", false)];
    World::with(|world| world.references = Some(Ok(concealed))).assert_not_known(
        Holds::References,
        "gadgets.example.com (no answer)",
        "serve a version of each",
    );
}
