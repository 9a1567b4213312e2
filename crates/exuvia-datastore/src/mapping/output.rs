//! What the conversion of one object gives.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

/// What becomes of one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// The number of the mapping that moves it. `None`: it is not moved.
    pub taken_by: Option<usize>,
    /// Whether it may be moved now, as its mappings' `ready` have it.
    pub ready: bool,
    /// The targets: the successor first, then extra ones.
    pub outputs: Vec<Output>,
}

/// One target.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The number of the mapping that made it.
    pub mapping: usize,
    /// It is never the successor of a reference.
    pub extra: bool,
    /// The API group.
    pub group: String,
    /// The version at which it is written.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace, if it has one.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// What is written: apiVersion, kind, content, and of the metadata name, namespace, labels, annotations and finalizers.
    pub object: Value,
    /// The source's owners and the unpacked ones, as they were: the objects they name may be moved as well.
    pub owners: Vec<OwnerReference>,
    /// What is written to `/status`, if it is copied.
    pub status: Option<Value>,
}

/// What tells one target from another.
pub type TargetKey<'a> = (&'a str, &'a str, Option<&'a str>, &'a str);

impl Output {
    /// Group, kind, namespace and name: two outputs with the same key would be one object.
    pub fn key(&self) -> TargetKey<'_> {
        (&self.group, &self.kind, self.namespace.as_deref(), &self.name)
    }
}
