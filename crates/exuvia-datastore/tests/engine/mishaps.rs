//! Whole runs of `SyncThenFreeze` in which much goes wrong: processes are killed or stand still, watches are cut, requests are
//! refused, reset or held up.

use std::time::Duration;

use exuvia_datastore::protocol::Hold;
use exuvia_runtime::machine::Ended;
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use serde_json::json;

use crate::synced::watches;
use crate::writers::{OBJECTS, writes_are_in_the_target};
use crate::{Stage, control_plane};

/// Small numbers from a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Something that goes wrong for a while.
fn mishap(dice: &mut Dice, stage: &Stage) -> Rule {
    let (requests, is_watch) = match dice.roll(3) {
        0 => (Match::any().query("watch="), true),
        1 => (Match::any().resource("widgets"), false),
        _ => (watches(stage), true),
    };
    let fault = match dice.roll(6) {
        0 => Fault::Truncate(usize::try_from(dice.roll(3000)).unwrap()),
        1 => Fault::refuse(Answer::status(410)),
        2 => Fault::refuse(500),
        3 => Fault::ResetAnswer,
        // Any other request would be waited for, for a minute each.
        4 if is_watch => Fault::StallRequest,
        _ => Fault::Delay(Duration::from_millis(dice.roll(700))),
    };
    Rule::on(requests.except(Match::any().resource("datastoremigrations")))
        .times(1 + dice.roll(8))
        .then(fault)
}

/// Carries a migration out with mishaps, and with processes that are killed.
async fn carried_out_with_mishaps(stage: &Stage, seed: u64) -> Ended<Hold> {
    let mut dice = Dice(seed);
    let proxy = control_plane().await.proxy().await.unwrap();
    let mut spec = crate::writers::spec(stage, "SyncThenFreeze");
    spec["freeze"]["maxDuration"] = json!("0s");
    let migration = stage.migration(spec).await;
    for _ in 0..dice.roll(5) {
        let life = Duration::from_millis(500 + dice.roll(6000));
        let mut engine = stage.engine_by(&proxy.client().unwrap(), &migration);
        for _ in 0..=dice.roll(2) {
            proxy.inject(mishap(&mut dice, stage));
        }
        let stands_still = Duration::from_millis(dice.roll(2) * dice.roll(4000));
        let mut driving = std::pin::pin!(stage.drive(&mut engine));
        for _ in 0..2 {
            if let Ok(ended) = tokio::time::timeout(life / 2, &mut driving).await {
                return ended;
            }
            // Its watches go on filling up, as the buffers of a process do that gets no time.
            tokio::time::sleep(stands_still).await;
        }
    }
    proxy.inject(mishap(&mut dice, stage));
    let mut engine = stage.engine_by(&proxy.client().unwrap(), &migration);
    stage.drive(&mut engine).await
}

/// `EXUVIA_SEEDS=1-50` or `EXUVIA_SEEDS=1,2,3` runs other seeds.
#[tokio::test]
async fn no_write_is_lost_with_random_mishaps() {
    let seeds = std::env::var("EXUVIA_SEEDS").unwrap_or_else(|_| "11-13".to_owned());
    for seed in seeds.split(',').flat_map(range) {
        let began = std::time::Instant::now();
        println!("seed {seed}");
        let stage = Stage::new(&format!("sync-mishaps-{seed}"), OBJECTS).await;
        let run = Box::pin(carried_out_with_mishaps(&stage, seed));
        Box::pin(writes_are_in_the_target(&stage, run)).await;
        println!("seed {seed} is done after {:?}", began.elapsed());
    }
}

/// `7`, or `7-9`.
fn range(text: &str) -> std::ops::RangeInclusive<u64> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().unwrap()..=last.parse().unwrap()
}
