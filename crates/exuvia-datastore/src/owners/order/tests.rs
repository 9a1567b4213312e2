//! Every owner comes before its dependents, or there is a name for why not.

use proptest::prelude::*;

use super::*;

fn edges(objects: &[(&str, i32, &[&str])]) -> Edges {
    let mut edges = Edges::default();
    for (uid, wave, owners) in objects {
        let name = format!("the {uid}");
        let member = Member {
            uids: &[uid],
            wave: *wave,
            name: &name,
        };
        edges.add(member, owners.iter().copied());
    }
    edges
}

#[test]
fn three_levels_take_three_passes_in_whatever_order_they_are_seen() {
    let mut objects: Vec<(&str, i32, &[&str])> = vec![
        ("root", 0, &[]),
        ("branch", 0, &["root"]),
        ("leaf", 0, &["branch", "root"]),
    ];
    for _ in 0..2 {
        let order = edges(&objects).order().unwrap();
        assert_eq!(["root", "branch", "leaf"].map(|uid| order.depth(uid)), [0, 1, 2]);
        assert_eq!(order.passes(0), 3);
        assert_eq!(order.passes(7), 1, "a wave without owners");
        objects.reverse();
    }
}

#[test]
fn an_owner_of_an_earlier_wave_is_there_already() {
    let order = edges(&[
        ("root", 0, &[]),
        ("branch", 0, &["root"]),
        ("leaf", 1, &["branch"]),
    ])
    .order()
    .unwrap();
    assert_eq!(["branch", "leaf"].map(|uid| order.depth(uid)), [1, 0]);
    assert_eq!((order.passes(0), order.passes(1)), (2, 1));
}

#[test]
fn an_owner_of_a_later_wave_is_named() {
    let faults = edges(&[("leaf", 1, &["branch"]), ("branch", 2, &["root"])])
        .order()
        .unwrap_err();
    assert_eq!(
        faults[0].to_string(),
        "the leaf is in wave 1 and its owner the branch in wave 2: expected the owner in the same wave or an earlier one"
    );
    // Its wave is told later, and only by uid.
    let mut edges = edges(&[("root", 2, &[]), ("leaf", 1, &["root"])]);
    assert_eq!(edges.unplaced().collect::<Vec<_>>(), ["root"]);
    assert!(edges.order().is_ok(), "nobody knows better");
    edges.place("root", 2);
    edges.place("somebody else", 9);
    assert_eq!(edges.unplaced().count(), 0);
    let faults = edges.order().unwrap_err();
    assert!(
        matches!(&faults[..], [Disorder::LaterWave { owner, .. }] if owner == "root"),
        "{faults:?}"
    );
}

#[test]
fn a_circle_is_named_once_and_what_hangs_on_it_is_not() {
    let faults = edges(&[
        ("a", 0, &["b"]),
        ("b", 0, &["c"]),
        ("c", 0, &["a"]),
        ("hanging", 0, &["a"]),
        ("fine", 0, &["root"]),
        ("itself", 0, &["itself"]),
    ])
    .order()
    .unwrap_err();
    let said: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with(
            "the a is owned by the b, which is owned by the c, which is owned by the a: objects that own each other"
        ),
        "{said:?}"
    );
    assert!(
        said[1].starts_with("the itself is owned by the itself: "),
        "{said:?}"
    );
}

#[test]
fn an_owner_is_found_by_its_alias_too() {
    let mut edges = edges(&[("leaf", 0, &["alias"])]);
    let branch = Member {
        uids: &["branch", "alias"],
        wave: 0,
        name: "branch",
    };
    edges.add(branch, ["root"]);
    let order = edges.order().unwrap();
    assert_eq!(["branch", "alias", "leaf"].map(|uid| order.depth(uid)), [1, 1, 2]);
}

