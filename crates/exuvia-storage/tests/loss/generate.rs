//! Schemas in pairs, and objects for them, from a seed.
//!
//! A field's name says what kind of value it holds, so that two schemas never disagree about types, whatever else they
//! disagree about: the server must accept each rewrite, for only then it shows what is lost.

use serde_json::{Map, Value, json};

const FREE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";

const SCALARS: [&str; 4] = ["text", "number", "flag", "either"];
const NESTED: [&str; 4] = ["object", "list", "map", "resource"];

/// So deep are schemas and objects nested.
pub(crate) const DEPTH: u32 = 2;

/// `splitmix64`: small, and the same everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.below(choices.len() as u64);
        choices[usize::try_from(index).unwrap()]
    }

    /// What kind of value a field of the top level holds.
    pub(crate) fn kind(&mut self) -> &'static str {
        if self.percent(20) {
            self.one_of(&SCALARS)
        } else {
            self.one_of(&NESTED)
        }
    }

    /// Two schemas for one field: unrelated, changed here and there, changed in one place, grown, or equal.
    pub(crate) fn pair(&mut self, kind: &str) -> (Value, Value) {
        let old = self.schema(kind, DEPTH);
        let new = match self.below(20) {
            0..=2 => self.schema(kind, DEPTH),
            3..=7 => self.changed(&old),
            8..=16 => self.nudged(kind, &old),
            17..=18 => self.grown(&old),
            _ => old.clone(),
        };
        (old, new)
    }

    /// The same schema with another word in one place: whatever is lost then is lost for that word alone.
    fn nudged(&mut self, kind: &str, schema: &Value) -> Value {
        let mut nudged = schema.clone();
        let inner = ["items", "additionalProperties"]
            .into_iter()
            .find(|key| schema[key].is_object());
        if let Some(key) = inner.filter(|_| self.percent(60)) {
            nudged[key] = self.nudged("object", &schema[key]);
            return nudged;
        }
        let properties = schema["properties"].as_object().into_iter().flatten();
        let names: Vec<&str> = properties
            .map(|(name, _)| name.as_str())
            .filter(|name| kind != "resource" || *name == "object")
            .collect();
        if !names.is_empty() && self.percent(60) {
            let name = self.one_of(&names);
            nudged["properties"][name] = self.nudged(name, &schema["properties"][name]);
            return nudged;
        }
        match (kind, self.below(4)) {
            ("resource", 0..=2)
                if schema["properties"]
                    .as_object()
                    .is_some_and(|named| !named.is_empty()) =>
            {
                flip(&mut nudged, EMBEDDED);
            }
            ("resource", 0..=2) if schema[FREE] == json!(true) => flip(&mut nudged, EMBEDDED),
            ("map", 0..=2) if schema["additionalProperties"] == json!(true) => {
                nudged = json!({"type": "object", FREE: true});
            }
            ("map", 0..=2) if schema[FREE] == json!(true) => {
                nudged = json!({"type": "object", "additionalProperties": true});
            }
            ("list", 0..=2) if schema["items"].is_object() => flip(&mut nudged, FREE),
            ("object", 0..=1) if schema["type"] == "object" => flip(&mut nudged, FREE),
            ("object", 2) if !names.is_empty() => {
                let name = self.one_of(&names);
                nudged["properties"].as_object_mut().unwrap().remove(name);
                without_a_broken_default(&mut nudged);
            }
            ("text" | "number", 0..=1) => {
                self.add_default(kind, &mut nudged);
                nudged.as_object_mut().unwrap().remove("nullable");
            }
            _ => flip(&mut nudged, "nullable"),
        }
        nudged
    }

    fn schema(&mut self, kind: &str, depth: u32) -> Value {
        let mut schema = match kind {
            "text" => json!({"type": "string"}),
            "number" => json!({"type": "integer"}),
            "flag" => json!({"type": "boolean"}),
            "either" => json!({"x-kubernetes-int-or-string": true}),
            "list" if self.percent(15) => json!({FREE: true}),
            "list" => {
                let mut list = json!({"type": "array", "items": self.object(depth)});
                if self.percent(25) {
                    list[FREE] = json!(true);
                }
                list
            }
            "map" if self.percent(10) => json!({"type": "object", "additionalProperties": true}),
            "map" if self.percent(15) => json!({"type": "object", FREE: true}),
            "map" => json!({"type": "object", "additionalProperties": self.object(depth)}),
            "resource" => self.resource(depth),
            _ => self.object(depth),
        };
        if self.percent(30) {
            schema["nullable"] = json!(true);
        }
        if self.percent(15) {
            self.add_default(kind, &mut schema);
        }
        schema
    }

    /// A default is never a value that an object holds.
    fn add_default(&mut self, kind: &str, schema: &mut Value) {
        let default = match kind {
            "text" => json!(self.one_of(&["default", "other default"])),
            "number" => json!(-1),
            "object" if schema["properties"]["text"].is_object() => json!({"text": "default of the whole"}),
            _ => return,
        };
        schema["default"] = default;
    }

    fn object(&mut self, depth: u32) -> Value {
        match self.below(10) {
            0 => return json!({FREE: true}),
            1 => return json!({"type": "object", FREE: true}),
            2 => return json!({"type": "object"}),
            _ => {}
        }
        let mut object = json!({"type": "object", "properties": self.properties(depth)});
        if self.percent(35) {
            object[FREE] = json!(true);
        }
        object
    }

    fn properties(&mut self, depth: u32) -> Map<String, Value> {
        let names = if depth == 0 {
            &SCALARS[..]
        } else {
            &[SCALARS, NESTED].concat()[..]
        };
        let mut properties = Map::new();
        for name in names {
            if self.percent(45) {
                properties.insert((*name).to_owned(), self.schema(name, depth.saturating_sub(1)));
            }
        }
        properties
    }

    /// A whole object inside an object: embedded, free, or typed.
    fn resource(&mut self, depth: u32) -> Value {
        let text = json!({"type": "string"});
        let mut properties = json!({"apiVersion": text, "kind": text, "object": self.object(depth)});
        match self.below(5) {
            0 => json!({"type": "object", FREE: true, EMBEDDED: true}),
            1 => json!({"type": "object", EMBEDDED: true, "properties": {"object": self.object(depth)}}),
            2 => json!({"type": "object", FREE: true}),
            3 => {
                properties["metadata"] = json!({"type": "object", FREE: true});
                json!({"type": "object", "properties": properties})
            }
            _ => json!({"type": "object", FREE: true, "properties": properties}),
        }
    }

    /// The same schema with something else here and there.
    fn changed(&mut self, schema: &Value) -> Value {
        let mut changed = schema.clone();
        if self.percent(8) {
            flip(&mut changed, "nullable");
        }
        if self.percent(8) && changed["type"] == "object" {
            let empty = changed["properties"].as_object().is_none_or(Map::is_empty);
            if !(changed[EMBEDDED] == json!(true) && empty) {
                flip(&mut changed, FREE);
            }
        }
        if self.percent(10) && changed["type"] == "string" {
            self.add_default("text", &mut changed);
        }
        if let Some(properties) = schema["properties"].as_object() {
            let is_resource = properties.contains_key("apiVersion") || schema[EMBEDDED] == json!(true);
            for (name, property) in properties {
                if self.percent(12) && !is_resource {
                    changed["properties"].as_object_mut().unwrap().remove(name);
                } else {
                    changed["properties"][name] = self.changed(property);
                }
            }
            if self.percent(25) && !is_resource {
                let name = self.one_of(&SCALARS);
                changed["properties"][name] = self.schema(name, 0);
            }
        }
        without_a_broken_default(&mut changed);
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                changed[inner] = self.changed(&schema[inner]);
            }
        }
        changed
    }

    /// The same schema with more in it.
    fn grown(&mut self, schema: &Value) -> Value {
        let mut grown = schema.clone();
        if let Some(properties) = schema["properties"].as_object() {
            for (name, property) in properties {
                grown["properties"][name] = self.grown(property);
            }
            let name = self.one_of(&SCALARS);
            let is_resource = properties.contains_key("apiVersion") || schema[EMBEDDED] == json!(true);
            if self.percent(50) && !is_resource && !properties.contains_key(name) {
                grown["properties"][name] = without_defaults(&self.schema(name, 0));
            }
        }
        for inner in ["items", "additionalProperties"] {
            if schema[inner].is_object() {
                grown[inner] = self.grown(&schema[inner]);
            }
        }
        grown
    }

    /// A value for a field of this kind; `null` now and then.
    pub(crate) fn value(&mut self, kind: &str, depth: u32) -> Value {
        if self.percent(10) {
            return Value::Null;
        }
        match kind {
            "text" => json!(format!("t{}", self.below(100))),
            "number" => json!(self.below(100)),
            "flag" => json!(self.percent(50)),
            "either" if self.percent(50) => json!(self.below(100)),
            "either" => json!("e"),
            "list" => (0..self.below(3)).map(|_| self.fields(depth)).collect(),
            "map" => {
                let mut map = json!({});
                for key in ["k1", "k2"] {
                    if self.percent(60) {
                        map[key] = self.fields(depth);
                    }
                }
                map
            }
            "resource" => {
                let mut metadata = json!({"name": "inner", "labels": {"a": "b"}});
                if self.percent(40) {
                    metadata["strange"] = json!("s");
                }
                let object = self.fields(depth);
                json!({"apiVersion": "v1", "kind": "Thing", "metadata": metadata, "object": object})
            }
            _ => self.fields(depth),
        }
    }

    fn fields(&mut self, depth: u32) -> Value {
        let mut fields = json!({});
        let names = if depth == 0 {
            &SCALARS[..]
        } else {
            &[SCALARS, NESTED].concat()[..]
        };
        for name in names {
            if self.percent(40) {
                fields[*name] = self.value(name, depth.saturating_sub(1));
            }
        }
        if self.percent(20) {
            fields["unknown"] = json!("u");
        }
        fields
    }
}

/// The server refuses a default with unknown fields.
fn without_a_broken_default(schema: &mut Value) {
    if schema["default"].is_object() && !schema["properties"]["text"].is_object() {
        schema.as_object_mut().unwrap().remove("default");
    }
}

fn flip(schema: &mut Value, key: &str) {
    if schema[key] == json!(true) {
        schema.as_object_mut().unwrap().remove(key);
    } else {
        schema[key] = json!(true);
    }
}

/// The schema as it was before anybody thought of defaults.
pub(crate) fn without_defaults(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| *key != "default")
            .map(|(key, value)| (key.clone(), without_defaults(value)))
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_defaults).collect(),
        other => other.clone(),
    }
}
