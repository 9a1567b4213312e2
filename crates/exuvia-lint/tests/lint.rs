//! Manifests as people write them, and bytes that nobody should.
#![allow(clippy::unwrap_used)] // a test may panic

use std::path::Path;

use exuvia_api::OptInLabel;
use exuvia_lint::{Finding, Input, LintOptions, LintReport, Outcome, Reason, lint};
use proptest::prelude::*;

const LABEL: &str = "exuvia.dev/auto-migrate-storage-version";
const ANNOTATION: &str = "exuvia.dev/exclude-storage-version-migration";

fn lint_bytes(bytes: impl Into<Vec<u8>>) -> LintReport {
    lint_with(bytes, &LintOptions::default())
}

fn lint_with(bytes: impl Into<Vec<u8>>, options: &LintOptions) -> LintReport {
    let (name, bytes) = ("stream".to_owned(), bytes.into());
    lint(&[Input::Bytes { name, bytes }], options).unwrap()
}

/// A CRD whose metadata ends with these lines, which begin at line 5.
fn crd(metadata: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: widgets.example.com\n\
         {metadata}spec:\n  group: example.com\n"
    )
}

fn labels(value: &str) -> String {
    format!("  labels:\n    {LABEL}: {value}\n")
}

fn annotations(value: &str) -> String {
    format!("  annotations:\n    {ANNOTATION}: {value}\n")
}

fn reasons(report: &LintReport) -> Vec<(Reason, usize)> {
    report
        .findings
        .iter()
        .map(|finding| (finding.reason, finding.line))
        .collect()
}

#[test]
fn a_tree_is_walked_and_each_crd_named_with_file_and_line() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mixed");
    let report = lint(
        &[Input::Path(root.clone()), Input::Path(root.join("crds"))],
        &LintOptions::default(),
    )
    .unwrap();
    assert_eq!(report.files, 5, "each file once, and no README");
    assert_eq!((report.checked, report.opted_in, report.excluded), (3, 1, 1));
    assert_eq!(report.outcome(), Outcome::Findings);
    let place = |finding: &Finding| {
        let file = Path::new(&finding.file).strip_prefix(&root).unwrap().to_owned();
        (file, finding.line, finding.reason, finding.crd.clone())
    };
    let places: Vec<_> = report.findings.iter().map(place).collect();
    assert_eq!(
        places,
        [
            (
                "crds/undecided.yaml".into(),
                7,
                Reason::Undecided,
                Some("forgotten.example.com".into())
            ),
            ("templates/crd.yaml".into(), 1, Reason::Unparsable, None),
        ]
    );
    assert!(
        report.findings[1].fix.contains("helm template"),
        "{}",
        report.findings[1]
    );
    assert_eq!(report.unparsable, 1);
    assert!(report.notes[0].file.ends_with("deployment.yaml"));
    assert_eq!(report.notes[0].line, 6);
}

#[test]
fn a_label_or_a_reason_will_do() {
    for metadata in [
        labels("\"true\""),
        labels("'true'"),
        annotations("\"frozen by the vendor\""),
        annotations("frozen by the vendor"),
        annotations(">-\n      frozen\n      by the vendor"),
    ] {
        let report = lint_bytes(crd(&metadata));
        assert_eq!(
            report.outcome(),
            Outcome::Clean,
            "{metadata}: {:?}",
            report.findings
        );
        assert_eq!(report.opted_in + report.excluded, 1);
    }
}

#[test]
fn each_way_to_say_it_wrong_has_a_finding_of_its_own() {
    for (metadata, expected) in [
        (String::new(), vec![(Reason::Undecided, 4)]),
        ("  labels: {}\n".to_owned(), vec![(Reason::Undecided, 4)]),
        (
            "  labels: [x]\n  annotations:\n".to_owned(),
            vec![(Reason::Undecided, 4)],
        ),
        (labels("\"false\""), vec![(Reason::WrongLabelValue, 6)]),
        (labels("\"True\""), vec![(Reason::WrongLabelValue, 6)]),
        (labels("true"), vec![(Reason::NotAString, 6)]),
        (labels("{{ .Values.migrate }}"), vec![(Reason::NotAString, 6)]),
        (annotations("\"\""), vec![(Reason::EmptyReason, 6)]),
        (annotations("\" \""), vec![(Reason::EmptyReason, 6)]),
        (annotations(""), vec![(Reason::EmptyReason, 6)]),
        (annotations("true"), vec![(Reason::NotAString, 6)]),
        (
            labels("\"true\"") + &annotations("why"),
            vec![(Reason::Contradiction, 8)],
        ),
        (
            labels("\"true\"") + &annotations("\"\""),
            vec![(Reason::EmptyReason, 8), (Reason::Contradiction, 8)],
        ),
        (
            labels("\"no\"") + &annotations("why"),
            vec![(Reason::WrongLabelValue, 6)],
        ),
        (
            labels("\"true\"") + &format!("    {LABEL}: \"true\"\n"),
            vec![(Reason::DuplicateKey, 7)],
        ),
    ] {
        let report = lint_bytes(crd(&metadata));
        assert_eq!(reasons(&report), expected, "{metadata}");
        assert_eq!(report.outcome(), Outcome::Findings);
        assert_eq!(report.findings[0].crd.as_deref(), Some("widgets.example.com"));
    }
}

