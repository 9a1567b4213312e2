//! What the limit does on scripted answers and on simulated servers.

use proptest::prelude::*;

use super::{
    simulation::{Cores, Measured, Pool, Server, Throttling},
    *,
};
use crate::Pressure;

const MS: Duration = Duration::from_millis(1);
const SEEDS: std::ops::Range<u64> = 1..41;

/// As measured on two cores: `{}` patches of old objects per second, by connections; at 32 the middle of the measured range.
const PLAIN: &[(f64, f64)] = &[
    (1.0, 230.0),
    (8.0, 387.0),
    (16.0, 397.0),
    (32.0, 480.0),
    (64.0, 466.0),
];

/// The same behind a validating webhook that takes 10 ms.
const BEHIND_WEBHOOK: &[(f64, f64)] = &[(1.0, 35.0), (32.0, 330.0), (64.0, 367.0), (128.0, 354.0)];

/// How a server is met by forty pools of different luck.
struct Met {
    /// The rate of the one with the least.
    least: f64,
    /// The rate of the one in the middle.
    middle: f64,
    /// Where the limit of the one in the middle was in the last half of the requests.
    limit: f64,
}

fn met<S: Server>(server: impl Fn() -> S, max: usize, requests: usize) -> Met {
    let (mut rates, mut limits) = (Vec::new(), Vec::new());
    for seed in SEEDS {
        let (rate, after_each) = Pool::new(server(), max, seed).work(requests);
        rates.push(rate);
        let late = after_each[requests / 2..].iter().map(|limit| number(*limit));
        limits.push(late.sum::<f64>() / number(requests - requests / 2));
    }
    rates.sort_by(f64::total_cmp);
    limits.sort_by(f64::total_cmp);
    Met {
        least: rates[0],
        middle: rates[rates.len() / 2],
        limit: limits[limits.len() / 2],
    }
}

fn number(small: usize) -> f64 {
    f64::from(u32::try_from(small).expect("small"))
}

#[test]
fn a_server_of_limited_capacity_is_met_near_its_knee() {
    for (cores, service, delay) in [(1, 5, 0), (2, 4, 6), (4, 4, 8), (16, 8, 4)] {
        let server = || Cores::new(cores, service * MS, delay * MS);
        let knee = server().knee();
        let best = number(cores) / (service * MS).as_secs_f64();
        let Met { least, limit, .. } = met(server, 64, 20_000);
        assert!(limit > 0.9 * knee && limit < 2.0 * knee, "knee {knee}: {limit}");
        assert!(least > 0.94 * best, "knee {knee}: {least} of {best}");
    }
}

#[test]
fn on_the_measured_server_nearly_all_that_it_can_do_is_done() {
    let Met { least, limit, .. } = met(|| Measured::new(PLAIN, 0.0), 32, 10_000);
    assert!(least > 0.94 * 480.0 && limit > 27.0, "{least} at {limit}");
    let Met { least, limit, .. } = met(|| Measured::new(PLAIN, 0.0), 64, 10_000);
    assert!(least > 0.93 * 480.0 && limit < 48.0, "{least} at {limit}");
    // With others at work on it, not every pool is so lucky.
    let Met { middle, limit, .. } = met(|| Measured::new(PLAIN, 0.2), 32, 10_000);
    assert!(middle > 0.94 * 480.0 && limit > 24.0, "{middle} at {limit}");
}

#[test]
fn behind_a_slow_webhook_the_limit_grows() {
    for moods in [0.0, 0.2] {
        let Met { least, limit, .. } = met(|| Measured::new(BEHIND_WEBHOOK, moods), 32, 10_000);
        assert!(least > 0.92 * 330.0 && limit > 30.0, "{least} at {limit}");
        let Met { middle, limit, .. } = met(|| Measured::new(BEHIND_WEBHOOK, moods), 128, 10_000);
        assert!(
            middle > 0.92 * 367.0 && limit > 45.0 && limit < 100.0,
            "{middle} at {limit}"
        );
    }
}

#[test]
fn a_webhook_that_takes_seconds_does_not_keep_the_pool_small() {
    for seed in SEEDS {
        let mut pool = Pool::new(Cores::new(64, 4 * MS, 8000 * MS), 32, seed);
        let (_, limits) = pool.work(150);
        assert_eq!(limits.last(), Some(&32), "seed {seed}");
    }
}

#[test]
fn under_throttling_the_pool_stays_below_and_still_gets_most_done() {
    let server = || Throttling {
        inner: Cores::new(32, 10 * MS, Duration::ZERO),
        most: 12,
    };
    let Met { least, limit, .. } = met(server, 32, 20_000);
    assert!(limit > 8.0 && limit <= 12.0, "{limit}");
    assert!(least > 0.7 * 1200.0, "{least}");
}

#[test]
fn when_throttling_ends_the_pool_grows_again() {
    for seed in 1..6 {
        let mut pool = Pool::new(
            Throttling {
                inner: Cores::new(32, 10 * MS, Duration::ZERO),
                most: 6,
            },
            32,
            seed,
        );
        let (_, limits) = pool.work(5_000);
        assert!(limits.iter().all(|limit| *limit <= 12), "seed {seed}");
        pool.server.most = usize::MAX;
        let (_, limits) = pool.work(150_000);
        assert!(
            limits[limits.len() - 1] >= 20,
            "seed {seed}: {}",
            limits[limits.len() - 1]
        );
    }
}

