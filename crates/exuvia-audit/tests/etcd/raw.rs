//! Does to a plain etcd what no API server would, blocking, so that it can be done in the middle of an audit.

use std::io::{Read, Write};
use std::net::TcpStream;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

/// Sends a request to etcd's gateway and hands the answer back.
pub(crate) fn post(endpoint: &str, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let mut stream = TcpStream::connect(endpoint.strip_prefix("http://").unwrap()).unwrap();
    let head = format!(
        "POST /v3/{path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{path}: {answer}");
    serde_json::from_str(body).unwrap()
}

/// Writes a key and returns the revision.
pub(crate) fn put(endpoint: &str, key: &str, value: impl AsRef<[u8]>) -> String {
    let body = json!({"key": BASE64.encode(key), "value": BASE64.encode(value)});
    let answer = post(endpoint, "kv/put", &body);
    answer["header"]["revision"].as_str().unwrap().to_owned()
}

/// Makes a new revision and throws all before it away.
pub(crate) fn compact(endpoint: &str) {
    let revision = put(endpoint, "compact-me", "x");
    post(
        endpoint,
        "kv/compaction",
        &json!({"revision": revision, "physical": true}),
    );
}
