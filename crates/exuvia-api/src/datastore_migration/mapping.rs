//! One mapping: which objects, where to, and what of them is converted.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_default;

/// Which objects go where, and what of them is converted. What is not named is copied as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mapping {
    /// A name for status, metrics and messages.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Which objects.
    pub from: MappingSource,
    /// Where to.
    pub to: MappingTarget,
    /// This is one more object made from objects that another mapping moves. It takes no references.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extra: bool,
    /// Waves are copied in ascending order; inside a wave owners come first.
    #[schemars(range(min = 0, max = 1000))]
    #[serde(default, skip_serializing_if = "is_default")]
    pub wave: i32,
    /// What becomes of the metadata.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: MappingMetadata,
    /// Fields that are set, in this order.
    #[schemars(length(max = 64))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub convert: Vec<Conversion>,
    /// Fields that are removed.
    #[schemars(length(max = 64), inner(length(min = 1, max = 512)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
    /// What becomes of the status.
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: StatusCopy,
}

/// Which objects are moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MappingSource {
    /// The API group.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// A served version. Objects are read at it.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// The kinds.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 63)))]
    pub kinds: Vec<String>,
    /// Only objects with these labels. Only these are frozen.
    #[serde(default, skip_serializing_if = "is_default")]
    pub selector: LabelSelector,
    /// A CEL expression over `object`: whether this mapping takes it. Default: all of them.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub when: String,
    /// A CEL expression over `object`: whether it may be moved now. One that may not holds the whole migration.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ready: String,
}

/// Where objects go.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MappingTarget {
    /// The API group.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// A served version. Objects are written at it.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// The kind. Default: as in the source. Only with one kind in `from.kinds`.
    #[schemars(length(max = 63))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// What becomes of an object's metadata. Labels, annotations and owners are copied, finalizers are not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MappingMetadata {
    /// An annotation that holds an ObjectMeta as JSON. Its labels and annotations win over the object's, its owners are added, its
    /// name is taken if it has one, and the annotation is left out.
    #[schemars(length(max = 317))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unpack: String,
    /// A CEL expression for the name. Default: the unpacked name, else the source's.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// A CEL expression for the namespace. Default: the source's. Needed where the scope changes.
    #[schemars(length(max = 8192))]
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Prefixes of label and annotation keys to replace.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewrite_keys: Vec<KeyPrefix>,
    /// Annotations that are set, each by a CEL expression. `optional.none()` removes the annotation.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Annotations that are left out. The one of `kubectl apply` always is.
    #[schemars(length(max = 64), inner(length(max = 317)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drop_annotations: Vec<String>,
    /// Which finalizers are copied.
    #[serde(default, skip_serializing_if = "is_default")]
    pub finalizers: MappingFinalizers,
}

/// A prefix of label and annotation keys, and what it becomes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyPrefix {
    /// The prefix.
    #[schemars(length(min = 1, max = 317))]
    pub from: String,
    /// What it becomes.
    #[schemars(length(max = 317))]
    pub to: String,
}

/// Which finalizers are copied: those named here, and no others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MappingFinalizers {
    /// Copied as they are.
    #[schemars(length(max = 32), inner(length(max = 317)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keep: Vec<String>,
    /// Copied under another name.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rename: BTreeMap<String, String>,
}

/// A field that is set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Conversion {
    /// The field, such as `spec.nodeSelector` or `metadata.labels["a.b/c"]`.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// A CEL expression for its value. `optional.none()` removes the field.
    #[schemars(length(min = 1, max = 8192))]
    pub value: String,
}

/// What becomes of the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StatusCopy {
    /// The target's controller makes a new one.
    #[default]
    None,
    /// It is written to the target. An `observedGeneration` that was the source's generation becomes the target's, any other 0.
    Copy,
}

/// Which labels an object must have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels with these values.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[schemars(length(max = 32))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

impl LabelSelector {
    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }
}

/// What must be so of one label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabelRequirement {
    /// The label's key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// How it is compared.
    pub operator: LabelOperator,
    /// With what.
    #[schemars(length(max = 32), inner(length(max = 63)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// Its value is one of these.
    #[default]
    In,
    /// It is absent, or it has another value.
    NotIn,
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
}
