//! Values of flags that are more than text: what is none is refused before anything is done.

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
