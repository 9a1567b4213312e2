//! Whether two schemas alone tell that a rewrite loses nothing: "certainly", or "must look". Pure.

use std::collections::BTreeSet;

use serde_json::Value;

/// Deeper schemas are not compared here, because the stack is finite; real ones are not so deep.
const DEEPEST: usize = 200;

/// Whether everything that survives a read through `old` also survives `new` unchanged, and nothing is added to it.
///
/// It may only err on one side: `false` means "must look". Both are `openAPIV3Schema`s. Values are not taken to be valid:
/// what is stored may be older than the schema.
///
/// The rules are those of structural pruning (PITFALLS A34): below `x-kubernetes-preserve-unknown-fields`, *specified*
/// properties are pruned in any case; `null` stays only where it is nullable or where nothing is specified.
///
/// ```
/// use exuvia_storage::loss::certainly_keeps;
/// use serde_json::json;
///
/// let size = json!({"type": "integer"});
/// let old = json!({"type": "object", "properties": {"size": size}});
/// let new = json!({"type": "object", "properties": {"size": size, "color": {"type": "string"}}});
/// assert!(certainly_keeps(&old, &new));
/// assert!(!certainly_keeps(&new, &old));
/// ```
pub fn certainly_keeps(old: &Value, new: &Value) -> bool {
    old.is_object() && new.is_object() && keeps(Part::root(old), Part::root(new), 0)
}

/// What a schema does with the value at one place.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// Nothing is specified here, and everything stays.
    Free,
    /// Nothing is specified here, and every key of an object goes.
    Closed,
    /// A schema.
    Specified {
        schema: &'a Value,
        /// It is inside a list whose own schema preserves unknown fields: that holds for the items, too.
        preserved: bool,
        root: bool,
    },
}

impl<'a> Part<'a> {
    fn root(schema: &'a Value) -> Self {
        Self::Specified {
            schema,
            preserved: false,
            root: true,
        }
    }

    fn specified(schema: &'a Value) -> Self {
        Self::Specified {
            schema,
            preserved: false,
            root: false,
        }
    }

    fn schema(self) -> Option<&'a Value> {
        match self {
            Self::Free | Self::Closed => None,
            Self::Specified { schema, .. } => Some(schema),
        }
    }

    fn says(self, key: &str) -> bool {
        self.schema()
            .is_some_and(|schema| schema[key] == Value::Bool(true))
    }

    fn preserves(self) -> bool {
        let inherited = matches!(self, Self::Free | Self::Specified { preserved: true, .. });
        inherited || self.says("x-kubernetes-preserve-unknown-fields")
    }

    fn names(self) -> impl Iterator<Item = &'a String> {
        let properties = self.schema().and_then(|schema| schema["properties"].as_object());
        properties.into_iter().flat_map(serde_json::Map::keys)
    }

    fn property(self, name: &str) -> Option<&'a Value> {
        self.schema()?["properties"].get(name)
    }

    /// What becomes of the value under a key that no property specifies; `None`: it goes.
    fn other(self) -> Option<Self> {
        match self.schema().map(|schema| &schema["additionalProperties"]) {
            Some(values) if values.is_object() => Some(Self::specified(values)),
            Some(Value::Bool(_)) => Some(Self::Closed), // the value stays, nothing is specified below it
            _ => self.preserves().then_some(Self::Free),
        }
    }

    /// What becomes of the value under this key; `None`: it goes.
    fn child(self, name: &str) -> Option<Self> {
        self.property(name).map(Self::specified).or_else(|| self.other())
    }

    fn items(self) -> Self {
        match (self.schema().map(|schema| &schema["items"]), self.preserves()) {
            (Some(schema), preserved) if schema.is_object() => Self::Specified {
                schema,
                preserved,
                root: false,
            },
            (_, true) => Self::Free,
            (_, false) => Self::Closed,
        }
    }

    fn default(self) -> &'a Value {
        self.schema().map_or(&Value::Null, |schema| &schema["default"])
    }

    /// Whether a `null` under a key stays.
    fn keeps_null(self) -> bool {
        self.schema().is_none() || self.says("nullable")
    }

    /// Whether a `null` in a list stays: it is never taken out, only replaced.
    fn keeps_null_item(self) -> bool {
        self.keeps_null() || self.default().is_null()
    }
}

fn keeps(old: Part<'_>, new: Part<'_>, depth: usize) -> bool {
    match (old, new) {
        (_, Part::Free) | (Part::Closed, Part::Closed) => return true,
        _ if depth > DEEPEST => return false,
        _ => {}
    }
    if !is_of_one_kind(old, new) {
        return false;
    }
    let known: BTreeSet<&String> = old.names().chain(new.names()).collect();
    let keeps_known = known.into_iter().all(|name| {
        let is_meta = matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        match (old, is_meta) {
            // The server handles them itself, whatever the schema says.
            (Part::Specified { root: true, .. }, true) => true,
            _ if is_meta && (embeds(old) || embeds(new)) => old.property(name) == new.property(name),
            _ => keeps_child(old.child(name), new.child(name), depth),
        }
    });
    let (old_items, new_items) = (old.items(), new.items());
    keeps_known
        && keeps_child(old.other(), new.other(), depth)
        && (new_items.keeps_null_item() || !old_items.keeps_null_item())
        && adds_nothing(old_items, new_items)
        && keeps(old_items, new_items, depth + 1)
}

