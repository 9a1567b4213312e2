//! Keys with their lines, merges, aliases, and what counts as a string.

use super::*;

fn one(text: &str) -> Document {
    let (mut documents, malformed) = parse(text, 1);
    assert!(malformed.is_none(), "{malformed:?}");
    assert_eq!(documents.len(), 1);
    documents.remove(0)
}

#[test]
fn keys_know_their_lines() {
    let document = one("a: 1\nb:\n  c: x\n  d: [y]\n");
    let b = document.root.get("b").expect("b is there");
    assert_eq!((b.line, b.value.line), (2, 3));
    assert_eq!(b.value.get("d").map(|d| d.line), Some(4));
}

#[test]
fn lines_go_on_from_the_first() {
    let (documents, _) = parse("---\r\na: x\r\nb: y\r\n", 41);
    assert_eq!(documents[0].root.get("b").map(|b| b.line), Some(43));
}

#[test]
fn own_keys_win_over_merged_ones_and_the_last_of_two_wins() {
    let document = one("base: &base {a: merged, b: merged}\nmap:\n  <<: *base\n  a: own\n  a: last\n");
    let map = &document.root.get("map").expect("map is there").value;
    let text = |key| {
        map.get(key)
            .and_then(|entry| entry.value.text().map(str::to_owned))
    };
    assert_eq!(text("a").as_deref(), Some("last"));
    assert_eq!(text("b").as_deref(), Some("merged"));
    assert_eq!(text("c"), None);
    let duplicate = &document.duplicates[0];
    assert_eq!(
        (duplicate.key.as_str(), duplicate.first, duplicate.line),
        ("a", 4, 5)
    );
}

#[test]
fn a_chain_of_merges_ends() {
    let mut text = "a0: &a0 {k: v}\n".to_owned();
    for i in 1..200 {
        text += &format!("a{i}: &a{i} {{<<: [*a{0}, *a{0}]}}\n", i - 1);
    }
    assert!(
        one(&text)
            .root
            .get("a199")
            .expect("it is there")
            .value
            .get("missing")
            .is_none()
    );
}

#[test]
fn json_objects_may_follow_each_other() {
    let (documents, malformed) = parse("{\"a\": \"ä\"}\n{\"a\": 2} {\n\"a\": 3}\n", 1);
    assert!(malformed.is_none(), "{malformed:?}");
    let lines: Vec<_> = documents
        .iter()
        .map(|document| document.root.get("a").map(|a| a.line))
        .collect();
    assert_eq!(lines, [Some(1), Some(2), Some(3)]);
    let (documents, malformed) = parse("{\"a\": 1}\n{\"a\": [}\n", 1);
    assert_eq!(
        (documents.len(), malformed.map(|malformed| malformed.line)),
        (1, Some(2))
    );
}

#[test]
fn an_alias_to_its_own_node_is_an_error() {
    let (documents, malformed) = parse("a: &a [*a]\n", 1);
    assert!(documents.is_empty());
    assert!(malformed.expect("no such tree").message.contains("alias"));
}

#[test]
fn what_kubernetes_takes_for_a_string() {
    for (text, expected) in [
        ("true", false),
        ("\"true\"", true),
        ("'1'", true),
        ("!!str true", true),
        ("Yes", false),
        ("~", false),
        ("12", false),
        ("-1.5e3", false),
        ("0x1F", false),
        ("1_000", false),
        ("infinity", true),
        ("v1", true),
        ("1.2.3", true),
        ("frozen by the vendor", true),
    ] {
        let document = one(&format!("a: {text}\n"));
        let value = &document.root.get("a").expect("a is there").value;
        assert!(
            matches!(value.content, Content::Text { is_string, .. } if is_string == expected),
            "{text}: {value:?}"
        );
    }
}
