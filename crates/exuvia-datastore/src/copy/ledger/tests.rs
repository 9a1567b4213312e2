//! What counts as news, whose a place is, and what is looked at again.

use super::*;

fn named(name: &str) -> Named {
    Named {
        kind: 0,
        namespace: None,
        name: name.into(),
    }
}

fn version(number: u64) -> Option<ResourceVersion> {
    number.to_string().parse().ok()
}

/// Source 1 with uid 7 at version 10, in target 100 at version 20, owned by uid 5.
fn in_step() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.source_seen(1, named("a"), 7, version(10));
    assert_eq!(ledger.take(), [(1, named("a"))]);
    assert!(ledger.claim(100, &named("a"), 1));
    let made = Made {
        place: 100,
        named: named("a"),
        version: version(20),
        uid: 70,
        mapping: 0,
        is_ours: true,
        is_successor: true,
    };
    let now = InStep {
        named: named("a"),
        uid: 7,
        version: version(10),
        owners: Box::new([5]),
        targets: vec![made],
    };
    ledger.settled(1, Some(now));
    assert_eq!(ledger.backlog(), 0);
    ledger
}

#[test]
fn our_own_writes_and_what_is_known_tell_nothing_new() {
    let mut ledger = in_step();
    ledger.target_seen(100, named("a"), version(19), true);
    ledger.target_seen(100, named("a"), version(20), true);
    ledger.source_seen(1, named("a"), 7, version(10));
    assert_eq!(ledger.backlog(), 0);
    assert!(ledger.take().is_empty());
}

#[test]
fn a_newer_state_another_uid_and_a_deletion_are_news() {
    let changes: [fn(&mut Ledger); 7] = [
        |ledger| ledger.source_seen(1, named("a"), 7, version(11)),
        |ledger| ledger.source_seen(1, named("a"), 8, version(9)),
        |ledger| ledger.source_lost(1, named("a")),
        |ledger| ledger.sources_listed(0, &HashSet::new()),
        |ledger| ledger.target_seen(100, named("a"), version(21), true),
        |ledger| ledger.target_lost(100),
        |ledger| ledger.owner_changed(5),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut ledger = in_step();
        change(&mut ledger);
        assert_eq!(ledger.backlog(), 1, "{number}");
        assert_eq!(ledger.take(), [(1, named("a"))], "{number}");
        assert!(ledger.take().is_empty(), "{number}: it is in work");
    }
}

#[test]
fn a_write_that_is_told_of_before_it_is_noted_is_looked_at_once_at_most() {
    let mut ledger = in_step();
    ledger.source_seen(1, named("a"), 7, version(30));
    ledger.take();
    ledger.target_seen(100, named("a"), version(31), true);
    let mut now = ledger.before(1).unwrap();
    (now.version, now.targets[0].version) = (version(30), version(31));
    ledger.settled(1, Some(now));
    assert_eq!(ledger.backlog(), 0);
}

#[test]
fn what_changes_while_it_is_in_work_is_looked_at_again() {
    for relisted in [false, true] {
        let mut ledger = Ledger::default();
        ledger.source_seen(1, named("a"), 7, version(10));
        ledger.take();
        if relisted {
            ledger.sources_listed(0, &HashSet::new());
        } else {
            ledger.source_lost(1, named("a"));
        }
        ledger.settled(1, None);
        assert_eq!(ledger.take(), [(1, named("a"))]);
    }
}

#[test]
fn a_place_belongs_to_one_source_until_that_lets_it_go() {
    let mut ledger = in_step();
    assert!(!ledger.claim(100, &named("a"), 2));
    ledger.settled(1, None);
    assert!(ledger.claim(100, &named("a"), 2));
}

#[test]
fn a_target_of_ours_that_nobody_wants_is_a_stray() {
    let mut ledger = in_step();
    ledger.target_seen(101, named("b"), version(30), true);
    ledger.target_seen(102, named("c"), version(31), false);
    ledger.target_seen(103, named("d"), version(32), true);
    assert_eq!(ledger.backlog(), 2);
    ledger.claim(103, &named("d"), 1);
    assert_eq!(ledger.take_strays(), [(101, named("b"))]);
    assert_eq!(ledger.backlog(), 0);
}

#[test]
fn a_place_that_was_tried_in_vain_is_looked_at_before_it_is_let_go() {
    let mut ledger = in_step();
    ledger.source_seen(1, named("a"), 7, version(30));
    ledger.take();
    ledger.claim(104, &named("other"), 1);
    let now = ledger.before(1);
    ledger.settled(1, now);
    assert_eq!(ledger.take_strays(), [(104, named("other"))]);
}

#[test]
fn what_is_held_is_tried_again_and_keeps_its_time() {
    let mut ledger = in_step();
    let problem = || Problem::new("NotReady", "it is not ready");
    ledger.hold(1, named("a"), problem());
    let since = ledger.held().next().unwrap().since;
    assert_eq!(ledger.take(), [(1, named("a"))]);
    ledger.hold(1, named("a"), problem());
    assert_eq!(ledger.held().next().unwrap().since, since);
    ledger.take();
    ledger.settled(1, None);
    assert_eq!(ledger.held().count(), 0);
}
