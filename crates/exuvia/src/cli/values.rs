//! Values of flags that are more than text: what is not valid is refused before anything is done.

use std::time::Duration;

/// What is to be said of a settle time of zero.
pub(super) const NO_SETTLE: &str = "nothing is waited for (--settle 0s): an API server that is behind may store objects at \
                                    the old version, unnoticed until a patrol";

/// A group's name. An empty one would stand for nothing, and nothing would be migrated without a word.
pub(super) fn group(text: &str) -> Result<String, &'static str> {
    let is_name = |text: &str| {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        !text.is_empty() && text.chars().all(valid)
    };
    if text == "*" || is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("not a group: name one, such as example.com, or \"*\" for all")
    }
}

/// A CRD's name.
pub(super) fn crd(text: &str) -> Result<String, &'static str> {
    match text.split_once('.') {
        Some((plural, of)) if !plural.is_empty() && of != "*" && group(of).is_ok() => Ok(text.to_owned()),
        _ => Err("not a CRD: name one, such as widgets.example.com"),
    }
}

/// The name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, &'static str> {
    if text.len() <= 63 && is_label(text) {
        Ok(text.to_owned())
    } else {
        Err(
            "not a valid namespace: expected at most 63 lower-case letters, digits and '-', such as exuvia-system",
        )
    }
}

/// The name of an object that may stand wherever this command puts it: a service account, a Lease, a role.
pub(super) fn object_name(text: &str) -> Result<String, &'static str> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err("not a valid name: expected at most 253 lower-case letters, digits, '-' and '.', such as exuvia")
    }
}

fn is_label(text: &str) -> bool {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(valid) && !text.starts_with('-') && !text.ends_with('-')
}

/// Refuses a list in which something stands twice: the second is a slip, and another may be missing.
pub(super) fn once<'a>(what: &str, names: impl IntoIterator<Item = &'a String>) -> anyhow::Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            anyhow::bail!("{name} is named twice: name each {what} once");
        }
    }
    Ok(())
}

pub(super) fn duration(text: &str) -> Result<Duration, exuvia_api::BadDuration> {
    exuvia_api::parse_duration(text)
}

/// A duration that is not zero: nobody wants to ask without a pause.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(duration) if duration.is_zero() => Err("not an interval: expected more than 0s".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_the_api_server_takes() {
        for fine in ["a", "exuvia-system", "0"] {
            assert!(namespace(fine).is_ok() && object_name(fine).is_ok(), "{fine}");
        }
        assert!(object_name("a.b-c").is_ok() && namespace("a.b").is_err());
        for bad in ["", "Bad_NS", "-a", "a-", "a b", "ä", "a..b", &"a".repeat(254)] {
            assert!(namespace(bad).is_err() && object_name(bad).is_err(), "{bad}");
        }
    }
}
