//! How a session, its id, and the query of the old SSE transport name the pod that they stay on (pure).

/// The query parameter that names the pod in the `endpoint` event of the old SSE transport. The session's own parameter
/// has another name at each SDK (`sessionId`, `session_id`), and may be a part of the path: so ours is added to it, and
/// taken away again before the request is sent on.
pub const POD_PARAMETER: &str = "mcp-pod";

/// So many characters of a pod's uid stand before a session's id.
pub(crate) const POD_ID_LEN: usize = 8;

/// The id that the client gets.
pub(crate) fn handed_out(pod: &str, id: &str) -> String {
    format!("{pod}.{id}")
}

/// The pod and the server's own id. `None` if it was not handed out by us.
pub(crate) fn taken_apart(handed_out: &str) -> Option<(&str, &str)> {
    let (pod, id) = handed_out.split_once('.')?;
    (pod.len() == POD_ID_LEN && !id.is_empty()).then_some((pod, id))
}

/// The pod that a query names, and the path and query without it, every other byte as it was.
pub(crate) fn pod_in_query(path_and_query: &str) -> Option<(&str, String)> {
    let (path, query) = path_and_query.split_once('?')?;
    let mut pod = None;
    let rest: Vec<&str> = query
        .split('&')
        .filter(|part| {
            let ours = part
                .strip_prefix(POD_PARAMETER)
                .and_then(|part| part.strip_prefix('='));
            pod = pod.or(ours);
            ours.is_none()
        })
        .collect();
    let rest = if rest.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", rest.join("&"))
    };
    pod.map(|pod| (pod, rest))
}

/// A URL of the `endpoint` event, as clients get it.
///
/// `authority` is the backend's: an absolute URL that names it cannot be reached by clients, so only its path is left. A URL of
/// another authority is not ours to change.
pub(crate) fn endpoint(
    url: &str,
    authority: &str,
    target_path: &str,
    prefix: &str,
    pod: Option<&str>,
) -> String {
    let relative = match url.split_once("://") {
        Some((_, rest)) => match rest.strip_prefix(authority) {
            Some(path) if path.starts_with('/') => path,
            _ => return url.to_owned(),
        },
        None if url.starts_with("//") => return url.to_owned(),
        None => url,
    };
    let relative = relative
        .strip_prefix(target_path)
        .filter(|rest| rest.starts_with('/'))
        .unwrap_or(relative);
    let mut whole = String::new();
    if relative.starts_with('/') {
        whole.push_str(prefix.trim_end_matches('/'));
    }
    let (before, fragment) = relative
        .find('#')
        .map_or((relative, ""), |at| relative.split_at(at));
    whole.push_str(before);
    if let Some(pod) = pod {
        whole.push(if before.contains('?') { '&' } else { '?' });
        whole.push_str(POD_PARAMETER);
        whole.push('=');
        whole.push_str(pod);
    }
    whole.push_str(fragment);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_as_the_server_gave_it_even_with_dots() {
        let given = handed_out("6f1c2a9e", "a.b.c");
        assert_eq!(given, "6f1c2a9e.a.b.c");
        assert_eq!(taken_apart(&given), Some(("6f1c2a9e", "a.b.c")));
        for foreign in ["", "abc", "short.id", "6f1c2a9e.", "6f1c2a9e-0d5b.x"] {
            assert_eq!(taken_apart(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_pods_parameter_leaves_the_rest_of_the_query_as_it_was() {
        assert_eq!(pod_in_query("/message?sessionId=a%2Fb"), None);
        assert_eq!(pod_in_query("/message"), None);
        assert_eq!(
            pod_in_query("/m?mcp-pod=12345678"),
            Some(("12345678", "/m".to_owned()))
        );
        assert_eq!(
            pod_in_query("/m?a=%20&mcp-pod=12345678&&b"),
            Some(("12345678", "/m?a=%20&&b".to_owned()))
        );
        assert_eq!(pod_in_query("/m?x-mcp-pod=1&mcp-podium=2"), None);
    }

    #[test]
    fn an_endpoint_names_its_pod_and_has_the_prefix() {
        let at = |url| endpoint(url, "10.0.0.1:8080", "", "/team", Some("12345678"));
        assert_eq!(
            at("/message?sessionId=1"),
            "/team/message?sessionId=1&mcp-pod=12345678"
        );
        assert_eq!(at("/session/1"), "/team/session/1?mcp-pod=12345678");
        assert_eq!(at("message?s=1"), "message?s=1&mcp-pod=12345678");
        assert_eq!(at("/m?s=1#f"), "/team/m?s=1&mcp-pod=12345678#f");
        assert_eq!(at("http://10.0.0.1:8080/m?s=1"), "/team/m?s=1&mcp-pod=12345678");
        assert_eq!(at("http://elsewhere/m?s=1"), "http://elsewhere/m?s=1");
        assert_eq!(at("//elsewhere/m?s=1"), "//elsewhere/m?s=1");
        assert_eq!(endpoint("/base/m?s=1", "x", "/base", "", None), "/m?s=1");
        assert_eq!(endpoint("/basement?s=1", "x", "/base", "", None), "/basement?s=1");
    }
}
