//! The sweep as its callers see it.

use std::num::NonZeroU32;

use exuvia_write::{RetryPolicy, resource_name};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::{
    Control, Error, Item, Pages, Progress, ResourceVersion, SweepReport, Verdict, state::Settings,
    walk_to_end::walk_to_end,
};

/// More connections do not get more done on two cores (bench/README.md). kube speaks HTTP/1.1 (PITFALLS A20), so it is also the
/// number of connections.
const DEFAULT_CONCURRENCY: usize = 32;

/// A walk through all objects of a resource.
///
/// Objects come in pages, and each object is given to a worker, many at a time; the worker decides and writes. While it
/// does, the next page is fetched: two pages are in memory at most, whatever the number of objects, and the objects that
/// are in work. Objects are metadata ([`run`](Self::run)) or whole ([`run_whole`](Self::run_whole)).
///
/// How many are in work at once is found out on the way: few at first, more as long as the server gets more done by it,
/// half as many when it says that it has enough.
///
/// ```no_run
/// use exuvia_sweep::{Pressure, ResourceVersion, Sweep, Verdict};
/// use exuvia_write::{Effect, ErrorClass, Redacted, Writer};
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
///         Ok(written) if written.effect == Effect::Changed => Verdict::changed(),
///         Ok(_) => Verdict::unchanged(),
///         Err(error) if error.class() == ErrorClass::Gone => Verdict::gone(),
///         Err(error) => {
///             let class = error.class();
///             Verdict::failed(class.as_str(), Redacted::from_error(&error)).under(Pressure::of(class))
///         }
///     }
/// });
/// let report = work.await?; // meanwhile others read `progress`
/// println!("{} changed, first list {:?}", report.tally.changed, report.first_list);
/// assert_eq!(progress.borrow_and_update().done(), report.tally.done());
/// # Ok(())
/// # }
/// ```
pub struct Sweep {
    client: Client,
    resource: ApiResource,
    namespace: Option<String>,
    page_size: Option<u32>,
    retry: Option<RetryPolicy>,
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
        Self {
            client,
            resource: resource.clone(),
            namespace: None,
            page_size: None,
            retry: None,
            settings: Settings {
                resource: resource_name(&resource.plural, &resource.group),
                max_concurrency: DEFAULT_CONCURRENCY,
                qps: None,
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

    /// How many objects a page has: 500 of metadata and 100 whole ones by default. Memory grows with it.
    #[must_use]
    pub fn page_size(mut self, objects: u32) -> Self {
        self.page_size = Some(objects);
        self
    }

    /// How many objects are in work at once at most, 32 by default.
    #[must_use]
    pub fn max_concurrency(mut self, objects: usize) -> Self {
        self.settings.max_concurrency = objects.max(1);
        self
    }

    /// How many objects are started per second at most; no limit by default. Skipped objects do not count.
    #[must_use]
    pub fn qps(mut self, objects_per_second: NonZeroU32) -> Self {
        self.settings.qps = Some(objects_per_second);
        self
    }

    /// How often and how long to try again for a page: ten times, up to 5 s apart, by default.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
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
    ///
    /// # Errors
    ///
    /// The resource cannot be listed.
    pub async fn count(&self) -> Result<Count, Error> {
        let mut pages = self.pages().metadata().page_size(1);
        match pages.next().await {
            Ok(_) => {
                let lists = pages.0.lists();
                Ok(Count {
                    objects: lists.total,
                    resource_version: lists.first,
                })
            }
            Err(failure) => Err(Error::List {
                resource: failure.resource,
                class: failure.class,
                source: failure.source,
                report: Box::default(),
            }),
        }
    }

    /// Walks to the end and gives every object's metadata to `worker`, in no particular order. `Ok` only if every object was
    /// seen that was there all the time; whether all went well is in the [`Tally`](crate::Tally).
    ///
    /// The workers' futures are polled as part of this one: they run at the same time but must not block. One that panics
    /// has failed at its object, with class `panic`. Dropping the future ends all of it at once.
    ///
    /// # Errors
    ///
    /// The sweep did not get to the end.
    pub async fn run<W, F>(self, worker: W) -> Result<SweepReport, Error>
    where
        W: Fn(PartialObjectMeta) -> F,
        F: Future<Output = Verdict>,
    {
        self.run_over(self.pages().metadata(), Item::metadata, worker)
            .await
    }

    /// As [`run`](Self::run), with whole objects: for a worker that copies them. An object that does not fit `K` has failed,
    /// with class `unreadable`, and is named; the others are seen.
    ///
    /// ```no_run
    /// use exuvia_sweep::{Sweep, Verdict};
    /// use kube::{Client, api::{ApiResource, DynamicObject}};
    ///
    /// # async fn example(client: Client, resource: ApiResource) -> Result<(), exuvia_sweep::Error> {
    /// let sweep = Sweep::of(client, &resource).page_size(20); // 40 objects of up to 1 MiB each in memory
    /// let copied = sweep.run_whole(async |object: DynamicObject| {
    ///     println!("{}", object.data["spec"]);
    ///     Verdict::changed()
    /// });
    /// println!("{} copied", copied.await?.tally.changed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The sweep did not get to the end.
    pub async fn run_whole<K, W, F>(self, worker: W) -> Result<SweepReport, Error>
    where
        K: Resource + DeserializeOwned,
        W: Fn(K) -> F,
        F: Future<Output = Verdict>,
    {
        self.run_over(self.pages(), Item::read::<K>, worker).await
    }

    async fn run_over<T, W, F>(
        &self,
        pages: Pages,
        read: fn(&Item) -> Result<T, serde_json::Error>,
        worker: W,
    ) -> Result<SweepReport, Error>
    where
        T: Resource,
        W: Fn(T) -> F,
        F: Future<Output = Verdict>,
    {
        let pages = match self.page_size {
            Some(objects) => pages.page_size(objects),
            None => pages,
        };
        walk_to_end(
            pages.0,
            read,
            &self.settings,
            &self.control,
            &self.progress,
            worker,
        )
        .await
    }

    fn pages(&self) -> Pages {
        let client = self.client.clone();
        let api: Api<DynamicObject> = match &self.namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        };
        let pages = Pages::of(&api);
        match &self.retry {
            Some(policy) => pages.retry(policy.clone()),
            None => pages,
        }
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
