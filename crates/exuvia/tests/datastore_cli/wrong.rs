//! Wrong invocations: each is answered with one sentence that names the cause and the fix, and with exit code 2.

use crate::{offline, write};

const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:9"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
"#;

const MIGRATION: &str = "\
apiVersion: exuvia.dev/v1beta1
kind: DatastoreMigration
metadata: {name: move}
spec:
  mappings:
  - name: all
    from: {group: old.dev, version: v1, kinds: [Widget]}
    to: {group: new.dev, version: v1}
";

const UNREACHABLE: &str = "error: the API server at https://127.0.0.1:9 cannot be reached: Connection refused (os error 111); \
                           check the kubeconfig and the network";
const NO_KUBECONFIG: &str = "error: invalid KUBECONFIG \"./none\": expected a kubeconfig file, but it cannot be read: No such \
                             file or directory; correct the environment variable, or give --kubeconfig";
const BAD_NAME: &str = "expected at most 253 lower-case letters, digits, '-' and '.', such as exuvia";

#[allow(clippy::too_many_lines)] // a table
fn cases() -> Vec<(&'static str, String)> {
    let is = |line, sentence: &str| (line, sentence.to_owned());
    vec![
        is(
            "abort move",
            "error: invalid command \"abort\": did you mean `exuvia datastore abort`?",
        ),
        is(
            "datastore abrt move",
            "error: invalid command \"abrt\": did you mean `exuvia datastore abort`?",
        ),
        is(
            "datastore statsu",
            "error: invalid command \"statsu\": did you mean `exuvia datastore status`?",
        ),
        is(
            "datastore wash",
            "error: invalid command \"wash\": expected validate, plan, start, status, conflicts, cutover, abort, retry, thaw, \
             verify, render or help",
        ),
        is(
            "datastore validate",
            "error: missing --filename: expected manifests: a file, a directory, or - for standard input (repeatable)",
        ),
        is(
            "datastore validate -f nowhere.yaml",
            "error: invalid --filename \"nowhere.yaml\": it does not exist; expected a file, a directory, or - for standard input",
        ),
        is(
            "datastore plan",
            "error: missing NAME: expected a migration of the cluster; or -f FILE, for one that is not created yet",
        ),
        is(
            "datastore plan -f cut.yaml",
            "error: cut.yaml:1:11: this is not valid YAML: unclosed bracket '['",
        ),
        is(
            "datastore validate -f cm.yaml",
            "error: invalid --filename \"cm.yaml\": it holds no DatastoreMigration",
        ),
        is(
            "datastore validate -f m.yaml --crds cm.yaml",
            "error: invalid --crds \"cm.yaml\": it holds no CRD",
        ),
        is(
            "datastore validate -f m.yaml --crds cm.yaml --cluster",
            "error: --crds cannot be used with --cluster: leave one of them out",
        ),
        is("datastore validate -f m.yaml --cluster", NO_KUBECONFIG),
        is(
            "datastore plan move -f m.yaml",
            "error: NAME cannot be used with --filename: leave one of them out",
        ),
        is("datastore plan -f m.yaml --kubeconfig kc", UNREACHABLE),
        is(
            "datastore plan Move",
            &format!("error: invalid NAME \"Move\": {BAD_NAME}"),
        ),
        is(
            "datastore start",
            "error: missing --filename: expected the manifest of the migration: a file, or - for standard input",
        ),
        is(
            "datastore start -f two.yaml",
            "error: invalid --filename \"two.yaml\": expected one DatastoreMigration, but it holds 2: move, move",
        ),
        is(
            "datastore start -f wrong.yaml",
            "error: wrong.yaml:6:5: spec.mappings[0].nam: unknown field: did you mean name?\nerror: wrong.yaml:6:5: \
             spec.mappings[0].name: the field is missing",
        ),
        is("datastore start -f m.yaml --kubeconfig kc", UNREACHABLE),
        is(
            "datastore start -f tight.yaml",
            "error: tight.yaml:9:37: spec.freeze.maxDuration: freeze.maxDuration (20s) is not longer than freeze.drain (30s): \
             everything would be frozen, and undone before an object is copied; expected more than the drain and the copy take",
        ),
        is(
            "rbac -f bad-cel.yaml",
            "error: bad-cel.yaml:9:47: spec.mappings[0].convert[0].value: invalid expression: a comparison is written ==, not =",
        ),
        is("rbac -f m.yaml --kubeconfig kc", UNREACHABLE),
        is(
            "rbac -f cm.yaml",
            "error: invalid --filename \"cm.yaml\": expected a manifest of a DatastoreMigration",
        ),
        is(
            "datastore status --watch --interval 0s",
            "error: invalid --interval \"0s\": expected more than 0s, such as 5s",
        ),
        is(
            "datastore status -o xml",
            "error: invalid --output \"xml\": expected table, json or yaml",
        ),
        is("datastore status move --kubeconfig kc", UNREACHABLE),
        is(
            "datastore conflicts",
            "error: missing NAME: expected the migration's name",
        ),
        is(
            "datastore conflicts move --show-values --kubeconfig kc",
            "error: --show-values prints what objects hold, so it works only at a terminal, but standard output is a file or a \
             pipe: leave the option out",
        ),
        is("datastore cutover move", NO_KUBECONFIG),
        is(
            "datastore abort move other",
            "error: unexpected argument \"other\": `exuvia datastore abort --help` shows what it takes",
        ),
        is(
            "datastore abort move --clean",
            "error: invalid option \"--clean\" of `exuvia datastore abort`: did you mean --cleanup?",
        ),
        is("datastore retry move --kubeconfig kc", UNREACHABLE),
        is(
            "datastore thaw ../x",
            &format!("error: invalid NAME \"../x\": {BAD_NAME}"),
        ),
        is(
            "datastore verify move --context nope --kubeconfig kc",
            "error: invalid context \"nope\": expected one of the \
             kubeconfig's contexts (a)",
        ),
        is(
            "datastore render -f m.yaml",
            "error: missing PATH: expected what to convert: files, directories, or - for standard input",
        ),
        is(
            "datastore render -f m.yaml nowhere",
            "error: invalid PATH \"nowhere\": it does not exist; expected a file, a directory, or - for standard input",
        ),
        is(
            "datastore render -f m.yaml cm.yaml --in-place --output-dir out",
            "error: --in-place cannot be used with --output-dir: leave one of them out",
        ),
        is(
            "datastore render -f m.yaml - --in-place",
            "error: standard input cannot be converted in place: give a file, or leave --in-place out",
        ),
        is(
            "datastore render -f broken.yaml cm.yaml",
            "error: broken.yaml:2:7: this is not valid YAML: unclosed bracket '['",
        ),
    ]
}