#[test]
fn an_object_that_is_seen_twice_counts_as_seen_last() {
    let order = edges(&[("a", 0, &["b"]), ("b", 0, &["a"]), ("b", 0, &["root"])])
        .order()
        .unwrap();
    assert_eq!(["b", "a"].map(|uid| order.depth(uid)), [1, 2]);
}

#[test]
fn objects_without_owners_are_not_kept() {
    let mut edges = Edges::default();
    for n in 0..1000 {
        let uid = n.to_string();
        edges.add(
            Member {
                uids: &[&uid],
                wave: 0,
                name: &uid,
            },
            [],
        );
    }
    assert_eq!(
        (edges.members.len(), edges.by_uid.len(), edges.owners.len()),
        (0, 0, 0)
    );
}

/// Up to 12 objects, each with a wave and up to three owners.
fn graphs() -> impl Strategy<Value = Vec<(i32, Vec<usize>)>> {
    proptest::collection::vec((0..3_i32, proptest::collection::vec(0..12_usize, 0..3)), 1..12)
}

/// Whether an object comes to itself by way of its owners in its own wave: the slow way to find out.
fn is_in_a_circle(graph: &[(i32, Vec<usize>)], start: usize) -> bool {
    let mut seen = vec![false; graph.len()];
    let mut next = vec![start];
    while let Some(here) = next.pop() {
        for owner in graph[here].1.iter().copied().filter(|owner| *owner < graph.len()) {
            if graph[owner].0 != graph[here].0 {
                continue;
            }
            if owner == start {
                return true;
            }
            if !std::mem::replace(&mut seen[owner], true) {
                next.push(owner);
            }
        }
    }
    false
}

proptest! {
    #[test]
    fn every_owner_comes_before_its_dependents_or_the_reason_is_named(graph in graphs()) {
        let uids: Vec<String> = (0..12).map(|n| n.to_string()).collect();
        let mut edges = Edges::default();
        for (index, (wave, owners)) in graph.iter().enumerate() {
            let member = Member { uids: &[&uids[index]], wave: *wave, name: &uids[index] };
            edges.add(member, owners.iter().map(|owner| uids[*owner].as_str()));
        }
        for (index, (wave, _)) in graph.iter().enumerate() {
            edges.place(&uids[index], *wave);
        }
        let in_circle: Vec<bool> = (0..graph.len()).map(|index| is_in_a_circle(&graph, index)).collect();
        let later = graph.iter().flat_map(|(wave, owners)| owners.iter().map(move |owner| (*wave, *owner)))
            .filter(|(wave, owner)| graph.get(*owner).is_some_and(|(owners_wave, _)| owners_wave > wave))
            .count();
        match edges.order() {
            Ok(order) => {
                prop_assert!(!in_circle.contains(&true) && later == 0);
                for (index, (wave, owners)) in graph.iter().enumerate() {
                    let depth = order.depth(&uids[index]);
                    prop_assert!(depth < order.passes(*wave));
                    for owner in owners.iter().copied().filter(|owner| *owner < graph.len()) {
                        let place = (graph[owner].0, order.depth(&uids[owner]));
                        prop_assert!(place < (*wave, depth), "{owner} before {index}");
                    }
                }
            }
            Err(faults) => {
                let mut circles = 0;
                let mut waves = 0;
                for fault in &faults {
                    match fault {
                        Disorder::Cycle(names) => {
                            circles += 1;
                            for (at, name) in names.iter().enumerate() {
                                let member: usize = name.parse().unwrap();
                                let owner: usize = names[(at + 1) % names.len()].parse().unwrap();
                                prop_assert!(graph[member].1.contains(&owner), "{name} is owned by {owner}");
                                prop_assert_eq!(graph[member].0, graph[owner].0);
                            }
                        }
                        Disorder::LaterWave { .. } => waves += 1,
                    }
                }
                prop_assert_eq!(waves, later);
                prop_assert_eq!(circles > 0, in_circle.contains(&true));
            }
        }
    }
}
