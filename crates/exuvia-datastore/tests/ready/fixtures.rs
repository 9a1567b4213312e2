//! A ready manifest and its fixtures, read from `migrations/`.

use std::path::{Path, PathBuf};

use exuvia_api::DatastoreMigration;
use serde_json::Value;

/// A ready manifest, the kinds of both sides, objects, and what they must become.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) migration: DatastoreMigration,
    pub(crate) crds: Vec<Value>,
    pub(crate) objects: Vec<Value>,
    pub(crate) expected: Vec<Value>,
}

/// `migrations/`.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations")
}

/// The names of all ready manifests.
pub(crate) fn names() -> Vec<String> {
    let entries = std::fs::read_dir(directory()).unwrap().map(Result::unwrap);
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<String> = directories
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// All documents of all YAML files below a directory, or of one file, each text changed before it is read.
pub(crate) fn documents_with(path: &Path, change: &dyn Fn(String) -> String) -> Vec<Value> {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        return paths
            .iter()
            .flat_map(|path| documents_with(path, change))
            .collect();
    }
    let text = change(std::fs::read_to_string(path).unwrap());
    let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    read.into_iter().filter(|document| !document.is_null()).collect()
}

impl Move {
    pub(crate) fn read(name: &str) -> Self {
        Self::read_with(name, &|text| text)
    }

    /// With another word for each `from` in all files: a test that needs fixed groups for itself.
    pub(crate) fn read_in(name: &str, from: &str, to: &str) -> Self {
        Self::read_with(name, &|text| text.replace(from, to))
    }

    fn read_with(name: &str, change: &dyn Fn(String) -> String) -> Self {
        let all = directory().join(name);
        let read = |file: &str| documents_with(&all.join(file), change);
        let (crds, fixtures): (Vec<Value>, Vec<Value>) = read("fixtures")
            .into_iter()
            .partition(|document| document["kind"] == "CustomResourceDefinition");
        let objects = read("fixtures/objects.yaml");
        let expected = read("fixtures/expected.yaml");
        assert_eq!(fixtures.len(), objects.len() + expected.len());
        let mut migrations = read("migration.yaml");
        assert_eq!(migrations.len(), 1, "{name}");
        Self {
            migration: serde_json::from_value(migrations.remove(0)).unwrap(),
            crds,
            objects,
            expected,
        }
    }

    /// With these kinds alone, of both sides.
    pub(crate) fn only(mut self, kinds: &[&str]) -> Self {
        let is_kept = |kind: &Value| kinds.iter().any(|kept| kind == kept);
        self.crds.retain(|crd| is_kept(&crd["spec"]["names"]["kind"]));
        self.objects.retain(|object| is_kept(&object["kind"]));
        self.expected.retain(|object| is_kept(&object["kind"]));
        let mappings = &mut self.migration.spec.mappings;
        for mapping in &mut *mappings {
            mapping.from.kinds.retain(|kind| kinds.contains(&kind.as_str()));
        }
        mappings.retain(|mapping| !mapping.from.kinds.is_empty());
        self
    }
}