/// Answers of the same latency from a full pool, until the limit changes; how many it took, at most 100,000.
fn steadily(limiter: &mut Limiter, now: &mut Instant, latency: Duration) -> Option<usize> {
    let before = limiter.limit();
    (0..100_000).find(|_| {
        *now += latency / u32::try_from(limiter.limit()).expect("small");
        limiter.on_answer(latency, *now) != before
    })
}

fn throttled(limiter: &mut Limiter, took: Duration, rest: Option<Duration>, now: Instant) -> usize {
    limiter.on_pressure(Press::of(Pressure::Throttled(rest), took, now), now)
}

#[test]
fn it_starts_small_and_doubles_while_latency_holds() {
    let mut now = Instant::now();
    let mut limiter = Limiter::new(32, now);
    let mut limits = vec![limiter.limit()];
    while limiter.limit() < 32 {
        assert!(steadily(&mut limiter, &mut now, 10 * MS).is_some());
        limits.push(limiter.limit());
    }
    assert_eq!(limits, [4, 8, 16, 32]);
}

#[test]
fn a_small_cap_is_kept_from_the_start() {
    let mut now = Instant::now();
    let mut limiter = Limiter::new(2, now);
    assert_eq!(limiter.limit(), 2);
    for _ in 0..10_000 {
        now += 5 * MS;
        assert!((1..=2).contains(&limiter.on_answer(10 * MS, now)));
    }
    assert_eq!(Limiter::new(0, now).limit(), 1);
}

#[test]
fn a_pool_that_is_not_full_teaches_nothing() {
    let mut now = Instant::now();
    let mut limiter = Limiter::new(32, now);
    for _ in 0..10_000 {
        now += 10 * MS; // one after the other
        assert_eq!(limiter.on_answer(10 * MS, now), 4);
    }
}

#[test]
fn one_burst_of_refusals_halves_once_and_the_next_again() {
    let mut now = Instant::now();
    let mut limiter = Limiter::new(32, now);
    while limiter.limit() < 32 {
        steadily(&mut limiter, &mut now, 10 * MS);
    }
    for _ in 0..32 {
        now += MS;
        assert_eq!(throttled(&mut limiter, 40 * MS, None, now), 16);
    }
    now += 50 * MS;
    for expected in [8, 4, 2, 1, 1] {
        assert_eq!(throttled(&mut limiter, 5 * MS, None, now), expected);
        now += 10 * MS;
    }
}

#[test]
fn after_pressure_it_grows_one_by_one_waits_longer_each_time_and_tries_again() {
    let mut now = Instant::now();
    let mut limiter = Limiter::new(32, now);
    while limiter.limit() < 16 {
        steadily(&mut limiter, &mut now, 10 * MS);
    }
    let mut longest = None;
    for _ in 0..3 {
        now += MS;
        let ceiling = limiter.limit();
        assert_eq!(throttled(&mut limiter, MS, None, now), ceiling / 2);
        for expected in ceiling / 2 + 1..ceiling {
            assert!(steadily(&mut limiter, &mut now, 10 * MS).is_some());
            assert_eq!(limiter.limit(), expected);
        }
        let waited = steadily(&mut limiter, &mut now, 10 * MS);
        assert!(waited > longest, "{waited:?} after {longest:?}");
        longest = waited;
        assert_eq!(limiter.limit(), (2 * (ceiling - 1)).min(32));
    }
}

#[test]
fn the_server_is_left_alone_as_long_as_it_asks_but_not_for_ever() {
    let now = Instant::now();
    let seconds = Duration::from_secs;
    let mut limiter = Limiter::new(32, now);
    assert_eq!(limiter.not_before(now), None);
    throttled(&mut limiter, MS, Some(seconds(5)), now);
    assert_eq!(limiter.not_before(now), Some(now + seconds(5)));
    throttled(&mut limiter, MS, Some(seconds(2)), now);
    throttled(&mut limiter, MS, None, now);
    assert_eq!(
        limiter.not_before(now),
        Some(now + seconds(5)),
        "the longest counts"
    );
    assert_eq!(limiter.not_before(now + seconds(5)), None);
    throttled(&mut limiter, MS, Some(seconds(7200)), now);
    assert_eq!(limiter.not_before(now), Some(now + seconds(60)));
}

proptest! {
    #[test]
    fn the_limit_never_leaves_its_bounds(
        max in 1_usize..100,
        answers in proptest::collection::vec((0_u64..2_000, 0_u64..500, 0_u8..50), 1..2_000),
    ) {
        let mut now = Instant::now();
        let mut limiter = Limiter::new(max, now);
        for (latency, pause, kind) in answers {
            now += Duration::from_micros(pause * 100);
            let latency = Duration::from_micros(latency * 100);
            let limit = match kind {
                0 => throttled(&mut limiter, latency, None, now),
                1 => throttled(&mut limiter, latency, Some(latency), now),
                _ => limiter.on_answer(latency, now),
            };
            prop_assert!((1..=max).contains(&limit));
            prop_assert!(limiter.not_before(now).is_none_or(|hold| hold <= now + LONGEST_HOLD));
        }
    }
}
