//! The bridge: servers that speak stdio, with the official SDK's client and by hand.

use std::{net::SocketAddr, time::Duration};

use http::{Method, StatusCode};
use mcp_proxy::{
    Settings,
    bridge::{Bridge, BridgeSettings},
};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    clients::{call, connect},
    echo::stdio_command,
    harness::{Client, Running, get, pod, post, request, soon, until},
    memory::command,
};

struct RunningBridge {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl RunningBridge {
    async fn start(settings: BridgeSettings) -> Self {
        let bridge = Bridge::bind(BridgeSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..settings
        })
        .await
        .unwrap();
        let (stop, stopped) = oneshot::channel();
        Self {
            address: bridge.local_addr(),
            stop: Some(stop),
            task: tokio::spawn(bridge.run(async {
                let _ = stopped.await;
            })),
        }
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        soon("the bridge ends", self.task).await.unwrap();
    }
}

fn echo() -> BridgeSettings {
    BridgeSettings::new(stdio_command())
}

/// A server of one line of shell.
fn shell(script: &str) -> BridgeSettings {
    BridgeSettings::new(["sh", "-c", script])
}

fn is_running(process: &str) -> bool {
    let id = process.strip_prefix("process ").unwrap();
    std::path::Path::new("/proc").join(id).exists()
}

const JSON: (&str, &str) = ("accept", "application/json, text/event-stream");

fn initialize() -> String {
    json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    })
    .to_string()
}

async fn begin(address: SocketAddr) -> String {
    let mut answer = post(address, "/mcp", &[JSON], &initialize()).await;
    assert_eq!(answer.status(), StatusCode::OK, "{:?}", answer.body().await);
    let id = answer.header("mcp-session-id").unwrap().to_owned();
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let answer = post(address, "/mcp", &[("mcp-session-id", &id)], initialized).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    id
}

#[tokio::test]
async fn two_sessions_at_once_have_a_child_each_through_the_proxy() {
    let bridge = RunningBridge::start(echo()).await;
    let proxy = Running::start(Settings::default(), [pod(0, bridge.address)]).await;
    let first = connect(&proxy.url("/mcp"), false).await;
    let second = connect(&proxy.url("/mcp"), false).await;
    for client in [&first, &second] {
        assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
    }
    let (one, two) = (call(&first, "whoami").await, call(&second, "whoami").await);
    assert_ne!(one, two);
    let (again_two, again_one) = tokio::join!(call(&second, "whoami"), call(&first, "whoami"));
    assert_eq!((again_one, again_two), (one.clone(), two.clone()));
    assert_eq!(call(&first, "steps").await, "three steps");

    // The SDK's client deletes its session when it ends.
    first.cancel().await.unwrap();
    until("its child ends", || !is_running(&one)).await;
    assert!(is_running(&two));
    assert_eq!(call(&second, "whoami").await, two);
    drop(proxy);
    bridge.stop().await;
    assert!(
        !is_running(&two),
        "a bridge that has ended leaves no child behind"
    );
}

#[tokio::test]
async fn clients_without_sessions_call_tools_too() {
    let bridge = RunningBridge::start(echo()).await;
    let url = format!("http://{}/mcp", bridge.address);
    let client = connect(&url, true).await;
    assert_eq!(client.list_all_tools().await.unwrap().len(), 3);
    let served_by = call(&client, "whoami").await;
    until("the child ends with its request", || !is_running(&served_by)).await;
    assert_ne!(call(&client, "whoami").await, served_by);
    assert_eq!(call(&client, "steps").await, "three steps");
    bridge.stop().await;
}

/// A server that logs about a call after its answer: that is not for the next client.
#[tokio::test]
async fn what_a_child_says_after_its_answer_reaches_no_other_client() {
    let script = r#"n=0
while read -r line; do
    if [ $n = 1 ]; then echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"secret of the first"}}'; fi
    echo '{"jsonrpc":"2.0","id":1,"result":{}}'
    n=1
    echo '{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"secret of the first"}}'
