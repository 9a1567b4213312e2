//! `exuvia datastore validate`: what is wrong with a manifest, where, and in one line each.

use serde_json::{Value, json};

use crate::binary::{printed, text};
use crate::world::World;
use crate::{offline, write};

const VALID: &str = "\
apiVersion: exuvia.dev/v1beta1
kind: DatastoreMigration
metadata:
  name: widgets
spec:
  mappings:
  - name: all
    from: {group: old.example.com, version: v1, kinds: [Widget]}
    to: {group: example.com, version: v1}
    convert:
    - path: spec.size
      value: object.spec.?width.orValue(1) * 2
    remove: [spec.width]
";

fn faults(text: &str) -> (Option<i32>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "m.yaml", text);
    let (code, printed, _) = offline(directory.path(), "datastore validate -f m.yaml");
    let lines: Vec<String> = printed.lines().map(str::to_owned).collect();
    let (last, faults) = lines.split_last().unwrap();
    assert!(last.starts_with("1 DatastoreMigration: "), "{printed}");
    (code, faults.to_vec())
}

#[test]
fn a_valid_manifest_is_valid_without_a_cluster() {
    assert_eq!(faults(VALID), (Some(0), Vec::new()));
}

/// The last one would win, and what the first one says would be lost without a word.
#[test]
fn a_key_that_stands_twice_is_a_fault() {
    let twice = format!("{VALID}    convert: []\n");
    let expected = "m.yaml:14:5: the key \"convert\" stands twice, first in line 10: remove one of them";
    assert_eq!(faults(&twice), (Some(1), vec![expected.to_owned()]));
}

#[test]
fn a_template_that_is_valid_yaml_is_a_fault() {
    let template = VALID.replace(
        "version: v1}\n    convert",
        "version: {{ .Values.version }}}\n    convert",
    );
    let (code, faults) = faults(&template);
    assert_eq!(code, Some(1), "{faults:?}");
    let is_named = |fault: &String| fault.contains("this is a template ({{ … }}): give what it renders to");
    assert!(faults.iter().any(is_named), "{faults:?}");
}

/// That there are none would hide why.
#[test]
fn a_file_that_is_not_yaml_is_a_fault_with_its_place_whatever_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "cut.yaml", "spec:\n  mappings: [a\n");
    let (code, printed, said) = offline(directory.path(), "datastore validate -f cut.yaml");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert!(
        printed.starts_with("cut.yaml:2:13: this is not valid YAML: unclosed bracket"),
        "{printed}"
    );
    // Beside a migration it may be anything, such as a template of a chart.
    write(directory.path(), "valid.yaml", VALID);
    let (code, printed, said) = offline(directory.path(), "datastore validate -f .");
    assert_eq!(code, Some(0), "{printed}{said}");
}

#[test]
fn each_fault_has_its_file_line_and_column() {
    for (before, after, expected) in [
        (
            "  mappings:\n",
            "  mapings:\n",
            "m.yaml:6:3: spec.mapings: unknown field: did you mean mappings?",
        ),
        (
            "    convert:\n",
            "    covnert:\n",
            "m.yaml:10:5: spec.mappings[0].covnert: unknown field: did you mean convert?",
        ),
        (
            "apiVersion: exuvia.dev/v1beta1\n",
            "",
            "m.yaml:1:1: apiVersion: the field is missing: expected exuvia.dev/v1beta1",
        ),
        (
            "exuvia.dev/v1beta1",
            "exuvia.de/v1beta1",
            "m.yaml:1:13: apiVersion: unknown version: expected exuvia.dev/v1beta1",
        ),
        (
            "  name: widgets",
            "  nam: widgets",
            "m.yaml:3:1: metadata.name: the field is missing: expected a name",
        ),
        (
            "  name: widgets",
            "  name: Widgets_1",
            "m.yaml:4:9: metadata.name: invalid name \"Widgets_1\": expected lower-case \
          letters, digits, '-' and '.'",
        ),
        (
            "v1beta1",
            "v1",
            "m.yaml:1:13: apiVersion: unknown version: expected exuvia.dev/v1beta1",
        ),
        (
            "[Widget]",
            "Widget",
            "m.yaml:8:56: spec.mappings[0].from.kinds: it is text: expected a list",
        ),
        (
            "spec:\n",
            "spec:\n  mode: Fast\n",
            "m.yaml:6:9: spec.mode: unknown value \"Fast\": expected FreezeAndCopy or SyncThenFreeze",
        ),
        (
            "spec:\n",
            "spec:\n  concurrency: 65\n",
            "m.yaml:6:16: spec.concurrency: invalid value 65: expected 1 to 64",
        ),
        (
            "group: example.com",
            "group: old.example.com",
            "m.yaml:9:5: spec.mappings[0].to: Widget would become itself: \
          expected another group or kind",
        ),
        (
            "- path: spec.size",
            "- path: spec.sizes[0]",
            "m.yaml:11:13: spec.mappings[0].convert[0].path: invalid path \
          \"spec.sizes[0]\": an element of a list has no path, convert the whole list; expected names with dots, such as \
          spec.a[\"b.c/d\"]",
        ),
    ] {
        assert!(VALID.contains(before), "{before}");
        let (code, found) = faults(&VALID.replacen(before, after, 1));
        assert_eq!(code, Some(1), "{found:?}");
        assert!(
            found.contains(&expected.to_owned()),
            "expected {expected}\nfound {found:#?}"
        );
    }
}

