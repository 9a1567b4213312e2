//! What of requests passes, and what does not, whatever it is made to look like.

use http::{HeaderName, HeaderValue};
use serde_json::Value;

use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().unwrap();
        map.append(name, HeaderValue::try_from(*value).unwrap());
    }
    map
}

fn judged(lines: &[(&str, &str)], body: impl AsRef<[u8]>) -> Verdict {
    let allowed = ["a", "größe"].map(str::to_owned);
    judge(
        &std::sync::Arc::new(allowed.into()),
        &headers(lines),
        body.as_ref(),
    )
}

/// The code of the error, and its text.
fn refused(lines: &[(&str, &str)], body: impl AsRef<[u8]>) -> (u16, i64, String) {
    let shown = String::from_utf8_lossy(body.as_ref()).into_owned();
    let Verdict::Refuse(status, Some(answer)) = judged(lines, body) else {
        panic!("not refused: {shown}");
    };
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let code = answer["error"]["code"].as_i64().unwrap();
    let text = answer["error"]["message"].as_str().unwrap().to_owned();
    (status.as_u16(), code, text)
}

fn pass(lists: bool, id: Option<&str>) -> Verdict {
    let id = id.map(str::to_owned);
    Verdict::Pass { lists, id }
}

#[test]
fn calls_of_allowed_tools_and_everything_else_pass() {
    for body in [
        "",
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"name":"h","name":"i"},"name":"a"}}"#,
        r#"{"id":1,"method":"to\u006fls/call","params":{"n\u0061me":"\u0061"}}"#,
        " {\n\t\"method\" : \"ping\", \"params\": {\"name\":1,\"Name\":2}}\r\n",
        r#"{"id":1,"result":{"method":"tools/call"}}"#,
        r#"{"method":"notifications/initialized"}"#,
        r#"[{"id":1,"method":"ping"},{"id":2,"method":"tools/call","params":{"name":"a"}}]"#,
    ] {
        assert_eq!(judged(&[], body), pass(false, None), "{body}");
    }
    assert_eq!(
        judged(&[], r#"{"id":"x","method":"tools/list"}"#),
        pass(true, Some("\"x\""))
    );
    assert_eq!(
        judged(&[], r#"{"id":1,"method":"t\u006Fols/list"}"#),
        pass(true, Some("1"))
    );
    assert_eq!(
        judged(
            &[],
            r#"[{"id":1,"method":"ping"},{"id":2,"method":"tools/list"}]"#
        ),
        pass(true, None)
    );
}

#[test]
fn a_call_of_a_hidden_tool_is_answered_with_its_id() {
    let Verdict::Refuse(status, Some(body)) = judged(
        &[],
        r#"{"id":"7","method":"tools/call","params":{"name":"h\"x"}}"#,
    ) else {
        panic!("not refused");
    };
    assert_eq!(status, 200);
    assert_eq!(
        body,
        r#"{"jsonrpc":"2.0","id":"7","error":{"code":-32602,"message":"unknown tool: h\"x"}}"#
    );
    for body in [
        r#"{"id":1,"method":"to\u006fls/call","params":{"name":"h"}}"#,
        r#"{"params":{"name":"h"},"id":1,"method":"tools/call"}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"A"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"a "}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":"a\u0000"}}"#,
        r#"{"id":1,"method":"tools/call","params":{"name":["a"]}}"#,
        r#"{"id":1,"method":"tools/call","params":["a"]}"#,
        r#"{"id":1,"method":"tools/call"}"#,
    ] {
        assert_eq!(refused(&[], body).1, -32602, "{body}");
    }
    let notification = r#"{"method":"tools/call","params":{"name":"h"}}"#;
    assert_eq!(
        judged(&[], notification),
        Verdict::Refuse(StatusCode::ACCEPTED, None)
    );
}

#[test]
fn what_readers_could_understand_differently_is_refused() {
    let call = r#""method":"tools/call","params":{"name":"h"}"#;
    for body in [
        format!(r#"{{"method":"ping",{call}}}"#),
        format!(r#"{{{call},"method":"ping"}}"#),
        format!(r#"{{"m\u0065thod":"ping",{call}}}"#),
        r#"{"id":1,"method":"ping","Method":"tools/call","params":{"name":"h"}}"#.to_owned(),
        r#"{"id":1,"method":"ping","METHOD":"tools/call"}"#.to_owned(),
        "{\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\"},\"param\u{17f}\":{\"name\":\"h\"}}"
            .to_owned(),
        r#"{"id":1,"method":"tools/call","params":{"name":"a","name":"h"}}"#.to_owned(),
        r#"{"id":1,"method":"tools/call","params":{"name":"a","Name":"h"}}"#.to_owned(),
        r#"{"id":1,"method":"tools/call","params":{"name":"a"},"params":{"name":"h"}}"#.to_owned(),
        r#"{"id":1,"method\u0000x":"tools/call","method":"ping"}"#.to_owned(),
        r#"{"id":1,"method":"tools/call\u0000"}"#.to_owned(),
        r#"{"id":1,"method":" tools/call"}"#.to_owned(),
        r#"{"id":1,"method":["tools/call"]}"#.to_owned(),
        format!(r#"{{"id":1,"__proto__":{{{call}}}}}"#),
        format!("[[{{{call}}}]]"),
        r#""{\"method\":\"tools/call\"}""#.to_owned(),
        "[]".to_owned(),
        "7".to_owned(),
    ] {
        assert_eq!(refused(&[], &body).1, -32600, "{body}");
    }
    for near in ["Tools/call", "TOOLS/LIST"] {
        let body = format!(r#"{{"id":1,"method":"{near}","params":{{"name":"h"}}}}"#);
        assert_eq!(refused(&[], &body).1, -32601, "{body}");
    }
}

#[test]
fn what_is_not_json_is_refused() {
    let ping = r#"{"id":1,"method":"ping"}"#;
    let wide: Vec<u8> = ping.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for body in [
        b" ".to_vec(),
        wide,
        format!("\u{feff}{ping}").into_bytes(),
        format!("{ping}{ping}").into_bytes(),
        format!("{ping}\n{ping}\n").into_bytes(),
        b"{\"method\":\"ping\",}".to_vec(),
        b"{'method':'ping'}".to_vec(),
        b"{\"method\":\"ping\"/* */}".to_vec(),
        b"{\"method\":\"ping\",\"x\":NaN}".to_vec(),
        b"{\"method\":\"ping\",\"x\":\"\xc0\xa2\"}".to_vec(),
        b"\x1f\x8b\x08\x00".to_vec(),
    ] {
        assert_eq!(refused(&[], &body).1, -32700, "{body:?}");
    }
    for lines in [
        &[("content-encoding", "gzip")][..],
        &[("content-encoding", "identity"), ("content-encoding", "br")],
        &[("content-type", "application/json; charset=utf-7")],
        &[("content-type", "application/json;CharSet=\"UTF-16\"")],
        &[("content-type", "application/json; x=1; charset*=utf-8''utf-7")],
        &[(
            "content-type",
            "application/x-www-form-urlencoded; application/json",
        )],
        &[
            ("content-type", "application/json"),
            ("content-type", "text/plain"),
        ],
    ] {
        assert_eq!(refused(lines, ping).0, 415, "{lines:?}");
    }
    for lines in [
        &[("content-type", "application/json")][..],
        &[
            ("content-type", "Application/JSON; charset=\"UTF-8\""),
            ("content-encoding", "identity"),
        ],
    ] {
        assert_eq!(judged(lines, ping), pass(false, None), "{lines:?}");
    }
}

#[test]
fn headers_must_say_what_the_message_says() {
    let call = r#"{"id":1,"method":"tools/call","params":{"name":"a"}}"#;
    let ping = r#"{"id":1,"method":"ping"}"#;
    for (lines, body) in [
        (&[("mcp-method", "tools/call")][..], ping),
        (&[("mcp-method", "ping")], call),
        (&[("mcp-method", "tools/call"), ("mcp-method", "ping")], call),
        (&[("mcp-method", "tools/call"), ("mcp-name", "h")], call),
        (
            &[("mcp-method", "tools/call"), ("mcp-name", "=?base64?aA==?=")],
            call,
        ),
        (
            &[("mcp-method", "tools/call"), ("mcp-name", "a"), ("mcp-name", "h")],
            call,
        ),
        (
            &[("mcp-method", "tools/call")],
            r#"{"id":1,"params":{"name":"h"}}"#,
        ),
        (&[("mcp-method", "ping")], r#"[{"id":1,"method":"ping"}]"#),
    ] {
        assert_eq!(
            refused(lines, body),
            (400, -32020, mismatch().text),
            "{lines:?} {body}"
        );
    }
    for name in ["a", "=?base64?YQ==?="] {
        let lines = [("mcp-method", "tools/call"), ("mcp-name", name)];
        assert_eq!(judged(&lines, call), pass(false, None), "{name}");
    }
    let foreign = r#"{"id":1,"method":"tools/call","params":{"name":"größe"}}"#;
    let lines = [
        ("mcp-method", "tools/call"),
        ("mcp-name", "=?base64?Z3LDtsOfZQ==?="),
    ];
    assert_eq!(judged(&lines, foreign), pass(false, None));
    let resource = r#"{"id":1,"method":"resources/read","params":{"uri":"u"}}"#;
    let lines = [("mcp-method", "resources/read"), ("mcp-name", "u")];
    assert_eq!(judged(&lines, resource), pass(false, None));
}

#[test]
fn a_batch_with_a_hidden_tool_is_refused_as_a_whole() {
    let body = r#"[{"id":1,"method":"ping"},{"method":"notifications/x"},{"id":2,"method":"tools/call","params":{"name":"h"}},{"id":3,"result":{}}]"#;
    let Verdict::Refuse(status, Some(answer)) = judged(&[], body) else {
        panic!("not refused");
    };
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let codes: Vec<_> = answer
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["id"], &one["error"]["code"]))
        .collect();
    assert_eq!(
        codes,
        [
            (&Value::from(1), &Value::from(-32600)),
            (&Value::from(2), &Value::from(-32602))
        ]
    );
    let unclear = r#"[{"id":1,"method":"ping"},{"id":2,"method":"ping","method":"tools/call"}]"#;
    assert_eq!(refused(&[], unclear).1, -32600);
}
