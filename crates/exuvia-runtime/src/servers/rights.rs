//! The rights that it takes to ask every API server.

use super::ApiServers;
use crate::rights::{Rule, RuleScope};

impl ApiServers {
    /// What a controller needs to [`ask`](Self::ask) every API server. `question` completes the sentence "to ask each of
    /// them …": whatever the question itself reads needs a rule of its own.
    ///
    /// ```
    /// use exuvia_runtime::servers::ApiServers;
    ///
    /// let rules = ApiServers::rights("whether it denies writes");
    /// assert!(rules.iter().any(|rule| rule.why.ends_with("to ask each of them whether it denies writes.")));
    /// ```
    pub fn rights(question: &str) -> [Rule; 3] {
        [
            Rule::path("Tell API servers apart.", "/metrics"),
            Rule::new(
                &format!("Find the API servers, to ask each of them {question}."),
                "discovery.k8s.io",
                ["endpointslices"],
                &["list"],
            )
            .within(RuleScope::Default),
            Rule::new(
                "Count the API servers by their identity Leases.",
                "coordination.k8s.io",
                ["leases"],
                &["list"],
            )
            .within(RuleScope::KubeSystem),
        ]
    }
}