/// The column is that of the mistake, not of the field, wherever the file says it character by character.
#[test]
fn a_fault_in_an_expression_is_found_to_the_character() {
    for (value, expected) in [
        ("value: object.spec.width +* 2", "m.yaml:12:33: "),
        ("value: 'object.spec.width +* 2'", "m.yaml:12:34: "),
        (
            "value: |\n        object.spec.width\n          +* 2",
            "m.yaml:14:12: ",
        ),
    ] {
        let text = VALID.replace("value: object.spec.?width.orValue(1) * 2", value);
        let (code, found) = faults(&text);
        assert_eq!(code, Some(1), "{found:?}");
        let in_expression = format!("{expected}spec.mappings[0].convert[0].value: ");
        assert!(
            found.iter().any(|fault| fault.starts_with(&in_expression)),
            "{value}: {found:#?}"
        );
    }
    let folded = VALID.replace(
        "value: object.spec.?width.orValue(1) * 2",
        "value: >-\n        object.nosuch(\n        1)",
    );
    let (_, found) = faults(&folded);
    assert!(
        found.iter().any(|fault| fault.contains("of the expression: ")),
        "{found:#?}"
    );
}

#[test]
fn a_machine_gets_the_same() {
    let directory = tempfile::tempdir().unwrap();
    write(
        directory.path(),
        "tree/a.yaml",
        &VALID.replace("mode", "x").replace("[Widget]", "[]"),
    );
    write(
        directory.path(),
        "tree/b.yaml",
        "apiVersion: v1\nkind: ConfigMap\n---\n",
    );
    write(directory.path(), "tree/c.yaml", VALID);
    let (code, printed, _) = offline(directory.path(), "datastore validate -f tree -o json");
    assert_eq!(code, Some(1), "{printed}");
    let answer: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(answer["valid"], false);
    assert_eq!(answer["migrations"], json!(["widgets", "widgets"]));
    assert_eq!(answer["faults"][0]["file"], "tree/a.yaml");
    assert_eq!(answer["faults"][0]["path"], "spec.mappings[0].from.kinds");
    assert_eq!(
        (&answer["faults"][0]["line"], &answer["faults"][0]["column"]),
        (&json!(8), &json!(49))
    );
}

fn crd(group: &str, fields: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: widgets.{group}}}\nspec:\n  group: \
         {group}\n  names: {{kind: Widget, plural: widgets}}\n  versions:\n  - name: v1\n    served: true\n    schema:\n      \
         openAPIV3Schema:\n        type: object\n        properties:\n          spec: {{type: object, properties: {fields}}}\n"
    )
}

#[test]
fn paths_are_checked_against_the_crds_that_are_given() {
    let directory = tempfile::tempdir().unwrap();
    let old = crd(
        "old.example.com",
        "{width: {type: integer}, color: {type: string}}",
    );
    let new = crd("example.com", "{sizes: {type: integer}}");
    write(directory.path(), "crds/all.yaml", &format!("{old}---\n{new}"));
    write(directory.path(), "old.yaml", &old);
    write(
        directory.path(),
        "m.yaml",
        &VALID.replace("[spec.width]", "[spec.width, spec.depth]"),
    );
    let (code, printed, said) = offline(directory.path(), "datastore validate -f m.yaml --crds crds");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert_eq!(
        printed,
        "m.yaml:11:13: spec.mappings[0].convert[0].path: unknown field spec.size of Widget.example.com: its API would refuse every \
         object that has it\n\
         m.yaml:13:26: spec.mappings[0].remove[1]: unknown field spec.depth of the source: there is nothing to remove\n\
         1 DatastoreMigration: 2 faults\n"
    );
    assert!(
        said.contains("Widget.example.com does not have spec.color;"),
        "{said}"
    );
    // A kind that no CRD has is a slip, or its CRD was forgotten.
    for (before, after, expected) in [
        (
            "",
            "",
            "m.yaml:9:5: spec.mappings[0].to: no CRD was found for kind Widget in group example.com: give its manifest with --crds, too\n",
        ),
        (
            "[Widget]",
            "[Widgte]",
            "m.yaml:8:57: spec.mappings[0].from.kinds[0]: no CRD was found for kind Widgte in group \
          old.example.com: did you mean kind Widget?\n",
        ),
        (
            "group: old.e",
            "group: odl.e",
            "m.yaml:8:57: spec.mappings[0].from.kinds[0]: no CRD was found for kind Widget in group \
          odl.example.com: did you mean group old.example.com?\n",
        ),
    ] {
        write(directory.path(), "m.yaml", &VALID.replacen(before, after, 1));
        let (code, printed, said) = offline(directory.path(), "datastore validate -f m.yaml --crds old.yaml");
        assert_eq!(code, Some(1), "{printed}{said}");
        assert!(printed.contains(expected), "{expected}in {printed}{said}");
    }
}

