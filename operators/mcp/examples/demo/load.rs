//! Clients: one that lists and calls tools, then many of them while the image is changed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use exuvia_testenv::Kubelet;
use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::RunningService;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientLifecycleMode, ClientServiceExt, RoleClient};
use serde_json::json;
use tokio::task::JoinSet;

use crate::service::Service;
use crate::share::{self, Share};
use crate::stage::{Stage, image, wait};
use crate::{done, say};

pub(crate) const NAMESPACE: &str = "demo";
pub(crate) const SERVER: &str = "tools";
/// Longer than any call here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a client in a session waits before it takes the session for lost.
const SESSION_PATIENCE: Duration = Duration::from_secs(2);

type McpClient = RunningService<RoleClient, ()>;

/// What came of the image bump.
pub(crate) struct Bumped {
    new_calls: Tally,
    in_sessions: Tally,
    seconds: f64,
    share: Share,
}

impl fmt::Display for Bumped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, value: &str| writeln!(f, "    {what:<48}{value}");
        row(f, "new calls during the image bump", &self.new_calls.to_string())?;
        row(
            f,
            "calls of 2 clients that stay in their session",
            &self.in_sessions.to_string(),
        )?;
        row(
            f,
            "of these, without an answer within 2 s",
            &self.in_sessions.unanswered.to_string(),
        )?;
        row(
            f,
            "image bump, until the MCPServer is ready",
            &format!("{:.1} s", self.seconds),
        )?;
        row(f, "of it, the runner's own share", &self.share.to_string())
    }
}

/// How many calls ended well, and which versions answered.
#[derive(Clone, Debug, Default)]
struct Tally {
    failed: usize,
    /// Of those that failed.
    unanswered: usize,
    by_version: BTreeMap<String, usize>,
    first_failure: Option<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ok: usize = self.by_version.values().sum();
        write!(f, "{ok} ok, {} failed", self.failed)?;
        let versions: Vec<String> = self
            .by_version
            .iter()
            .map(|(version, calls)| format!("{calls} by version {version}"))
            .collect();
        write!(f, " ({})", versions.join(", "))?;
        match &self.first_failure {
            Some(failure) => write!(f, "; the first failure: {failure}"),
            None => Ok(()),
        }
    }
}

impl Tally {
    fn count(&mut self, answer: anyhow::Result<String>) {
        match answer {
            Ok(version) => *self.by_version.entry(version).or_default() += 1,
            Err(error) => {
                self.failed += 1;
                self.first_failure.get_or_insert(format!("{error:#}"));
            }
        }
    }
}

/// The server of the story: it serves until this is dropped.
pub(crate) struct Served {
    _kubelet: Kubelet,
    _service: Service,
    /// Where clients connect to.
    pub(crate) url: String,
}