#[test]
fn a_finding_is_one_line_with_place_cause_and_cure() {
    let shown = lint_bytes(crd(&labels("\"fal\\nse\""))).findings[0].to_string();
    assert_eq!(
        shown,
        format!(
            "stream:6: widgets.example.com: its label {LABEL} is \"fal\\nse\", which opts in to nothing; \
             set it to \"true\", or take it out and add the annotation {ANNOTATION}: \"<why not>\""
        )
    );
}

#[test]
fn keys_are_configuration() {
    let options = LintOptions {
        opt_in: "vendor.dev/migrate=always".parse().unwrap(),
        exclusion: "vendor.dev/keep".to_owned(),
        ..LintOptions::default()
    };
    let ours = crd("  labels:\n    vendor.dev/migrate: always\n");
    let kept = crd("  annotations:\n    vendor.dev/keep: for now\n");
    assert_eq!(lint_with(ours, &options).opted_in, 1);
    assert_eq!(lint_with(kept, &options).excluded, 1);
    assert_eq!(
        reasons(&lint_with(crd(&labels("\"true\"")), &options)),
        [(Reason::Undecided, 4)]
    );
    let plain: OptInLabel = "vendor.dev/migrate".parse().unwrap();
    assert_eq!(plain.value, "true");
    assert!("=true".parse::<OptInLabel>().is_err());
}

#[test]
fn groups_match_at_dots_only() {
    let in_group = |group: &str| format!("{}---\n", crd("").replace("example.com", group));
    let stream = [
        "example.com",
        "a.example.com",
        "badexample.com",
        "example.com.org",
    ]
    .map(in_group)
    .concat();
    let options = LintOptions {
        groups: vec!["example.com".to_owned()],
        ..LintOptions::default()
    };
    let report = lint_with(stream, &options);
    assert_eq!((report.checked, report.other_groups), (2, 2));
    let elsewhere = lint_with(in_group("example.org"), &options);
    assert_eq!(elsewhere.outcome(), Outcome::NoCrdsInGroups);
    let unknown = lint_with(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n",
        &options,
    );
    assert_eq!(
        reasons(&unknown),
        [(Reason::Undecided, 1)],
        "a CRD without a group is not let off"
    );
}

#[test]
fn lists_are_looked_into() {
    let item = |indent: &str| crd("").replace('\n', &format!("\n{indent}"));
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}\n- kind: Secret\n",
        item("  ")
    );
    assert_eq!(reasons(&lint_bytes(list)), [(Reason::Undecided, 7)]);
    let api_list = "kind: CustomResourceDefinitionList\napiVersion: apiextensions.k8s.io/v1\n\
                    items:\n- metadata: {name: a.example.com}\n- metadata: {name: b.example.com}\n";
    let report = lint_bytes(api_list);
    assert_eq!(reasons(&report), [(Reason::Undecided, 4), (Reason::Undecided, 5)]);
    assert_eq!(report.findings[1].crd.as_deref(), Some("b.example.com"));
}

#[test]
fn lists_of_aliases_to_lists_do_not_multiply() {
    let mut stream = "apiVersion: v1\nkind: List\nl0: &l0 {kind: List, items: []}\n".to_owned();
    for level in 1..40 {
        let below = format!("*l{0}, *l{0}, *l{0}", level - 1);
        stream += &format!("l{level}: &l{level} {{kind: List, items: [{below}]}}\n");
    }
    stream += "items: [*l39]\n";
    assert_eq!(lint_bytes(stream).outcome(), Outcome::NoCrds);
}

#[test]
fn one_bad_document_does_not_hide_the_next() {
    let stream = format!(
        "a: [\n---\n{}---\nkind: CustomResourceDefinition\n\tb: c\n",
        crd("")
    );
    let report = lint_bytes(stream);
    assert_eq!(
        reasons(&report),
        [(Reason::Undecided, 6), (Reason::Unparsable, 10)]
    );
    assert_eq!(report.unparsable, 1);
}

