//! `exuvia datastore render`: converts the files of a Git tree, and nothing else of them.

use crate::{offline, write};

const MIGRATION: &str = "\
apiVersion: exuvia.dev/v1beta1
kind: DatastoreMigration
metadata: {name: move}
spec:
  mappings:
  - name: widgets
    from: {group: old.dev, version: v1, kinds: [Widget]}
    to: {group: new.dev, version: v2}
    metadata: {rewriteKeys: [{from: old.dev/, to: new.dev/}]}
  - name: gadgets
    from: {group: old.dev, version: v1, kinds: [Gadget]}
    to: {group: new.dev, version: v2}
    convert: [{path: spec.size, value: object.spec.width * 2}]
    remove: [spec.width]
  - name: parts
    extra: true
    from: {group: old.dev, version: v1, kinds: [Gadget]}
    to: {group: new.dev, version: v2, kind: Part}
    remove: [spec]
  references:
    rewrite:
    - in: {version: v1, kind: ConfigMap}
      convert: [{path: data.kind, value: '\"Widget.new.dev\"'}]
      when: object.data.?kind.orValue(\"\") == \"Widget.old.dev\"
";

const TREE: &str = "\
# The shop
apiVersion: v1
kind:   Namespace
metadata: {name:   shop}   # odd   spaces stay
---
# A widget
apiVersion: old.dev/v1 # the old group
kind: Widget
metadata:
  name: a
  labels:
    old.dev/team: \"shop\"
spec:
  size: 3 # litres
---
apiVersion: old.dev/v1
kind: Gadget
metadata: {name: b}
spec:
  width: 4 # lost
  enabled: 'yes'
---
apiVersion: v1
kind: ConfigMap
metadata: {name: names}
data: {kind: Widget.old.dev, other: x}
---
{{ not YAML at all }}
";

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "m.yaml", MIGRATION);
    write(directory.path(), "tree/shop.yaml", TREE);
    write(directory.path(), "tree/deep/other.yaml", "a:   1 # stays\r\n");
    write(
        directory.path(),
        "tree/list.json",
        "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{\"apiVersion\":\"old.dev/v1\",\"kind\":\"Widget\",\"metadata\":{\"name\":\"c\"}}]}\n",
    );
    directory
}

fn read(directory: &tempfile::TempDir, name: &str) -> String {
    std::fs::read_to_string(directory.path().join(name)).unwrap()
}

#[test]
fn documents_of_other_kinds_stay_byte_for_byte_and_comments_stay_where_only_names_change() {
    let directory = directory();
    let (code, printed, said) = offline(directory.path(), "datastore render -f m.yaml tree/shop.yaml");
    assert_eq!(code, Some(0), "{said}");
    let expected = "\
# The shop
apiVersion: v1
kind:   Namespace
metadata: {name:   shop}   # odd   spaces stay
---
# A widget
apiVersion: new.dev/v2 # the old group
kind: Widget
metadata:
  name: a
  labels:
    new.dev/team: \"shop\"
spec:
  size: 3 # litres
---
";
    assert!(printed.starts_with(expected), "{printed}");
    assert!(
        printed.ends_with("\ndata: {kind: Widget.new.dev, other: x}\n---\n{{ not YAML at all }}\n"),
        "{printed}"
    );
    // The gadget became two documents; what a YAML 1.1 reader would take for true is still text.
    assert!(
        printed.contains("size: 8\n") && printed.contains("kind: Part\n"),
        "{printed}"
    );
    assert!(
        printed.contains("enabled: 'yes'") || printed.contains("enabled: \"yes\""),
        "{printed}"
    );
    assert!(
        said.contains("tree/shop.yaml:15: this document was written again, and its comments are lost"),
        "{said}"
    );
    assert!(
        said.ends_with("3 documents in 1 file converted; everything else is as it was\n"),
        "{said}"
    );
    assert_eq!(read(&directory, "tree/shop.yaml"), TREE);
}

#[test]
fn in_place_only_converted_files_are_written() {
    let directory = directory();
    let untouched = directory.path().join("tree/deep/other.yaml");
    let before = std::fs::metadata(&untouched).unwrap().modified().unwrap();
    let (code, printed, said) = offline(directory.path(), "datastore render -f m.yaml tree --in-place");
    assert_eq!((code, printed.as_str()), (Some(0), ""), "{said}");
    assert!(read(&directory, "tree/shop.yaml").contains("new.dev/v2 # the old group"));
    assert!(read(&directory, "tree/list.json").contains("new.dev/v2"));
    assert_eq!(read(&directory, "tree/deep/other.yaml"), "a:   1 # stays\r\n");
    assert_eq!(std::fs::metadata(&untouched).unwrap().modified().unwrap(), before);
    // Again: nothing is left to convert.
    let (code, _, said) = offline(directory.path(), "datastore render -f m.yaml tree --in-place");
    assert_eq!(code, Some(0));
    assert!(said.contains("nothing is converted"), "{said}");
}

#[test]
fn a_directory_keeps_its_form_elsewhere() {
    let directory = directory();
    let (code, _, said) = offline(
        directory.path(),
        "datastore render -f m.yaml tree --output-dir out",
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(read(&directory, "out/shop.yaml").contains("new.dev/v2"));
    assert_eq!(read(&directory, "out/deep/other.yaml"), "a:   1 # stays\r\n");
    assert_eq!(read(&directory, "tree/shop.yaml"), TREE);
}

#[test]
fn if_one_document_cannot_be_converted_no_file_is_written() {
    for (document, expected) in [
        (
            "apiVersion: old.dev/v1\nkind: Gadget\nmetadata: {name: x}\nspec: {}\n",
            "mapping \"gadgets\": mappings[1].convert[0].value",
        ),
        (
            "apiVersion: old.dev/v1alpha1\nkind: Widget\nmetadata: {name: x}\n",
            "Widget is at old.dev/v1alpha1, but the mapping reads old.dev/v1",
        ),
        (
            "apiVersion: old.dev/v1\nkind: Widget\nmetadata: {{ .Values.meta }}\n  name: x\n",
            "this is a template ({{ … }}) that seems to hold a moved kind: change it by hand",
        ),
        // Valid YAML, which holds nothing of what it will hold.
        (
            "apiVersion: old.dev/v1\nkind: Widget\nmetadata: {name: x}\nspec:\n  width: {{ .Values.w }}\n",
            "this is a template ({{ … }}) of a moved kind: change it by hand (line 5, column 11)",
        ),
        (
            "apiVersion: old.dev/v1\nkind: Widget\nmetadata: {name: x}\nspec: {width: 1}\nspec: {}\n",
            "the key \"spec\" stands twice (line 5, column 1; first in line 4): remove one of them",
        ),
    ] {
        let directory = directory();
        write(directory.path(), "tree/zz.yaml", document);
        let (code, printed, said) = offline(directory.path(), "datastore render -f m.yaml tree --in-place");
        assert_eq!((code, printed.as_str()), (Some(1), ""), "{said}");
        assert!(
            said.starts_with("tree/zz.yaml:1: ") && said.contains(expected),
            "{said}"
        );
        assert!(
            said.ends_with("error: 1 document cannot be converted, so no file was written\n"),
            "{said}"
        );
        assert_eq!(read(&directory, "tree/shop.yaml"), TREE);
    }
}
