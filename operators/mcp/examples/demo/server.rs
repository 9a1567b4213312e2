//! The MCP server of the demo, made with the official SDK: two tools, for clients with and without sessions.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long calls may go on after the signal to stop. Streams are cut then.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone)]
struct Tools {
    name: String,
    version: String,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("demo", self.version.clone());
        info
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object"}).as_object().cloned().unwrap_or_default();
        let tools = [
            ("whoami", "which pod this is"),
            ("version", "which version it runs"),
        ];
        let tools = tools.map(|(name, about)| Tool::new(name, about, schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let text = match request.name.as_ref() {
            "whoami" => self.name.clone(),
            "version" => self.version.clone(),
            other => return Err(ErrorData::invalid_params(format!("unknown tool {other}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

type Service = StreamableHttpService<Tools, LocalSessionManager>;

/// Serves until SIGTERM.
pub(crate) async fn serve(listen: SocketAddr, name: String, version: String) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let tools = Tools { name, version };
    let service: Service = StreamableHttpService::new(
        move || Ok(tools.clone()),
        Arc::new(LocalSessionManager::default()),
        // The proxy has checked the origin, and addresses the pod.
        StreamableHttpServerConfig::default().disable_allowed_hosts(),
    );
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                connections.spawn(connection(stream, service.clone(), stopped.clone()));
            }
            _ = connections.join_next(), if !connections.is_empty() => {}
            _ = terminated.recv() => break,
        }
    }
    drop(listener);
    stop.send_replace(true);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, all_ended).await;
    Ok(())
}

async fn connection(stream: TcpStream, service: Service, mut stopped: watch::Receiver<bool>) {
    let answer = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.handle(request).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
    let mut serving = pin!(serving);
    tokio::select! {
        _ = &mut serving => return,
        _ = stopped.wait_for(|stop| *stop) => serving.as_mut().graceful_shutdown(),
    }
    let _ = serving.await;
}