#[test]
fn helm_streams_name_the_charts_file() {
    let stream = format!("---\n# Source: chart/crds/w.yaml\n{}", crd(""));
    let report = lint_bytes(stream);
    assert_eq!(report.findings[0].source.as_deref(), Some("chart/crds/w.yaml"));
    assert_eq!(report.findings[0].line, 6);
}

#[test]
fn line_ends_marks_anchors_and_json_are_understood() {
    let windows = format!("\u{feff}{}", crd(&labels("\"false\""))).replace('\n', "\r\n");
    assert_eq!(
        reasons(&lint_bytes(windows.clone())),
        [(Reason::WrongLabelValue, 6)]
    );
    let utf16: Vec<u8> = windows.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(reasons(&lint_bytes(utf16)), [(Reason::WrongLabelValue, 6)]);

    let anchored = format!("x: &l\n  {LABEL}: \"true\"\n{}", crd("  labels:\n    <<: *l\n"));
    assert_eq!(lint_bytes(anchored).outcome(), Outcome::Clean);

    let json = serde_json::json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com", "labels": {LABEL: "true"}},
    });
    assert_eq!(lint_bytes(json.to_string()).opted_in, 1);
    assert_eq!(
        lint_bytes(serde_json::to_string_pretty(&json).unwrap().replace("  ", "\t")).opted_in,
        1
    );
}

#[test]
fn a_crd_of_a_megabyte_is_read() {
    let property = |i: usize| {
        format!(
            "      property{i}:\n        type: string\n        description: |\n          How far the {i}th goes: to \"there\".\n"
        )
    };
    let properties: String = (0..10_000).map(property).collect();
    let big = crd("") + "  versions:\n  - schema:\n" + &properties;
    assert!(big.len() > 1_000_000);
    assert_eq!(reasons(&lint_bytes(big)), [(Reason::Undecided, 4)]);
    let fields: serde_json::Map<_, _> = (0..10_000)
        .map(|i| (format!("f{i}"), "x".repeat(100).into()))
        .collect();
    let json = serde_json::json!({
        "spec": {"schema": fields}, "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
    });
    assert_eq!(reasons(&lint_bytes(json.to_string())), [(Reason::Undecided, 1)]);
}

#[test]
fn nothing_to_lint_is_not_success_and_a_wrong_path_is_an_error() {
    assert_eq!(lint_bytes("kind: Deployment\n").outcome(), Outcome::NoCrds);
    assert_eq!(lint_bytes("").outcome(), Outcome::NoCrds);
    let missing = Input::from_argument("no/such/place");
    let error = lint(&[missing], &LintOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"invalid path "no/such/place": it does not exist; expected a file, a directory, or - for standard input"#
    );
}

#[cfg(unix)]
#[test]
fn links_to_files_are_read_once_and_links_to_directories_noted() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir(root.join("real")).unwrap();
    std::fs::write(root.join("real/crd.yaml"), crd("")).unwrap();
    symlink(root.join("real/crd.yaml"), root.join("link.yaml")).unwrap();
    symlink(root, root.join("circle")).unwrap();
    symlink(root.join("gone"), root.join("nowhere.yaml")).unwrap();
    let report = lint(&[Input::Path(root.to_owned())], &LintOptions::default()).unwrap();
    assert_eq!(
        (report.files, report.checked, report.notes.len()),
        (1, 1, 2),
        "{:?}",
        report.notes
    );
}

#[test]
fn the_report_serialises_with_names_for_machines() {
    let report = serde_json::to_value(lint_bytes(crd(""))).unwrap();
    assert_eq!(report["checked"], 1);
    assert_eq!(report["otherGroups"], 0);
    assert_eq!(report["findings"][0]["reason"], "Undecided");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = lint_bytes(bytes);
    }

    #[test]
    fn what_looks_like_a_crd_never_panics(parts in proptest::collection::vec(part(), 0..40)) {
        let report = lint_bytes(parts.concat());
        prop_assert!(report.opted_in + report.excluded <= report.checked);
    }
}

/// Pieces of which manifests, good and bad, are made.
fn part() -> impl Strategy<Value = String> {
    let words = [
        "---\n",
        "...\n",
        "\n",
        "  ",
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        "'",
        "&a ",
        "*a",
        "<<",
        "|\n",
        ">-\n",
        "# ",
        "\t",
        "\r\n",
        "\u{feff}",
        "{{ x }}",
        "!!str ",
        "%YAML 1.2\n",
        "? ",
        "kind: CustomResourceDefinition\n",
        "kind: List\n",
        "apiVersion: apiextensions.k8s.io/v1\n",
        "metadata:\n",
        "  labels:\n",
        "items:\n",
        LABEL,
        ANNOTATION,
        "true",
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,6}",
    ]
}
