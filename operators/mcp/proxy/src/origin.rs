//! Which origins may send requests: the defence against DNS rebinding (pure).

use std::str::FromStr;

use http::Uri;

/// Which values of `Origin` are accepted. A request without the header always is: it does not come from a page of another site.
///
/// Without any entry, pages of this machine are accepted: `localhost`, `127.0.0.1` and `[::1]` at any port. The request's own `Host` is
/// not compared, because in an attack by DNS rebinding both carry the attacker's name.
///
/// ```
/// use mcp_proxy::Origins;
///
/// let origins = Origins::new(["https://app.example.com"])?;
/// assert!(origins.allow("https://APP.example.com:443"));
/// assert!(!origins.allow("https://app.example.com:8443"));
/// assert!(!origins.allow("http://localhost:3000"));
/// assert!(Origins::default().allow("http://localhost:3000"));
/// assert!(!Origins::default().allow("https://app.example.com"));
/// # Ok::<(), mcp_proxy::InvalidOrigin>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Origins {
    any: bool,
    null: bool,
    listed: Vec<Origin>,
}

/// An entry that is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid origin {0:?}: expected scheme://host[:port], such as https://app.example.com, or *")]
pub struct InvalidOrigin(String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origins {
    /// Exactly these, `*` for every one.
    pub fn new<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Result<Self, InvalidOrigin> {
        let mut origins = Self::default();
        for entry in entries {
            match entry.as_ref().trim() {
                "*" => origins.any = true,
                "null" => origins.null = true,
                entry => origins.listed.push(entry.parse()?),
            }
        }
        Ok(origins)
    }

    /// Every origin, for a server that stands behind a proxy which has looked already.
    pub fn any() -> Self {
        Self {
            any: true,
            ..Self::default()
        }
    }

    /// Whether a request with this header may pass.
    pub fn allow(&self, origin: &str) -> bool {
        if self.any {
            return true;
        }
        if origin == "null" {
            return self.null;
        }
        let Ok(origin) = origin.parse::<Origin>() else {
            return false;
        };
        if self.listed.is_empty() && !self.null {
            return ["localhost", "127.0.0.1", "[::1]"].contains(&origin.host.as_str());
        }
        self.listed.contains(&origin)
    }
}

impl FromStr for Origin {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, InvalidOrigin> {
        let invalid = || InvalidOrigin(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(invalid());
        };
        if uri.path_and_query().is_some_and(|path| path != "/") || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let port = authority.port_u16().or(match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        });
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            host: authority.host().to_ascii_lowercase(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_entries_only_pages_of_this_machine_are_accepted() {
        let origins = Origins::default();
        for accepted in [
            "http://localhost",
            "http://127.0.0.1:6274",
            "http://[::1]:80",
            "https://LOCALHOST:1",
        ] {
            assert!(origins.allow(accepted), "{accepted}");
        }
        for refused in [
            "http://evil.example",
            "http://localhost.evil.example",
            "null",
            "",
            "localhost",
            "http://",
        ] {
            assert!(!origins.allow(refused), "{refused}");
        }
    }

    #[test]
    fn a_default_port_equals_none_and_a_user_is_refused() {
        let origins = Origins::new(["https://a.example", "http://b.example:80"]).unwrap();
        assert!(origins.allow("https://a.example:443"));
        assert!(origins.allow("http://b.example"));
        assert!(!origins.allow("http://a.example"));
        assert!(!origins.allow("https://user@a.example"));
        assert!(!origins.allow("http://localhost"));
    }

    #[test]
    fn a_star_accepts_all_and_null_must_be_listed() {
        assert!(Origins::new(["*"]).unwrap().allow("null"));
        let origins = Origins::new(["null"]).unwrap();
        assert!(origins.allow("null"));
        assert!(!origins.allow("http://localhost"));
        for invalid in ["a.example", "https://a.example/path", ""] {
            assert!(Origins::new([invalid]).is_err(), "{invalid}");
        }
    }
}
