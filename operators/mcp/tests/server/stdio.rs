//! A server that speaks stdio, behind the real bridge and the real proxy: sessions at once, and only the tools that are allowed.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::Duration;

use exuvia_testenv::{Process, until};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use mcp_operator::api::MCPToolConfig;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::harness::{World, is_true, spec};
use crate::kit::MCP_PORT;
use crate::kubelet::{Kubelet, address};
use crate::program::{Operator, ask};

/// How often new pods are looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The bridge of a pod, if its container runs one. It listens at the pod's address, and nothing else is changed.
fn start_bridge(pod: &Pod, directory: &Path) -> Option<Process> {
    let container = &pod.spec.as_ref()?.containers[0];
    let command = container.command.clone().unwrap_or_default();
    let (_, rest) = command
        .split_first()
        .filter(|(_, rest)| rest.first().is_some_and(|first| first == "bridge"))?;
    let listen = format!("--listen=0.0.0.0:{MCP_PORT}");
    let own = format!("--listen={}:{MCP_PORT}", address(pod));
    let mut all = vec!["-i".to_owned(), env!("CARGO_BIN_EXE_mcp-runner").to_owned()];
    all.extend(
        rest.iter()
            .map(|arg| if *arg == listen { own.clone() } else { arg.clone() }),
    );
    all.extend(container.args.clone().unwrap_or_default());
    let log = directory.join(format!("bridge-{}.log", pod.uid().unwrap()));
    Some(Process::run("mcp-runner", "/usr/bin/env", all, log).unwrap())
}

/// Runs the bridges of backend pods, which kwok makes ready, until it is dropped.
struct Bridges(JoinHandle<()>);

impl Drop for Bridges {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Bridges {
    fn start(world: &World) -> Self {
        let pods: Api<Pod> = world.api();
        let directory = world.control_plane.directory().to_owned();
        Self(tokio::spawn(async move {
            let mut bridges = HashMap::new();
            loop {
                let all = pods.list(&ListParams::default()).await;
                for pod in all.into_iter().flatten() {
                    let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
                    if has_address && !bridges.contains_key(&pod.uid()) {
                        bridges.insert(pod.uid(), start_bridge(&pod, &directory));
                    }
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }))
    }
}

/// Not a test of its own: the harness's words on stdout are lines that the bridge must pass over.
#[test]
fn serves_on_stdio_if_it_is_told_to() {
    if std::env::var_os("MCP_TEST_STDIO").is_none() {
        return;
    }
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let params = &request["params"];
        let text = match (request["method"].as_str(), params["name"].as_str()) {
            (Some("initialize"), _) => {
                json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "on stdio", "version": "1"}})
            }
            (Some("tools/list"), _) => {
                let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
                let tools = ["whoami", "wait", "secret"].map(tool);
                json!({"tools": tools})
            }
            (Some("tools/call"), Some(name)) => {
                let file = params["arguments"]["file"].as_str().unwrap_or_default();
                while name == "wait" && !Path::new(file).exists() {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                let text = format!("{name} of {}", std::process::id());
                json!({"content": [{"type": "text", "text": text}]})
            }
            _ => continue, // notifications
        };
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": text});
        // A line of its own, wherever the harness's output has ended.
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{answer}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
    std::process::exit(0);
}

/// The answer to a message, with its head; `None` while nobody answers.
async fn say(proxy: &str, session: Option<&str>, message: &Value) -> Option<(String, Value)> {
    let body = message.to_string();
    let session = session.map_or_else(String::new, |id| format!("Mcp-Session-Id: {id}\r\n"));
    let answer = ask(
        proxy,
        &format!(
            "POST /mcp HTTP/1.1\r\nHost: {proxy}\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nOrigin: https://app.example\r\n{session}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
    )
    .await?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    // JSON, or one event after comments.
    let json = &body[body.find('{')?..=body.rfind('}')?];
    let json = serde_json::from_str(json).unwrap_or_else(|_| panic!("{answer}"));
    Some((head.to_owned(), json))
}

async fn begin(proxy: &str) -> String {
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}});
    until("a session begins", async || {
        let (head, answer) = say(proxy, None, &initialize)
            .await
            .ok_or("no answer".to_owned())?;
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let mut ids = lines.filter(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"));
        ids.next()
            .map(|(_, id)| id.to_owned())
            .ok_or_else(|| format!("{head}\n{answer}"))
    })
    .await
}

