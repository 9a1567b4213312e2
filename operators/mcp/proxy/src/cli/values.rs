//! Values of flags that are more than text. An error says what is expected; the flag and the value are named by [`parse`](super::parse).
//! Pure.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use http::uri::PathAndQuery;

use crate::{Backend, Origins};

/// Where to listen.
pub fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let parsed = text.parse();
    parsed.map_err(|_| "expected an IP address and a port, such as 127.0.0.1:8080 or [::]:8080")
}

/// A server behind the proxy.
pub fn backend(text: &str) -> Result<Backend, &'static str> {
    Backend::from_url(text)
        .map_err(|_| "expected http://host[:port] without a path, such as http://10.0.0.7:8080")
}

/// An origin that may send requests.
pub fn origin(text: &str) -> Result<String, &'static str> {
    match Origins::new([text]) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("expected scheme://host[:port], such as https://app.example.com, or *"),
    }
}

/// The path of an endpoint.
pub fn path(text: &str) -> Result<String, &'static str> {
    let parsed = PathAndQuery::try_from(text).ok();
    let is_path = text.starts_with('/') && parsed.is_some_and(|parsed| parsed.as_str() == parsed.path());
    // What follows a # is dropped by the parser.
    if is_path && !text.contains(['#', '?']) {
        Ok(text.to_owned())
    } else {
        Err("expected a path that begins with /, without ? and #, such as /mcp")
    }
}

/// What is put before paths. Empty: nothing is.
pub fn prefix(text: &str) -> Result<String, &'static str> {
    if text.is_empty() {
        return Ok(String::new());
    }
    path(text)
}

/// The name of a tool.
pub fn tool(text: &str) -> Result<String, &'static str> {
    if text.trim().is_empty() {
        return Err("expected the name of a tool; without --tool, clients see all of them");
    }
    Ok(text.to_owned())
}

/// A whole number in this range.
pub fn whole<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or_else(|| {
            if *range.end() == u64::MAX {
                format!("expected a whole number, at least {}", range.start())
            } else {
                format!(
                    "expected a whole number from {} to {}",
                    range.start(),
                    range.end()
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_a_slash_and_has_no_query() {
        for fine in ["/", "/mcp", "/a/b%20c", "/a-b_c.d~"] {
            assert_eq!(path(fine).as_deref(), Ok(fine));
            assert_eq!(prefix(fine).as_deref(), Ok(fine));
        }
        for wrong in ["mcp", "mcp/", "http://host/mcp", "/a b", "/a?b", "/a#b", "*"] {
            assert!(path(wrong).is_err(), "{wrong}");
            assert!(prefix(wrong).is_err(), "{wrong}");
        }
        assert!(path("").is_err());
        assert_eq!(prefix("").as_deref(), Ok(""));
    }

    #[test]
    fn a_backend_is_a_url_with_a_host() {
        for fine in [
            "http://a",
            "http://a:80",
            "http://10.0.0.7:8080/",
            "http://[::1]:80",
        ] {
            assert!(backend(fine).is_ok(), "{fine}");
        }
        for wrong in [
            "",
            "foo",
            "foo:80",
            "https://a",
            "http://",
            "http://:80",
            "http://a:0",
            "http://a:99999",
            "http://a:",
            "http://[::1]:99999",
            "http://a/mcp",
            "http://u:p@a",
        ] {
            assert!(backend(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_a_number_an_address_a_tool_or_an_origin_is_refused() {
        let threads = whole::<u16>(1..=65535);
        assert_eq!(threads("1"), Ok(1));
        for wrong in ["0", "65536", "-1", "", "many"] {
            let expected = "expected a whole number from 1 to 65535";
            assert_eq!(threads(wrong), Err(expected.to_owned()), "{wrong}");
        }
        let bytes = whole::<u64>(1..=u64::MAX);
        assert_eq!(bytes("0"), Err("expected a whole number, at least 1".to_owned()));
        assert!(address("127.0.0.1:0").is_ok() && address("8080").is_err());
        assert!(tool("echo").is_ok() && tool("").is_err() && tool(" ").is_err());
        assert!(origin("*").is_ok() && origin("app.example.com").is_err());
    }
}
