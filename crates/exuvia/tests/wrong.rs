//! Wrong invocations: each is answered with one sentence that names the cause and the fix, and with the documented exit code.

#![allow(clippy::unwrap_used)] // a test may panic

use std::path::Path;
use std::process::{Command, Stdio};

/// One line of the table: the command line, the exit code, and the sentence.
type Case = (&'static str, i32, &'static str);

const KUBECONFIG: &str = r#"
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:9"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
"#;

const UNREACHABLE: &str = "error: the API server at https://127.0.0.1:9 cannot be reached: Connection refused (os error 111); \
                           check the kubeconfig and the network";
const NO_KUBECONFIG: &str = "error: invalid KUBECONFIG \"./none\": expected a kubeconfig file, but it cannot be read: No such \
                             file or directory; correct the environment variable, or give --kubeconfig";

/// Commands that cannot be understood, or cannot begin. The exit code is 2: 1 would be an answer.
const CASES: &[Case] = &[
    (
        "migrate",
        2,
        "error: invalid command \"migrate\": did you mean `exuvia storage migrate`?",
    ),
    (
        "storage migrte",
        2,
        "error: invalid command \"migrte\": did you mean `exuvia storage migrate`?",
    ),
    (
        "storage wash",
        2,
        "error: invalid command \"wash\": expected migrate, status, droppable, users, lint, audit or help",
    ),
    (
        "storage migrate",
        2,
        "error: missing NAME: expected CRDs by full name (widgets.example.com), or built-in resources (secrets, \
         deployments.apps); or --all, or --labelled",
    ),
    ("storage migrate widgets.example.com", 2, NO_KUBECONFIG),
    (
        "--kubeconfig ./kc storage migrate widgets.example.com",
        2,
        UNREACHABLE,
    ),
    (
        "storage migrate widgets.example.com --kubeconfig ./kc",
        2,
        UNREACHABLE,
    ),
    (
        "--kubeconfig ./kc --context nope storage migrate widgets.example.com",
        2,
        "error: invalid context \"nope\": expected one of the kubeconfig's contexts (a)",
    ),
    (
        "--kubeconfig ./nowhere storage migrate widgets.example.com",
        2,
        "error: invalid --kubeconfig \"./nowhere\": expected a kubeconfig file, but it cannot be read: No such file or directory",
    ),
    (
        "--kubeconfig ./broken.yaml storage migrate widgets.example.com",
        2,
        "error: invalid --kubeconfig \"./broken.yaml\": expected a kubeconfig file, but at line 1, column 6: it is not valid \
         YAML (its content is not shown, because it may hold a secret)",
    ),
    (
        "storage migrate widgets.example.com --all",
        2,
        "error: NAME cannot be used with --all: leave one of them out",
    ),
    (
        "storage migrate --settle 1s --settle 2s widgets.example.com",
        2,
        "error: --settle is given more than once: give it once",
    ),
    (
        "storage migrate --settle 5x widgets.example.com",
        2,
        "error: invalid --settle \"5x\": expected a duration such as 500ms, 60s, 15m or 1h",
    ),
    (
        "storage migrate --settle 5 widgets.example.com",
        2,
        "error: invalid --settle \"5\": expected a duration such as 500ms, 60s, 15m or 1h",
    ),
    (
        "storage migrate --settle -5s widgets.example.com",
        2,
        "error: invalid --settle \"-5s\": expected a duration such as 500ms, 60s, 15m or 1h",
    ),
    (
        "storage migrate --qps -1 widgets.example.com",
        2,
        "error: invalid --qps \"-1\": expected a whole number from 1 to 1000000",
    ),
    (
        "--kubeconfig ./empty.yaml storage migrate widgets.example.com",
        2,
        "error: invalid --kubeconfig \"./empty.yaml\": expected a kubeconfig file, but it has no clusters and no contexts",
    ),
    (
        "storage migrate --verify fast widgets.example.com",
        2,
        "error: invalid --verify \"fast\": expected auto, proof or full",
    ),
    (
        "storage migrate -o xml widgets.example.com",
        2,
        "error: invalid --output \"xml\": expected table, json or yaml",
    ),
    (
        "storage migrate --qps 0 widgets.example.com",
        2,
        "error: invalid --qps \"0\": expected a whole number from 1 to 1000000",
    ),
    (
        "storage migrate --qps many widgets.example.com",
        2,
        "error: invalid --qps \"many\": expected a whole number from 1 to 1000000",
    ),
    (
        "storage migrate --page-size 0 widgets.example.com",
        2,
        "error: invalid option \"--page-size\": `exuvia storage migrate --help` lists the options of this command",
    ),
    (
        "storage migrate --concurrency 0 widgets.example.com",
        2,
        "error: invalid option \"--concurrency\" of `exuvia storage migrate`: did you mean --concurrent?",
    ),
    (
        "storage migrate --apiserver not/a/url widgets.example.com",
        2,
        "error: invalid --apiserver \"not/a/url\": expected the URL of an API server, such as https://host:6443",
    ),
    ("storage migrate -o yaml widgets.example.com", 2, NO_KUBECONFIG),
    (
        "--kubeconfig ./kc storage droppable widgets.example.com v1alpha1",
        2,
        UNREACHABLE,
    ),
    (
        "storage droppable widgets.example.com",
        2,
        "error: missing VERSION: expected the version, such as v1alpha1; several are judged as if they were dropped together",
    ),
    (
        "storage droppable widgets.example.com v1alpha1 --watch 5x",
        2,
        "error: invalid --watch \"5x\": expected a duration such as 500ms, 60s, 15m or 1h",
    ),
    (
        "storage droppable widgets.example.com v1alpha1 --watch 0s",
        2,
        "error: invalid --watch \"0s\": expected more than 0s, such as 5s",
    ),
    (
        "storage droppable -f ./broken.yaml",
        2,
        "error: ./broken.yaml:1:6: this is not valid YAML: unclosed bracket '['",
    ),
    // A CRD in the broken file would go unseen, and the answer would be about the others only.
    (
        "storage droppable -f ./partly",
        2,
        "error: ./partly/b.yaml:2:7: this is not valid YAML: unclosed bracket '['",
    ),
    (
        "storage droppable -f ./twice",
        2,
        "error: widgets.example.com is defined twice, with different versions: in ./twice/a.yaml:3 and in ./twice/b.yaml:3; only \
         one of them will be applied, so give only that one",
    ),
    // The same CRD in a bundle and in a file of its own: there is only one answer, and the cluster is asked for it.
    ("storage droppable -f ./bundled", 2, NO_KUBECONFIG),
    (
        "storage droppable -f ./cm.yaml",
        2,
        "error: invalid --filename \"./cm.yaml\": expected manifests of CRDs, but found none",
    ),
    (
        "storage droppable -f ./empty.yaml",
        2,
        "error: invalid --filename \"./empty.yaml\": expected manifests of CRDs, but found none",
    ),
    (
        "storage droppable -f ./nowhere.yaml",
        2,
        "error: invalid --filename \"./nowhere.yaml\": it does not exist; expected a file, a directory, or - for standard input",
    ),
    (
        "storage lint ./nowhere",
        2,
        "error: invalid path \"./nowhere\": it does not exist; expected a file, a directory, or - for standard input",
    ),
    (
        "storage audit widgets.example.com --etcd not-a-url",
        2,
        "error: invalid option \"--etcd\" of `exuvia storage audit`: did you mean --etcd-endpoint or --etcd-prefix?",
    ),
    (
        "storage audit widgets.example.com",
        2,
        "error: missing --etcd-endpoint: expected etcd's client URL (repeatable; tried in this order)",
    ),
    (
        "rbac --crd widgets",
        2,
        "error: invalid option \"--crd\" of `exuvia rbac`: did you mean --crds?",
    ),
    (
        "rbac --group Example.com",
        2,
        "error: invalid option \"--group\" of `exuvia rbac`: did you mean --groups or --group-wildcards?",
    ),
    (
        "plan --all-contexts --context a",
        2,
        "error: --all-contexts cannot be used with --context: leave one of them out",
    ),
    (
        "operator --log-level loud",
        2,
        "error: invalid --log-level \"loud\": expected error, warn, info, debug or trace, or directives such as \
         exuvia=debug,hyper=info",
    ),
    (
        "operator --lease-duration 0s",
        2,
        "error: invalid --lease-duration \"0s\": expected 100ms or more",
    ),
    (
        "operator --listen foo",
        2,
        "error: invalid --listen \"foo\": expected an address and a port, such as [::]:8080 (all addresses) or 127.0.0.1:8080",
    ),
    (
        "operator --lease-namespace My_Namespace",
        2,
        "error: invalid --lease-namespace \"My_Namespace\": expected at most 63 lower-case letters, digits and '-', such as \
         exuvia-system",
    ),
    (
        "storage droppable widgets.example.com v1 v1",
        2,
        "error: v1 is given twice: give each version once",
    ),
    (
        "storage droppable widgets.example.com v1 --include-excluded",
        2,
        "error: --include-excluded needs --prove: add --prove, or leave --include-excluded out",
    ),
    (
        "rbac --crds nope",
        2,
        "error: invalid --crds \"nope\": expected <plural>.<group>, such as widgets.example.com",
    ),
    (
        "plan --interval 5s",
        2,
        "error: --interval needs --watch: add --watch, or leave --interval out",
    ),
    (
        "completions tcsh",
        2,
        "error: invalid SHELL \"tcsh\": expected bash, elvish, fish, powershell or zsh",
    ),
];