/// An expression that reads what no object can have would fail for each of them.
#[test]
fn fields_that_expressions_read_are_checked_against_the_crds() {
    let directory = tempfile::tempdir().unwrap();
    let old = crd("old.example.com", "{width: {type: integer}}");
    let new = crd("example.com", "{size: {type: integer}}");
    write(directory.path(), "crds.yaml", &format!("{old}---\n{new}"));
    let validated = |value: &str| {
        let text = VALID.replace("object.spec.?width.orValue(1) * 2", value);
        write(directory.path(), "m.yaml", &text);
        offline(directory.path(), "datastore validate -f m.yaml --crds crds.yaml")
    };
    let (code, printed, said) = validated("1 + object.spec.widht");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert_eq!(
        printed,
        "m.yaml:12:18: spec.mappings[0].convert[0].value: unknown field spec.widht of Widget.old.example.com: the expression fails for \
         every object; did you mean width?\n1 DatastoreMigration: 1 fault\n"
    );
    let (code, printed, said) = validated("object.spec.?widht.orValue(1)");
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(
        said.contains(
            "unknown field spec.widht of Widget.old.example.com: it is always absent; did you mean width?"
        ),
        "{said}"
    );
    let (code, printed, said) = validated("\"has(object.spec.depth) ? object.spec.depth : 1\"");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
}

/// A value of another type would be refused for each object.
#[test]
fn what_expressions_give_is_checked_against_the_crds_where_it_is_certain() {
    let directory = tempfile::tempdir().unwrap();
    let old = crd("old.example.com", "{width: {type: integer}}");
    let new = crd("example.com", "{size: {type: integer}}");
    write(directory.path(), "crds.yaml", &format!("{old}---\n{new}"));
    let validated = |value: &str| {
        let text = VALID.replace("object.spec.?width.orValue(1) * 2", value);
        write(directory.path(), "m.yaml", &text);
        offline(directory.path(), "datastore validate -f m.yaml --crds crds.yaml")
    };
    let (code, printed, said) = validated("string(object.spec.width)");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert_eq!(
        printed,
        "m.yaml:12:14: spec.mappings[0].convert[0].value: it always gives text: expected a whole number, as spec.size of \
         Widget.example.com is\n1 DatastoreMigration: 1 fault\n"
    );
    let (code, printed, said) = validated("object.spec.width");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
}

/// After the commit it would be too late to find out.
#[test]
fn rules_for_objects_that_name_moved_ones_are_checked_against_the_crds() {
    let directory = tempfile::tempdir().unwrap();
    let old = crd("old.example.com", "{width: {type: integer}}");
    let new = crd("example.com", "{size: {type: integer}}");
    let shelf = crd("shelves.dev", "{widget: {type: string}}");
    write(
        directory.path(),
        "crds.yaml",
        &format!("{old}---\n{new}---\n{shelf}"),
    );
    let validated = |group: &str, path: &str, value: &str| {
        let rules = format!(
            "  references:\n    rewrite:\n    - in: {{group: {group}, version: v1, kind: Widget}}\n      convert:\n      - \
             path: {path}\n        value: {value}\n"
        );
        write(directory.path(), "m.yaml", &format!("{VALID}{rules}"));
        offline(directory.path(), "datastore validate -f m.yaml --crds crds.yaml")
    };
    for (path, value, expected) in [
        (
            "spec.wigdet",
            "object.spec.widget",
            "m.yaml:18:15: spec.references.rewrite[0].convert[0].path: unknown field spec.wigdet of Widget.shelves.dev: its API would \
             refuse every object that has it\n1 DatastoreMigration: 1 fault\n",
        ),
        (
            "spec.widget",
            "object.spec.wigdet",
            "m.yaml:19:16: spec.references.rewrite[0].convert[0].value: unknown field spec.wigdet of Widget.shelves.dev: the \
             expression fails for every object; did you mean widget?\n1 DatastoreMigration: 1 fault\n",
        ),
        (
            "spec.widget",
            "'1'",
            "m.yaml:19:16: spec.references.rewrite[0].convert[0].value: it always gives a whole number: expected text, as spec.widget of \
             Widget.shelves.dev is\n1 DatastoreMigration: 1 fault\n",
        ),
    ] {
        let (code, printed, said) = validated("shelves.dev", path, value);
        assert_eq!((code, printed.as_str()), (Some(1), expected), "{said}");
    }
    let (code, printed, said) = validated("shelves.dev", "spec.widget", "\"'new-' + object.spec.widget\"");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
    // Of kinds whose schemas are not known nothing is said.
    let (code, printed, said) = validated("apps", "spec.wigdet", "object.spec.wigdet");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
}

