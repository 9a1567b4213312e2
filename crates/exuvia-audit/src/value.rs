//! What the bytes of one stored object tell: the version they are written at, or why they do not tell it.

use serde::{Deserialize, Serialize};

use super::envelope;

/// A group of 253, a slash and a version of 63 characters: nothing longer is an `apiVersion`.
const LONGEST_API_VERSION: usize = 253 + 1 + 63;
/// Names of keys are short; beyond this we would be reading the encrypted bytes themselves.
const LONGEST_KEY_NAME: usize = 253;

/// Why the version of stored bytes cannot be told. Such an object never counts as current.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "cause", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Cause {
    /// Encrypted at rest.
    Encrypted {
        /// The provider, such as `secretbox`.
        provider: String,
        /// The provider's scheme: `v1` or `v2`.
        scheme: String,
        /// The name of the key, or of the KMS plug-in; empty if it cannot be read.
        key_name: String,
    },
    /// CBOR, which servers write with the alpha feature `CBORServingAndStorage`.
    Cbor,
    /// JSON or protobuf without an `apiVersion`.
    NoVersion,
    /// Neither JSON nor protobuf nor anything else that Kubernetes writes.
    Unknown,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Encrypted {
                provider,
                scheme,
                key_name,
            } => write!(f, "encrypted by {provider} {scheme} with key {key_name}"),
            Self::Cbor => f.write_str("written as CBOR"),
            Self::NoVersion => f.write_str("without an apiVersion"),
            Self::Unknown => f.write_str("neither JSON nor protobuf"),
        }
    }
}

/// The `apiVersion` in stored bytes.
pub(super) fn api_version(bytes: &[u8]) -> Result<String, Cause> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct TypeMeta {
        #[serde(default)]
        api_version: Option<String>,
    }
    let version = if let Some(envelope) = bytes.strip_prefix(envelope::MAGIC) {
        let (api_version, _) = envelope::type_meta(envelope).ok_or(Cause::Unknown)?;
        api_version.to_owned()
    } else if let Some(rest) = bytes.strip_prefix(b"k8s:enc:") {
        return Err(encrypted(rest));
    } else if bytes.starts_with(&[0xd9, 0xd9, 0xf7]) {
        return Err(Cause::Cbor); // the tag by which CBOR describes itself (RFC 8949, 3.4.6)
    } else {
        // serde skips what it is not asked for without building it.
        let meta: TypeMeta = serde_json::from_slice(bytes).map_err(|_| Cause::Unknown)?;
        meta.api_version.unwrap_or_default()
    };
    let fits =
        !version.is_empty() && version.len() <= LONGEST_API_VERSION && !version.contains(char::is_control);
    if fits { Ok(version) } else { Err(Cause::NoVersion) }
}

/// `<provider>:<scheme>:<key name>:<bytes>`.
fn encrypted(rest: &[u8]) -> Cause {
    let mut parts = rest.splitn(4, |byte| *byte == b':');
    let mut part = |longest: usize| {
        let part = parts.next().filter(|part| part.len() <= longest);
        let text = part.and_then(|part| str::from_utf8(part).ok());
        text.filter(|text| !text.contains(char::is_control))
            .unwrap_or_default()
            .to_owned()
    };
    let (provider, scheme, key_name) = (part(63), part(8), part(LONGEST_KEY_NAME));
    let whole = parts.next().is_some(); // otherwise there was no colon, and the last part is not a name
    Cause::Encrypted {
        provider,
        scheme,
        key_name: if whole { key_name } else { String::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encrypted_by(provider: &str, scheme: &str, key_name: &str) -> Result<String, Cause> {
        Err(Cause::Encrypted {
            provider: provider.to_owned(),
            scheme: scheme.to_owned(),
            key_name: key_name.to_owned(),
        })
    }

    #[test]
    fn json_tells_its_version_wherever_it_stands() {
        let json =
            br#"{"spec":{"apiVersion":"inner/v9","deep":[[{}]]},"kind":"W","apiVersion":"example.com/v1"}"#;
        assert_eq!(api_version(json).as_deref(), Ok("example.com/v1"));
    }

    #[test]
    fn json_that_is_odd_is_never_current() {
        let deep = format!(
            r#"{{"a":{}{},"apiVersion":"v1"}}"#,
            "[".repeat(10_000),
            "]".repeat(10_000)
        );
        assert_eq!(
            api_version(deep.as_bytes()).as_deref(),
            Ok("v1"),
            "no recursion on what is skipped"
        );
        for (json, cause) in [
            (&br#"{"kind":"W"}"#[..], Cause::NoVersion),
            (br#"{"apiVersion":""}"#, Cause::NoVersion),
            (br#"{"apiVersion":null}"#, Cause::NoVersion),
            (br#"{"apiVersion":"a\nb"}"#, Cause::NoVersion),
            (br#"{"apiVersion":1}"#, Cause::Unknown),
            (br#"{"apiVersion":"v1","apiVersion":"v2"}"#, Cause::Unknown),
            (br#"{"apiVersion":"v1""#, Cause::Unknown),
            (br#"{"apiVersion":"v1"} x"#, Cause::Unknown),
            (b"", Cause::Unknown),
            (b"k8s\0\xff", Cause::Unknown),
            (b"k8s\0", Cause::NoVersion),
            (&[0xd9, 0xd9, 0xf7, 0xa0], Cause::Cbor),
        ] {
            assert_eq!(api_version(json), Err(cause), "{}", json.escape_ascii());
        }
    }

    #[test]
    fn encrypted_bytes_name_provider_and_key() {
        assert_eq!(
            api_version(b"k8s:enc:secretbox:v1:key1:\x01\x02:\x03"),
            encrypted_by("secretbox", "v1", "key1")
        );
        assert_eq!(
            api_version(b"k8s:enc:kms:v2:vault:\n\x08"),
            encrypted_by("kms", "v2", "vault")
        );
        assert_eq!(
            api_version(b"k8s:enc:aescbc:v1:cut"),
            encrypted_by("aescbc", "v1", "")
        );
        assert_eq!(
            api_version(b"k8s:enc:aescbc:v1:\xff\xfe:x"),
            encrypted_by("aescbc", "v1", "")
        );
        assert_eq!(api_version(b"k8s:enc:"), encrypted_by("", "", ""));
        let long = [b"k8s:enc:aesgcm:v1:".as_slice(), &[b'x'; 300], b":"].concat();
        assert_eq!(
            api_version(&long),
            encrypted_by("aesgcm", "v1", ""),
            "no secret bytes as a name"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn arbitrary_bytes_never_panic(
            head in proptest::sample::select(vec![&b""[..], b"k8s\0", b"k8s:enc:", b"{\"apiVersion\":"]),
            tail in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = api_version(&[head, &tail].concat());
        }
    }
}
