//! The small HTTP server: metrics, health and the log level.

use std::{
    convert::Infallible, error::Error as StdError, future::Future, io, net::SocketAddr, sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use crate::{Error, Health, LogLevel, Metrics};

/// Two probes and a few scrapers need a handful.
const CONNECTIONS: usize = 64;
/// For the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// For everything: one connection is one request, which takes milliseconds, so a slow client holds its place no longer.
const WHOLE: Duration = Duration::from_secs(10);
/// Directives fit into this many times over.
const LEVEL_BYTES: usize = 4096;
/// When nothing can be accepted (no file descriptors, say), an attempt every so often.
const BREATH: Duration = Duration::from_millis(100);

const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Listens on `host:port`. Without IPv6, `[::]` means all IPv4 addresses.
pub async fn bind(address: &str) -> Result<TcpListener, Error> {
    let listener = match (TcpListener::bind(address).await, address.strip_prefix("[::]:")) {
        (Err(error), Some(port)) if error.kind() == io::ErrorKind::Unsupported || no_ipv6(&error) => {
            TcpListener::bind(format!("0.0.0.0:{port}")).await
        }
        (listener, _) => listener,
    };
    listener.map_err(|source| Error::Listen {
        address: address.to_owned(),
        source,
    })
}

/// The kernel was started without it, or no interface has an address.
fn no_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
    )
}