#[test]
fn a_freeze_that_may_be_too_short_is_noted() {
    let directory = tempfile::tempdir().unwrap();
    let text = VALID.replace("spec:\n", "spec:\n  freeze: {maxDuration: 30s}\n");
    write(directory.path(), "m.yaml", &text);
    let (code, printed, said) = offline(directory.path(), "datastore validate -f m.yaml");
    assert_eq!(code, Some(0), "{printed}{said}");
    assert!(
        said.starts_with("note: m.yaml:6:25: spec.freeze.maxDuration: freeze.maxDuration (30s) is short: "),
        "{said}"
    );
}

#[test]
fn a_migration_that_stands_twice_in_a_file_is_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "m.yaml", &format!("{VALID}---\n{VALID}"));
    let (code, printed, said) = offline(directory.path(), "datastore validate -f m.yaml");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert_eq!(
        printed,
        "m.yaml:18:9: metadata.name: the name is used twice in this file, first in line 4: give each migration its own\n2 \
         DatastoreMigrations: 1 fault\n"
    );
}

/// YAML allows no tab where a line begins, and editors show it as spaces.
#[test]
fn a_tab_that_indents_is_named() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "m.yaml", &VALID.replace("    from:", "\tfrom:"));
    let (code, printed, said) = offline(directory.path(), "datastore validate -f m.yaml");
    assert_eq!(code, Some(1), "{printed}{said}");
    assert!(
        printed.starts_with("m.yaml:8:1: this is not valid YAML: a tab indents this line; expected spaces\n"),
        "{printed}"
    );
}

#[tokio::test]
async fn paths_are_checked_against_the_crds_of_the_cluster() {
    let world = World::without_target_crd("cluster").await;
    let mut manifest = world.manifest();
    manifest["spec"]["mappings"][0]["convert"] = json!([{"path": "spec.depth", "value": "1"}]);
    let file = world.file(&manifest);
    let output = world.exuvia(&["validate", "-f", &file, "--cluster"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", printed(&output));
    let said = text(&output.stdout);
    assert!(
        said.contains("no CRD was found for kind Widget in group new.cluster.example.com"),
        "{said}"
    );
    world.new.install(&world.client, "v1").await.unwrap();
    let said = text(&world.exuvia(&["validate", "-f", &file, "--cluster"]).await.stdout);
    assert!(
        said.contains("unknown field spec.depth of Widget.new.cluster.example.com"),
        "{said}"
    );
    manifest["spec"]["mappings"][0]["convert"][0]["path"] = "spec.size".into();
    let file = world.file(&manifest);
    let output = world.exuvia(&["validate", "-f", &file, "--cluster"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
}

/// The example of the documentation is valid, and so are its paths.
#[test]
fn the_example_is_valid() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/datastore-migration");
    let (code, printed, said) = offline(&root, "datastore validate -f migration.yaml --crds crds.yaml");
    assert_eq!((code, said.as_str()), (Some(0), ""), "{printed}");
    let (code, printed, _) = offline(&root, "datastore render -f migration.yaml widgets.yaml");
    assert_eq!(code, Some(0));
    assert!(printed.contains("  size: 8 # in cells\n"), "{printed}");
}

/// Those that people take as they are. Notes name what only the source has; faults there are none.
#[test]
fn the_ready_manifests_are_valid_with_the_crds_of_their_fixtures() {
    let all = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
    for name in ["calico", "cert-manager", "gateway-api", "traefik"] {
        let line = "datastore validate -f migration.yaml --crds fixtures";
        let (code, printed, said) = offline(&all.join(name), line);
        assert_eq!(
            (code, printed.as_str()),
            (Some(0), "1 DatastoreMigration: valid\n"),
            "{name}: {said}"
        );
    }
}