done"#;
    let bridge = RunningBridge::start(shell(script)).await;
    let headers = [
        JSON,
        ("mcp-protocol-version", "2026-07-28"),
        ("mcp-method", "ping"),
    ];
    for _ in 0..5 {
        let mut answer = post(bridge.address, "/mcp", &headers, &modern(1, "ping", json!({}))).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let body = answer.body().await;
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains(r#""result":{}"#), "{body}");
        assert!(!body.contains("secret"), "{body}");
    }
    bridge.stop().await;
}

fn modern(id: u64, method: &str, mut params: Value) -> String {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 5,
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

#[tokio::test]
async fn closing_the_response_cancels_the_call_in_the_child() {
    let directory = std::env::temp_dir().join(format!("mcp-bridge-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let bridge = RunningBridge::start(echo()).await;
    let proxy = Running::start(Settings::default(), [pod(0, bridge.address)]).await;
    for (n, address) in [bridge.address, proxy.address].into_iter().enumerate() {
        let (started, cancelled) = (
            directory.join(format!("started{n}")),
            directory.join(format!("cancelled{n}")),
        );
        let arguments = json!({ "started": started, "cancelled": cancelled });
        let body = modern(1, "tools/call", json!({ "name": "wait", "arguments": arguments }));
        let headers = [
            JSON,
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "wait"),
        ];
        let call = tokio::spawn(Client::send(
            address,
            request(Method::POST, "/mcp", &headers, body),
        ));
        until("the call is in work", || started.exists()).await;
        call.abort(); // the connection goes with it, before the first byte of the answer
        until("the child knows", || cancelled.exists()).await;
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
async fn the_era_without_sessions_has_its_own_statuses() {
    let bridge = RunningBridge::start(echo()).await;
    let headers = |method: &'static str| {
        [
            JSON,
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
        ]
    };
    let mut unknown = post(
        bridge.address,
        "/mcp",
        &headers("no/such"),
        &modern(1, "no/such", json!({})),
    )
    .await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(unknown.json().await["error"]["code"], -32601);
    let mut lie = post(
        bridge.address,
        "/mcp",
        &headers("tools/list"),
        &modern(1, "tools/call", json!({})),
    )
    .await;
    assert_eq!(lie.status(), StatusCode::BAD_REQUEST);
    assert_eq!(lie.json().await["error"]["code"], -32020);
    assert_eq!(
        get(bridge.address, "/mcp", &headers("x")).await.status(),
        StatusCode::METHOD_NOT_ALLOWED
    );

    let called = modern(7, "tools/call", json!({ "name": "steps", "arguments": {} }));
    let mut steps = post(bridge.address, "/mcp", &headers("tools/call"), &called).await;
    assert_eq!(steps.header("content-type"), Some("text/event-stream"));
    let body = steps.body().await;
    let body = String::from_utf8_lossy(&body);
    assert_eq!(body.matches("notifications/progress").count(), 3, "{body}");
    assert!(
        body.trim_end().ends_with('}') && body.contains(r#""id":7"#),
        "{body}"
    );
}

#[tokio::test]
async fn a_session_is_needed_known_and_ended() {
    let bridge = RunningBridge::start(echo()).await;
    let ping = r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
    assert_eq!(
        post(bridge.address, "/mcp", &[JSON], ping).await.status(),
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        get(bridge.address, "/mcp", &[JSON]).await.status(),
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        get(bridge.address, "/other", &[]).await.status(),
        StatusCode::NOT_FOUND
    );
    assert_eq!(
        post(bridge.address, "/mcp", &[JSON], "[]").await.status(),
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        post(bridge.address, "/mcp", &[JSON], "{").await.status(),
        StatusCode::BAD_REQUEST
    );
    let foreign = [JSON, ("origin", "http://evil.example")];
    assert_eq!(
        post(bridge.address, "/mcp", &foreign, ping).await.status(),
        StatusCode::FORBIDDEN
    );
    let unknown = [("mcp-session-id", "0123")];
    assert_eq!(
        post(bridge.address, "/mcp", &unknown, ping).await.status(),
        StatusCode::NOT_FOUND
    );

    let id = begin(bridge.address).await;
    let session = [JSON, ("mcp-session-id", id.as_str())];
    let spread = "{\n  \"jsonrpc\": \"2.0\",\r\n  \"id\": \"x\",\n  \"method\": \"ping\"\n}";
    assert_eq!(
        post(bridge.address, "/mcp", &session, spread).await.json().await["id"],
        "x"
    );
    let mut stream = get(bridge.address, "/mcp", &session).await;
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    let deleted = Client::send(bridge.address, request(Method::DELETE, "/mcp", &session, ""))
        .await
        .unwrap();
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert_eq!(stream.body().await, "", "its stream ends with it");
    let mut gone = post(bridge.address, "/mcp", &session, ping).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    let gone = gone.json().await;
    assert_eq!((&gone["error"]["code"], &gone["id"]), (&json!(-32001), &json!(3)));
}

#[tokio::test]
async fn what_a_server_says_by_itself_goes_to_the_stream() {
    // Answers the first line, and then speaks unasked.
    let script = r#"read line; echo 'not JSON'; echo '{"jsonrpc":"2.0","id":0,"result":{}}'; read line
        echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; cat >/dev/null"#;
    let bridge = RunningBridge::start(shell(script)).await;
    let id = begin(bridge.address).await;
    let mut stream = get(bridge.address, "/mcp", &[JSON, ("mcp-session-id", &id)]).await;
    let event = stream.read_until("\n\n").await;
    assert!(event.contains("notifications/tools/list_changed"), "{event}");
}

#[tokio::test]
async fn a_child_that_ends_ends_its_session_and_one_that_cannot_start_is_said() {
    let script = r#"read line; echo '{"jsonrpc":"2.0","id":0,"result":{}}'; read line; read line; exit 7"#;
    let bridge = RunningBridge::start(shell(script)).await;
    let id = begin(bridge.address).await;
    let session = [JSON, ("mcp-session-id", id.as_str())];
    let ping = r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
    let mut lost = post(bridge.address, "/mcp", &session, ping).await;
    assert_eq!(lost.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(lost.json().await["id"], 3);
    assert_eq!(
        post(bridge.address, "/mcp", &session, ping).await.status(),
        StatusCode::NOT_FOUND
    );

    let missing = RunningBridge::start(BridgeSettings::new(["/no/such/program"])).await;
    let mut answer = post(missing.address, "/mcp", &[JSON], &initialize()).await;
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert!(!answer.json().await.to_string().contains("/no/such"));
}

#[tokio::test]
async fn children_are_bounded_and_idle_sessions_end() {
    let settings = BridgeSettings {
        max_children: 1,
        idle: Duration::from_secs(5),
        ..echo()
    };
    let bridge = RunningBridge::start(settings).await;
    let id = begin(bridge.address).await;
    // An open stream is use.
    let stream = get(bridge.address, "/mcp", &[JSON, ("mcp-session-id", &id)]).await;
    let full = post(bridge.address, "/mcp", &[JSON], &initialize()).await;
    assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(full.header("retry-after"), Some("1"));
    drop(stream);
    soon("the idle session makes room", async {
        while post(bridge.address, "/mcp", &[JSON], &initialize())
            .await
            .status()
            != StatusCode::OK
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let gone = post(
        bridge.address,
        "/mcp",
        &[JSON, ("mcp-session-id", &id)],
        "{\"id\":1,\"method\":\"ping\"}",
    )
    .await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_command_serves_and_takes_its_children_along() {
    let child = stdio_command();
    let mut args = vec!["--"];
    args.extend(child.iter().map(String::as_str));
    let (mut bridge, address) = command(env!("CARGO_BIN_EXE_mcp-bridge"), &args).await;
    let client = connect(&format!("http://{address}/mcp"), false).await;
    let served_by = call(&client, "whoami").await;
    assert!(is_running(&served_by));
    let id = i32::try_from(bridge.id().unwrap()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(id).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let status = soon("the command ends", bridge.wait()).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(!is_running(&served_by));
}
