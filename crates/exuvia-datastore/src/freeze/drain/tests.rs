//! The rules of the drain, on made-up servers.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn gauges(ours: u64, earlier: u64) -> Gauges {
    Gauges {
        process: "p".into(),
        has_our_schema: true,
        ours,
        earlier,
    }
}

/// A server that has had the schema for long enough and denies since `start`.
fn ready(start: Instant) -> Seen {
    let mut seen = Seen::default();
    seen.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    seen.schema_since = Some(start.checked_sub(SCHEMA_COUNTS_AFTER).unwrap());
    seen.probed(Found::Denies, start);
    seen
}

struct World {
    servers: BTreeMap<String, Seen>,
    why_not_all: Option<&'static str>,
    why_no_gauges: Option<&'static str>,
    unasked: Unasked,
    how: Drain,
    start: Instant,
}

impl World {
    fn of(servers: Vec<Seen>, start: Instant) -> Self {
        let named = ["a", "b", "c"].map(str::to_owned).into_iter().zip(servers);
        Self {
            servers: named.collect(),
            why_not_all: None,
            why_no_gauges: None,
            unasked: Unasked::Awake,
            how: Drain::Auto,
            start,
        }
    }

    fn after(&self, elapsed: Duration) -> Drained {
        drained(&Situation {
            servers: &self.servers,
            why_not_all: self.why_not_all,
            unasked: &self.unasked,
            why_no_gauges: self.why_no_gauges,
            writes_end_within: WRITE_ENDS_WITHIN,
            how: self.how,
            now: self.start + elapsed,
        })
    }
}

/// Long enough after the machine started that times before it can be named.
fn start() -> Instant {
    Instant::now() + Duration::from_secs(1000)
}

#[test]
fn a_server_that_is_idle_after_it_denied_is_drained() {
    let start = start();
    let mut seen = ready(start);
    seen.told(&gauges(0, 0), start, start + SECOND, SCHEMA_COUNTS_AFTER);
    let world = World::of(vec![seen], start);
    assert_eq!(world.after(SECOND), Drained::ProvenByGauges);
}

#[test]
fn idle_before_it_denied_says_nothing() {
    let start = start();
    let mut seen = ready(start);
    // The question was sent before the denial was seen.
    seen.told(
        &gauges(0, 0),
        start.checked_sub(SECOND).unwrap(),
        start + SECOND,
        SCHEMA_COUNTS_AFTER,
    );
    assert!(!seen.is_empty);
}

#[test]
fn writes_that_bypass_the_count_hold_up_the_proof() {
    let start = start();
    let mut seen = ready(start);
    seen.told(&gauges(0, 1), start, start, SCHEMA_COUNTS_AFTER);
    let world = World::of(vec![seen.clone()], start);
    let Drained::WaitUntil { at, why } = world.after(SECOND) else {
        panic!("{:?}", world.after(SECOND))
    };
    assert_eq!(at, start + WRITE_ENDS_WITHIN);
    assert!(why.contains("works on 1 request besides"), "{why}");
    seen.told(&gauges(0, 0), start + SECOND, start + SECOND, SCHEMA_COUNTS_AFTER);
    let world = World::of(vec![seen], start);
    assert_eq!(world.after(SECOND), Drained::ProvenByGauges);
}

#[test]
fn a_schema_that_is_too_young_has_not_counted_everything() {
    let start = start();
    let mut seen = ready(start);
    seen.schema_since = Some(start.checked_sub(SCHEMA_COUNTS_AFTER).unwrap() + SECOND);
    seen.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    assert!(!seen.is_empty, "one second is missing");
    seen.told(&gauges(0, 0), start + SECOND, start + SECOND, SCHEMA_COUNTS_AFTER);
    assert!(seen.is_empty);
}

#[test]
fn a_schema_that_changed_or_a_new_process_starts_the_count_over() {
    let start = start();
    let mut changed = ready(start);
    changed.schema_changed();
    let mut restarted = ready(start);
    let other = Gauges {
        process: "q".into(),
        ..gauges(0, 0)
    };
    for (seen, gauges) in [(&mut changed, gauges(0, 0)), (&mut restarted, other)] {
        seen.told(&gauges, start, start, SCHEMA_COUNTS_AFTER);
        assert!(!seen.is_empty);
        assert_eq!(seen.schema_since, Some(start));
    }
}