/// `None`: a value under this key goes.
fn keeps_child(old: Option<Part<'_>>, new: Option<Part<'_>>, depth: usize) -> bool {
    match (old, new) {
        (None, None) => true,
        (None, Some(new)) => new.default().is_null(),
        (Some(_), None) => false,
        (Some(old), Some(new)) => {
            (new.keeps_null() || !old.keeps_null()) && adds_nothing(old, new) && keeps(old, new, depth + 1)
        }
    }
}

/// A default that only the new schema has is a change that people want to know about.
fn adds_nothing(old: Part<'_>, new: Part<'_>) -> bool {
    new.default().is_null() || new.default() == old.default()
}

/// A type does not prune, but a write may be refused for it; an embedded resource has metadata that the server edits.
fn is_of_one_kind(old: Part<'_>, new: Part<'_>) -> bool {
    let is_odd = |part: Part<'_>| part.schema().is_some_and(|schema| schema["items"].is_array());
    let same = match (old.schema(), new.schema()) {
        (Some(old), Some(new)) => {
            let is_same = |key: &&str| old[*key] == new[*key];
            // A list that may no longer hold duplicates.
            let is_stricter = matches!(new["x-kubernetes-list-type"].as_str(), Some("set" | "map"))
                && !["x-kubernetes-list-type", "x-kubernetes-list-map-keys"]
                    .iter()
                    .all(is_same);
            ["type", "x-kubernetes-int-or-string"].iter().all(is_same) && !is_stricter
        }
        _ => true,
    };
    same && embeds(old) == embeds(new) && !is_odd(old) && !is_odd(new)
}

fn embeds(part: Part<'_>) -> bool {
    part.says("x-kubernetes-embedded-resource")
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // reads better at the place of use
mod tests {
    use serde_json::json;

    use super::*;

    const FREE: &str = "x-kubernetes-preserve-unknown-fields";

    fn spec(schema: Value) -> Value {
        json!({"type": "object", "properties": {"spec": schema}})
    }

    fn object(properties: Value) -> Value {
        json!({"type": "object", "properties": properties})
    }

    /// Whether `old` to `new` is certain, and whether the way back is.
    fn both(old: Value, new: Value) -> (bool, bool) {
        let (old, new) = (spec(old), spec(new));
        assert!(certainly_keeps(&old, &old) && certainly_keeps(&new, &new));
        (certainly_keeps(&old, &new), certainly_keeps(&new, &old))
    }

    #[test]
    fn words_and_validations_do_not_matter() {
        let old = json!({"type": "string", "description": "a", "maxLength": 3});
        assert_eq!(both(old, json!({"type": "string", "pattern": "b"})), (true, true));
    }

    #[test]
    fn a_closed_schema_may_grow_at_any_depth_but_not_shrink() {
        let text = json!({"type": "string"});
        let small = object(json!({"a": text}));
        let large = object(json!({"a": text, "b": text}));
        let list = |items: &Value| json!({"type": "array", "items": items});
        let map = |values: &Value| json!({"type": "object", "additionalProperties": values});
        assert_eq!(both(small.clone(), large.clone()), (true, false));
        assert_eq!(both(list(&small), list(&large)), (true, false));
        assert_eq!(both(map(&small), map(&large)), (true, false));
    }

    #[test]
    fn what_is_free_becomes_typed_only_with_a_look() {
        let free = json!({"type": "object", FREE: true});
        let typed = object(json!({"a": {"type": "object"}}));
        assert_eq!(both(free.clone(), typed.clone()), (false, true));
        let half = json!({"type": "object", FREE: true, "properties": {"a": {"type": "object"}}});
        assert_eq!(both(free, half.clone()), (false, true));
        assert_eq!(both(typed, half), (true, false));
    }

    /// `skipPrune` goes on through lists.
    #[test]
    fn items_of_a_preserving_list_are_preserved_too() {
        let item = object(json!({"a": {"type": "string"}}));
        let free = json!({"type": "array", FREE: true, "items": item});
        let typed = json!({"type": "array", "items": item});
        assert_eq!(both(free, typed), (false, true));
    }

    #[test]
    fn additional_properties_true_is_not_free_below() {
        let any = json!({"type": "object", "additionalProperties": true});
        let free = json!({"type": "object", FREE: true});
        assert_eq!(both(any, free), (true, false));
    }

    #[test]
    fn null_and_defaults_are_looked_at_where_they_differ() {
        let plain = object(json!({"a": {"type": "string"}}));
        let nullable = object(json!({"a": {"type": "string", "nullable": true}}));
        assert_eq!(both(plain.clone(), nullable), (true, false));
        let default = object(json!({"a": {"type": "string", "default": "b"}}));
        assert_eq!(both(plain, default.clone()), (false, true));
        assert_eq!(both(object(json!({})), default), (false, false));
    }

    #[test]
    fn types_and_embedded_resources_are_looked_at_where_they_differ() {
        assert_eq!(
            both(json!({"type": "string"}), json!({"type": "integer"})),
            (false, false)
        );
        let free = json!({"type": "object", FREE: true});
        let embedded = json!({"type": "object", FREE: true, "x-kubernetes-embedded-resource": true});
        assert_eq!(both(free, embedded), (false, false));
    }

    #[test]
    fn a_schema_of_any_depth_is_answered() {
        let nested =
            |depth| (0..depth).fold(json!({"type": "string"}), |inner, _| object(json!({"a": inner})));
        assert!(certainly_keeps(&nested(60), &nested(60)));
        assert!(!certainly_keeps(&nested(400), &nested(400)), "must look");
    }

    #[test]
    fn no_schema_is_never_certain() {
        assert!(!certainly_keeps(&Value::Null, &Value::Null));
    }
}
