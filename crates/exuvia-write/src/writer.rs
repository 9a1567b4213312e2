//! The writer: who writes, how long and how often it tries, who is asked before and told after.

use std::{fmt, num::NonZeroU32, sync::Arc, time::Duration};

use http::{HeaderValue, header::USER_AGENT};
use kube::{Client, Config};

use crate::{
    Error, ErrorClass, RetryPolicy, Target, Verb,
    pace::{Pace, SharedPace},
};

/// 40 s: the API server gives up on a write after 34 s, so that it is nearly always the server who says so.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(40);

/// 300 s without a byte on a connection: longer than kube's watches live (290 s), so that only a dead one is cut.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Everything that Exuvia writes, and all a controller needs to write, goes through a `Writer`.
///
/// It is cheap to clone and holds no client: each call takes the `Api` it writes through. A plain kube client will do;
/// one from [`connect`](Self::connect) is better, as kube's own retries and missing read timeout are out of the way.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use exuvia_write::Writer;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::{Api, Config};
///
/// let writer = Writer::named("widget-operator");
/// let client = writer.connect(Config::infer().await?)?;
/// let api: Api<ConfigMap> = Api::namespaced(client, "shop");
/// let map = api.get("prices").await?;
/// let written = writer
///     .patch(&api, &map, |map| {
///         map.data.get_or_insert_default().insert("apple".into(), "3".into());
///     })
///     .await?;
/// assert_eq!(written.object.data.unwrap()["apple"], "3");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Writer {
    pub(crate) settings: Arc<Settings>,
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) manager: String,
    pub(crate) timeout: Duration,
    pub(crate) retry: RetryPolicy,
    pub(crate) pace: Option<Arc<SharedPace>>,
    pub(crate) dry_run: bool,
    pub(crate) strict: bool,
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) observer: Option<Arc<Observer>>,
    user_agent: Option<String>,
}

pub(crate) type Gate = dyn Fn(&Attempt<'_>) -> Result<(), String> + Send + Sync;
type Observer = dyn Fn(&WriteReport<'_>) + Send + Sync;

/// A request that is about to be sent, as the gate sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// What is to be done.
    pub verb: Verb,
    /// To which object.
    pub target: &'a Target,
    /// Whether the server is only to pretend.
    pub dry_run: bool,
    /// 1 for the first try.
    pub number: u32,
}

/// A request that was answered, failed, or did not need to be sent, as the observer sees it.
#[derive(Debug)]
#[non_exhaustive]
pub struct WriteReport<'a> {
    /// What was to be done.
    pub verb: Verb,
    /// To which object. Good for a log; as a metric's label only `target.resource` is bounded.
    pub target: &'a Target,
    /// Whether the server was only to pretend.
    pub dry_run: bool,
    /// 1 for the first try, 0 if nothing was sent.
    pub attempt: u32,
    /// What came of it.
    pub outcome: Outcome,
    /// From sending to the end of the answer.
    pub duration: Duration,
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The server took it.
    Written,
    /// There was nothing to change, so nothing was sent.
    Unsent,
    /// The gate was closed, so nothing was sent.
    Gated,
    /// It failed.
    Failed(ErrorClass),
}

impl Outcome {
    /// A bounded name for metrics and logs: `written`, `unsent`, `gated`, or one of [`ErrorClass::NAMES`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Unsent => "unsent",
            Self::Gated => "gated",
            Self::Failed(class) => class.as_str(),
        }
    }
}

impl Writer {
    /// A writer with a field manager's name, under which the server notes who owns which field, and defaults for the rest.
    pub fn named(field_manager: impl Into<String>) -> Self {
        let settings = Settings {
            manager: field_manager.into(),
            timeout: REQUEST_TIMEOUT,
            retry: RetryPolicy::default(),
            pace: None,
            dry_run: false,
            strict: false,
            gate: None,
            observer: None,
            user_agent: None,
        };
        Self {
            settings: Arc::new(settings),
        }
    }

