//! A small MCP server made with the official SDK, for both eras, over HTTP and stdio.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt;
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::json;

use crate::harness::Server;

/// Its tools: `whoami` says which server it is, `steps` reports progress three times, `wait` waits until it is cancelled and
/// then writes the file that it was told.
#[derive(Clone)]
pub(crate) struct Echo {
    pub(crate) name: String,
}

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({ "type": "object" }).as_object().cloned().unwrap();
        let tools =
            ["whoami", "steps", "wait"].map(|name| Tool::new(name, "a tool for tests", schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref()?.get(name)?;
            Some(value.as_str()?.to_owned())
        };
        let text = match request.name.as_ref() {
            "whoami" => self.name.clone(),
            "steps" => {
                if let Some(token) = context.meta.get_progress_token() {
                    for step in 1..=3 {
                        let progress = ProgressNotificationParam::new(token.clone(), f64::from(step));
                        context.peer.notify_progress(progress).await.unwrap();
                    }
                }
                "three steps".to_owned()
            }
            "wait" => {
                std::fs::write(argument("started").unwrap(), "").unwrap();
                tokio::select! {
                    () = context.ct.cancelled() => std::fs::write(argument("cancelled").unwrap(), "").unwrap(),
                    () = tokio::time::sleep(Duration::from_secs(600)) => {}
                }
                "waited".to_owned()
            }
            other => return Err(ErrorData::invalid_params(format!("unknown tool {other}"), None)),
        };
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

/// The server over HTTP, for both eras.
pub(crate) async fn over_http(name: &str) -> Server {
    let echo = Echo {
        name: name.to_owned(),
    };
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(
        move || Ok(echo.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    Server::start(move |request| {
        let service = service.clone();
        async move {
            let (parts, body) = service.handle(request).await.into_parts();
            http::Response::from_parts(parts, body.boxed_unsync())
        }
    })
    .await
}

/// The command that runs this very binary as a server on stdio.
pub(crate) fn stdio_command() -> Vec<String> {
    let this = std::env::current_exe().unwrap();
    let test = "echo::serves_on_stdio_if_it_is_told_to";
    [
        "env",
        "MCP_TEST_STDIO=1",
        this.to_str().unwrap(),
        "--exact",
        test,
        "--nocapture",
        "--quiet",
    ]
    .map(str::to_owned)
    .into()
}

/// Not a test of its own: the harness's words on stdout are lines that the bridge must pass over.
#[tokio::test]
async fn serves_on_stdio_if_it_is_told_to() {
    if std::env::var_os("MCP_TEST_STDIO").is_none() {
        return;
    }
    let name = format!("process {}", std::process::id());
    let transport = rmcp::transport::stdio();
    if let Ok(serving) = (Echo { name }).serve(transport).await {
        let _ = serving.waiting().await;
    }
    std::process::exit(0);
}