pub(crate) async fn tell(stage: &Stage, clients: usize) -> anyhow::Result<(Bumped, Served)> {
    let kubelet = stage.namespace(NAMESPACE).await?;
    let started = Instant::now();
    stage
        .create_server(NAMESPACE, SERVER, "example.com/tools:1", 2)
        .await?;
    let server = stage.server_when(NAMESPACE, SERVER, "Ready").await?;
    let status = server.status.unwrap_or_default();
    let info = status.server_info.unwrap_or_default();
    done(&format!(
        "MCPServer {SERVER} is Ready after {:.1} s: 1 proxy, 2 backend pods; the handshake was answered by {} {} ({})",
        started.elapsed().as_secs_f64(),
        info.name.unwrap_or_default(),
        info.version.unwrap_or_default(),
        info.protocol_version.unwrap_or_default(),
    ));
    let service = Service::start(stage.client.clone(), NAMESPACE, SERVER).await?;
    let url = format!("http://{}/mcp", service.address);
    for is_sessionless in [false, true] {
        show_client(&url, is_sessionless).await?;
    }

    let new_calls: Arc<Mutex<Tally>> = Arc::default();
    let in_sessions: Arc<Mutex<Tally>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = JoinSet::new();
    for number in 0..clients {
        load.spawn(make_new_calls(
            url.clone(),
            number % 2 == 1,
            Arc::clone(&stop),
            Arc::clone(&new_calls),
        ));
    }
    for _ in 0..2 {
        let client = connect(&url, false).await?;
        load.spawn(call_in_session(
            client,
            url.clone(),
            Arc::clone(&stop),
            Arc::clone(&in_sessions),
        ));
    }
    let bumped_at = SystemTime::now();
    let bumped = Instant::now();
    stage
        .patch_server(
            NAMESPACE,
            SERVER,
            json!({"spec": {"image": "example.com/tools:2"}}),
        )
        .await?;
    let share = share::measure(stage, &kubelet, NAMESPACE, SERVER, "2", bumped_at).await?;
    stage.server_when(NAMESPACE, SERVER, "Ready").await?;
    let seconds = bumped.elapsed().as_secs_f64();
    wait("the backend has the new image", async || {
        let backend = stage.backend(NAMESPACE, SERVER).await?;
        Ok(backend.filter(|backend| image(backend) == "tools:2"))
    })
    .await?;
    // The old proxy is still ending its calls.
    wait("the old proxy is gone", async || {
        let pods = stage.proxies(NAMESPACE, SERVER).await?;
        Ok((pods.len() == 1).then_some(()))
    })
    .await?;
    stop.store(true, Ordering::Release);
    while let Some(ended) = load.join_next().await {
        ended.context("a client broke")?;
    }
    let taken = |tally: &Mutex<Tally>| tally.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let bumped = Bumped {
        new_calls: taken(&new_calls),
        in_sessions: taken(&in_sessions),
        seconds,
        share,
    };
    done(&format!(
        "The image is changed from 1 to 2 while {clients} clients make new calls: {}",
        bumped.new_calls
    ));
    Ok((
        bumped,
        Served {
            _kubelet: kubelet,
            _service: service,
            url,
        },
    ))
}

async fn show_client(url: &str, is_sessionless: bool) -> anyhow::Result<()> {
    let client = connect(url, is_sessionless).await?;
    let tools = client.list_all_tools().await?;
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    let pod = call(&client, "whoami").await?;
    let era = if is_sessionless {
        "without a session (2026-07-28)"
    } else {
        "with a session"
    };
    say(&format!(
        "    a client {era:<32} lists {}; whoami = {pod}\n",
        names.join(", ")
    ));
    client.cancel().await?;
    Ok(())
}

/// A new client for each call: connect, list, call, leave.
async fn make_new_calls(url: String, is_sessionless: bool, stop: Arc<AtomicBool>, tally: Arc<Mutex<Tally>>) {
    while !stop.load(Ordering::Acquire) {
        let called = tokio::time::timeout(PATIENCE, async {
            let client = connect(&url, is_sessionless).await?;
            client.list_all_tools().await?;
            let version = call(&client, "version").await?;
            let _ = client.cancel().await;
            Ok(version)
        })
        .await;
        let answer = called.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within 30 s")));
        tally.lock().unwrap_or_else(PoisonError::into_inner).count(answer);
    }
}

/// One client that stays. Its session ends with its pod; it begins a new one after a call that failed.
async fn call_in_session(
    mut client: McpClient,
    url: String,
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
) {
    while !stop.load(Ordering::Acquire) {
        let called = tokio::time::timeout(SESSION_PATIENCE, call(&client, "version")).await;
        let is_unanswered = called.is_err();
        let answer = called.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within 2 s")));
        let is_over = answer.is_err();
        {
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.unanswered += usize::from(is_unanswered);
            tally.count(answer);
        }
        if is_over && let Ok(again) = connect(&url, false).await {
            client = again;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let _ = client.cancel().await;
}

async fn connect(url: &str, is_sessionless: bool) -> anyhow::Result<McpClient> {
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let transport = StreamableHttpClientTransport::from_config(config);
    let lifecycle = if is_sessionless {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    ().serve_with_lifecycle(transport, lifecycle)
        .await
        .context("cannot connect")
}

async fn call(client: &McpClient, tool: &'static str) -> anyhow::Result<String> {
    let answer = client.call_tool(CallToolRequestParams::new(tool)).await?;
    let answer = serde_json::to_value(answer)?;
    let text = answer["content"][0]["text"].as_str();
    text.map(str::to_owned).context("the answer has no text")
}
