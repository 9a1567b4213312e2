//! Which `DatastoreMigration` freezes a kind, read from what the API server says when it refuses a write.

use serde::Serialize;

/// The policy that refused a write, and the migration that it was made for. The migration may be deleted by now: its policy may
/// outlive it.
///
/// ```
/// use exuvia_api::FrozenBy;
///
/// let said = "widgets.old.dev \"till\" is forbidden: ValidatingAdmissionPolicy 'exuvia-1-source' with binding 'exuvia-1-source' \
///             denied request: this kind was moved by DatastoreMigration move: its objects can be deleted, but not changed";
/// let frozen = FrozenBy::named_in(said).unwrap();
/// assert_eq!((frozen.migration.as_str(), frozen.policy.as_str()), ("move", "exuvia-1-source"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FrozenBy {
    /// The name of the migration.
    pub migration: String,
    /// The name of the `ValidatingAdmissionPolicy`, and of its binding.
    pub policy: String,
}

impl FrozenBy {
    /// Reads the server's sentence. `None`: something else refuses the write.
    pub fn named_in(message: &str) -> Option<Self> {
        let (_, rest) = message.split_once("ValidatingAdmissionPolicy '")?;
        let (policy, rest) = rest.split_once('\'')?;
        let (_, words) = rest.split_once(" denied request: ")?;
        let (_, rest) = words.split_once(" by DatastoreMigration ")?;
        let (migration, _) = rest.split_once(':')?;
        // A policy of somebody else may use the same words.
        let is_ours = policy.starts_with("exuvia-") && is_name(policy) && is_name(migration);
        is_ours.then(|| Self {
            migration: migration.to_owned(),
            policy: policy.to_owned(),
        })
    }

    /// The command that ends what a deleted migration has left.
    pub fn thaw(&self) -> String {
        format!("exuvia datastore thaw {}", self.migration)
    }
}

/// Whether it can be the name of an object.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !text.is_empty() && text.len() <= 253 && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_by_others_are_not_taken_for_a_freeze() {
        for said in [
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: was moved by DatastoreMigration move: no",
            "ValidatingAdmissionPolicy 'exuvia-1-source' with binding 'b' denied request: was moved by DatastoreMigration a b: no",
            "admission webhook \"p.example.com\" denied the request: was moved by DatastoreMigration move: no",
            r#"User "u" cannot patch resource "widgets" in API group "old.dev" at the cluster scope"#,
        ] {
            assert_eq!(FrozenBy::named_in(said), None, "{said}");
        }
    }
}
