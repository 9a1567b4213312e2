//! etcd: started on loopback, read through its JSON gateway, so that stored bytes can be read without gRPC.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::certs::Pair;
use crate::http::HttpClient;
use crate::process::Process;

/// The running etcd and its contents.
#[derive(Debug)]
pub struct Etcd {
    pub(crate) process: Process,
    pub(crate) endpoint: String,
    pub(crate) ca_pem: String,
    /// What to present where etcd wants client certificates.
    pub(crate) identity: Option<Pair>,
    /// `/registry`, or what `--etcd-prefix` says.
    pub(crate) prefix: String,
}

/// One object as it lies in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The whole key.
    pub key: String,
    /// The `apiVersion` in the stored bytes; `None` if they are not JSON (a built-in type, or encrypted).
    pub api_version: Option<String>,
    /// The revision at which it was created.
    pub create_revision: i64,
    /// The revision of the last write, which is the object's resourceVersion.
    pub mod_revision: i64,
    /// How often it was written, its creation included: 1 for an object that nobody has touched since.
    pub version: i64,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

impl Stored {
    /// The last part of the key: the object's name.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The object, where the bytes are JSON.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.bytes).ok()
    }
}

impl Etcd {
    /// The process, to pause or kill.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// The client URL.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The key prefix under which the API server keeps everything.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The client certificate for an etcd that wants one.
    pub fn identity(&self) -> Option<&Pair> {
        self.identity.as_ref()
    }

    /// Reads the custom resources of one group and plural, page by page.
    pub fn stored(&self, group: &str, plural: &str) -> StoredReader<'_> {
        self.stored_under(&format!("{}/{group}/{plural}/", self.prefix))
    }

    /// Reads everything below a key, such as `/registry/secrets/`.
    pub fn stored_under(&self, prefix: &str) -> StoredReader<'_> {
        StoredReader {
            etcd: self,
            next: Some(prefix.as_bytes().to_vec()),
            end: end_of_prefix(prefix),
            revision: 0,
            page_size: 500,
            client: None,
        }
    }

    /// The current revision.
    pub async fn revision(&self) -> Result<i64, Error> {
        let answer: RangeAnswer = self
            .call(
                &self.client()?,
                "kv/range",
                &json!({"key": BASE64.encode("\0"), "limit": "1"}),
            )
            .await?;
        answer
            .header
            .revision
            .parse()
            .map_err(|_| self.odd_answer("a revision that is not a number"))
    }

    /// Throws all revisions before the current one away and returns it: reading an older one fails from then on.
    pub async fn compact(&self) -> Result<i64, Error> {
        let revision = self.revision().await?;
        let body = json!({"revision": revision.to_string(), "physical": true});
        let _: Value = self.call(&self.client()?, "kv/compaction", &body).await?;
        Ok(revision)
    }

    fn client(&self) -> Result<HttpClient, Error> {
        HttpClient::new(&self.ca_pem, self.identity.as_ref())
    }

    async fn call<T: serde::de::DeserializeOwned>(
        &self,
        client: &HttpClient,
        method: &str,
        body: &Value,
    ) -> Result<T, Error> {
        let answer = client
            .post_json(&format!("{}/v3/{method}", self.endpoint), body)
            .await?;
        serde_json::from_value(answer).map_err(|e| self.odd_answer(&e.to_string()))
    }

    fn odd_answer(&self, what: &str) -> Error {
        Error::Request {
            uri: self.endpoint.clone(),
            source: format!("etcd answered with {what}").into(),
        }
    }
}

/// Reads stored objects page by page, all pages at one revision.
#[derive(Debug)]
pub struct StoredReader<'a> {
    etcd: &'a Etcd,
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    revision: i64,
    page_size: usize,
    client: Option<HttpClient>,
}

impl StoredReader<'_> {
    /// Reads as of a past revision (which must not have been compacted away).
    #[must_use]
    pub fn at(mut self, revision: i64) -> Self {
        self.revision = revision;
        self
    }

    /// How many objects to a page; 500 unless given.
    #[must_use]
    pub fn page_size(mut self, objects: usize) -> Self {
        self.page_size = objects.max(1);
        self
    }

    /// The next page, or `None` after the last.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Stored>>, Error> {
        let Some(key) = self.next.take() else {
            return Ok(None);
        };
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(self.etcd.client()?).clone(),
        };
        let body = json!({
            "key": BASE64.encode(&key),
            "range_end": BASE64.encode(&self.end),
            "limit": self.page_size.to_string(),
            "revision": self.revision.to_string(),
        });
        let answer: RangeAnswer = self.etcd.call(&client, "kv/range", &body).await?;
        if self.revision == 0 {
            // Later pages are read at the revision of the first, or the walk would mix states.
            self.revision = answer.header.revision.parse().unwrap_or_default();
        }
        let page = answer
            .kvs
            .into_iter()
            .map(KeyValue::decode)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| self.etcd.odd_answer("a key or value that is not base64"))?;
        if answer.more
            && let Some(last) = page.last()
        {
            let mut after = last.key.clone().into_bytes();
            after.push(0);
            self.next = Some(after);
        }
        Ok(Some(page))
    }

    /// All pages as one list.
    pub async fn all(mut self) -> Result<Vec<Stored>, Error> {
        let mut all = Vec::new();
        while let Some(page) = self.next_page().await? {
            all.extend(page);
        }
        Ok(all)
    }

    /// How many objects are stored at each `apiVersion` (the empty string: not JSON).
    pub async fn count_by_version(mut self) -> Result<std::collections::BTreeMap<String, usize>, Error> {
        let mut counts = std::collections::BTreeMap::new();
        while let Some(page) = self.next_page().await? {
            for stored in page {
                *counts.entry(stored.api_version.unwrap_or_default()).or_default() += 1;
            }
        }
        Ok(counts)
    }
}

#[derive(Deserialize)]
struct RangeAnswer {
    header: Header,
    #[serde(default)]
    kvs: Vec<KeyValue>,
    #[serde(default)]
    more: bool,
}

// The gateway writes 64-bit numbers as strings.
#[derive(Deserialize)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
    create_revision: String,
    mod_revision: String,
    version: String,
}

impl KeyValue {
    fn decode(self) -> Option<Stored> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct TypeMeta {
            api_version: String,
        }
        let bytes = BASE64.decode(self.value).ok()?;
        Some(Stored {
            key: String::from_utf8(BASE64.decode(self.key).ok()?).ok()?,
            api_version: serde_json::from_slice(&bytes)
                .ok()
                .map(|meta: TypeMeta| meta.api_version),
            create_revision: self.create_revision.parse().ok()?,
            mod_revision: self.mod_revision.parse().ok()?,
            version: self.version.parse().ok()?,
            bytes,
        })
    }
}

/// The smallest key that is greater than every key with this prefix.
fn end_of_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1; // UTF-8 never holds 0xff
    }
    end
}
