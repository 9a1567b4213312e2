//! The sweep as its callers see it.

use std::{num::NonZeroU32, time::Duration};

use exuvia_write::RetryPolicy;
use kube::{Client, api::ApiResource, core::PartialObjectMeta};
use tokio::sync::watch;

use crate::{
    Control, Error, Progress, Report, ResourceVersion, Verdict,
    cursor::{Cursor, Next},
    drive::drive,
    list::{Lister, Source},
    state::Settings,
};

/// As many as the API server's own clients ask for: a page of metadata is then a megabyte or so.
const PAGE_SIZE: u32 = 500;

/// Where the API server of the measurements had enough (CONTROL-PLANE.md). kube speaks HTTP/1.1, so that it is also the
/// number of connections.
const MAX_CONCURRENCY: usize = 32;

/// A walk through all objects of a resource.
///
/// Metadata comes in pages, and each object is given to a worker, many at a time; it is the worker that decides and
/// writes. While it does, the next page is fetched: two pages are in memory at most, whatever the number of objects, and
/// the objects that are in work.
///
/// How many that are is found out on the way: few at first, more as long as the server gets more done by it, half as many
/// when it says that it has enough.
///
/// ```no_run
/// use exuvia_sweep::{Pressure, ResourceVersion, Sweep, Verdict};
/// use exuvia_write::{Effect, ErrorClass, Writer};
/// use kube::{Api, Client, api::{ApiResource, DynamicObject}};
///
/// # async fn example(client: Client, resource: ApiResource, r0: Option<ResourceVersion>)
/// #     -> Result<(), exuvia_sweep::Error> {
/// let writer = Writer::named("widget-operator");
/// let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
/// let (writer, api) = (&writer, &api); // workers may borrow
/// let sweep = Sweep::of(client, &resource).max_concurrency(16);
/// let mut progress = sweep.progress();
/// let work = sweep.run(|object| async move {
///     if r0.is_some_and(|r0| r0.precedes(&object.metadata)) {
///         return Verdict::skipped();
///     }
///     match writer.rewrite(api, &object.metadata).await {
///         Ok(written) if written.effect == Effect::Changed => Verdict::rewritten(),
///         Ok(_) => Verdict::current(),
///         Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
///         Err(error) => {
///             let class = error.class();
///             Verdict::failed(class.as_str(), error.to_string()).under(Pressure::of(class))
///         }
///     }
/// });
/// let report = work.await?; // meanwhile others read `progress`
/// println!("{} rewritten, first list {:?}", report.tally.rewritten, report.first_list);
/// assert_eq!(progress.borrow_and_update().done(), report.tally.done());
/// # Ok(())
/// # }
/// ```
pub struct Sweep {
    client: Client,
    resource: ApiResource,
    namespace: Option<String>,
    settings: Settings,
    control: Control,
    progress: watch::Sender<Progress>,
}

impl Sweep {
    /// A sweep of a resource in all namespaces, or of one that has none. The version is that of the endpoint that is
    /// listed, which must be served.
    ///
    /// The client should be one from [`Writer::connect`](exuvia_write::Writer::connect): kube's own retries would hide
    /// from the sweep that the server has enough.
    pub fn of(client: Client, resource: &ApiResource) -> Self {
        let name = match resource.group.as_str() {
            "" => resource.plural.clone(),
            group => format!("{}.{group}", resource.plural),
        };
        Self {
            client,
            resource: resource.clone(),
            namespace: None,
            settings: Settings {
                resource: name,
                page_size: PAGE_SIZE,
                max_concurrency: MAX_CONCURRENCY,
                qps: None,
                // A sweep may take an hour, and one page that cannot be had is the end of it: half a minute of trying.
                retry: RetryPolicy {
                    attempts: 10,
                    base: Duration::from_millis(200),
                    ..RetryPolicy::default()
                },
            },
            control: Control::new(),
            progress: watch::Sender::default(),
        }
    }

    /// One namespace only.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// How many objects a page has, 500 unless told. Memory grows with it.
    #[must_use]
    pub fn page_size(mut self, objects: u32) -> Self {
        self.settings.page_size = objects.max(1); // 0 would ask for all of them at once
        self
    }

    /// How many objects are in work at once at most, 32 unless told.
    #[must_use]
    pub fn max_concurrency(mut self, objects: usize) -> Self {
        self.settings.max_concurrency = objects.max(1);
        self
    }

    /// How many objects are begun per second at most; no limit unless told. Those that are skipped do not count.
    #[must_use]
    pub fn qps(mut self, objects_per_second: NonZeroU32) -> Self {
        self.settings.qps = Some(objects_per_second);
        self
    }

    /// How often and how long to try again for a page: ten times, up to 5 s apart, unless told.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// The handle that cancels, pauses and slows down this sweep.
    #[must_use]
    pub fn controlled_by(mut self, control: &Control) -> Self {
        self.control = control.clone();
        self
    }

    /// How far it is, ten times per second at most. The channel closes when the sweep ends, with the last state in it.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// How many objects there are, and as of when, with one small request.
    pub async fn count(&self) -> Result<Count, Error> {
        let lister = self.lister();
        let mut cursor = Cursor::new(1, self.settings.retry.clone());
        loop {
            let failure = match lister.page(cursor.next().unwrap_or_default()).await {
                Ok(page) => {
                    cursor.on_page(page.list, page.items.map_or(0, |items| items.len()));
                    let lists = cursor.lists();
                    return Ok(Count {
                        objects: lists.total,
                        resource_version: lists.first,
                    });
                }
                Err(failure) => failure,
            };
            match cursor.on_error(failure.class, None) {
                Next::Retry(delay) => tokio::time::sleep(delay).await,
                _ => {
                    return Err(Error::List {
                        resource: self.settings.resource.clone(),
                        class: failure.class,
                        source: Box::new(failure.error),
                        report: Box::default(),
                    });
                }
            }
        }
    }

    /// Walks to the end and gives every object to `worker`, in no particular order. `Ok` only if every object was seen
    /// that was there all the time; whether all went well is in the [`Tally`](crate::Tally).
    ///
    /// The workers' futures are polled as part of this one: they run at the same time but must not block. One that panics
    /// has failed at its object, with class `panic`. Dropping the future ends all of it at once.
    pub async fn run<W, F>(self, worker: W) -> Result<Report, Error>
    where
        W: Fn(PartialObjectMeta) -> F,
        F: Future<Output = Verdict>,
    {
        let lister = self.lister();
        drive(&lister, &self.settings, &self.control, &self.progress, worker).await
    }

    fn lister(&self) -> Lister {
        Lister::new(self.client.clone(), &self.resource, self.namespace.as_deref())
    }
}

impl std::fmt::Debug for Sweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweep")
            .field("namespace", &self.namespace)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// How many objects a resource has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// How many; `None` if the server does not tell.
    pub objects: Option<u64>,
    /// The resourceVersion of the list that told it.
    pub resource_version: Option<ResourceVersion>,
}
