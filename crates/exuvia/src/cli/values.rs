//! Values of flags that are more than text: what is not valid is refused before anything is done.

use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;
use std::time::Duration;

/// What a settle time of zero means.
pub(super) const NO_SETTLE: &str = "nothing is waited for (--settle 0s): an API server that is behind may store objects at \
                                    the old version, unnoticed until a patrol";

/// A group's name. An empty one would match nothing, and nothing would be migrated, silently.
pub(super) fn group(text: &str) -> Result<String, &'static str> {
    let is_name = |text: &str| {
        let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        !text.is_empty() && text.chars().all(valid)
    };
    if text == "*" || is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("expected a group such as example.com, or * for all")
    }
}

/// A CRD's name.
pub(super) fn crd(text: &str) -> Result<String, &'static str> {
    match text.split_once('.') {
        Some((plural, of)) if !plural.is_empty() && of != "*" && group(of).is_ok() => Ok(text.to_owned()),
        _ => Err("expected a CRD's name such as widgets.example.com"),
    }
}

/// The name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, &'static str> {
    if text.len() <= 63 && is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("expected at most 63 lower-case letters, digits and '-', such as exuvia-system")
    }
}

/// The name of an object of any kind that this command writes: a service account, a Lease, a role.
pub(super) fn object_name(text: &str) -> Result<String, &'static str> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        Ok(text.to_owned())
    } else {
        Err("expected at most 253 lower-case letters, digits, '-' and '.', such as exuvia")
    }
}

fn is_label(text: &str) -> bool {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(valid) && !text.starts_with('-') && !text.ends_with('-')
}

/// Refuses paths that do not exist, given as this argument; `-` is standard input.
pub(super) fn existing(argument: &str, paths: &[PathBuf]) -> anyhow::Result<()> {
    for path in paths.iter().filter(|path| path.as_os_str() != "-") {
        if !path.exists() {
            anyhow::bail!(
                "invalid {argument} \"{}\": it does not exist; expected a file, a directory, or - for standard input",
                path.display()
            );
        }
    }
    Ok(())
}

/// Refuses a list with a name in it twice: the second may be a slip for another.
pub(super) fn once<'a>(what: &str, names: impl IntoIterator<Item = &'a String>) -> anyhow::Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            anyhow::bail!("{name} is given twice: give each {what} once");
        }
    }
    Ok(())
}

/// A duration, as in manifests.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    exuvia_api::parse_duration(text).map_err(|_| "expected a duration such as 500ms, 60s, 15m or 1h")
}

/// A duration that is not zero: nobody wants to ask without a pause.
pub(super) fn interval(text: &str) -> Result<Duration, &'static str> {
    match duration(text) {
        Ok(duration) if duration.is_zero() => Err("expected more than 0s, such as 5s"),
        parsed => parsed,
    }
}

/// A duration by which requests are spaced: with a shorter one the operator would never let go of the API server.
pub(super) fn pause(text: &str) -> Result<Duration, &'static str> {
    match duration(text) {
        Ok(duration) if duration < Duration::from_millis(100) => Err("expected 100ms or more"),
        parsed => parsed,
    }
}

/// Where to listen.
pub(super) fn listen_address(text: &str) -> Result<String, &'static str> {
    let is_address = |(host, port): (&str, &str)| {
        let is_host =
            !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
        is_host && port.parse::<u16>().is_ok()
    };
    if text.rsplit_once(':').is_some_and(is_address) {
        Ok(text.to_owned())
    } else {
        Err("expected an address and a port, such as [::]:8080 (all addresses) or 127.0.0.1:8080")
    }
}

/// The URL of an API server.
pub(super) fn api_server(text: &str) -> Result<http::Uri, &'static str> {
    exuvia_storage::servers::api_server(text)
        .map_err(|_| "expected the URL of an API server, such as https://host:6443")
}

/// A number within bounds. clap's own parser tells of digits and of the limits of types.
pub(super) fn number<T>(
    range: impl RangeBounds<u64> + Clone + Send + Sync,
) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: TryFrom<u64>,
{
    move |text| {
        let parsed = text.parse().ok().filter(|number| range.contains(number));
        parsed.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            let bound = |bound: Bound<&u64>| match bound {
                Bound::Included(bound) | Bound::Excluded(bound) => Some(*bound),
                Bound::Unbounded => None,
            };
            let from = bound(range.start_bound()).unwrap_or_default();
            match bound(range.end_bound()) {
                Some(to) => format!("expected a whole number from {from} to {to}"),
                None => format!("expected a whole number from {from}"),
            }
        })
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
