//! The worlds that are gone through: small, and different in what the spec wants and in what stands in the way.

use exuvia_api::CleanupSource;
use exuvia_datastore::protocol::Route;

use crate::world::{Bad, Setting, Target, Value, World};

/// All of them.
pub(crate) fn worlds() -> Vec<World> {
    let plain = Setting {
        sync: false,
        objects: 1,
        writes: 1,
        route: false,
        admission: true,
        gauges: false,
        masters: false,
        flags: false,
        max_duration: true,
        forgets: false,
        cleanup: CleanupSource::DeleteCrds,
    };
    let counted = Setting {
        gauges: true,
        cleanup: CleanupSource::KeepFrozen,
        ..plain
    };
    let masters = Setting {
        masters: true,
        ..counted
    };
    let flags = Setting {
        flags: true,
        cleanup: CleanupSource::Thaw,
        ..plain
    };
    let flags_alone = Setting {
        admission: false,
        cleanup: CleanupSource::KeepFrozen,
        ..flags
    };
    let route = Setting {
        route: true,
        cleanup: CleanupSource::Thaw,
        ..plain
    };
    let unguarded_route = Setting {
        admission: false,
        ..Setting { flags: true, ..route }
    };
    let thaws = Setting {
        cleanup: CleanupSource::Thaw,
        ..plain
    };
    let forgets = Setting {
        forgets: true,
        ..plain
    };
    let two = Setting { objects: 2, ..plain };
    let synced = Setting { sync: true, ..plain };
    let synced_and_counted = Setting {
        sync: true,
        ..counted
    };
    let synced_by_flags = Setting {
        sync: true,
        ..flags_alone
    };
    let two_synced = Setting { sync: true, ..two };
    let busy_and_synced = Setting { writes: 2, ..synced };
    let synced_route = Setting { sync: true, ..route };
    let synced_unguarded_route = Setting {
        sync: true,
        ..unguarded_route
    };
    let forgets_copies = Setting {
        forgets: true,
        ..synced_route
    };
    let busy = Setting { writes: 2, ..counted };
    let bad = |setting, bad| World {
        bad,
        ..World::fresh(setting, 2)
    };
    let foreign = |setting, target| World {
        targets: [target; 2],
        ..World::fresh(setting, 2)
    };
    let frozen_before = World {
        flags: [Value::Frozen, Value::Open],
        flags_before: [Value::Frozen, Value::Open],
        ..World::fresh(flags, 2)
    };
    let no_backend = World {
        route: Route::Crds,
        route_before: Route::Crds,
        aliased: false,
        crd_servers: 2,
        ..World::fresh(unguarded_route, 2)
    };
    let waits = World {
        ready: false,
        ..World::fresh(counted, 1)
    };
    let kept = |setting| World {
        kept: true,
        ..World::fresh(setting, 2)
    };
    // Those in which most goes wrong first: what a mistake leads to is then found soon.
    vec![
        World::fresh(unguarded_route, 2),
        World::fresh(route, 2),
        no_backend.clone(),
        World::converged(plain, 3),
        World::converged(thaws, 3),
        World::fresh(flags_alone, 2),
        World::fresh(plain, 2),
        World::fresh(synced, 2),
        World::fresh(synced_route, 2),
        World::fresh(synced_unguarded_route, 1),
        World::fresh(forgets_copies, 1),
        foreign(synced_route, Target::Foreign(None)),
        bad(synced_route, Bad::Hidden),
        World {
            events_left: 1,
            ..kept(synced_route)
        },
        World {
            setting: synced_unguarded_route,
            ..World {
                events_left: 1,
                ..no_backend
            }
        },
        World::fresh(synced_and_counted, 2),
        World::fresh(synced_by_flags, 1),
        World::fresh(busy_and_synced, 1),
        World::fresh(two_synced, 1),
        foreign(synced, Target::Foreign(Some(1))),
        foreign(synced, Target::Foreign(None)),
        bad(synced, Bad::Hidden),
        World::fresh(counted, 2),
        World::fresh(busy, 1),
        World::fresh(masters, 1),
        World::fresh(two, 1),
        waits,
        bad(plain, Bad::Spec),
        World {
            events_left: 1,
            ..bad(flags, Bad::Hidden)
        },
        bad(route, Bad::Shown),
        foreign(plain, Target::Foreign(Some(1))),
        foreign(plain, Target::Foreign(None)),
        foreign(route, Target::Foreign(None)),
        frozen_before,
        kept(plain),
        World::fresh(forgets, 1),
        kept(route),
        World::fresh(flags, 2),
        bad(plain, Bad::Hidden),
    ]
}
