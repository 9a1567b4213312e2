//! Who answers for the target group: an APIService, or the target CRDs.
