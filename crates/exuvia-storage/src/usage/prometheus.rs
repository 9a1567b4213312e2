//! Samples out of the Prometheus text format, as far as an API server writes it.

/// One sample: its labels, and its value.
#[derive(Debug, PartialEq)]
pub(super) struct Sample {
    labels: Vec<(String, String)>,
    pub(super) value: f64,
}

impl Sample {
    /// A label's value; empty if the label is missing, as Prometheus has it.
    pub(super) fn label(&self, name: &str) -> &str {
        let found = self.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, value)| value)
    }
}

/// All samples of one metric. Lines that cannot be read are skipped.
pub(super) fn samples<'a>(text: &'a str, metric: &'a str) -> impl Iterator<Item = Sample> + 'a {
    text.lines().filter_map(move |line| {
        let rest = line.trim_start().strip_prefix(metric)?;
        // Otherwise it is another metric, whose name begins the same way.
        let rest = rest.trim_start_matches([' ', '\t']);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None if rest.len() < line.trim_start().len() - metric.len() => (Vec::new(), rest),
            None => return None,
        };
        // A timestamp may follow.
        let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Sample { labels, value })
    })
}

/// Labels up to the closing brace, and what follows it. A value may hold anything, with `"`, `\` and line feeds escaped.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim().to_owned(), value));
        rest = after;
    }
}

/// Text up to the closing quotation mark, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            char => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str, metric: &str) -> Vec<f64> {
        samples(text, metric).map(|sample| sample.value).collect()
    }

    #[test]
    fn comments_and_metrics_whose_names_begin_the_same_are_passed_over() {
        let text = "# HELP a_total x\n# TYPE a_total counter\na_total 1\na_total_bytes 2\na_total{x=\"y\"} 3e+01 1700000000\n\
                    a 4\nb{a_total=\"5\"} 6\na_total{broken 7\na_total{x=\"y\"} many\n";
        assert_eq!(values(text, "a_total"), [1.0, 30.0]);
        assert_eq!(values(text, "a"), [4.0]);
    }

    #[test]
    fn a_label_value_may_hold_what_the_format_itself_is_made_of() {
        let text = r#"m{a="x,b=\"1\"",b="{}",c="a\\",d="two
",} 7"#;
        assert_eq!(
            values(text, "m"),
            Vec::<f64>::new(),
            "a line feed must be escaped"
        );
        let text = r#"m{a="x,b=\"1\"", b="} 5", c="a\\", d="1\n2",} 7"#;
        let found: Vec<Sample> = samples(text, "m").collect();
        let sample = &found[0];
        assert_eq!(
            ["a", "b", "c", "d", "e"].map(|name| sample.label(name)),
            [r#"x,b="1""#, "} 5", r"a\", "1\n2", ""]
        );
        assert!((sample.value - 7.0).abs() < f64::EPSILON);
    }
}
