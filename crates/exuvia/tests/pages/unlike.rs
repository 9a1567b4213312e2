//! What differs between two runs of the same command, and means nothing: times, durations, rates, ports, uids.

/// Whether two outputs say the same.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let masked = |text: &str| text.trim_end().lines().map(masked).collect::<Vec<_>>();
    masked(one) == masked(other)
}

/// A line without what differs between runs. Columns are as wide as their content, so the spaces between do not count.
fn masked(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let indent = line.len() - line.trim_start().len();
    let masked = words.iter().enumerate().map(|(index, word)| {
        let before = index.checked_sub(1).map_or("", |before| words[before]);
        let after = words.get(index + 1).copied().unwrap_or_default();
        mask(before, word, after)
    });
    " ".repeat(indent) + &masked.collect::<Vec<_>>().join(" ")
}

fn mask(before: &str, word: &str, after: &str) -> String {
    let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if core.is_empty() {
        return word.to_owned();
    }
    let core_of = |word: &str| word.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    let after = core_of(after);
    let mask = if is_time(core) {
        "<time>"
    } else if is_uid(core) {
        "<uid>"
    } else if is_number(core) && ["s", "ms", "seconds"].contains(&after.as_str())
        || is_duration(core)
        || after == "ago" && core.starts_with(|c: char| c.is_ascii_digit())
    {
        "<duration>"
    } else if core.strip_suffix("/s").is_some_and(is_number) {
        "<rate>"
    } else if before == "revision" && is_number(core) {
        "<revision>"
    // How many there are in the cluster depends on what the API server has made for itself so far.
    } else if is_number(core)
        && (before == "of" && after == "objects" || before == "in" && after == "resources")
    {
        "<count>"
    } else if let Some((host, port)) = core.rsplit_once(':')
        && host.ends_with("127.0.0.1")
        && is_number(port)
    {
        return word.replace(core, &format!("{host}:<port>"));
    } else {
        return word.to_owned();
    };
    word.replace(core, mask)
}

fn is_number(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Such as 350ms, 2s, 1m20s.
fn is_duration(text: &str) -> bool {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == 'm');
    text.starts_with(|c: char| c.is_ascii_digit()) && rest == "s"
}

/// Such as 2026-11-16T18:29:35.283618448Z.
fn is_time(text: &str) -> bool {
    let shape = text
        .bytes()
        .map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
    let shape: Vec<u8> = shape.collect();
    shape.starts_with(b"0000-00-00T00:00:00") && shape.ends_with(b"Z")
}

fn is_uid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts
            .iter()
            .all(|part| part.chars().all(|c| c.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_between_runs_is_the_same() {
        for (one, other) in [
            (
                "at generation 2 (2026-11-16T18:28:54.25439333Z)",
                "at generation 2 (2026-11-17T01:02:03Z)",
            ),
            ("waiting 2 s for it", "waiting 12 s for it"),
            ("in 350ms, 1m20s", "in 2s, 3s"),
            ("3m ago", "1h ago"),
            ("at 812.5/s", "at 9/s"),
            ("read from http://127.0.0.1:33459", "read from http://127.0.0.1:1"),
            ("at etcd revision 303, read", "at etcd revision 5, read"),
            ("of 204 objects in 64 resources", "of 9 objects in 7 resources"),
            (
                "uid 0b6a4c1e-1111-2222-3333-444455556666",
                "uid 00000000-aaaa-bbbb-cccc-444455556666",
            ),
            ("A      B", "A  B"),
            ("a\n", "a"),
        ] {
            assert!(same(one, other), "{one} / {other}");
        }
    }

    #[test]
    fn what_means_something_is_not_the_same() {
        for (one, other) in [
            ("2 rewritten, 1 current", "3 rewritten, 0 current"),
            ("1 of 2 objects lost something", "2 of 2 objects lost something"),
            ("generation 2", "generation 3"),
            ("v1beta1: held", "v1beta2: held"),
            ("interval 5m", "interval 10m"),
            ("  indented", "indented"),
            ("a\nb", "a"),
        ] {
            assert!(!same(one, other), "{one} / {other}");
        }
    }
}