#[test]
fn without_gauges_it_takes_as_long_as_a_write_can_take() {
    let start = start();
    let mut seen = ready(start);
    seen.told_nothing("does not tell".into());
    let world = World::of(vec![seen], start);
    assert!(!world.after(Duration::from_secs(33)).is_over());
    assert_eq!(world.after(WRITE_ENDS_WITHIN), Drained::WaitedOut);
}

#[test]
fn idle_gauges_prove_nothing_if_nobody_counts_for_us() {
    let start = start();
    let mut seen = ready(start);
    seen.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    let mut world = World::of(vec![seen], start);
    world.why_no_gauges = Some("FlowSchema x was changed");
    assert!(matches!(world.after(SECOND), Drained::WaitUntil { .. }));
}

#[test]
fn the_last_server_that_denied_counts() {
    let start = start();
    let early = ready(start);
    let late = ready(start + SECOND * 10);
    let world = World::of(vec![early, late], start);
    assert!(!world.after(WRITE_ENDS_WITHIN + SECOND * 9).is_over());
    assert!(world.after(WRITE_ENDS_WITHIN + SECOND * 10).is_over());
}

#[test]
fn a_server_that_does_not_deny_any_more_starts_over() {
    let start = start();
    let mut seen = ready(start);
    seen.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    seen.probed(Found::LetsPass, start + SECOND);
    let world = World::of(vec![seen.clone()], start);
    assert!(matches!(
        world.after(WRITE_ENDS_WITHIN * 9),
        Drained::NotYet { .. }
    ));
    seen.probed(Found::Denies, start + SECOND * 60);
    let world = World::of(vec![seen], start);
    assert!(!world.after(SECOND * 61).is_over(), "what passed in between");
}

#[test]
fn an_answer_that_says_nothing_changes_nothing_and_silence_does() {
    let start = start();
    let mut seen = ready(start);
    seen.probed(Found::Unclear, start + SECOND);
    assert_eq!(seen.denying_since, Some(start));
    seen.probed(Found::Silent, start + SECOND);
    assert_eq!(seen.denying_since, None, "it may have stood still");
    seen.probed(Found::Unclear, start + SECOND);
    assert_eq!(seen.denying_since, None);
}

#[test]
fn servers_that_cannot_be_asked_must_be_awake_and_get_more_time() {
    let start = start();
    let mut seen = ready(start);
    seen.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    let mut world = World::of(vec![seen], start);
    world.why_not_all = Some("there may be more");
    assert!(!world.after(WRITE_ENDS_WITHIN).is_over());
    let later = WRITE_ENDS_WITHIN + UNASKED_DENIES_WITHIN;
    assert_eq!(world.after(later), Drained::WaitedOut);
    world.unasked = Unasked::NotKnown("host b is asleep".into());
    assert!(matches!(world.after(later), Drained::WaitForLeases { .. }));
    world.how = Drain::Fixed(Duration::ZERO);
    assert!(matches!(world.after(later), Drained::WaitForLeases { .. }));
}

#[test]
fn a_duration_of_the_user_is_taken_as_it_is() {
    let start = start();
    let mut world = World::of(vec![ready(start)], start);
    world.how = Drain::parse("90s").unwrap();
    assert!(!world.after(SECOND * 89).is_over());
    assert_eq!(world.after(SECOND * 90), Drained::WaitedOut);
    assert_eq!(Drain::parse("Auto"), Ok(Drain::Auto));
    assert!(Drain::parse("soon").is_err());
}

#[test]
fn a_server_that_left_is_waited_for_unless_it_was_idle() {
    let start = start();
    let mut busy = ready(start);
    busy.told(&gauges(1, 0), start, start, SCHEMA_COUNTS_AFTER);
    assert!(busy.leave(start + SECOND));
    let mut idle = ready(start);
    idle.told(&gauges(0, 0), start, start, SCHEMA_COUNTS_AFTER);
    assert!(!idle.clone().leave(start + SECOND), "it can be forgotten");
    let world = World::of(vec![busy.clone(), idle], start);
    assert!(!world.after(WRITE_ENDS_WITHIN).is_over());
    assert!(world.after(WRITE_ENDS_WITHIN + SECOND).is_over());
    assert!(
        !busy.leave(start + SECOND + WRITE_ENDS_WITHIN),
        "nothing of it is left"
    );
}

#[test]
fn nobody_asked_is_nobody_denying() {
    let world = World::of(Vec::new(), start());
    assert!(matches!(
        world.after(WRITE_ENDS_WITHIN * 9),
        Drained::NotYet { .. }
    ));
}