/// Runs it in a directory with the files that the table names; what it wrote to standard output and to standard error.
fn run(directory: &Path, line: &str) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_exuvia"))
        .args(line.split_whitespace())
        .current_dir(directory)
        .env("KUBECONFIG", "./none")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_context_without_any_kubeconfig_says_how_to_give_one() {
    let directory = directory();
    let output = Command::new(env!("CARGO_BIN_EXE_exuvia"))
        .args(["storage", "status", "--context", "nope"])
        .env_remove("KUBECONFIG")
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: invalid --context \"nope\": no kubeconfig was found (looked for ~/.kube/config); set KUBECONFIG, or give \
         --kubeconfig\n"
    );
}

#[test]
fn a_wrong_environment_variable_is_named() {
    for (args, sentence) in [
        (
            &["operator"][..],
            "error: invalid EXUVIA_QPS \"abc\": expected a whole number from 1 to 1000000\n",
        ),
        (
            &["operator", "--qps", "0"],
            "error: invalid --qps \"0\": expected a whole number from 1 to 1000000\n",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_exuvia"))
            .args(args)
            .env("EXUVIA_QPS", "abc")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), sentence);
    }
}

/// A CRD in a file that is not valid YAML is not checked; a finding elsewhere is still an answer.
#[test]
fn lint_answers_only_if_a_crd_was_checked() {
    let directory = directory();
    let crd =
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.b.c}\n";
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("broken-crd.yaml", &format!("{crd}spec: [\n"));
    write("undecided.yaml", crd);
    std::fs::create_dir(directory.path().join("nothing")).unwrap();
    for (line, code) in [
        ("storage lint ./nothing", 2),
        ("storage lint ./cm.yaml", 2),
        ("storage lint ./broken-crd.yaml", 2),
        ("storage lint ./undecided.yaml", 1),
        ("storage lint ./undecided.yaml ./broken-crd.yaml", 1),
        ("storage lint ./undecided.yaml --groups other.io", 2),
    ] {
        let (ended, printed, said) = run(directory.path(), line);
        assert_eq!(ended, Some(code), "{line}: {printed}{said}");
    }
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let crd = |versions: &str| {
        format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: widgets.example.com}}\n\
             spec: {{versions: [{versions}]}}\n"
        )
    };
    let (both, one) = (
        crd("{name: v1alpha1, served: true}, {name: v1, served: true}"),
        crd("{name: v1, served: true}"),
    );
    for name in ["partly", "twice", "bundled"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    for (name, text) in [
        ("partly/a.yaml", both.as_str()),
        ("partly/b.yaml", "kind: ConfigMap\ndata: [a\n"),
        ("twice/a.yaml", &one),
        ("twice/b.yaml", &both),
        ("bundled/a.yaml", &both),
        ("bundled/all.yaml", &format!("kind: Secret\n---\n{both}")),
        ("kc", KUBECONFIG),
        ("broken.yaml", "not: [valid\n"),
        (
            "cm.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
        ),
        ("empty.yaml", ""),
    ] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

#[test]
fn a_wrong_invocation_is_answered_with_one_sentence() {
    let directory = directory();
    let mut wrong = Vec::new();
    for (line, code, sentence) in CASES {
        let (ended, printed, said) = run(directory.path(), line);
        // Other systems have other numbers.
        let said = said.replace("(os error 61)", "(os error 111)");
        if (ended, printed.as_str(), said.trim_end()) != (Some(*code), "", *sentence) {
            wrong.push(format!(
                "$ exuvia {line}\nexpected {code} {sentence}\nprinted  {ended:?} {printed}{said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// It works without a cluster, so it cannot know whether a name is a slip.
#[test]
fn rules_for_named_crds_say_that_no_cluster_was_asked_and_that_the_namespace_must_exist() {
    let (ended, printed, said) = run(
        directory().path(),
        "rbac --crds widgets.example.com --namespace shop",
    );
    assert_eq!(ended, Some(0), "{said}");
    assert_eq!(
        said,
        "note: --crds is taken as given: no cluster was asked whether it has these CRDs\n"
    );
    assert!(
        printed.starts_with("# The namespace must exist: kubectl create namespace shop\napiVersion: "),
        "{printed}"
    );
}

/// Exit codes of other commands are not of interest.
#[test]
fn the_help_of_a_datastore_command_has_its_own_exit_codes() {
    for (command, own) in [
        ("validate", "every DatastoreMigration is valid"),
        ("plan", "nothing stands in the way"),
        ("start", "the migration is created"),
        ("conflicts", "there are no conflicts"),
        ("verify", "every source has its target"),
        ("render", "all files are converted"),
    ] {
        let (_, printed, _) = run(directory().path(), &format!("datastore {command} --help"));
        let codes: Vec<&str> = printed
            .lines()
            .filter(|line| line.starts_with("  0    "))
            .collect();
        assert_eq!(codes.len(), 1, "{printed}");
        assert!(codes[0].contains(own), "{command}: {codes:?}");
    }
}

#[test]
fn without_a_command_the_help_is_shown() {
    let directory = directory();
    for line in ["", "storage"] {
        let (ended, printed, said) = run(directory.path(), line);
        assert_eq!((ended, printed.as_str()), (Some(2), ""), "{line}");
        assert!(said.contains("Usage: exuvia"), "{said}");
    }
}

/// Nothing was checked, so the exit code is 2: 1 would be an answer.
#[test]
fn lint_of_a_file_that_is_not_valid_yaml_says_so() {
    let (ended, printed, said) = run(directory().path(), "storage lint ./broken.yaml");
    assert_eq!(ended, Some(2));
    assert_eq!(
        said,
        "note: ./broken.yaml:1: this is not valid YAML: unclosed bracket '['\n"
    );
    assert_eq!(
        printed,
        "no CRD could be checked in 1 file: correct what is not valid YAML, as noted above\n"
    );
}
