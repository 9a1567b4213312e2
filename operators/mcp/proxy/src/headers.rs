//! Which headers are passed on, which are dropped, and which are ours (pure).

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, FORWARDED, HOST, PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
};

pub(crate) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(crate) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub(crate) const NAME: HeaderName = HeaderName::from_static("mcp-name");
pub(crate) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Those that concern one connection only.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Drops what concerns one connection only: the known ones, and those that `Connection` names.
pub(crate) fn drop_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // They say how long the message is, what it is and where it goes: no sender may have them dropped.
            .filter(|name| ![CONTENT_LENGTH, CONTENT_TYPE, HOST].contains(name) && !is_of_mcp(name.as_str()))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH); // chunks count: a length that contradicts them must not reach the next reader
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether a header is one of MCP's.
fn is_of_mcp(name: &str) -> bool {
    name.starts_with("mcp-")
}

/// Drops names such as `Mcp_Name`: servers that hand headers on as variables (WSGI, CGI) take it for `Mcp-Name`, which the proxy has looked at.
fn drop_twins(headers: &mut HeaderMap) {
    let twins: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().contains('_') && is_of_mcp(&name.as_str().replace('_', "-")))
        .cloned()
        .collect();
    for name in twins {
        headers.remove(name);
    }
}

/// Makes a client's headers those of the request to a backend, all but `Host`.
pub(crate) fn for_backend(headers: &mut HeaderMap, client: IpAddr, trust: bool) {
    drop_hop_by_hop(headers);
    drop_twins(headers);
    // The body is sent without waiting for a word of the backend; the client got its `100 Continue` from us.
    headers.remove(EXPECT);

    let client = client.to_canonical().to_string();
    let mut chain = String::new();
    if trust {
        for value in headers
            .get_all(FORWARDED_FOR)
            .iter()
            .filter_map(|value| value.to_str().ok())
        {
            chain.push_str(value);
            chain.push_str(", ");
        }
    } else {
        headers.remove(FORWARDED);
        headers.remove(FORWARDED_HOST);
        headers.remove(FORWARDED_PROTO);
        headers.remove(FORWARDED_PREFIX);
    }
    chain.push_str(&client);
    if let Ok(chain) = HeaderValue::try_from(chain) {
        headers.insert(FORWARDED_FOR, chain);
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !headers.contains_key(FORWARDED_HOST)
        && let Some(host) = headers.get(HOST).cloned()
    {
        headers.insert(FORWARDED_HOST, host);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (
                    name.parse::<HeaderName>().unwrap(),
                    value.parse::<HeaderValue>().unwrap(),
                )
            })
            .collect()
    }

    fn collected(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                name.parse::<HeaderName>().unwrap(),
                value.parse::<HeaderValue>().unwrap(),
            );
        }
        map
    }

    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    #[test]
    fn no_sender_hides_a_header_that_was_looked_at_or_adds_a_twin_of_it() {
        let mut map = collected(&[
            ("connection", "content-type, mcp-name"),
            ("content-type", "application/json"),
            ("mcp-name", "shown"),
            ("mcp_name", "hidden"),
            ("mcp-session_id", "forged"),
            ("x_own", "1"),
        ]);
        for_backend(&mut map, IpAddr::from([127, 0, 0, 1]), false);
        assert_eq!(all(&map, "mcp-name"), ["shown"]);
        assert_eq!(all(&map, "content-type"), ["application/json"]);
        assert_eq!(all(&map, "x_own"), ["1"]);
        assert!(!map.contains_key("mcp_name") && !map.contains_key("mcp-session_id"));
    }

    #[test]
    fn what_connection_names_goes_too_and_duplicates_stay() {
        let mut map = collected(&[
            ("connection", "close, X-Hop"),
            ("connection", "x-other, content-length, host"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("host", "a"),
            ("x-two", "1"),
            ("x-two", "2"),
        ]);
        drop_hop_by_hop(&mut map);
        let names: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(all(&map, "x-two"), ["1", "2"]);
        assert_eq!(all(&map, "content-length"), ["3"]);
    }

    #[test]
    fn a_length_next_to_chunks_is_dropped() {
        let mut map = headers(&[("transfer-encoding", "chunked"), ("content-length", "3")]);
        drop_hop_by_hop(&mut map);
        assert!(map.is_empty());
    }

    #[test]
    fn forwarded_headers_of_strangers_are_replaced() {
        let mut map = headers(&[
            ("host", "mcp.example"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.1.1.1"),
        ]);
        for_backend(&mut map, "::ffff:10.0.0.9".parse().unwrap(), false);
        assert_eq!(all(&map, "x-forwarded-for"), ["10.0.0.9"]);
        assert_eq!(all(&map, "x-forwarded-host"), ["mcp.example"]);
        assert_eq!(all(&map, "x-forwarded-proto"), ["http"]);
        assert!(!map.contains_key("forwarded"));
    }

    #[test]
    fn forwarded_headers_of_trusted_proxies_are_continued() {
        let mut map = collected(&[
            ("host", "mcp.internal"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2"),
            ("x-forwarded-host", "mcp.example"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=1.1.1.1"),
        ]);
        for_backend(&mut map, "10.0.0.9".parse().unwrap(), true);
        assert_eq!(all(&map, "x-forwarded-for"), ["1.1.1.1, 2.2.2.2, 10.0.0.9"]);
        assert_eq!(all(&map, "x-forwarded-host"), ["mcp.example"]);
        assert_eq!(all(&map, "x-forwarded-proto"), ["https"]);
        assert!(map.contains_key("forwarded"));
    }
}
