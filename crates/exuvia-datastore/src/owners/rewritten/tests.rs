//! A reference is written right, or not at all.

use proptest::prelude::*;

use super::*;

fn reference(api_version: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: api_version.into(),
        kind: "Widget".into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn successor(namespace: Option<&str>) -> Successor {
    Successor {
        api_version: "new.example.dev/v2".into(),
        kind: "Gadget".into(),
        name: "renamed".into(),
        namespace: namespace.map(str::to_owned),
        uid: "new-uid".into(),
    }
}

fn ready(outcome: Outcome) -> Vec<OwnerReference> {
    match outcome {
        Outcome::Ready { references, .. } => references,
        other => panic!("{other:?}"),
    }
}

fn whys(outcome: Outcome) -> Vec<Why> {
    match outcome {
        Outcome::Held(faults) => faults.into_iter().map(|fault| fault.why).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_moved_owner_is_named_as_what_it_became_and_a_foreign_one_as_it_is() {
    let moved = reference("old.example.dev/v1", "till", "old-uid");
    let mut foreign = reference("apps/v1", "shop", "foreign-uid");
    foreign.controller = None;
    let exists = Owner::Exists {
        namespace: Some("shop".into()),
    };
    let references = ready(rewritten(
        [
            (&moved, Owner::Moved(successor(Some("shop")))),
            (&foreign, exists),
        ],
        Some("shop"),
        MissingOwner::Hold,
    ));
    let wanted = OwnerReference {
        api_version: "new.example.dev/v2".into(),
        kind: "Gadget".into(),
        name: "renamed".into(),
        uid: "new-uid".into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    assert_eq!(references, [wanted, foreign]);
}

#[test]
fn a_copy_waits_for_its_owners_and_a_fault_comes_before_any_wait() {
    let first = reference("old.example.dev/v1", "a", "first");
    let second = reference("old.example.dev/v1", "b", "second");
    let waiting = [
        (&first, Owner::NotYet),
        (&second, Owner::NotYet),
        (&first, Owner::NotYet),
    ];
    let outcome = rewritten(waiting.clone(), None, MissingOwner::Hold);
    assert_eq!(outcome, Outcome::WaitFor(vec!["first".into(), "second".into()]));
    let missing = (&second, Owner::Missing(Absence::NoObject));
    let outcome = rewritten(waiting.into_iter().chain([missing]), None, MissingOwner::Hold);
    assert_eq!(whys(outcome), [Why::Missing(Absence::NoObject)]);
}

#[test]
fn only_a_missing_owner_can_be_dropped() {
    let reference = reference("old.example.dev/v1", "till", "uid");
    for absence in [Absence::NoObject, Absence::OtherUid, Absence::NotServed] {
        let owners = [(&reference, Owner::Missing(absence))];
        assert_eq!(
            whys(rewritten(owners.clone(), None, MissingOwner::Hold)),
            [Why::Missing(absence)]
        );
        match rewritten(owners, None, MissingOwner::Drop) {
            Outcome::Ready { references, dropped } => {
                assert_eq!(references, []);
                assert_eq!(dropped[0].why, Why::Missing(absence));
                assert_eq!(dropped[0].owner, "Widget.old.example.dev till");
                assert!(!dropped[0].may_pass());
            }
            other => panic!("{other:?}"),
        }
    }
    for owner in [Owner::Unknown("the server is away".into()), Owner::Unreachable] {
        let outcome = rewritten([(&reference, owner)], None, MissingOwner::Drop);
        assert!(matches!(outcome, Outcome::Held(_)), "{outcome:?}");
    }
}

#[test]
fn an_owner_out_of_reach_is_reported_whatever_the_policy() {
    let reference = reference("old.example.dev/v1", "till", "uid");
    let moved = || Owner::Moved(successor(Some("shop")));
    let foreign = || Owner::Exists {
        namespace: Some("shop".into()),
    };
    for policy in [MissingOwner::Hold, MissingOwner::Drop] {
        for owner in [moved(), foreign()] {
            let there = rewritten([(&reference, owner.clone())], Some("shop"), policy);
            assert!(matches!(there, Outcome::Ready { .. }), "{there:?}");
            let elsewhere = rewritten([(&reference, owner.clone())], Some("office"), policy);
            let why = Why::OtherNamespace {
                owner: "shop".into(),
                dependent: "office".into(),
            };
            assert_eq!(whys(elsewhere), [why]);
            let nowhere = rewritten([(&reference, owner)], None, policy);
            assert_eq!(whys(nowhere), [Why::Namespaced]);
        }
        for namespace in [None, Some("shop")] {
            let cluster_scoped = [
                (&reference, Owner::Moved(successor(None))),
                (&reference, Owner::Exists { namespace: None }),
            ];
            ready(rewritten(cluster_scoped, namespace, policy));
        }
    }
}

#[test]
fn references_that_become_one_are_written_once() {
    let mut source = reference("old.example.dev/v1", "till", "source");
    let mut alias = reference("new.example.dev/v1", "till", "alias");
    (source.controller, source.block_owner_deletion) = (None, Some(true));
    (alias.controller, alias.block_owner_deletion) = (Some(true), Some(false));
    let owners = [&source, &alias].map(|reference| (reference, Owner::Moved(successor(None))));
    let references = ready(rewritten(owners, None, MissingOwner::Hold));
    assert_eq!(references.len(), 1, "{references:?}");
    assert_eq!(
        (references[0].controller, references[0].block_owner_deletion),
        (Some(true), Some(true))
    );
}

#[test]
fn a_dependent_that_stays_gets_its_new_owner_in_the_place_of_the_old_one() {
    let before = reference("v1", "before", "before");
    let moved = reference("old.example.dev/v1", "till", "source");
    let unmoved = reference("old.example.dev/v1", "other", "other");
    let fates = |namespace| {
        [
            (&before, None),
            (&moved, Some(Ok(Fate::Moved(successor(namespace))))),
            (&unmoved, Some(Ok(Fate::NotMoved))),
        ]
    };
    let answer = replaced(fates(Some("shop")), Some("shop"));
    let new = successor(None).in_place_of(&moved);
    assert_eq!(answer.references, [before.clone(), new.clone(), unmoved.clone()]);
    assert!(answer.changed && answer.is_dependent());
    assert_eq!(answer.unmoved, 1);

    // Again, from what that write left.
    let again = [
        (&before, None),
        (&new, Some(Ok(Fate::Moved(successor(Some("shop")))))),
        (&unmoved, Some(Ok(Fate::NotMoved))),
    ];
    let again = replaced(again, Some("shop"));
    assert!(!again.changed && !again.is_dependent(), "{again:?}");
    assert_eq!(again.references, answer.references);

    let elsewhere = replaced(fates(Some("shop")), Some("office"));
    assert!(!elsewhere.changed && elsewhere.is_dependent());
    assert_eq!(elsewhere.held.len(), 1);
    assert_eq!(elsewhere.references, [before, moved, unmoved]);
}

#[test]
fn a_dependent_that_names_both_owners_keeps_the_new_one() {
    let old = reference("old.example.dev/v1", "till", "source");
    let new = successor(None).in_place_of(&old);
    let answer = replaced(
        [(&new, None), (&old, Some(Ok(Fate::Moved(successor(None)))))],
        None,
    );
    assert_eq!(answer.references, [new]);
    assert!(answer.changed);
}

/// PITFALLS D20: an old group with a new uid is deleted, another served version is not.
#[test]
fn a_reference_that_has_only_the_new_uid_is_put_right() {
    let moved = || Some(Ok(Fate::Moved(successor(None))));
    let new = successor(None).in_place_of(&reference("old.example.dev/v1", "till", "source"));
    for (api_version, is_right) in [("old.example.dev/v1", false), ("new.example.dev/v1", true)] {
        let half = OwnerReference {
            api_version: api_version.into(),
            ..new.clone()
        };
        let answer = replaced([(&half, moved())], None);
        assert_eq!(answer.changed, !is_right, "{api_version}");
        assert_eq!(answer.references, [if is_right { half } else { new.clone() }]);
    }
}

#[test]
fn what_is_not_known_is_not_replaced_and_not_forgotten() {
    let old = reference("old.example.dev/v1", "till", "source");
    for (fate, held, not_yet) in [(Err("away".into()), 1, 0), (Ok(Fate::NotYet), 0, 1)] {
        let answer = replaced([(&old, Some(fate))], None);
        assert_eq!((answer.held.len(), answer.not_yet), (held, not_yet));
        assert!(answer.is_dependent() && !answer.changed);
        assert_eq!(answer.references, std::slice::from_ref(&old));
    }
}

fn owners() -> impl Strategy<Value = Owner> {
    let namespaces = || {
        prop_oneof![
            Just(None),
            Just(Some("shop".to_owned())),
            Just(Some("office".to_owned()))
        ]
    };
    prop_oneof![
        namespaces().prop_map(|namespace| Owner::Moved(successor(namespace.as_deref()))),
        Just(Owner::NotYet),
        namespaces().prop_map(|namespace| Owner::Exists { namespace }),
        Just(Owner::Missing(Absence::NoObject)),
        Just(Owner::Unreachable),
        Just(Owner::Unknown("away".into())),
    ]
}

proptest! {
    /// PITFALLS D20: what the garbage collector would delete for is never written.
    #[test]
    fn nothing_is_written_but_owners_that_exist_within_reach(
        owners in proptest::collection::vec(owners(), 0..5),
        namespace in prop_oneof![Just(None), Just(Some("shop"))],
        drop in any::<bool>(),
    ) {
        let policy = if drop { MissingOwner::Drop } else { MissingOwner::Hold };
        let references: Vec<OwnerReference> =
            (0..owners.len()).map(|n| reference("old.example.dev/v1", "till", &format!("old-{n}"))).collect();
        let known = references.iter().zip(owners.iter().cloned());
        if let Outcome::Ready { references: written, dropped } = rewritten(known, namespace, policy) {
            for reference in &written {
                let owner = references.iter().position(|old| old == reference).map(|n| &owners[n]);
                let is_in_reach = |owner: &Option<String>| owner.is_none() || owner.as_deref() == namespace;
                prop_assert!(match owner {
                    Some(Owner::Exists { namespace }) => is_in_reach(namespace),
                    None => reference.uid == "new-uid" && reference.api_version == "new.example.dev/v2",
                    Some(_) => false,
                }, "{reference:?} of {owner:?}");
            }
            let missing = owners.iter().filter(|owner| matches!(owner, Owner::Missing(_))).count();
            prop_assert_eq!(dropped.len(), missing);
            let lost = owners.iter().filter(|owner| matches!(owner, Owner::Moved(_))).count();
            prop_assert_eq!(written.iter().any(|reference| reference.uid == "new-uid"), lost > 0);
        }
    }
}
