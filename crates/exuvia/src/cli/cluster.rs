//! The cluster that a command works on: kubeconfig, context, a client that never waits without end.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::{anyhow, bail};
use exuvia_runtime::servers::url_without_password;
use exuvia_write::Writer;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Client, Config};

use super::args::ClusterArgs;

/// A connection, and what it was made from.
pub(super) struct Cluster {
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) writer: Writer,
}

/// Which server to ask and as which user, from a kubeconfig or from inside a cluster.
pub(super) async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    if let Some(path) = kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(|error| {
            let (path, why) = (path.display(), unreadable(&error));
            anyhow!("invalid --kubeconfig \"{path}\": expected a kubeconfig file, but {why}")
        })?;
        if is_empty(&read) {
            let path = path.display();
            bail!("invalid --kubeconfig \"{path}\": expected a kubeconfig file, but {EMPTY}");
        }
        return choose(read, &options).await;
    }
    // Where KUBECONFIG is set, its fault is what to report: kube's own inference would go on to the pod's service account.
    if let Some(paths) = std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        let mut merged = Kubeconfig::default();
        for path in std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()) {
            let read = Kubeconfig::read_from(&path).and_then(|read| std::mem::take(&mut merged).merge(read));
            merged = read.map_err(|error| {
                let (path, why) = (path.display(), unreadable(&error));
                anyhow!(
                    "invalid KUBECONFIG \"{path}\": expected a kubeconfig file, but {why}; correct the environment variable, \
                     or give --kubeconfig"
                )
            })?;
        }
        if is_empty(&merged) {
            bail!(
                "invalid KUBECONFIG \"{}\": expected a kubeconfig file, but {EMPTY}; correct the environment variable, or give \
                 --kubeconfig",
                paths.display()
            );
        }
        return choose(merged, &options).await;
    }
    let default = "~/.kube/config";
    match Kubeconfig::read() {
        Ok(read) if context.is_some() || !read.contexts.is_empty() => choose(read, &options).await,
        Err(KubeconfigError::ReadConfig(error, _))
            if context.is_some() && error.kind() == std::io::ErrorKind::NotFound =>
        {
            Err(anyhow!(
                "invalid --context {:?}: no kubeconfig was found (looked for {default}); set KUBECONFIG, or give --kubeconfig",
                context.unwrap_or_default()
            ))
        }
        Err(error) if context.is_some() => Err(anyhow!(
            "invalid --context: expected a context of {default}, but {}",
            unreadable(&error)
        )),
        // A broken file is the fault to report, unless this is a pod, which needs no kubeconfig.
        Err(error @ KubeconfigError::Parse(_)) => Config::incluster().map_err(|_| {
            let why = unreadable(&error);
            anyhow!("invalid kubeconfig {default:?}: {why}")
        }),
        _ => Config::incluster().map_err(|_| {
            anyhow!("no cluster is configured: set KUBECONFIG, give --kubeconfig, or run inside a cluster")
        }),
    }
}

/// What is wrong with a kubeconfig that [`is_empty`].
const EMPTY: &str = "it has no clusters and no contexts";

/// Whether it names nothing: kube reads an empty file without an error.
fn is_empty(kubeconfig: &Kubeconfig) -> bool {
    kubeconfig.clusters.is_empty() && kubeconfig.contexts.is_empty()
}

/// What is wrong with a kubeconfig, and where. Its content is not quoted: it holds tokens and passwords.
fn unreadable(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => {
            let why = error.to_string();
            let why = why.split(" (os error").next().unwrap_or_default();
            format!("it cannot be read: {why}")
        }
        KubeconfigError::Parse(error) => {
            let place = error
                .location()
                .map(|at| format!("at line {}, column {}: ", at.line(), at.column()));
            format!(
                "{}{} (its content is not shown, because it may hold a secret)",
                place.unwrap_or_default(),
                expected(error.without_snippet())
            )
        }
        other => exuvia_write::unusable_kubeconfig(other).to_owned(),
    }
}