fn call(id: u32, tool: &str, file: &Path) -> Value {
    let params = json!({"name": tool, "arguments": {"file": file}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

fn text(answer: &Value) -> &str {
    answer["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
}

async fn tools(proxy: &str, session: &str) -> Option<Vec<String>> {
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let (_, answer) = say(proxy, Some(session), &list).await?;
    let tools = answer["result"]["tools"].as_array()?;
    Some(
        tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect(),
    )
}

#[tokio::test]
async fn a_stdio_server_serves_two_sessions_at_once_and_shows_the_tools_that_are_allowed() {
    let world = World::new("stdio").await;
    let kubelet = Kubelet::running(&world, None);
    let _bridges = Bridges::start(&world);
    let _operator = Operator::start(&world, &[]);
    let configs: Api<MCPToolConfig> = world.api();
    let config = json!({
        "apiVersion": "mcp.exuvia.dev/v1beta1", "kind": "MCPToolConfig", "metadata": {"name": "few"},
        "spec": {"toolsFilter": ["whoami", "wait"]},
    });
    let config = serde_json::from_value(config).unwrap();
    configs.create(&PostParams::default(), &config).await.unwrap();
    let this = std::env::current_exe().unwrap();
    let mut server = spec("example.com/mcp-stdio:1");
    server["transport"] = json!("stdio");
    server["allowedOrigins"] = json!(["https://app.example"]);
    server["toolConfigRef"] = json!({"name": "few"});
    let test = "stdio::serves_on_stdio_if_it_is_told_to";
    server["args"] = json!([
        "/usr/bin/env",
        "MCP_TEST_STDIO=1",
        this,
        "--exact",
        test,
        "--nocapture",
        "--quiet"
    ]);
    world.create_server("a", server).await;
    let verified = world
        .server_when("a", "it is verified", |server| is_true(server, "Verified"))
        .await;
    let info = verified.status.unwrap().server_info.unwrap();
    assert_eq!(info.name.as_deref(), Some("on stdio"));

    let pod = world.pods("a", "proxy").await.pop().unwrap();
    let proxy = kubelet.runner(&pod).await.proxy.clone();
    let (first, second) = (begin(&proxy).await, begin(&proxy).await);
    assert_ne!(first, second);
    assert_eq!(tools(&proxy, &first).await.unwrap(), ["whoami", "wait"]);
    let file = world.control_plane.directory().join("stdio-goes-on");
    let waiting = call(3, "wait", &file);
    // The first session's process is in the middle of a call while the second one answers.
    let (waited, second_pid) = tokio::join!(say(&proxy, Some(&first), &waiting), async {
        let (_, answer) = say(&proxy, Some(&second), &call(4, "whoami", &file))
            .await
            .unwrap();
        std::fs::write(&file, "").unwrap();
        text(&answer).strip_prefix("whoami of ").unwrap().to_owned()
    });
    let waited = waited.unwrap().1;
    let first_pid = text(&waited).strip_prefix("wait of ").unwrap();
    assert_ne!(first_pid, second_pid, "each session has a process of its own");
    let (_, refused) = say(&proxy, Some(&first), &call(5, "secret", &file))
        .await
        .unwrap();
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(refused["error"]["message"], "unknown tool: secret");

    // Another list of tools is another roll-out of the proxy, and the backend stays as it is.
    let backend = world.pods("a", "backend").await.pop().unwrap().uid();
    let more = json!({"spec": {"toolsFilter": ["whoami", "secret"]}});
    configs
        .patch("few", &PatchParams::default(), &Patch::Merge(more))
        .await
        .unwrap();
    until("a proxy shows the other tools", async || {
        for pod in world.pods("a", "proxy").await {
            let proxy = kubelet.runner(&pod).await.proxy.clone();
            let shown = tools(&proxy, &first).await;
            if shown.is_some_and(|shown| shown == ["whoami", "secret"]) {
                let (_, answer) = say(&proxy, Some(&first), &call(6, "secret", &file))
                    .await
                    .unwrap();
                assert_eq!(
                    text(&answer),
                    format!("secret of {first_pid}"),
                    "the session goes on"
                );
                return Ok(());
            }
        }
        Err("only the first ones".to_owned())
    })
    .await;
    assert_eq!(world.pods("a", "backend").await.pop().unwrap().uid(), backend);
}
