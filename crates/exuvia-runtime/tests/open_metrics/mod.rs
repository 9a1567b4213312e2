//! A reader of the `OpenMetrics` text format, as strict as it need be.

use std::collections::{BTreeMap, BTreeSet};

/// Checks the text format of `OpenMetrics` as far as a scraper would stumble: each family described once, samples right
/// after their description and each once, counters with `_total`, numbers that are numbers, and the end marked.
/// Returns the type of each family.
pub(crate) fn assert_open_metrics(text: &str) -> BTreeMap<String, String> {
    let body = text.strip_suffix("# EOF\n").expect("it has an end");
    let mut types = BTreeMap::new();
    let mut samples = BTreeSet::new();
    let mut current = String::new();
    for line in body.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let mut words = about.splitn(3, ' ');
            let (what, family, rest) = (
                words.next().unwrap(),
                words.next().unwrap(),
                words.next().unwrap(),
            );
            match what {
                "TYPE" => assert!(
                    types.insert(family.to_owned(), rest.to_owned()).is_none(),
                    "{line}"
                ),
                "HELP" => assert!(
                    !types.contains_key(family),
                    "described after its type or twice: {line}"
                ),
                _ => panic!("{line}"),
            }
            family.clone_into(&mut current);
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(samples.insert(sample.to_owned()), "twice: {line}");
        let name = sample.split('{').next().unwrap();
        let suffix = name
            .strip_prefix(current.as_str())
            .unwrap_or_else(|| panic!("{line} under {current}"));
        let allowed: &[&str] = match types[&current].as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_count", "_sum"],
            "info" => &["_info"],
            other => panic!("{other}"),
        };
        assert!(allowed.contains(&suffix), "{line}");
    }
    types
}
