//! What is published while a step runs: gauges every second, the status every few seconds.

use std::convert::Infallible;
use std::time::Duration;

use exuvia_write::ErrorClass;
use kube::ResourceExt;
use tokio::sync::oneshot;

use super::{Published, Publisher};

/// Gauges of a running step move this often.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// So many of those make a write of the status: people look at it, and each write costs the API server something.
const PUBLISH_EVERY: u32 = 5;

/// How far a running step is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Objects that it has not come to.
    pub remaining: u64,
    /// Objects per second.
    pub rate: f64,
}

/// A step that runs for a while, and can say how far it is.
pub trait Running<K>: Send + Sync {
    /// How far it is; `None`: it has nothing to count.
    fn extent(&self) -> Option<Extent>;

    /// Writes how far it is into the status; `false`: there is nothing to write.
    fn show(&self, object: &mut K) -> bool;

    /// Called every second, and once more when it is over.
    fn measure(&self) {}

    /// Whether it was cancelled. Otherwise the next update tells of the whole step.
    fn is_cancelled(&self) -> bool;
}

impl<P: Published> Publisher<P> {
    /// Awaits a step, and publishes how far it is. `object` is as it was last written afterwards.
    pub async fn accompany<T>(
        &self,
        object: &mut P::Object,
        running: &impl Running<P::Object>,
        doing: impl Future<Output = T>,
    ) -> T {
        let (under_way, over) = oneshot::channel::<Infallible>();
        let doing = async {
            let done = doing.await;
            drop(under_way);
            done
        };
        let rest = AtRest {
            publisher: self,
            subject: P::subject(object).to_owned(),
            running,
        };
        // The last write of the progress is awaited: it must not come after what is told next.
        let (done, ()) = tokio::join!(doing, self.show_while(object, running, over));
        drop(rest);
        done
    }

    async fn show_while(
        &self,
        object: &mut P::Object,
        running: &impl Running<P::Object>,
        mut over: oneshot::Receiver<Infallible>,
    ) {
        loop {
            for _ in 0..PUBLISH_EVERY {
                tokio::select! {
                    biased;
                    _ = &mut over => {
                        if running.is_cancelled() {
                            self.show(object, running).await;
                        }
                        return;
                    }
                    () = tokio::time::sleep(MEASURE_EVERY) => self.measure(P::subject(object), running),
                }
            }
            self.show(object, running).await;
        }
    }

    fn measure(&self, subject: &str, running: &impl Running<P::Object>) {
        running.measure();
        if let Some(extent) = running.extent() {
            self.gauges.running(subject, extent);
        }
    }

    /// Writes how far it is. If that cannot be told now it is told in a few seconds, or never: no harm.
    async fn show(&self, object: &mut P::Object, running: &impl Running<P::Object>) {
        if !running.show(&mut object.clone()) {
            return;
        }
        for _ in 0..2 {
            let writer = self.writer.once();
            let shown = writer.patch_status_locked(&self.api, object, |object| {
                running.show(object);
            });
            match shown.await {
                Ok(written) => {
                    *object = written.object;
                    return;
                }
                Err(error) if error.class() == ErrorClass::Conflict => {
                    let Ok(Some(fresh)) = self.api.get_opt(&object.name_any()).await else {
                        return;
                    };
                    *object = fresh;
                }
                Err(_) => return,
            }
        }
    }
}

/// Takes the gauges of a running step away when it ends or is dropped.
struct AtRest<'a, P: Published, R: Running<P::Object>> {
    publisher: &'a Publisher<P>,
    subject: String,
    running: &'a R,
}

impl<P: Published, R: Running<P::Object>> Drop for AtRest<'_, P, R> {
    fn drop(&mut self) {
        self.running.measure();
        self.publisher.gauges.at_rest(&self.subject);
    }
}