#[test]
fn a_wrong_invocation_is_answered_with_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("kc", KUBECONFIG),
        ("m.yaml", MIGRATION),
        ("two.yaml", &format!("{MIGRATION}---\n{MIGRATION}")),
        ("wrong.yaml", &MIGRATION.replace("- name: all", "- nam: all")),
        (
            "tight.yaml",
            &format!("{MIGRATION}  freeze: {{drain: 30s, maxDuration: 20s}}\n"),
        ),
        (
            "bad-cel.yaml",
            &format!("{MIGRATION}    convert: [{{path: spec.a, value: \"object.a = 2\"}}]\n"),
        ),
        (
            "cm.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
        ),
        ("cut.yaml", "mappings: [a\n"),
        ("broken.yaml", "kind: DatastoreMigration\nspec: [\n"),
    ] {
        write(directory.path(), name, text);
    }
    let mut wrong = Vec::new();
    for (line, sentence) in cases() {
        let (ended, printed, said) = offline(directory.path(), line);
        let said = said.replace("(os error 61)", "(os error 111)");
        if (ended, printed.as_str(), said.trim_end()) != (Some(2), "", sentence.as_str()) {
            wrong.push(format!(
                "$ exuvia {line}\nexpected {sentence}\nprinted  {ended:?} {printed}{said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn without_a_command_the_help_is_shown() {
    let (ended, printed, said) = offline(tempfile::tempdir().unwrap().path(), "datastore");
    assert_eq!((ended, printed.as_str()), (Some(2), ""));
    assert!(said.contains("Usage: exuvia datastore"), "{said}");
}