/// Answers until `stop`: `/metrics`, `/livez` (also as `/healthz`), `/readyz` (`?verbose` lists the checks) and `/log-level`,
/// which can be `PUT` from this machine only, which includes `kubectl port-forward`.
pub async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Metrics,
    log_level: LogLevel,
    stop: impl Future<Output = ()>,
) {
    let site = Arc::new(Site {
        health,
        metrics,
        log_level,
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let next = async {
            // When all places are taken, new connections wait in the kernel's queue.
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => {
                let site = Arc::clone(&site);
                connections.spawn(async move {
                    site.converse(stream, peer).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

struct Site {
    health: Health,
    metrics: Metrics,
    log_level: LogLevel,
}

type Answer = Response<Full<Bytes>>;

impl Site {
    async fn converse(&self, stream: TcpStream, peer: SocketAddr) {
        let answer =
            service_fn(async |request| Ok::<_, Infallible>(self.answer::<Incoming>(request, peer).await));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // A client that goes away or is too slow is its own affair.
        if let Ok(Err(error)) = tokio::time::timeout(WHOLE, connection).await {
            tracing::debug!(%peer, %error, "a connection failed");
        }
    }

    async fn answer<B>(&self, request: Request<B>, peer: SocketAddr) -> Answer
    where
        B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + Send,
    {
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        match (request.uri().path(), request.method()) {
            ("/metrics", _) if reads => {
                let mut answer = text(StatusCode::OK, self.metrics.encode());
                answer.headers_mut().insert(header::CONTENT_TYPE, OPEN_METRICS);
                answer
            }
            ("/livez" | "/healthz", _) if reads => {
                self.health_as(self.health.is_live(), request.uri().query())
            }
            ("/readyz", _) if reads => self.health_as(self.health.is_ready(), request.uri().query()),
            ("/log-level", _) if reads => text(StatusCode::OK, format!("{}\n", self.log_level.get())),
            ("/log-level", &Method::PUT) => self.set_log_level(request.into_body(), peer).await,
            _ => text(
                StatusCode::NOT_FOUND,
                "no such path: /metrics, /livez, /readyz and /log-level are here\n",
            ),
        }
    }

    fn health_as(&self, good: bool, query: Option<&str>) -> Answer {
        let code = if good {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let verbose = query.is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
        // A client that is refused wants to know why.
        let body = if good && !verbose {
            "ok\n".to_owned()
        } else {
            self.health.describe()
        };
        text(code, body)
    }

    async fn set_log_level<B>(&self, body: B, peer: SocketAddr) -> Answer
    where
        B: Body<Data: Send, Error: Into<Box<dyn StdError + Send + Sync>>> + Send,
    {
        if !peer.ip().to_canonical().is_loopback() {
            return text(
                StatusCode::FORBIDDEN,
                "the log level is changed from this machine only: use kubectl port-forward\n",
            );
        }
        let Ok(body) = Limited::new(body, LEVEL_BYTES).collect().await else {
            return text(
                StatusCode::BAD_REQUEST,
                "send a level or directives, and no more than 4 KiB\n",
            );
        };
        let body = body.to_bytes();
        match self.log_level.set(&String::from_utf8_lossy(&body)) {
            Ok(()) => {
                let log_level = self.log_level.get();
                tracing::info!(log_level, "log level changed");
                text(StatusCode::OK, format!("{log_level}\n"))
            }
            Err(error) => text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        }
    }
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, PLAIN);
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The answer's code and text to a request from this address.
    async fn ask(site: &Site, method: Method, path: &str, body: &str, peer: &str) -> (u16, String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let answer = site
            .answer(request, SocketAddr::new(peer.parse().unwrap(), 4711))
            .await;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    fn site() -> Site {
        Site {
            health: Health::new(),
            metrics: Metrics::new("test"),
            log_level: LogLevel::for_nobody("info"),
        }
    }

    #[tokio::test]
    async fn the_log_level_is_read_from_anywhere_and_changed_from_this_machine_only() {
        let site = site();
        for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            let answer = ask(&site, Method::PUT, "/log-level", "debug", peer).await;
            assert_eq!(answer, (200, "debug\n".to_owned()), "{peer}");
        }
        for peer in ["10.0.0.7", "fd00::7", "::ffff:10.0.0.7"] {
            let (code, text) = ask(&site, Method::PUT, "/log-level", "trace", peer).await;
            assert_eq!(code, 403, "{peer}");
            assert!(text.contains("kubectl port-forward"), "{text}");
            assert_eq!(
                ask(&site, Method::GET, "/log-level", "", peer).await,
                (200, "debug\n".to_owned())
            );
        }
    }

    #[tokio::test]
    async fn an_invalid_level_is_refused_in_one_sentence_and_changes_nothing() {
        let site = site();
        for bad in ["", "loud", "exuvia=loud", &"a,".repeat(3000)] {
            let (code, text) = ask(&site, Method::PUT, "/log-level", bad, "::1").await;
            assert_eq!((code, text.lines().count()), (400, 1), "{text}");
        }
        assert_eq!(site.log_level.get(), "info");
        let directives = "warn,exuvia_write=trace";
        let answer = ask(&site, Method::PUT, "/log-level", directives, "::1").await;
        assert_eq!(answer, (200, format!("{directives}\n")));
    }

    #[tokio::test]
    async fn nothing_else_is_served() {
        let site = site();
        for (method, path) in [
            (Method::GET, "/"),
            (Method::GET, "/metrics/x"),
            (Method::POST, "/metrics"),
            (Method::DELETE, "/log-level"),
        ] {
            assert_eq!(ask(&site, method, path, "", "::1").await.0, 404, "{path}");
        }
    }

    #[tokio::test]
    async fn health_is_a_code_for_machines_and_a_list_for_people() {
        let site = site();
        let (code, text) = ask(&site, Method::GET, "/readyz", "", "10.0.0.7").await;
        assert_eq!((code, text.as_str()), (503, "[-] runtime: not running yet\n"));
        for path in ["/livez", "/healthz"] {
            let answer = ask(&site, Method::GET, path, "", "10.0.0.7").await;
            assert_eq!(answer, (200, "ok\n".to_owned()));
        }
        site.health.running();
        let (code, text) = ask(&site, Method::GET, "/readyz?verbose", "", "10.0.0.7").await;
        assert_eq!((code, text.as_str()), (200, "[+] runtime: running\n"));
        let answer = ask(&site, Method::GET, "/readyz", "", "10.0.0.7").await;
        assert_eq!(answer, (200, "ok\n".to_owned()));
    }
}
