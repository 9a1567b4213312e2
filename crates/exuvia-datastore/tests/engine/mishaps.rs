//! Whole runs of `SyncThenFreeze` in which much goes wrong: processes are killed, watches cut, requests refused, reset or held up.

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
        let mut engine = Stage::engine_by(&proxy.client().unwrap(), &migration);
        for _ in 0..=dice.roll(2) {
            proxy.inject(mishap(&mut dice, stage));
        }
        if let Ok(ended) = tokio::time::timeout(life, stage.drive(&mut engine)).await {
            return ended;
        }
    }
    proxy.inject(mishap(&mut dice, stage));
    let mut engine = Stage::engine_by(&proxy.client().unwrap(), &migration);
    stage.drive(&mut engine).await
}

/// `EXUVIA_SEEDS=1,2,3` runs other seeds.
#[tokio::test]
async fn no_write_is_lost_with_random_mishaps() {
    let seeds = std::env::var("EXUVIA_SEEDS").unwrap_or_else(|_| "11,12,13".to_owned());
    for seed in seeds.split(',').map(|seed| seed.parse().unwrap()) {
        println!("seed {seed}");
        let stage = Stage::new(&format!("sync-mishaps-{seed}"), OBJECTS).await;
        let run = Box::pin(carried_out_with_mishaps(&stage, seed));
        Box::pin(writes_are_in_the_target(&stage, run)).await;
    }
}