/// What the parser wanted, never what it found.
fn expected(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error {
        Error::SerdeInvalidType { expected, .. }
        | Error::SerdeInvalidValue { expected, .. }
        | Error::SerdeInvalidLength { expected, .. } => format!("expected {}", in_yaml(expected)),
        Error::Unexpected { expected, .. } => format!("expected {}", in_yaml(expected)),
        Error::SerdeMissingField { field, .. } => format!("the field {field} is missing"),
        Error::SerdeUnknownVariant { expected, .. } => format!("expected one of {}", expected.join(", ")),
        Error::DuplicateMappingKey { .. } => "a key is there twice".to_owned(),
        Error::InvalidUtf8Input => "it is not text in UTF-8".to_owned(),
        _ => "it is not valid YAML".to_owned(),
    }
}

/// What Rust's types are called in YAML.
fn in_yaml(expected: &str) -> &str {
    match expected {
        _ if expected.contains("sequence") => "a list",
        _ if expected.contains("map") || expected.starts_with("struct ") => "a mapping",
        _ if expected.contains("bool") => "true or false",
        _ if expected.contains("string") => "text",
        _ => "something else",
    }
}

/// The names of all contexts.
pub(super) async fn contexts(kubeconfig: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let Ok(read) = read else {
        // This says what is wrong with the kubeconfig. Inside a cluster, none is needed.
        config(kubeconfig, None).await?;
        bail!("--all-contexts needs a kubeconfig, and none was found: give --kubeconfig");
    };
    Ok(read.contexts.into_iter().map(|context| context.name).collect())
}

/// What the kubeconfig says of one context.
async fn choose(kubeconfig: Kubeconfig, options: &KubeConfigOptions) -> anyhow::Result<Config> {
    let wanted = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    if let Some(wanted) = wanted
        && kubeconfig.contexts.iter().all(|context| context.name != *wanted)
    {
        let names: Vec<String> = kubeconfig
            .contexts
            .iter()
            .map(|context| context.name.clone())
            .collect();
        match names.as_slice() {
            [] => {
                bail!("invalid context {wanted:?}: the kubeconfig has no contexts; give another --kubeconfig")
            }
            names => bail!(
                "invalid context {wanted:?}: expected one of the kubeconfig's contexts ({})",
                names.join(", ")
            ),
        }
    }
    let named = wanted.and_then(|wanted| kubeconfig.contexts.iter().find(|context| context.name == *wanted));
    if let Some(context) = named.and_then(|context| context.context.as_ref()) {
        let (name, user) = (wanted.map(String::as_str).unwrap_or_default(), &context.user);
        let users = &kubeconfig.auth_infos;
        if let Some(user) = user
            .as_ref()
            .filter(|user| users.iter().all(|known| known.name != **user))
        {
            // Otherwise we would ask without credentials, and report that anonymous requests have no rights.
            bail!(
                "invalid context {name:?}: the kubeconfig has no user {user:?}, which it names; add the user, or name another"
            );
        }
        let cluster = kubeconfig
            .clusters
            .iter()
            .find(|known| known.name == context.cluster);
        let server = cluster.and_then(|cluster| cluster.cluster.as_ref()?.server.as_deref());
        let has_scheme = |server: &str| server.starts_with("https://") || server.starts_with("http://");
        if server.is_some_and(|server| !has_scheme(server)) {
            bail!(
                "invalid server of cluster {:?} in the kubeconfig: expected https://host:port",
                context.cluster
            );
        }
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, options)
        .await
        .map_err(|error| anyhow!("{}", exuvia_write::unusable_kubeconfig(&error)))?;
    // The client would panic.
    let user = serde_json::to_value(&config.auth_info).unwrap_or_default();
    let cannot_be_sent = |token: &str| http::HeaderValue::from_str(token).is_err();
    if user["token"].as_str().is_some_and(cannot_be_sent) {
        bail!(
            "the token of the kubeconfig's user holds characters that cannot be sent (a line break?): log in again"
        );
    }
    Ok(config)
}

