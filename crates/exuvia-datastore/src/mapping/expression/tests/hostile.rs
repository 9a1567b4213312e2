//! Expressions that would take all memory or time if nobody stopped them.

use super::{measured, object};

/// A tree of nested pairs: each bind doubles what the one before holds.
fn doubling(unit: &str, double: impl Fn(&str) -> String, times: usize) -> String {
    let mut source = String::new();
    let mut before = unit.to_owned();
    for n in 0..times {
        source += &format!("cel.bind(a{n}, {}, ", double(&before));
        before = format!("a{n}");
    }
    source + &before + &")".repeat(times)
}

fn hostile() -> Vec<(&'static str, String)> {
    let digits = "[0,1,2,3,4,5,6,7,8,9]";
    let nested = |body: &str| (0..8).fold(body.to_owned(), |inner, n| format!("{digits}.map(x{n}, {inner})"));
    let ones = format!("[{}]", vec!["1"; 200].join(","));
    let long = format!("'{}'", "a".repeat(7_000));
    vec![
        ("nested comprehensions", nested("1")),
        ("nested comprehensions over existing lists", format!("[{digits}.map(x, {digits})].map(l, {})", nested("l"))),
        ("exists in exists", (0..8).fold("false".to_owned(), |inner, n| format!("{digits}.exists(x{n}, {inner})"))),
        ("doubling texts", doubling("'x'", |a| format!("{a} + {a}"), 40)),
        ("doubling lists", doubling("[1]", |a| format!("{a} + {a}"), 40)),
        ("doubling by a list literal", doubling("[1]", |a| format!("[{a}, {a}]"), 40)),
        ("doubling by a map literal", doubling("{'a': 1}", |a| format!("{{'a': {a}, 'b': {a}}}"), 30)),
        ("doubling by merge", doubling("{'a': 1}", |a| format!("{{'x': merge({a}, {a}), 'y': {a}}}"), 24)),
        ("doubling by replace", doubling("'aa'", |a| format!("{a}.replace('a', {a})"), 20)),
        ("doubling by join", doubling("'a'", |a| format!("[{a}, {a}].join({a})"), 30)),
        ("doubling by format", doubling("'a'", |a| format!("'%s%s'.format([{a}, {a}])"), 30)),
        ("doubling by map", doubling("[1]", |a| format!("[1, 2, 3, 4].map(x, {a})"), 12)),
        ("doubling by optionals", doubling("[1]", |a| format!("[optional.of({a}).value(), {a}]"), 30)),
        ("splitting", format!("cel.bind(t, {long}, {digits}.map(x, {digits}.map(y, t.split(''))))")),
        ("comparing", format!("cel.bind(t, {long}, {})", nested("t == t"))),
        ("searching", format!("cel.bind(t, {long}.split(''), {})", nested("t in [t]"))),
        ("reading", format!("cel.bind(t, {long}, {})", nested("t.size()"))),
        ("patterns", "[1,2,3,4,5,6,7,8,9,10].map(x, [1,2,3,4,5,6,7,8,9,10].map(y, 'a'.matches('(a{' + string(x * 50) + '}){' + string(y * 50) + '}')))".to_owned()),
        ("parsing", doubling("'1,1'", |a| format!("{a} + ',' + {a}"), 17).replace("a16)", "json('[' + a16 + ']'))")),
        ("a large body", format!("{digits}.map(x, {digits}.map(y, {digits}.map(z, [{}])))", vec!["x"; 1_000].join(","))),
        (
            "a body that copies nothing",
            format!("{ones}.map(x, {ones}.exists(y, {}))", vec!["x == 2"; 200].join(" || ")),
        ),
        ("a sum of 3,000 terms", vec!["1"; 3_000].join("+")),
        ("a comparison of 3,000 terms", vec!["1"; 2_000].join(" < ")),
        ("a selection of 3,000 steps", format!("object{}", ".a".repeat(3_000))),
        ("a conditional of 1,000 steps", format!("{}1", "true?1:".repeat(1_000))),
        ("3,000 signs", format!("{}1", "-".repeat(3_000))),
        ("3,000 negations", format!("{}true", "!".repeat(3_000))),
        ("4,000 parentheses", "(".repeat(4_000) + "1" + &")".repeat(4_000)),
        ("4,000 lists", "[".repeat(4_000) + &"]".repeat(4_000)),
        ("parentheses that are not closed", "(".repeat(8_000)),
        ("too long", vec!["1"; 5_000].join("+")),
        ("deep calls", (0..60).fold("1".to_owned(), |inner, _| format!("string(dyn({inner}))"))),
        ("an exceeded budget that || hides", format!("{} == [] || true", nested("1"))),
        ("an exceeded budget that && hides", format!("{} == [] && false", nested("1"))),
        ("an exceeded budget that exists hides", format!("[1, 2].exists(x, x == 2 || {} == [])", nested("1"))),
        ("an exceeded budget that an optional hides", format!("{{'a': 1}}[?{}.size() + 1].hasValue()", nested("1"))),
    ]
}

#[test]
fn hostile_expressions_end_with_an_error_and_within_64_mib() {
    for (what, source) in hostile() {
        let (result, memory, took) = measured(&source, &object());
        let Err(error) = result else {
            panic!("{what}: let through")
        };
        println!("{what}: {took} ms, {} KiB, {error}", memory.bytes_max / 1024);
        assert!(memory.bytes_max < 64 << 20, "{what}: {} bytes", memory.bytes_max);
        let bounded = [
            "costs more",
            "too deep",
            "deep",
            "bytes",
            "nested",
            "regular expression",
        ];
        assert!(bounded.iter().any(|word| error.contains(word)), "{what}: {error}");
    }
}