    /// How long one request may take until its outcome counts as unknown. 40 s by default.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.timeout = timeout)
    }

    /// How often and how long to try again.
    #[must_use]
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.with(|settings| settings.retry = policy)
    }

    /// At most so many writes per second, and `burst` of them (at least one) at once after a rest. Clones share the limit.
    #[must_use]
    pub fn rate_limit(self, per_second: u32, burst: u32) -> Self {
        let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let pace = Pace::with_burst(at_least_one(per_second), at_least_one(burst));
        self.with(|settings| settings.pace = Some(Arc::new(SharedPace::new(pace))))
    }

    /// Asks `gate` right before every single request, retries included; if it says no, nothing is sent.
    ///
    /// What remains is the moment between the gate's answer and the system call that sends: a process that is stopped right
    /// there sends when it goes on, however much later. No client can close that gap. So what passes a gate should do no
    /// harm when it is late: an empty patch ([`rewrite`](Self::rewrite)), or a write under a lock, which the server refuses
    /// if anybody wrote since ([`patch`](Self::patch), [`patch_status_with_retry`](Self::patch_status_with_retry)).
    ///
    /// The place for "no write without the current claim" of a leader election. It is asked for dry-runs as well, and can
    /// tell them apart. Keep it quick: it must not block.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
    /// use exuvia_write::Writer;
    ///
    /// let leading = Arc::new(AtomicBool::new(false));
    /// let claim = leading.clone();
    /// let writer = Writer::named("widget-operator").gate(move |_| {
    ///     if claim.load(Ordering::Acquire) { Ok(()) } else { Err("not the leader".to_owned()) }
    /// });
    /// # drop(writer);
    /// ```
    #[must_use]
    pub fn gate(self, gate: impl Fn(&Attempt<'_>) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.gate = Some(Arc::new(gate)))
    }

    /// Tells `observer` of every request, and of every write that needed none: the place for metrics.
    ///
    /// ```
    /// use exuvia_write::Writer;
    ///
    /// let writer = Writer::named("widget-operator").observe(|report| {
    ///     let labels = [report.verb.as_str(), &report.target.resource, report.outcome.as_str()];
    ///     println!("{labels:?} took {:?}", report.duration);
    /// });
    /// # drop(writer);
    /// ```
    #[must_use]
    pub fn observe(self, observer: impl Fn(&WriteReport<'_>) + Send + Sync + 'static) -> Self {
        self.with(|settings| settings.observer = Some(Arc::new(observer)))
    }

    /// As [`observe`](Self::observe), and an observer that this writer already has is told, too.
    #[must_use]
    pub fn also_observe(self, observer: impl Fn(&WriteReport<'_>) + Send + Sync + 'static) -> Self {
        self.with(|settings| {
            settings.observer = Some(match settings.observer.take() {
                None => Arc::new(observer),
                Some(first) => Arc::new(move |report: &WriteReport<'_>| {
                    first(report);
                    observer(report);
                }),
            });
        })
    }

    /// The `User-Agent` of clients from [`connect`](Self::connect). The field manager's name by default.
    #[must_use]
    pub fn user_agent(self, user_agent: impl Into<String>) -> Self {
        self.with(|settings| settings.user_agent = Some(user_agent.into()))
    }

    /// The same writer, for which the server only pretends: admission, validation and conversion run, nothing is stored.
    ///
    /// The answer is the object as it would be, with the resourceVersion it has, so that an
    /// [`Effect`](crate::Effect) tells nothing.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        self.clone().with(|settings| settings.dry_run = true)
    }

    /// The same writer, whose [`create`](Self::create) and [`rehearse_replace`](Self::rehearse_replace) are refused if the object
    /// has a field that the server's schema lacks. By default the server drops such a field and answers 201.
    #[must_use]
    pub fn strict(&self) -> Self {
        self.clone().with(|settings| settings.strict = true)
    }

    /// The same writer, which never tries again: every error, 409 included, comes back at once.
    #[must_use]
    pub fn once(&self) -> Self {
        self.clone().with(|settings| settings.retry = RetryPolicy::ONCE)
    }

    /// The same writer under another field manager's name: for writes whose fields it is not to own together with its others.
    #[must_use]
    pub fn acting_as(&self, field_manager: impl Into<String>) -> Self {
        self.clone()
            .with(|settings| settings.manager = field_manager.into())
    }

    /// The field manager's name.
    pub fn field_manager(&self) -> &str {
        &self.settings.manager
    }

    /// The policy in force, for callers that carry on by themselves.
    pub fn retry_policy(&self) -> &RetryPolicy {
        &self.settings.retry
    }

    /// A client for this writer, and for reading: user agent set, kube's own retries off, no read that waits for ever.
    ///
    /// kube's default would repeat a write up to 15 times and up to 1000 s apart beneath our feet, and wait for an answer
    /// without end (PITFALLS A20). A read timeout in `config` is kept.
    pub fn connect(&self, mut config: Config) -> Result<Client, Error> {
        let refused = |source| Error::Connect {
            source: Box::new(source),
        };
        let agent = self
            .settings
            .user_agent
            .as_deref()
            .unwrap_or(&self.settings.manager);
        let agent = HeaderValue::from_str(agent)
            .map_err(|invalid| refused(kube::Error::HttpError(http::Error::from(invalid))))?;
        config.headers.retain(|(name, _)| name != USER_AGENT);
        config.headers.push((USER_AGENT, agent));
        config.default_retry = false;
        if config.read_timeout.is_none() {
            config.read_timeout = Some(READ_TIMEOUT);
            // Otherwise the time that a pooled connection lay idle counts against the next answer.
            config.reset_reader_on_write = true;
        }
        Client::try_from(config).map_err(refused)
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("manager", &self.settings.manager)
            .field("dry_run", &self.settings.dry_run)
            .field("timeout", &self.settings.timeout)
            .field("retry", &self.settings.retry)
            .finish_non_exhaustive()
    }
}
