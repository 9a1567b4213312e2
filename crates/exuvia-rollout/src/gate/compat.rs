//! The compat gate's rules: generations are compared, and nothing is locked.
//!
//! | ours | target | decision |
//! |---|---|---|
//! | any | the read failed, and not because it is absent | error, never an apply |
//! | any | absent | apply |
//! | ≤ 0 | present | apply without stamp, which erases the stamp that was there |
//! | > 0 | stamp absent, empty, unparsable, older or equal | apply with stamp |
//! | > 0 | stamp newer than ours | skip |
//!
//! It is what ToolHive's runners do, with their flaws: a newer writer between read and apply is overwritten, a generation of
//! 0 opens the gate, and a recreated owner is skipped for ever (PITFALLS B22–B24). [`strict`](super::strict) has none of them.

use crate::Stamp;

use super::{Action, Decision};

/// The target as the compat gate sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The read failed, and not with a 404 that names the target.
    Unread,
    /// It does not exist.
    Absent,
    /// It exists, with this generation on it.
    Present(Stamp<i64>),
}

/// Decides. The row of the decision is that of the table above, from 1.
///
/// ```
/// use exuvia_rollout::{Action, Stamp};
/// use exuvia_rollout::gate::compat::{Target, decide};
///
/// assert_eq!(decide(2, &Target::Present(Stamp::Found(3))).action, Action::SkipStale);
/// assert_eq!(decide(3, &Target::Present(Stamp::Found(3))).action, Action::Apply);
/// assert_eq!(decide(0, &Target::Present(Stamp::Found(3))).action, Action::ApplyUnstamped);
/// ```
pub fn decide(ours: i64, target: &Target) -> Decision {
    match target {
        Target::Unread => Decision::new(1, Action::Error),
        // Without a generation of ours there is nothing to stamp.
        Target::Absent if ours <= 0 => Decision::new(2, Action::ApplyUnstamped),
        Target::Absent => Decision::new(2, Action::Apply),
        Target::Present(_) if ours <= 0 => Decision::new(3, Action::ApplyUnstamped),
        Target::Present(Stamp::Found(theirs)) if *theirs > ours => Decision::new(5, Action::SkipStale),
        Target::Present(Stamp::Unparsable) => Decision::new(4, Action::Apply).warned(),
        Target::Present(_) => Decision::new(4, Action::Apply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_compat_table() {
        let found = |generation| Target::Present(Stamp::Found(generation));
        for ours in [-1, 0, 1, 5] {
            assert_eq!(
                decide(ours, &Target::Unread),
                Decision::new(1, Action::Error),
                "{ours}"
            );
        }
        assert_eq!(decide(2, &Target::Absent), Decision::new(2, Action::Apply));
        assert_eq!(
            decide(0, &Target::Absent),
            Decision::new(2, Action::ApplyUnstamped)
        );
        for target in [
            Target::Present(Stamp::Absent),
            Target::Present(Stamp::Unparsable),
            found(1),
            found(9),
        ] {
            for ours in [0, -1] {
                let decision = decide(ours, &target);
                assert_eq!(
                    decision,
                    Decision::new(3, Action::ApplyUnstamped),
                    "{ours} {target:?}"
                );
            }
        }
        for target in [
            Target::Present(Stamp::Absent),
            found(-3),
            found(0),
            found(1),
            found(2),
        ] {
            assert_eq!(decide(2, &target), Decision::new(4, Action::Apply), "{target:?}");
        }
        let unparsable = decide(2, &Target::Present(Stamp::Unparsable));
        assert_eq!(unparsable, Decision::new(4, Action::Apply).warned());
        assert_eq!(decide(2, &found(3)), Decision::new(5, Action::SkipStale));
        assert_eq!(decide(2, &found(i64::MAX)), Decision::new(5, Action::SkipStale));
    }
}
