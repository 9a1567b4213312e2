//! The lease as a record: what is written into it, whose it is, and the times that follow from its duration.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};

/// Which lease, who asks for it, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSettings {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who we are: another one in each process, however short its life.
    pub identity: String,
    /// How long a leader that is silent stays the leader for the others. Whole seconds in production; less works too.
    pub duration: Duration,
}

impl LeaseSettings {
    /// Why the Lease cannot be read or written, with a way out if its namespace is missing.
    pub(crate) fn trouble(&self, error: String) -> String {
        let Self { namespace, name, .. } = self;
        if error.contains(&format!("namespaces \"{namespace}\" not found")) {
            format!(
                "the namespace {namespace:?} of the Lease {name:?} does not exist: create it (kubectl create namespace \
                 {namespace}), or use another namespace for the Lease"
            )
        } else {
            error
        }
    }

    /// A fifth of the duration. The claim lasts two thirds of it, so three renewals in a row (at 3/15, 6/15 and 9/15 of the
    /// duration) must fail before it ends (at 10/15).
    pub(crate) fn period(&self) -> Duration {
        self.duration / 5
    }

    /// Less than a renewal's period, so that a request that hangs does not cost the next one its turn.
    pub(crate) fn request_limit(&self) -> Duration {
        self.period() * 9 / 10
    }

    /// Two thirds. The rest is for what the two clocks do not share: they may differ by a third of the duration over
    /// its length, and a write that passed the gate in the last moment still has that time to arrive.
    pub(crate) fn claim_lasts(&self) -> Duration {
        self.duration * 2 / 3
    }

    fn whole_seconds(&self) -> i32 {
        let seconds = self.duration.as_secs() + u64::from(self.duration.subsec_nanos() > 0);
        i32::try_from(seconds.max(1)).unwrap_or(i32::MAX)
    }

    /// How long a record must have stood still before it is overrun: its own duration if that is longer than ours. It is
    /// in whole seconds there; if it says what ours would say, ours is meant.
    pub(crate) fn patience(&self, lease: &Lease) -> Duration {
        let said = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        match said {
            Some(said) if said != self.whole_seconds() => self
                .duration
                .max(Duration::from_secs(u64::try_from(said).unwrap_or_default())),
            _ => self.duration,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseHolder {
    Nobody,
    Us,
    Other,
}

impl LeaseSettings {
    pub(crate) fn holder_of(&self, lease: &Lease) -> LeaseHolder {
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        if holder.is_empty() {
            LeaseHolder::Nobody
        } else if holder == self.identity {
            LeaseHolder::Us
        } else {
            LeaseHolder::Other
        }
    }

    /// Ours from now on; filled as client-go does it.
    pub(crate) fn acquired(&self, spec: &mut LeaseSpec) {
        let changes_hands = spec.holder_identity.as_ref() != Some(&self.identity);
        spec.lease_transitions = match spec.lease_transitions {
            Some(transitions) => Some(transitions.saturating_add(i32::from(changes_hands))),
            None => Some(0),
        };
        spec.holder_identity = Some(self.identity.clone());
        spec.acquire_time = Some(MicroTime(Timestamp::now()));
        self.renewed(spec);
    }

    /// Still ours.
    pub(crate) fn renewed(&self, spec: &mut LeaseSpec) {
        spec.lease_duration_seconds = Some(self.whole_seconds());
        spec.renew_time = Some(MicroTime(Timestamp::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(millis: u64) -> LeaseSettings {
        LeaseSettings {
            namespace: "default".to_owned(),
            name: "test".to_owned(),
            identity: "us".to_owned(),
            duration: Duration::from_millis(millis),
        }
    }

    fn said(seconds: i32) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                lease_duration_seconds: Some(seconds),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn the_object_has_whole_seconds_and_at_least_one() {
        for (millis, seconds) in [(1, 1), (999, 1), (1000, 1), (1001, 2), (15_000, 15)] {
            assert_eq!(settings(millis).whole_seconds(), seconds, "{millis}");
        }
    }

    #[test]
    fn three_renewals_fit_into_a_claim_and_a_request_into_a_period() {
        let settings = settings(15_000);
        assert!(settings.period() * 3 < settings.claim_lasts());
        assert!(settings.request_limit() < settings.period());
        assert!(settings.claim_lasts() < settings.duration);
    }

    #[test]
    fn the_longer_of_two_durations_is_waited_for() {
        let fast = settings(600);
        assert_eq!(
            fast.patience(&said(1)),
            Duration::from_millis(600),
            "it is ours, rounded up"
        );
        assert_eq!(fast.patience(&said(30)), Duration::from_secs(30));
        assert_eq!(settings(15_000).patience(&said(2)), Duration::from_secs(15));
        assert_eq!(
            settings(15_000).patience(&Lease::default()),
            Duration::from_secs(15)
        );
    }

    #[test]
    fn transitions_count_changes_of_hands() {
        let us = settings(1000);
        let mut spec = LeaseSpec::default();
        us.acquired(&mut spec);
        assert_eq!(spec.lease_transitions, Some(0));
        us.acquired(&mut spec);
        assert_eq!(spec.lease_transitions, Some(0), "it was ours");
        spec.holder_identity = Some(String::new());
        us.acquired(&mut spec);
        assert_eq!(spec.lease_transitions, Some(1));
    }
}
