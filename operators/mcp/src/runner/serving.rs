//! The proxy inside the runner: its settings, its counters as metrics, and how it stops.

use std::net::SocketAddr;
use std::sync::Arc;

use exuvia_runtime::{Health, Metrics};
use mcp_proxy::{Backends, Counters, Origins, Proxy, Settings, Tools};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Error, RunSettings};
use crate::run_config::RunConfig;

/// A proxy that listens.
pub(crate) struct Serving {
    proxy: Proxy,
}

impl Serving {
    /// Listens. Clients wait until [`until`](Self::until).
    pub(crate) async fn bind(
        settings: &RunSettings,
        config: &RunConfig,
        backends: &Backends,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let all = SocketAddr::from(([0, 0, 0, 0], config.proxy_port));
        let defaults = Settings::default();
        let allowed_origins = if config.allowed_origins.is_empty() {
            defaults.allowed_origins.clone()
        } else {
            Origins::new(&config.allowed_origins)?
        };
        let settings = Settings {
            listen: settings.listen.unwrap_or(all),
            allowed_origins,
            max_body_bytes: config.max_body_bytes.unwrap_or(defaults.max_body_bytes),
            endpoint_prefix: config.endpoint_prefix.clone().unwrap_or_default(),
            trust_proxy_headers: config.trust_proxy_headers,
            stateless: config.stateless,
            tools: Tools::new(config.tools_filter.iter().cloned()),
            grace: settings.grace,
            ..defaults
        };
        let proxy = Proxy::bind(settings, backends.clone()).await?;
        metrics.register_collector(ProxyMetrics(proxy.counters()));
        tracing::info!(listen = %proxy.local_addr(), "proxy starts");
        Ok(Self { proxy })
    }

    /// Serves until `stop`; then says that it is not ready, lets calls end, and ends.
    pub(crate) async fn until(self, stop: impl Future<Output = ()> + Send, health: &Health) {
        let stop = async {
            stop.await;
            tracing::info!("stopping: calls in work may end");
            health.draining();
        };
        self.proxy.run(stop).await;
    }
}

/// The proxy's counters under names of their own.
#[derive(Debug)]
struct ProxyMetrics(Arc<Counters>);

impl Collector for ProxyMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let now = self.0.snapshot();
        for (name, help, value) in [
            ("requests", "Requests whose head was read", now.requests),
            ("answered", "Requests that a backend answered", now.answered),
            (
                "refused_origin",
                "Requests refused for their origin (403)",
                now.refused_origin,
            ),
            (
                "refused_size",
                "Requests refused for their size (413)",
                now.refused_size,
            ),
            (
                "refused_tool",
                "Requests that call a tool which clients may not call, or that cannot be read for certain",
                now.refused_tool,
            ),
            (
                "withheld",
                "Answers not passed on, because a list of tools in them could not be filtered",
                now.withheld,
            ),
            (
                "session_gone",
                "Requests of a session whose pod is gone (404)",
                now.session_gone,
            ),
            (
                "unavailable",
                "Requests for which no backend was ready (503)",
                now.unavailable,
            ),
            (
                "lost",
                "Requests whose backend closed the connection (502)",
                now.lost,
            ),
            (
                "client_gone",
                "Clients that left before the answer was complete",
                now.client_gone,
            ),
        ] {
            let counter = ConstCounter::new(value);
            let name = format!("mcp_proxy_{name}");
            let encoder = encoder.encode_descriptor(&name, help, None, counter.metric_type())?;
            counter.encode(encoder)?;
        }
        for (name, help, value) in [
            ("clients", "Connections of clients", now.clients),
            ("calls", "Calls in work", now.calls),
            ("streams", "Open streams without a call", now.streams),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let name = format!("mcp_proxy_{name}");
            let encoder = encoder.encode_descriptor(&name, help, None, gauge.metric_type())?;
            gauge.encode(encoder)?;
        }
        Ok(())
    }
}
