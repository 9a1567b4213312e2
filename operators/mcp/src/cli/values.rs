//! Values of flags that are more than text: what is not valid is refused before anything is done. Pure.

use std::time::Duration;

/// An image. The registry has the last word; what can never be one is refused here.
pub(super) fn image(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("expected an image without spaces, such as example.com/mcp-runner:1");
    }
    Ok(text.to_owned())
}

/// The name of a namespace.
pub(super) fn namespace(text: &str) -> Result<String, &'static str> {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = (1..=63).contains(&text.len())
        && text.chars().all(valid)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_name {
        Ok(text.to_owned())
    } else {
        Err("expected at most 63 lower-case letters, digits and '-', such as mcp-servers")
    }
}

/// The name of an object, such as a Lease.
pub(super) fn object_name(text: &str) -> Result<String, &'static str> {
    if text.len() <= 253 && text.split('.').all(|label| namespace(label).is_ok()) {
        Ok(text.to_owned())
    } else {
        Err("expected at most 253 lower-case letters, digits, '-' and '.', such as mcp-operator")
    }
}

/// A duration with a unit.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    let parsed = exuvia_api::parse_duration(text);
    parsed.map_err(|_| "expected a number with a unit, such as 500ms, 60s, 15m or 1h")
}

/// A duration after which something is done again: zero would mean without a pause.
pub(super) fn interval(text: &str) -> Result<Duration, &'static str> {
    match duration(text) {
        Ok(duration) if duration.is_zero() => Err("expected more than 0s, such as 10m"),
        parsed => parsed,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::OperatorArgs;

    #[test]
    fn a_namespace_is_what_the_api_server_takes() {
        for fine in ["a", "mcp-servers", "0", &"a".repeat(63)] {
            assert!(namespace(fine).is_ok(), "{fine}");
        }
        for bad in ["", "Bad_", "-a", "a-", "a.b", "a b", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_operator_refuses_values_with_which_it_could_not_work() {
        let parsed = |args: &[&str]| {
            let all = ["mcp-operator", "--runner-image=i"].iter().chain(args);
            OperatorArgs::try_parse_from(all.copied())
        };
        assert!(parsed(&["--watch-namespace=a", "--concurrency=1", "--resync=1s"]).is_ok());
        for wrong in [
            "--watch-namespace=Bad_",
            "--lease-namespace=",
            "--lease-name=Bad Name",
            "--resync=-5s",
            "--concurrency=0",
            "--resync=0s",
            "--resync=soon",
            "--max-backoff=0s",
            "--lease-duration=0s",
        ] {
            let error = parsed(&[wrong]).expect_err(wrong);
            assert_eq!(error.exit_code(), 2, "{wrong}");
            assert!(error.to_string().contains(": expected "), "{error}");
        }
        for image in ["", "a b"] {
            let error = OperatorArgs::try_parse_from(["mcp-operator", "--runner-image", image]);
            assert_eq!(error.expect_err(image).exit_code(), 2, "{image:?}");
        }
    }
}
