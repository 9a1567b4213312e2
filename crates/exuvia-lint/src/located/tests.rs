//! Values, places and bytes of fields as they stand in a file.

#![allow(clippy::unwrap_used)] // a test may panic

use serde_json::json;

use super::*;

fn one(text: &str) -> Located {
    let mut stream = Stream::new("a.yaml", text.as_bytes().to_vec());
    assert!(stream.pieces[0].malformed.is_none(), "{stream:?}");
    stream.pieces.remove(0).documents.remove(0)
}

fn path(keys: &[&str]) -> Vec<Segment> {
    let segment = |key: &&str| match key.parse() {
        Ok(index) => Segment::Index(index),
        Err(_) => Segment::Key((*key).to_owned()),
    };
    keys.iter().map(segment).collect()
}

#[test]
fn values_are_what_kubernetes_reads() {
    let text = "a: 1\nb: -1\nc: 9223372036854775807\nd: 1000.5\ne: yes\nf: ~\ng: '1'\nh: 0x1F\ni: 0o17\nj: 017\nk: 1_000\nl: [x, {m: o}]\n";
    let expected = json!({
        "a": 1, "b": -1, "c": i64::MAX, "d": 1000.5, "e": true, "f": null, "g": "1", "h": 31, "i": 15, "j": 15,
        "k": 1000, "l": ["x", {"m": "o"}],
    });
    assert_eq!(one(text).value(), Ok(expected));
}

#[test]
fn merged_mappings_are_merged_and_own_keys_win() {
    let document = one("base: &b {a: 1, b: 1}\nmap: {<<: *b, a: 2}\n");
    assert_eq!(document.value().unwrap()["map"], json!({"a": 2, "b": 1}));
}

#[test]
fn aliases_that_multiply_are_an_error_and_not_the_end_of_memory() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..9 {
        let before = vec![format!("*a{}", i - 1); 10].join(", ");
        text += &format!("a{i}: &a{i} [{before}]\n");
    }
    assert_eq!(one(&text).value(), Err(TooLarge));
}

#[test]
fn a_field_is_found_with_its_line_and_column() {
    let document =
        one("---\nspec:\n  mappings:\n  - name: a\n    convert:\n    - {path: spec.x, value: 'b + c'}\n");
    for (keys, line, column) in [
        (&["spec", "mappings", "0", "name"][..], 4, 11),
        (&["spec", "mappings", "0", "convert", "0", "value"][..], 6, 29),
        (&["spec", "mappings", "0", "convert"][..], 5, 5),
        (&["spec", "mappings", "0", "from", "group"][..], 4, 5),
        (&["nowhere"][..], 2, 1),
    ] {
        let place = document.place(&path(keys));
        assert_eq!((place.line, place.column), (line, column), "{keys:?}");
    }
}

#[test]
fn a_character_of_a_text_is_found_where_the_text_is_as_it_stands() {
    let text = "a: object.x\nb: 'object.x'\nc: \"object.x\"\nd: |\n  one\n   two\ne: >\n  folded\n  text\nf: \"a\\tb\"\ng: 'it''s'\nh: |-\n\n\n    x\ni: |2\n    y\n";
    let document = one(text);
    for (key, within, expected) in [
        ("a", (1, 8), Some((1, 11))),
        ("b", (1, 8), Some((2, 12))),
        ("c", (1, 8), Some((3, 12))),
        ("d", (1, 1), Some((5, 3))),
        ("d", (2, 2), Some((6, 4))),
        ("h", (3, 1), Some((15, 5))),
        ("i", (1, 3), Some((17, 5))),
        ("e", (1, 1), None),
        ("f", (1, 3), None),
        ("g", (1, 3), None),
    ] {
        let place = document.place_in(&path(&[key]), within, text);
        assert_eq!(place.map(|place| (place.line, place.column)), expected, "{key}");
    }
}

#[test]
fn scalars_and_keys_are_found_byte_for_byte() {
    let text = "# ä\na: 1\n---\nb: x # c\n\"c d\": [ 'y' ]\n";
    let stream = Stream::new("a.yaml", text.as_bytes().to_vec());
    let document = &stream.pieces[1].documents[0];
    let scalar = |keys: &[&str]| document.scalar(&path(keys)).map(|found| &text[found.bytes]);
    assert_eq!(scalar(&["b"]), Some("x"));
    assert_eq!(scalar(&["c d", "0"]), Some("'y'"));
    let key = document.key(&path(&["c d"])).unwrap();
    assert_eq!((&text[key.bytes], key.is_plain), ("\"c d\"", false));
    assert_eq!(document.keys(&[]), ["b", "c d"]);
}