impl Cluster {
    pub(super) async fn connect(args: &ClusterArgs) -> anyhow::Result<Self> {
        if args.show_values {
            show_values()?;
        }
        let config = config(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let writer = Writer::named("exuvia").user_agent(concat!("exuvia/", env!("CARGO_PKG_VERSION")));
        let client = writer.connect(config.clone())?;
        let client = if tracing::enabled!(target: REQUESTS, tracing::Level::DEBUG) {
            logged(client)
        } else {
            client
        };
        tracing::debug!(server = url_without_password(&config.cluster_url), "connecting");
        // The one place that can say which server was asked. The answer itself does not matter here.
        if let Err(error) = client.apiserver_version().await
            && let Some(why) = unusable(&error)
        {
            let context = args
                .context
                .as_deref()
                .map(|name| format!(" (context {name})"))
                .unwrap_or_default();
            bail!(
                "the API server at {}{context} {why}",
                url_without_password(&config.cluster_url)
            );
        }
        Ok(Self {
            config,
            client,
            writer,
        })
    }
}

/// The target of the log lines about requests.
pub(super) const REQUESTS: &str = "exuvia::requests";

/// A client that logs each request and its answer's code: no bodies, no headers, no credentials.
#[expect(
    clippy::disallowed_methods,
    reason = "it passes on what the client was asked to send"
)]
fn logged(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            let method = request.method().clone();
            let path = request.uri().path().to_owned();
            let started = std::time::Instant::now();
            let answer = client.send(request).await;
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            let ms = started.elapsed().as_millis();
            tracing::debug!(target: REQUESTS, %method, path, code, ms, "request");
            answer
        }
    });
    Client::new(service, namespace)
}

/// Lets messages quote what objects hold, if only a person at a terminal sees them.
fn show_values() -> anyhow::Result<()> {
    for (is_terminal, stream) in [
        (std::io::stdout().is_terminal(), "output"),
        (std::io::stderr().is_terminal(), "error"),
    ] {
        if !is_terminal {
            bail!(
                "--show-values prints what objects hold, so it works only at a terminal, but standard {stream} is a file or \
                 a pipe: leave the option out"
            );
        }
    }
    exuvia_storage::show_values();
    Ok(())
}

/// Why this is not a Kubernetes API; `None` if it is one, whatever its answer.
fn unusable(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(status) if is_foreign(status) => Some(format!(
            "does not answer as a Kubernetes API does: {}; check the server's URL in the kubeconfig",
            answer(status)
        )),
        kube::Error::Api(_) => None,
        kube::Error::SerdeError(_) => Some(
            "does not answer as a Kubernetes API does; check the server's URL in the kubeconfig".to_owned(),
        ),
        other => Some(match exuvia_write::unusable_credentials(other) {
            Some(why) => format!("cannot be asked: {why}"),
            None => format!(
                "cannot be reached: {}; check the kubeconfig and the network",
                root_cause(other)
            ),
        }),
    }
}

/// Whether the answer is text that a Kubernetes API does not write, such as a proxy's page. The client marks it.
fn is_foreign(status: &Status) -> bool {
    status.reason == "Failed to parse error data"
}

/// What the server said, with a fix where it names none. A page is not quoted: it may repeat what it was sent, even a
/// token.
pub(super) fn answer(status: &Status) -> String {
    let mut said = status.message.clone();
    if is_foreign(status) {
        let is_page = said.trim_start().starts_with('<');
        let what = if is_page { "a web page" } else { "text" };
        said = format!("HTTP {}, with {what} of {} bytes", status.code, said.len());
    }
    if status.code == 401 {
        said.push_str(
            ": the credentials of the kubeconfig's user are not accepted; log in again, or give another --kubeconfig or \
             --context",
        );
    }
    said
}

fn root_cause(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root_cause)
}
