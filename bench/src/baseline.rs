//! What a migration costs per object, compared with the committed figures. No times: they depend on the machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A figure may be this many times the committed one.
const MAX_GROWTH: f64 = 1.10;

/// The figures of one run, as they are committed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Baseline {
    /// How many objects each case has: figures per object depend on it a little.
    pub(crate) objects: usize,
    /// By the name of the case.
    pub(crate) cases: BTreeMap<String, Costs>,
}

/// What one migration costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Costs {
    /// The largest heap, with stacks. Not the resident set: that counts the program too, and differs by profile.
    pub(crate) peak_heap_mib: f64,
    /// All requests to the API server, of any kind.
    pub(crate) requests_per_object: f64,
    /// Revisions that etcd counted.
    pub(crate) etcd_writes_per_object: f64,
}

impl Costs {
    /// The smaller of each figure.
    pub(crate) fn smallest(self, other: Self) -> Self {
        Self {
            peak_heap_mib: self.peak_heap_mib.min(other.peak_heap_mib),
            requests_per_object: self.requests_per_object.min(other.requests_per_object),
            etcd_writes_per_object: self.etcd_writes_per_object.min(other.etcd_writes_per_object),
        }
    }
}

/// One sentence for each figure that has grown too much, and for each case that cannot be compared; none: all is well.
pub(crate) fn growth(committed: &Baseline, measured: &Baseline) -> Vec<String> {
    let mut complaints = Vec::new();
    if committed.objects != measured.objects {
        complaints.push(format!(
            "the committed figures are for {} objects, and {} were measured: figures per object cannot be compared",
            committed.objects, measured.objects
        ));
    }
    for case in measured
        .cases
        .keys()
        .filter(|case| !committed.cases.contains_key(*case))
    {
        complaints.push(format!(
            "{case}: not in the committed figures; add it with --update"
        ));
    }
    for (case, before) in &committed.cases {
        let Some(now) = measured.cases.get(case) else {
            complaints.push(format!("{case}: in the committed figures, but not measured"));
            continue;
        };
        let figures = [
            ("peak memory (MiB)", before.peak_heap_mib, now.peak_heap_mib),
            (
                "requests per object",
                before.requests_per_object,
                now.requests_per_object,
            ),
            (
                "etcd writes per object",
                before.etcd_writes_per_object,
                now.etcd_writes_per_object,
            ),
        ];
        for (what, before, now) in figures {
            // Written so that a figure that is not a number fails as well.
            let is_fine = now <= before * MAX_GROWTH;
            if !is_fine {
                let percent = 100.0 * (now / before - 1.0);
                complaints.push(format!(
                    "{case}: {what} grew by {percent:.0} %, from {before:.2} to {now:.2}"
                ));
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(costs: Costs) -> Baseline {
        Baseline {
            objects: 1000,
            cases: [("proof".to_owned(), costs)].into(),
        }
    }

    const COSTS: Costs = Costs {
        peak_heap_mib: 20.0,
        requests_per_object: 1.1,
        etcd_writes_per_object: 1.0,
    };

    #[test]
    fn nine_percent_more_is_fine_and_so_is_less() {
        let more = Costs {
            peak_heap_mib: 21.8,
            requests_per_object: 0.5,
            etcd_writes_per_object: 1.09,
        };
        assert_eq!(growth(&baseline(COSTS), &baseline(more)), Vec::<String>::new());
    }

    #[test]
    fn eleven_percent_more_of_anything_fails_and_is_named() {
        let grown = [
            Costs {
                peak_heap_mib: 22.2,
                ..COSTS
            },
            Costs {
                requests_per_object: 1.221,
                ..COSTS
            },
            Costs {
                etcd_writes_per_object: 1.11,
                ..COSTS
            },
        ];
        let expected = ["peak memory", "requests per object", "etcd writes per object"];
        for (grown, expected) in grown.into_iter().zip(expected) {
            let complaints = growth(&baseline(COSTS), &baseline(grown));
            let [complaint] = complaints.as_slice() else {
                panic!("one complaint: {complaints:?}");
            };
            assert!(
                complaint.contains(expected) && complaint.contains("grew by 11 %"),
                "{complaint}"
            );
        }
    }

    #[test]
    fn a_case_that_is_missing_on_either_side_fails() {
        let nothing = Baseline {
            objects: 1000,
            ..Baseline::default()
        };
        assert_eq!(
            growth(&nothing, &baseline(COSTS)),
            ["proof: not in the committed figures; add it with --update"]
        );
        assert_eq!(
            growth(&baseline(COSTS), &nothing),
            ["proof: in the committed figures, but not measured"]
        );
    }

    #[test]
    fn another_number_of_objects_or_a_figure_that_is_not_a_number_fails() {
        let other = Baseline {
            objects: 10,
            ..baseline(COSTS)
        };
        assert_eq!(growth(&baseline(COSTS), &other).len(), 1);
        let broken = Costs {
            requests_per_object: f64::NAN,
            ..COSTS
        };
        assert_eq!(growth(&baseline(COSTS), &baseline(broken)).len(), 1);
    }
}
