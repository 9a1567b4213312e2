//! What a sweep of ours has proven about a CRD, kept as a condition in the CRD's own status.
//!
//! `storedVersions` can be trimmed by anybody and proves nothing (PITFALLS A39). The record says that we looked, at which
//! uid, generation and storage version, and whether the patrol is over. The request that trims also writes the record, so
//! that neither a crash nor a lost answer leaves one without the other, and no further right is needed.

use exuvia_sweep::ResourceVersion;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::definition::Definition;
use crate::report::Verified;

/// The type of the condition.
pub const CONDITION: &str = "exuvia.dev/StorageMigrated";

/// What was proven, and about what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// A CRD that was deleted and created again is another one, even if its status was restored.
    pub uid: String,
    /// Any change of the spec voids it.
    pub generation: i64,
    /// The version that every object is stored at.
    pub storage_version: String,
    /// How that was verified.
    pub verified: Verified,
    /// The smallest resourceVersion of the lists that the last sweep read: what is above it was not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r1: Option<ResourceVersion>,
    /// When `storedVersions` was trimmed, or found clean, by the server's clock.
    pub at: Timestamp,
    /// Whether a patrol has looked at this generation, and found nothing.
    pub patrolled: bool,
    /// When the last patrol ended. Before [`at`](Self::at) if a later run confirmed what is stored without a patrol of its
    /// own; `None` if there was none, or if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patrolled_at: Option<Timestamp>,
    /// Versions that managedFields entries still name, because it is not known what they own at the storage version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

impl Record {
    /// When the patrol was, if that was before the last run that confirmed what is stored.
    pub fn patrolled_before(&self) -> Option<Timestamp> {
        self.patrolled_at
            .filter(|patrolled_at| self.patrolled && *patrolled_at < self.at)
    }

    /// What is on record for the CRD as it is now; `None`: nothing, or it is about an earlier state of the CRD.
    ///
    /// ```
    /// use exuvia_storage::record::Record;
    /// use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    ///
    /// assert_eq!(Record::read(&CustomResourceDefinition::default()), None);
    /// ```
    pub fn read(crd: &CustomResourceDefinition) -> Option<Self> {
        let conditions = crd.status.as_ref()?.conditions.as_ref()?;
        let condition = conditions.iter().find(|condition| condition.type_ == CONDITION)?;
        let record: Self = serde_json::from_str(condition.message.as_deref()?).ok()?;
        let now = Definition::read(crd).crd;
        let holds = record.uid == now.uid
            && record.generation == now.generation
            && record.storage_version == now.storage
            && now.old_versions().is_empty();
        holds.then_some(record)
    }

    /// Puts it into the CRD's status, in place of an earlier one.
    pub fn write(&self, crd: &mut CustomResourceDefinition) {
        let message = serde_json::to_string(self).unwrap_or_default();
        let (status, reason) = if self.patrolled {
            ("True", "Patrolled")
        } else {
            ("Unknown", "NotPatrolled")
        };
        let conditions = crd
            .status
            .get_or_insert_default()
            .conditions
            .get_or_insert_default();
        let before = conditions
            .iter()
            .find(|condition| condition.type_ == CONDITION && condition.status == status)
            .and_then(|condition| condition.last_transition_time.clone());
        conditions.retain(|condition| condition.type_ != CONDITION);
        conditions.push(CustomResourceDefinitionCondition {
            type_: CONDITION.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: before.or(Some(Time(self.at))),
            observed_generation: Some(self.generation),
        });
    }

    /// Removes it from the CRD's status: something in it is no longer true.
    pub fn erase(crd: &mut CustomResourceDefinition) {
        if let Some(conditions) = crd.status.as_mut().and_then(|status| status.conditions.as_mut()) {
            conditions.retain(|condition| condition.type_ != CONDITION);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd() -> CustomResourceDefinition {
        serde_json::from_value(json!({
            "metadata": {"name": "widgets.example.com", "uid": "u", "generation": 3},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget", "plural": "widgets"},
                "versions": [{"name": "v1", "served": true, "storage": true},
                             {"name": "v1alpha1", "served": true, "storage": false}],
            },
            "status": {"storedVersions": ["v1"]},
        }))
        .unwrap()
    }

    fn record() -> Record {
        Record {
            uid: "u".into(),
            generation: 3,
            storage_version: "v1".into(),
            verified: Verified::Full,
            r1: "17".parse().ok(),
            at: Timestamp::from_second(1_800_000_000).unwrap(),
            patrolled: false,
            patrolled_at: None,
            left: vec!["v1alpha1".into()],
        }
    }

    #[test]
    fn what_was_written_is_read_and_replaced() {
        let mut crd = crd();
        record().write(&mut crd);
        assert_eq!(Record::read(&crd), Some(record()));
        let patrolled = Record {
            patrolled: true,
            ..record()
        };
        patrolled.write(&mut crd);
        assert_eq!(Record::read(&crd), Some(patrolled));
        assert_eq!(crd.status.as_ref().unwrap().conditions.as_ref().unwrap().len(), 1);
        Record::erase(&mut crd);
        assert_eq!(Record::read(&crd), None);
    }

    #[test]
    fn another_uid_generation_storage_version_or_list_voids_it() {
        type Change = fn(&mut CustomResourceDefinition);
        let changes: [Change; 4] = [
            |crd| crd.metadata.uid = Some("other".into()),
            |crd| crd.metadata.generation = Some(4),
            |crd| {
                for version in &mut crd.spec.versions {
                    version.storage = !version.storage;
                }
            },
            |crd| {
                crd.status.as_mut().unwrap().stored_versions = Some(vec!["v1alpha1".into(), "v1".into()]);
            },
        ];
        for change in changes {
            let mut crd = crd();
            record().write(&mut crd);
            change(&mut crd);
            assert_eq!(Record::read(&crd), None);
        }
    }
}
