//! Servers that exist only in numbers, and a full pool that works on them in simulated time.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use tokio::time::Instant;

use super::*;
use crate::Pressure;

/// Answers a request: how long it takes, and whether it is thrown out.
pub(super) trait Server {
    fn answer(&mut self, at: Duration, in_flight: usize, chance: &mut Chance)
    -> (Duration, Option<Pressure>);
}

/// Some cores with a queue before them, and a delay that costs no core: the network, or somebody's webhook.
pub(super) struct Cores {
    free_at: BinaryHeap<Reverse<Duration>>,
    pub(super) service: Duration,
    pub(super) delay: Duration,
}

impl Cores {
    pub(super) fn new(cores: usize, service: Duration, delay: Duration) -> Self {
        Self {
            free_at: vec![Reverse(Duration::ZERO); cores].into(),
            service,
            delay,
        }
    }

    /// The concurrency at which all cores are just busy.
    pub(super) fn knee(&self) -> f64 {
        let cores = f64::from(u32::try_from(self.free_at.len()).expect("few"));
        cores * (1.0 + self.delay.as_secs_f64() / self.service.as_secs_f64())
    }
}

impl Server for Cores {
    fn answer(&mut self, at: Duration, _: usize, chance: &mut Chance) -> (Duration, Option<Pressure>) {
        let Reverse(free) = self.free_at.pop().expect("a core");
        let done = free.max(at + self.delay) + self.service.mul_f64(chance.about_one());
        self.free_at.push(Reverse(done));
        (done.saturating_sub(at), None)
    }
}

/// A server of which only some (concurrency, rate) pairs were measured; in between, a straight line.
pub(super) struct Measured {
    pub(super) pairs: &'static [(f64, f64)],
    /// By how much the server is faster or slower than that at times, because of what else it does.
    pub(super) moods: f64,
    mood: (u128, f64),
}

impl Measured {
    pub(super) fn new(pairs: &'static [(f64, f64)], moods: f64) -> Self {
        Self {
            pairs,
            moods,
            mood: (0, 1.0),
        }
    }

    pub(super) fn rate(&self, concurrency: f64) -> f64 {
        let above = self.pairs.iter().position(|(n, _)| *n >= concurrency);
        match above {
            Some(0) => self.pairs[0].1 * concurrency / self.pairs[0].0,
            Some(above) => {
                let ((n0, r0), (n1, r1)) = (self.pairs[above - 1], self.pairs[above]);
                r0 + (r1 - r0) * (concurrency - n0) / (n1 - n0)
            }
            None => self.pairs[self.pairs.len() - 1].1,
        }
    }
}

impl Server for Measured {
    fn answer(
        &mut self,
        at: Duration,
        in_flight: usize,
        chance: &mut Chance,
    ) -> (Duration, Option<Pressure>) {
        let third = at.as_millis() / 333;
        if self.mood.0 != third {
            self.mood = (third, 1.0 + self.moods * (2.0 * chance.uniform() - 1.0));
        }
        let in_flight = f64::from(u32::try_from(in_flight).expect("few"));
        let latency = Duration::from_secs_f64(in_flight / self.rate(in_flight) / self.mood.1);
        (latency.mul_f64(chance.about_one()), None)
    }
}

/// Throws out what is too much at once, at once.
pub(super) struct Throttling<S> {
    pub(super) inner: S,
    pub(super) most: usize,
}

impl<S: Server> Server for Throttling<S> {
    fn answer(
        &mut self,
        at: Duration,
        in_flight: usize,
        chance: &mut Chance,
    ) -> (Duration, Option<Pressure>) {
        if in_flight > self.most {
            return (Duration::from_millis(1), Some(Pressure::Throttled(None)));
        }
        self.inner.answer(at, in_flight, chance)
    }
}

/// Numbers that look random and are the same each time.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// Between 0 and 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from((self.0 >> 32) as u32) / f64::from(u32::MAX)
    }

    /// Between 0.5 and 1.5, rarely ten times that: some requests are always slow.
    fn about_one(&mut self) -> f64 {
        let factor = if self.uniform() < 0.004 { 10.0 } else { 0.965 };
        factor * (0.5 + self.uniform())
    }
}

/// A pool that always has something to do.
pub(super) struct Pool<S> {
    pub(super) server: S,
    pub(super) limiter: Limiter,
    chance: Chance,
    start: Instant,
    now: Duration,
    /// When each request ends, when it began, and what comes of it.
    in_flight: BinaryHeap<Reverse<(Duration, Duration, bool)>>,
}

impl<S: Server> Pool<S> {
    pub(super) fn new(server: S, max: usize, seed: u64) -> Self {
        let start = Instant::now();
        Self {
            server,
            limiter: Limiter::new(max, start),
            chance: Chance(seed),
            start,
            now: Duration::ZERO,
            in_flight: BinaryHeap::new(),
        }
    }

    /// Gets so many requests answered. Returns how many per second, and the limit after each.
    pub(super) fn work(&mut self, requests: usize) -> (f64, Vec<usize>) {
        let began = self.now;
        let mut limits = Vec::with_capacity(requests);
        while limits.len() < requests {
            while self.in_flight.len() < self.limiter.limit() {
                let (takes, pressure) =
                    self.server
                        .answer(self.now, self.in_flight.len() + 1, &mut self.chance);
                self.in_flight
                    .push(Reverse((self.now + takes, self.now, pressure.is_some())));
            }
            let Reverse((ends, began, thrown_out)) = self.in_flight.pop().expect("one is under way");
            self.now = ends;
            let (now, took) = (self.start + ends, ends.saturating_sub(began));
            if thrown_out {
                let press = Press::of(Pressure::Throttled(None), took, now);
                self.limiter.on_pressure(press, now);
            } else {
                limits.push(self.limiter.on_answer(took, now));
            }
        }
        let done = f64::from(u32::try_from(requests).expect("few"));
        (done / self.now.saturating_sub(began).as_secs_f64(), limits)
    }
}
