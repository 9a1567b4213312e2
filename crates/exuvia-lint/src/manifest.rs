//! The CRDs in manifests and which versions they have, for those who ask what a release drops. Read as `lint` reads them.

use super::document;
use super::yaml::{self, Document, Node};
use super::{Error, Input, crds, input};

/// A CRD as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The file, or `<stdin>`.
    pub file: String,
    /// The line of its name, counted from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// Its versions, in their order.
    pub versions: Vec<String>,
    /// Those that are served.
    pub served: Vec<String>,
}

/// The CRDs in files, directories and streams, those in lists included, in their order. Other documents are passed over.
/// What is not valid YAML is an error, whatever it may hold: a CRD in it would not be seen.
///
/// ```
/// use exuvia_lint::{Input, manifests};
///
/// let bytes = b"apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
///               metadata: {name: widgets.example.com}\nspec: {versions: [{name: v1, served: true}]}\n".to_vec();
/// let found = manifests(&[Input::Bytes { name: "crds.yaml".into(), bytes }])?;
/// assert_eq!(found[0].versions, ["v1"]);
/// # Ok::<(), exuvia_lint::Error>(())
/// ```
pub fn manifests(inputs: &[Input]) -> Result<Vec<Manifest>, Error> {
    let mut found = Vec::new();
    let mut wrong = None;
    let mut files = input::Files::default();
    for input in inputs {
        files.read(input, &mut |file, bytes| {
            if let Err(error) = read(file, bytes, &mut found) {
                wrong.get_or_insert(error);
            }
        })?;
    }
    match wrong {
        Some(error) => Err(error),
        None => Ok(found),
    }
}

fn read(file: &str, bytes: Vec<u8>, found: &mut Vec<Manifest>) -> Result<(), Error> {
    let bad = |line: usize, why: String| Error::Manifest {
        place: format!("{file}:{line}"),
        why,
    };
    let text =
        document::decode(bytes).map_err(|_| bad(1, "this is not text in UTF-8 or UTF-16".to_owned()))?;
    for piece in document::pieces(&text) {
        let (documents, malformed) = yaml::parse(piece.text, piece.line);
        for document in &documents {
            add(file, document, found)?;
        }
        if let Some(malformed) = malformed {
            let (line, column) = (malformed.line, malformed.column);
            return Err(Error::Manifest {
                place: format!("{file}:{line}:{column}"),
                why: if piece.text.contains("{{") {
                    "this is a template ({{ … }}) and not valid YAML; give what it renders to: helm template … | exuvia \
                     storage droppable -f -"
                        .to_owned()
                } else {
                    format!("this is not valid YAML: {}", malformed.message)
                },
            });
        }
    }
    Ok(())
}

fn add(file: &str, document: &Document, found: &mut Vec<Manifest>) -> Result<(), Error> {
    for crd in crds(document) {
        let bad = |line: usize, why: String| Error::Manifest {
            place: format!("{file}:{line}"),
            why,
        };
        let Some(name) = crd.name else {
            return Err(bad(
                crd.line,
                "this CRD has no name: give metadata.name".to_owned(),
            ));
        };
        let versions = crd.node.get("spec").and_then(|spec| spec.value.get("versions"));
        let line = versions.map_or(crd.line, |versions| versions.line);
        // Nothing that can be read must not be taken for nothing that is there: that would be "all are dropped".
        let Some(items) = versions
            .and_then(|versions| versions.value.list())
            .filter(|items| !items.is_empty())
        else {
            return Err(bad(
                line,
                format!(
                    "spec.versions of {name} is not a list of versions, so nothing tells what is dropped"
                ),
            ));
        };
        let mut manifest = Manifest {
            file: file.to_owned(),
            line: crd.line,
            name: name.to_owned(),
            versions: Vec::new(),
            served: Vec::new(),
        };
        for item in items {
            let Some(version) = text(item, "name").filter(|name| !name.is_empty()) else {
                return Err(bad(
                    item.line,
                    format!("a version of {name} has no name: give spec.versions[].name"),
                ));
            };
            if text(item, "served").is_some_and(|served| served.eq_ignore_ascii_case("true")) {
                manifest.served.push(version.to_owned());
            }
            manifest.versions.push(version.to_owned());
        }
        found.push(manifest);
    }
    Ok(())
}

fn text<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.get(key).and_then(|entry| entry.value.text())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CRD: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  versions: [{name: v1, served: true}, {name: v1alpha1, served: false}]
";

    fn of(text: &str) -> Result<Vec<Manifest>, Error> {
        let bytes = text.as_bytes().to_vec();
        let name = "a.yaml".to_owned();
        manifests(&[Input::Bytes { name, bytes }])
    }

    #[test]
    fn crds_are_found_in_documents_and_lists_and_the_rest_is_passed_over() {
        let wanted = |line| Manifest {
            file: "a.yaml".into(),
            line,
            name: "widgets.example.com".into(),
            versions: vec!["v1".into(), "v1alpha1".into()],
            served: vec!["v1".into()],
        };
        let documents = format!("---\n# nothing\n---\n{CRD}---\nkind: ConfigMap\n---\nnull\n---\n");
        assert_eq!(of(&documents).unwrap(), [wanted(6)]);
        let json = r#"{"kind": "List", "items": [{"kind": "Secret"},
            {"kind": "CustomResourceDefinitionList", "items": [{
             "metadata": {"name": "widgets.example.com"},
             "spec": {"versions": [{"name": "v1", "served": true}, {"name": "v1alpha1", "served": false}]}}]}]}"#;
        assert_eq!(of(json).unwrap(), [wanted(3)]);
        assert_eq!(of("").unwrap(), []);
    }

    /// What cannot be read is not "no version", which would be a question about all of them.
    #[test]
    fn a_crd_whose_versions_cannot_be_read_is_an_error_with_its_place() {
        for (versions, place, part) in [
            ("versions: 5", "a.yaml:5", "not a list"),
            ("versions: []", "a.yaml:5", "not a list"),
            ("versions: {name: v1}", "a.yaml:5", "not a list"),
            ("group: example.com", "a.yaml:3", "not a list"),
            ("versions: [v1]", "a.yaml:5", "no name"),
            ("versions: [{served: true}]", "a.yaml:5", "no name"),
            ("versions: [", "a.yaml:5:13", "not valid YAML"),
        ] {
            let text = CRD.lines().take(4).collect::<Vec<_>>().join("\n") + &format!("\n  {versions}\n");
            let error = of(&text).unwrap_err().to_string();
            assert!(
                error.contains(place) && error.contains(part),
                "{versions}: {error}"
            );
        }
        let nameless = CRD.replace("{name: widgets.example.com}", "{}");
        assert!(of(&nameless).unwrap_err().to_string().contains("metadata.name"));
    }

    /// Nobody can say what it would have been.
    #[test]
    fn what_is_not_yaml_is_an_error_with_its_place_even_if_it_names_no_crd() {
        let error = of(&format!("{CRD}---\nkind: ConfigMap\ndata: [a\n")).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("a.yaml:8:7: this is not valid YAML"), "{error}");
        let error = of("{{- if .Values.crds }}\nkind: X\n{{- end }}\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("template"), "{error}");
    }

    #[test]
    fn a_manifest_that_does_not_parse_is_not_quoted() {
        for broken in [
            "token: \"CANARY\n",
            "token: CANARY: CANARY\n",
            "*CANARY\n",
            "\tCANARY: x\n",
        ] {
            let error = of(&format!("{CRD}{broken}")).unwrap_err().to_string();
            assert!(!error.contains("CANARY"), "{error}");
        }
    }
}
