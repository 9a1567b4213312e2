//! Where API servers are: as the cluster lists them, or as the user names them.

use std::num::NonZeroU16;

use exuvia_write::{ErrorClass, RetryPolicy};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};

/// What a server is called in reports.
pub(super) fn name_of(uri: &http::Uri) -> String {
    uri.authority()
        .map_or_else(|| uri.to_string(), ToString::to_string)
}

/// A URL as it may be shown: without a user and a password.
pub fn url_without_password(uri: &http::Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or("https");
    let name = name_of(uri);
    let host = name.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{}", uri.path().trim_end_matches('/'))
}

/// The addresses in `EndpointSlice` `kubernetes`; none where it may not be read. After any other error it is not
/// known whether there are any.
pub(super) async fn listed(client: &Client) -> Result<Vec<http::Uri>, kube::Error> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let of_kubernetes = ListParams::default().labels("kubernetes.io/service-name=kubernetes");
    let slices = match RetryPolicy::default().read(|| slices.list(&of_kubernetes)).await {
        Ok(slices) => slices,
        Err(error) => match ErrorClass::of(&error) {
            ErrorClass::Denied | ErrorClass::Missing => return Ok(Vec::new()),
            _ => return Err(error),
        },
    };
    let mut found = Vec::new();
    for slice in slices {
        let port = slice
            .ports
            .iter()
            .flatten()
            .find_map(|port| port.port)
            .unwrap_or(6443);
        for address in slice
            .endpoints
            .iter()
            .flatten()
            .flat_map(|endpoint| &endpoint.addresses)
        {
            let host = if address.contains(':') {
                format!("[{address}]")
            } else {
                address.clone()
            };
            found.extend(format!("https://{host}:{port}").parse::<http::Uri>());
        }
    }
    Ok(found)
}

/// An API server's URL. What the client cannot use would fail only when the server is asked, and then by a panic.
pub fn api_server(text: &str) -> Result<http::Uri, String> {
    let usable = |uri: &http::Uri| {
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return false;
        };
        // There may be nothing else than host and port: no user, and the port is a number.
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
    // A password may stand before the last @.
    let shown = match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    };
    text.parse()
        .ok()
        .filter(usable)
        .ok_or_else(|| format!("invalid API server URL {shown:?}: expected https://host:port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        let uri = "https://me:CANARY@api.example.com:6443/cluster/".parse();
        assert_eq!(
            uri.map(|uri| url_without_password(&uri)).unwrap_or_default(),
            "https://api.example.com:6443/cluster"
        );
    }

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
        let error = api_server("https://me:CANARY@api:6443").expect_err("no users");
        assert!(error.contains("api:6443") && !error.contains("CANARY"), "{error}");
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
