//! Values of flags that are more than text: what is none is refused before anything is done.

use std::num::NonZeroU16;
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

/// An API server's URL. What the client cannot use would fail only when the server is asked, and then by a panic.
pub(super) fn api_server(text: &str) -> Result<http::Uri, String> {
    let usable = |uri: &http::Uri| {
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return false;
        };
        // Nothing else may stand beside the host: no user, and no port that is no number.
        let port_is_fine = match authority.as_str().strip_prefix(host) {
            Some("") => true,
            Some(port) => port
                .strip_prefix(':')
                .is_some_and(|port| port.parse::<NonZeroU16>().is_ok()),
            None => false,
        };
        let server_only = uri.path() == "/" && uri.query().is_none() && !text.contains('#');
        uri.scheme_str() == Some("https") && !host.is_empty() && port_is_fine && server_only
    };
    text.parse()
        .ok()
        .filter(usable)
        .ok_or_else(|| format!("{text:?} is no URL of an API server: write https://host:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_asked_is_an_api_server() {
        for fine in [
            "https://10.0.0.1:6443",
            "https://api.example.com",
            "https://api.example.com/",
            "https://[fd00::1]:6443",
        ] {
            assert!(api_server(fine).is_ok(), "{fine}");
        }
        for bad in [
            "",
            "foo",
            "10.0.0.1:6443",
            "http://10.0.0.1:6443",
            "https://",
            "https://:6443",
            "https://api:notaport",
            "https://api:99999",
            "https://api:0",
            "https://api:",
            "https://user@api:6443",
            "https://api:6443/path",
            "https://api:6443?query",
            "https://api:6443#fragment",
        ] {
            assert!(api_server(bad).is_err(), "{bad}");
        }
    }
}
